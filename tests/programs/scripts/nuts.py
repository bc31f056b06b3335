"""blackjax: NUTS with window adaptation samples a regression's posterior, in two chains on different devices."""

import json

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(60, 2)).astype(np.float32)
Y = (X @ np.array([1.5, -0.7]) + 0.3 + 0.5 * RANDOM.normal(size=60)).astype(np.float32)


def log_density(p):
    residuals = Y - X @ p["slope"] - p["offset"]
    scale = jnp.exp(p["log_scale"])
    likelihood = -0.5 * jnp.sum((residuals / scale) ** 2) - len(Y) * p["log_scale"]
    return likelihood - 0.5 * jnp.sum(p["slope"] ** 2) - 0.5 * p["offset"] ** 2 - 0.5 * p["log_scale"] ** 2


def chain(key):
    warm_key, sample_key = jax.random.split(key)
    start = {"slope": jnp.zeros(2), "offset": jnp.zeros(()), "log_scale": jnp.zeros(())}
    warmup = blackjax.window_adaptation(blackjax.nuts, log_density)
    (state, parameters), _ = warmup.run(warm_key, start, num_steps=200)
    kernel = blackjax.nuts(log_density, **parameters).step

    def one(state, key):
        state, info = kernel(key, state)
        return state, (state.position, info.acceptance_rate)

    _, (positions, acceptance) = jax.lax.scan(one, state, jax.random.split(sample_key, 400))
    return positions, acceptance


program = jax.jit(chain)
ends = [program(jax.device_put(jax.random.key(seed), jax.devices()[seed])) for seed in (0, 3)]
result = {}
for seed, (positions, acceptance) in zip((0, 3), ends, strict=True):
    means = jax.tree.map(lambda a: np.asarray(a).mean(0).tolist(), positions)
    deviations = jax.tree.map(lambda a: np.asarray(a).std(0).tolist(), positions)
    assert np.asarray(acceptance).mean() > 0.6
    np.testing.assert_allclose(means["slope"], [1.5, -0.7], atol=0.3)
    assert max(deviations["slope"]) < 0.2
    result[str(seed)] = means
print(json.dumps(result))

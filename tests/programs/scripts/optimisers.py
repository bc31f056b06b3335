"""jax.scipy.optimize's BFGS and optax's L-BFGS find the minima that are known."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.optimize import minimize
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def valley(x):
    return jnp.sum(100.0 * jnp.diff(x) ** 2 + (1 - x[:-1]) ** 2 + 0.1 * (1 - x[:-1]) ** 4)


found = minimize(valley, jnp.zeros(3), method="BFGS")
np.testing.assert_allclose(found.x, 1, atol=1e-2)

# Logistic regression, its rows over all devices.
random = np.random.default_rng(2)
x = random.normal(size=(64, 5)).astype(np.float32)
y = (x @ np.arange(-2, 3) + 0.3 * random.normal(size=64) > 0).astype(np.float32)
rows = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
x, y = jax.device_put(x, rows), jax.device_put(y, rows)


def loss(w):
    return optax.sigmoid_binary_cross_entropy(x @ w, y).mean() + 0.01 * jnp.sum(w**2)


solver = optax.lbfgs()
value_and_gradient = optax.value_and_grad_from_state(loss)


@jax.jit
def step(w, state):
    value, gradient = value_and_gradient(w, state=state)
    updates, state = solver.update(gradient, state, w, value=value, grad=gradient, value_fn=loss)
    return optax.apply_updates(w, updates), state, value


w = jnp.zeros(5)
state = solver.init(w)
values = []
for _ in range(15):
    w, state, value = step(w, state)
    values.append(float(value))
assert float(jnp.linalg.norm(jax.grad(loss)(w))) < 1e-3
print(json.dumps({"valley": float(found.fun) < 1e-3, "weights": np.asarray(w).tolist(), "loss": values[-1]}))

"""A pipeline of two stages: the first half of a network on slice 0, the second on slice 1, microbatches in between.

All launches are dispatched without waiting; slice 0 takes the next microbatch while slice 1 works on the one before.
Gradients flow back the same way. Asserts that the loss and the gradients are those of the undivided network.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from slices import describe, two_slices

WIDTH, DEPTH, MICROBATCHES, ROWS, STEPS, RATE = 32, 4, 8, 16, 15, 0.3


def stage(weights: jax.Array, x: jax.Array) -> jax.Array:
    """weights: (DEPTH, WIDTH, WIDTH); x: (ROWS, WIDTH)."""
    return jax.lax.scan(lambda h, w: (h + jnp.tanh(h @ w), None), x, weights)[0]


def loss_of_output(y: jax.Array, target: jax.Array) -> jax.Array:
    return jnp.mean((y - target) ** 2)


@jax.jit
def last_forward_backward(weights, x, target):
    """Stage 2 with the loss: loss, gradient of its weights, gradient of its input."""
    loss, (dw, dx) = jax.value_and_grad(lambda w, x: loss_of_output(stage(w, x), target), argnums=(0, 1))(weights, x)
    return loss, dw, dx


@jax.jit
def first_backward(weights, x, dy):
    return jax.vjp(lambda w: stage(w, x), weights)[1](dy)[0]


first_forward = jax.jit(stage)
mean = jax.jit(lambda parts: jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *parts))
descend = jax.jit(lambda weights, gradient: weights - RATE * gradient)


def main() -> None:
    print(f"two pipeline stages on {describe()}", flush=True)
    meshes = [Mesh(np.array(devices), ("device",)) for devices in two_slices()]
    whole = [NamedSharding(mesh, P()) for mesh in meshes]
    rows = [NamedSharding(mesh, P("device")) for mesh in meshes]

    random = np.random.default_rng(0)
    draw = lambda *shape: random.normal(size=shape).astype(np.float32)  # noqa: E731
    initial = [draw(DEPTH, WIDTH, WIDTH) * 0.1 for _ in range(2)]
    inputs = draw(MICROBATCHES, ROWS, WIDTH)
    targets = np.tanh(inputs @ draw(WIDTH, WIDTH) * 0.3)

    w1, w2 = (jax.device_put(w, s) for w, s in zip(initial, whole, strict=True))
    xs = [jax.device_put(x, rows[0]) for x in inputs]
    ts = [jax.device_put(t, rows[1]) for t in targets]

    def step(w1, w2):
        hidden = [jax.device_put(first_forward(w1, x), rows[1]) for x in xs]  # slice 0 -> slice 1
        results = [last_forward_backward(w2, h, t) for h, t in zip(hidden, ts, strict=True)]
        back = [jax.device_put(dx, rows[0]) for _, _, dx in results]  # slice 1 -> slice 0
        g1 = mean([first_backward(w1, x, dy) for x, dy in zip(xs, back, strict=True)])
        loss, g2 = mean([(loss, dw) for loss, dw, _ in results])
        return loss, g1, g2

    def undivided(weights):
        y = stage(weights[1], stage(weights[0], inputs.reshape(-1, WIDTH)))
        return loss_of_output(y, targets.reshape(-1, WIDTH))

    loss, g1, g2 = step(w1, w2)
    expected_loss, expected = jax.value_and_grad(undivided)(initial)
    for got, wanted in zip((loss, g1, g2), (expected_loss, *expected), strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=2e-4, atol=1e-6)
    print("loss and gradients are those of the undivided network")

    losses = []
    for _ in range(STEPS):
        loss, g1, g2 = step(w1, w2)
        w1, w2 = descend(w1, g1), descend(w2, g2)
        losses.append(loss)
    first, last = float(losses[0]), float(losses[-1])
    print(f"{STEPS} steps of {MICROBATCHES} microbatches: loss {first:.4f} -> {last:.4f}")
    assert last < 0.9 * first, (first, last)


if __name__ == "__main__":
    main()

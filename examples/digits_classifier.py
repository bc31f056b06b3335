"""Classifies scikit-learn's handwritten digits with a small network, trained data-parallel over all devices.

Prints the accuracy on held-out images and asserts that it is over 95 %.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from slices import describe, slice_mesh

EPOCHS, BATCH, HIDDEN = 30, 128, 128


def init(key: jax.Array) -> dict:
    first, second = jax.random.split(key)
    return {
        "w1": jax.random.normal(first, (64, HIDDEN)) * 64**-0.5,
        "b1": jnp.zeros(HIDDEN),
        "w2": jax.random.normal(second, (HIDDEN, 10)) * HIDDEN**-0.5,
        "b2": jnp.zeros(10),
    }


def logits_of(p: dict, images: jax.Array) -> jax.Array:
    """images: (batch, 64), 0 to 1 -> (batch, 10)."""
    return jax.nn.relu(images @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]


def main() -> None:
    print(f"classifying digits on {describe()}", flush=True)
    digits = load_digits()
    images = (digits.data / 16).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(
        images, digits.target.astype(np.int32), test_size=0.25, random_state=0, stratify=digits.target
    )

    mesh = slice_mesh()
    replicated, split = NamedSharding(mesh, P()), NamedSharding(mesh, P(("slice", "device")))
    optimizer = optax.adam(2e-3)

    def loss_of(p, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(logits_of(p, x), y).mean()

    @jax.jit
    def step(p, state, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(p, x, y)
        updates, state = optimizer.update(gradients, state, p)
        return optax.apply_updates(p, updates), state, loss

    parameters = jax.jit(init, out_shardings=replicated)(jax.random.key(0))
    state = jax.jit(optimizer.init, out_shardings=replicated)(parameters)
    random = np.random.default_rng(0)
    for epoch in range(EPOCHS):
        order = random.permutation(len(train_x))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            x, y = jax.device_put((train_x[chosen], train_y[chosen]), split)
            parameters, state, loss = step(parameters, state, x, y)
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1:2d}  loss {float(loss):.4f}", flush=True)

    predicted = jax.jit(lambda p, x: logits_of(p, x).argmax(axis=-1))(parameters, jax.device_put(test_x, replicated))
    accuracy = float(np.mean(np.asarray(predicted) == test_y))
    print(f"held-out accuracy {accuracy:.1%} on {len(test_y)} images")
    assert accuracy > 0.95, accuracy


if __name__ == "__main__":
    main()

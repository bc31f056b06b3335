"""Streams batches of work through both slices at once: each slice has its own copy of the model and of the program.

Dispatch doesn't wait, so while one slice computes, the other gets its next batch. Asserts that every answer is the one
that numpy computes, in order.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from slices import describe, devices_by_slice

BATCHES, ROWS, FEATURES, LAYERS, IN_FLIGHT = 40, 64, 64, 8, 4


def forward(weights: jax.Array, x: jax.Array) -> jax.Array:
    """weights: (LAYERS, FEATURES, FEATURES); x: (ROWS, FEATURES), split by rows over the slice's devices."""
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)[0]


def expected(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    for w in weights:
        x = np.tanh(x @ w)
    return x


def main() -> None:
    print(f"inference on {describe()}", flush=True)
    random = np.random.default_rng(0)
    weights = random.normal(size=(LAYERS, FEATURES, FEATURES), scale=FEATURES**-0.5).astype(np.float32)
    batches = random.normal(size=(BATCHES, ROWS, FEATURES)).astype(np.float32)

    servers = []
    for devices in devices_by_slice():
        mesh = Mesh(np.array(devices), ("device",))
        rows = NamedSharding(mesh, P("device"))
        model = jax.device_put(weights, NamedSharding(mesh, P()))
        servers.append((jax.jit(forward, out_shardings=rows), model, rows))

    def submit(number: int) -> jax.Array:
        program, model, rows = servers[number % len(servers)]
        return program(model, jax.device_put(batches[number], rows))

    jax.block_until_ready([submit(number) for number in range(len(servers))])  # compiles

    started = time.perf_counter()
    answers, in_flight = [], []
    for number in range(BATCHES):
        in_flight.append(submit(number))
        if len(in_flight) == IN_FLIGHT * len(servers):
            answers.append(np.asarray(in_flight.pop(0)))
    answers += [np.asarray(result) for result in in_flight]
    took = time.perf_counter() - started

    assert len(answers) == BATCHES
    for batch, answer in zip(batches, answers, strict=True):
        np.testing.assert_allclose(answer, expected(weights, batch), rtol=1e-4, atol=1e-5)
    rate = BATCHES * ROWS / took
    print(f"{BATCHES} batches of {ROWS} rows through {len(servers)} slices at once: {rate:,.0f} rows/s")
    print("every answer is numpy's, in order")


if __name__ == "__main__":
    main()

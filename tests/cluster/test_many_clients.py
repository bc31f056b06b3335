"""Sixteen clients at once, each checking what it computes; what one of them does to itself costs the others nothing."""

import signal
import time
from pathlib import Path

import pytest

WORK = Path(__file__).parent / "mixed_work_of_a_client.py"
SECONDS = 240


def start(cluster, clients, rounds, kinds):
    """Each with kinds of its own, in turn."""
    return [cluster.start_client(WORK, str(seed), str(rounds), kinds[seed % len(kinds)]) for seed in range(clients)]


def finish(cluster, clients):
    for client in clients:
        assert "right" in cluster.finish(client, SECONDS).stdout


@pytest.mark.parametrize(
    "kinds",
    [["axpq0123", "ryx", "a0x3", "xy"], ["0", "1", "2", "3", "p", "q"]],
    ids=["the same devices", "devices of their own"],
)
def test_sixteen_at_once(cluster, kinds):
    finish(cluster, start(cluster, 16, 40, kinds))
    cluster.wait_for_nothing_held()


LEAK = """
    import jax, jax.numpy as jnp, numpy as np, sys
    held = [jax.device_put(np.full(1 << 18, i, np.float32), jax.devices()[i % 4]) for i in range(64)]
    print("started", flush=True)
    step = jax.jit(lambda a: a + 1)
    while True:
        held.append(step(held[-1]))
        if len(held) % 50 == 0:
            held[-1].block_until_ready()
        if len(held) > 400:
            del held[100:]
"""


def test_one_that_is_killed_one_that_is_frozen_and_one_that_leaks(cluster):
    """The others' numbers stay right meanwhile, and nothing of the three is left."""
    others = start(cluster, 4, 150, ["axp0", "ry", "a1", "xq2"])
    bad = [cluster.start_client(WORK, str(seed), "100000", "axpq0123") for seed in (100, 101)]
    bad.append(cluster.start_client(LEAK))
    for client in others + bad:
        assert client.stdout.readline() == "started\n", cluster.finish(client, check=False)
    time.sleep(2)
    killed, frozen, leaking = bad
    killed.kill()
    killed.communicate()
    frozen.send_signal(signal.SIGSTOP)
    finish(cluster, others)
    leaking.kill()
    leaking.communicate()
    finish(cluster, start(cluster, 2, 30, ["axpq0123"]))
    frozen.kill()
    frozen.communicate()
    cluster.wait_for_nothing_held()

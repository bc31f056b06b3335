"""Arrays in host memory lie in the worker's arena: they survive their engine, and go with their session."""

import os
import signal
from pathlib import Path

SURVIVES = """
    import sys, jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    def say(words):
        print(words, flush=True)
    mesh = Mesh(np.array(jax.devices()), ("x",))
    host = NamedSharding(mesh, P("x"), memory_kind="pinned_host")
    device = host.with_memory_kind("device")
    expected = np.arange(1 << 16, dtype=np.float32)
    put = jax.device_put(expected, host)
    on_device = jax.device_put(expected, device)
    small = jax.device_put(np.float32(3.5), jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="unpinned_host"))
    copied = jax.device_put(on_device, host)
    made = jax.jit(lambda a: a * 2, out_shardings=host)(on_device)
    jax.block_until_ready([put, on_device, small, copied, made])
    say("ready")
    sys.stdin.readline()
    np.testing.assert_array_equal(put, expected)
    np.testing.assert_array_equal(copied, expected)
    np.testing.assert_array_equal(made, expected * 2)
    assert float(small) == 3.5
    try:
        np.asarray(on_device)
        say("on_device is still there")
    except jax.errors.JaxRuntimeError as error:
        assert "DATA_LOSS" in str(error), error
    # And as arguments: copied to the devices, computed with, donated, and copied back.
    back = jax.device_put(put, device)
    step = jax.jit(lambda a, b: a - a.mean() + b, donate_argnums=0)
    got = step(back, jax.device_put(made, device))
    np.testing.assert_allclose(got, expected - expected.mean() + expected * 2, rtol=1e-4)
    again = jax.device_put(got, host)
    np.testing.assert_array_equal(again, got)
    np.testing.assert_array_equal(put, expected)
    say("right")
"""

HOLDS = """
    import sys, jax, numpy as np
    from jax.sharding import SingleDeviceSharding
    held = [jax.device_put(np.ones(1 << 20, np.uint8), SingleDeviceSharding(d, memory_kind="pinned_host"))
            for d in jax.devices() for _ in range(4)]
    jax.block_until_ready(held)
    print("holds", flush=True)
    sys.stdin.readline()
"""

QUOTA = """
    import jax, numpy as np
    from jax.sharding import SingleDeviceSharding
    host = SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    put = lambda: jax.block_until_ready(jax.device_put(np.ones(3 << 20, np.uint8), host))
    one = put()
    try:
        two = put()
        print("there was room")
    except jax.errors.JaxRuntimeError as error:
        print(str(error).splitlines()[0])
    try:
        jax.block_until_ready(jax.jit(lambda: jax.numpy.zeros(3 << 20, "uint8"), out_shardings=host)())
        print("there was room")
    except jax.errors.JaxRuntimeError as error:
        print(str(error).splitlines()[0])
    one.delete()
    np.testing.assert_array_equal(put(), np.ones(3 << 20))
    print("right")
"""


def arena_blocks(pids: list[int]) -> int:
    """How many blocks these workers hold."""

    def name(link: Path) -> str:
        try:
            return os.readlink(link)
        except FileNotFoundError:
            return ""

    return sum("parkway-arena" in name(link) for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir())


def worker_pids(cluster) -> list[int]:
    return [pid for role, pid in cluster.pids().items() if role.startswith("worker")]


def test_arrays_in_host_memory_survive_kill_9_of_their_engines(own_cluster):
    client = own_cluster.start_client(SURVIVES)
    assert client.stdout.readline() == "ready\n", client.communicate()
    engines = own_cluster.engine_pids()
    assert arena_blocks(worker_pids(own_cluster)) == 3 * 4 + 1
    for pid in engines:
        os.kill(pid, signal.SIGKILL)
    own_cluster.wait_until_whole(but_not=engines)
    client.stdin.write("\n")
    client.stdin.flush()
    assert own_cluster.finish(client).stdout == "right\n"
    own_cluster.wait(lambda: arena_blocks(worker_pids(own_cluster)) == 0)


def test_a_sessions_end_frees_its_host_memory(own_cluster):
    client = own_cluster.start_client(HOLDS)
    assert client.stdout.readline() == "holds\n", client.communicate()
    assert arena_blocks(worker_pids(own_cluster)) == 16
    client.kill()
    client.communicate()
    own_cluster.wait(lambda: arena_blocks(worker_pids(own_cluster)) == 0)


def test_a_lost_proxy_frees_host_memory(own_cluster):
    client = own_cluster.start_client(HOLDS)
    assert client.stdout.readline() == "holds\n", client.communicate()
    os.kill(own_cluster.pids()["proxy"], signal.SIGKILL)
    client.kill()
    client.communicate()
    own_cluster.wait(lambda: arena_blocks(worker_pids(own_cluster)) == 0)
    own_cluster.wait_until_whole()


def test_a_session_has_a_quota(by_hand):
    by_hand.manager()
    by_hand.worker(0, f"--arena_bytes={4 << 20}")
    by_hand.worker(1, f"--arena_bytes={4 << 20}")
    by_hand.proxy()
    said = by_hand.finish(by_hand.start_client(QUOTA)).splitlines()
    assert "RESOURCE_EXHAUSTED" in said[0] and f"has {3 << 20} bytes" in said[0] and f"{4 << 20} bytes" in said[0]
    assert "RESOURCE_EXHAUSTED" in said[1]
    assert said[2] == "right"

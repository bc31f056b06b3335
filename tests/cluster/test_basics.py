"""What any JAX program meets first: devices, arrays, programs over all slices, several clients."""

import signal
import time

import pytest

DEVICES = """
    import json, jax
    d = jax.devices()
    print(json.dumps({
        "repr": [repr(x) for x in d], "str": [str(x) for x in d], "slices": [x.slice_index for x in d],
        "tasks": [x.task_id for x in d], "coords": [list(x.coords) for x in d], "core": [x.core_on_chip for x in d],
        "platform": d[0].platform, "runtime": d[0].client.runtime_type, "local": jax.local_devices() == d,
        "process": jax.process_index(), "count": jax.process_count(),
    }))
"""

SUM = """
    import sys, jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    n = int(sys.argv[1])
    mesh = Mesh(np.array(jax.devices()), ("x",))
    a = jax.device_put(np.arange(8.0 * n), NamedSharding(mesh, P("x")))
    for i in range(20):
        a = jax.jit(lambda a: a - a.mean(), out_shardings=a.sharding)(a)
    expected = np.arange(8.0 * n) - np.arange(8.0 * n).mean()
    np.testing.assert_allclose(np.asarray(a), expected, rtol=1e-5)
    print("right")
"""

HOLD = """
    import sys, jax, numpy as np
    held = [jax.device_put(np.ones(1 << 20, np.float32), d) for d in jax.devices()]
    jax.block_until_ready(held)
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("tcp", [False, True])
def test_devices(cluster, tcp):
    seen = cluster.run(DEVICES, tcp=tcp).json()
    assert seen["repr"] == [f"CpuDevice(id={i})" for i in range(4)]
    assert seen["str"] == [f"cpu:{i}" for i in range(4)]
    assert seen["slices"] == [0, 0, 1, 1]
    assert len(seen["tasks"]) == len(seen["coords"]) == len(seen["core"]) == 4
    assert seen["platform"] == "cpu" and seen["runtime"] == "proxy/pathways"
    assert seen["local"] and (seen["process"], seen["count"]) == (0, 1)


def test_a_program_over_all_slices(cluster):
    assert cluster.run(SUM, "4").stdout == "right\n"


def test_clients_at_once(cluster):
    clients = [cluster.start_client(SUM, str(4 + i)) for i in range(4)]
    assert [cluster.finish(client).stdout for client in clients] == ["right\n"] * 4


def test_two_hosts_in_a_slice(new_cluster):
    own = new_cluster(slices=2, hosts_per_slice=2, devices_per_host=1)
    assert own.run(DEVICES).json()["slices"] == [0, 0, 1, 1]
    assert own.run(SUM, "4").stdout == "right\n"


def test_what_a_killed_client_held_is_freed(cluster):
    client = cluster.start_client(HOLD)
    assert client.stdout.readline() == "held\n"
    deadline = time.monotonic() + 20
    while cluster.status()["bytes_held"] < 16 << 20:
        assert time.monotonic() < deadline, cluster.status()
        time.sleep(0.1)
    client.send_signal(signal.SIGKILL)
    client.communicate()
    while (status := cluster.status())["bytes_held"] > 0 or status["sessions"] > 0:
        assert time.monotonic() < deadline, status
        time.sleep(0.1)
    assert cluster.run(SUM, "4").stdout == "right\n"

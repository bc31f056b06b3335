"""What a client keeps when the engine or the worker under its arrays and executables goes."""

import os
import signal

KEEP = """
    import sys, time, jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    D = jax.devices()
    rows = NamedSharding(Mesh(np.array(D), ("x",)), P("x"))
    host = np.arange(16, dtype=np.float32)
    spread, single, other = jax.device_put(host, rows), jax.device_put(host, D[3]), jax.device_put(host, D[0])
    everywhere, there = jax.jit(lambda a: a - a.mean()), jax.jit(lambda a: a * 3)
    jax.block_until_ready([everywhere(spread), there(single), there(other)])
    print("held", flush=True)
    sys.stdin.readline()
    np.testing.assert_array_equal(np.asarray(there(other)), host * 3)  # the other slice's array and executable
    for lost in (lambda: everywhere(spread), lambda: there(single), lambda: np.asarray(single)):
        try:
            jax.block_until_ready(lost())
            print("an array that was lost was used")
        except jax.errors.JaxRuntimeError as error:
            assert "DATA_LOSS" in str(error) and "slice 1, host 0" in str(error), error
    shards = [shard.data for shard in spread.addressable_shards]
    for i in (0, 1):  # what lay on the slice that is left
        np.testing.assert_array_equal(np.asarray(shards[i]), host[4 * i : 4 * i + 4])
    deadline = time.monotonic() + 60
    while True:  # the same executables, on new arrays, once the slice is back
        try:
            np.testing.assert_allclose(np.asarray(everywhere(jax.device_put(host, rows))), host - 7.5)
            np.testing.assert_array_equal(np.asarray(there(jax.device_put(host, D[3]))), host * 3)
            break
        except jax.errors.JaxRuntimeError as error:
            assert "DATA_LOSS" in str(error) and time.monotonic() < deadline, error
            time.sleep(0.2)
    print("right")
"""


def lose(cluster, kill):
    client = cluster.start_client(KEEP)
    assert client.stdout.readline() == "held\n"
    before = cluster.engine_pids()
    kill()
    cluster.wait(lambda: cluster.engine_pids()[1] != before[1])
    client.stdin.write("\n")
    client.stdin.flush()
    assert cluster.finish(client).stdout == "right\n"
    cluster.wait_until_whole()


def test_executables_outlive_their_engine(own_cluster):
    lose(own_cluster, lambda: os.kill(own_cluster.engine_pids()[1], signal.SIGKILL))


def test_executables_outlive_their_worker(own_cluster):
    lose(own_cluster, lambda: os.kill(own_cluster.status()["slices"][1]["hosts"][0]["pid"], signal.SIGKILL))


STALE = """
    import sys, time, jax, jax.extend, numpy as np
    D = jax.devices()
    old = [jax.device_put(np.full(8, i, np.float32), D[1]) for i in range(8)]
    program = jax.jit(lambda a: a + 1)
    compiled = program.lower(jax.ShapeDtypeStruct((8,), np.float32, sharding=old[0].sharding)).compile()
    jax.block_until_ready([compiled(a) for a in old])
    print("held", flush=True)
    sys.stdin.readline()
    jax.clear_caches()
    jax.extend.backend.clear_backends()
    # The same handles mean other arrays now, of another type, shape or device.
    new = [jax.device_put(np.full(5, i, np.int32), jax.devices()[i % 4]) for i in range(20)]
    jax.block_until_ready(new)
    for use in (compiled, program, np.asarray):
        for a in old:
            try:
                jax.block_until_ready(use(a))
                print("used", use)
            except Exception as error:
                assert not any(word in str(error) for word in ("DATA_LOSS", "INTERNAL")), error
    for i, array in enumerate(new):
        np.testing.assert_array_equal(np.asarray(array), np.full(5, i))
    print("right")
"""


def test_handles_of_an_earlier_connection_reach_no_other_data(own_cluster):
    client = own_cluster.start_client(STALE)
    assert client.stdout.readline() == "held\n"
    proxy = own_cluster.pids()["proxy"]
    os.kill(proxy, signal.SIGKILL)
    own_cluster.wait(lambda: own_cluster.pids()["proxy"] not in (0, proxy))
    own_cluster.wait_until_whole()
    client.stdin.write("\n")
    client.stdin.flush()
    assert own_cluster.finish(client).stdout == "right\n"

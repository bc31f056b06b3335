"""Device memory: what has no room is an error that says who holds it, and each session's bytes are told."""

FULL = """
    import jax, jax.numpy as jnp, numpy as np
    one, mib = jax.devices()[0], 1 << 18
    kept = [jax.device_put(np.ones(16 * mib, np.float32), one) for _ in range(2)]
    double = jax.jit(lambda a: jnp.concatenate([a, a]))
    made = double(kept[0][: 4 * mib])
    jax.block_until_ready([kept, made])

    def refused(work):
        try:
            jax.block_until_ready(work())
        except Exception as error:
            words = str(error)
            assert "RESOURCE_EXHAUSTED: out of memory" in words and "device 0 (slice 0, host 0)" in words, words
            assert "2 arrays of device_put" in words and "Delete arrays" in words, words
            return words
        raise AssertionError("there was room")

    assert "program 'jit__lambda" in refused(lambda: double(kept[0])), "a launch"
    words = refused(lambda: jax.device_put(np.ones(32 * mib, np.float32), one))
    assert "device_put of f32[8388608]" in words and "array of program 'jit" in words, words
    np.testing.assert_array_equal(np.asarray(made), 1)
    kept.pop().delete()
    assert double(kept[0][:mib]).shape == (2 * mib,)
    del made
    again = jax.device_put(np.full(24 * mib, 3, np.float32), one)
    np.testing.assert_array_equal(np.asarray(again), 3)
    print("right")
"""


def test_out_of_device_memory(by_hand):
    """A put and a launch that have no room fail alone; when something was deleted the next ones work."""
    by_hand.manager()
    for index in range(2):
        by_hand.worker(index, f"--memory_bytes={64 << 20}")
    by_hand.proxy()
    assert by_hand.finish(by_hand.start_client(FULL)) == "right\n"


HOLD = """
    import jax, numpy as np, sys
    held = jax.device_put(np.ones(int(sys.argv[1]) << 18, np.float32), jax.devices()[0])
    held.block_until_ready()
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_bytes_of_each_session(new_cluster):
    cluster = new_cluster(slices=1, hosts_per_slice=1, devices_per_host=1)
    clients = [cluster.start_client(HOLD, str(mib)) for mib in (2, 5)]
    for client in clients:
        assert client.stdout.readline() == "held\n"

    def held():
        leases = cluster.status()["leases"]
        return [one["bytes_held"] >> 20 for lease in leases for one in lease["by_session"]]

    cluster.wait(lambda: held() == [5, 2])
    clients[1].kill()
    cluster.wait(lambda: held() == [2])
    cluster.finish(clients[0], check=False)
    cluster.wait_for_nothing_held()

"""Stock JAX against a cluster. The checks themselves are in stock/ and run inside clients' processes."""

from pathlib import Path

import pytest

STOCK = Path(__file__).parent / "stock"


def run_checks(cluster, *words, tcp: bool = False):
    program = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    words = [*map(str, words), "-q", "--tb=short", "-p", "no:cacheprovider"]
    client = cluster.run(program, *words, tcp=tcp, seconds=280, check=False)
    assert client.returncode == 0, client.stdout + client.stderr + cluster.logs()


@pytest.mark.parametrize("checks", ["arrays.py", "data.py", "programs.py", "introspection.py"])
def test_stock_jax(cluster, checks):
    run_checks(cluster, STOCK / checks)


def test_by_tcp(cluster):
    some = "dtype or shards or chain or training or linalg"
    run_checks(cluster, STOCK / "arrays.py", STOCK / "programs.py", "-k", some, tcp=True)


THERE_AND_BACK = """
    import os, sys, jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    mib, want_directory = int(sys.argv[1]), sys.argv[2] == "directory"
    directory = os.environ.get("IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY")
    assert (directory is not None) == want_directory, directory
    host = np.random.default_rng(mib).integers(0, 1 << 32, mib << 18, dtype=np.uint32)
    one = jax.device_put(host, jax.devices()[3])
    np.testing.assert_array_equal(np.asarray(one + 1), host + 1)
    mesh = Mesh(np.array(jax.devices()), ("x",))
    spread = jax.device_put(host, NamedSharding(mesh, P("x")))
    np.testing.assert_array_equal(np.asarray(spread), host)
    moved = jax.device_put(one, jax.devices()[0])
    one.delete()
    np.testing.assert_array_equal(np.asarray(moved), host)
    if directory:
        assert not [name for name in os.listdir(directory) if name.startswith("lt_")]
    print("right")
"""


@pytest.mark.parametrize("way", ["socket", "directory", "tcp"])
def test_large_arrays(cluster, way):
    """64 MiB there, through a program, over to another host and back."""
    holder = None
    if way == "socket":  # another client has the directory
        holder = cluster.start_client("import sys; print('held', flush=True); sys.stdin.read()")
        assert holder.stdout.readline() == "held\n"
    client = cluster.run(THERE_AND_BACK, "64", way, tcp=way == "tcp")
    assert client.stdout == "right\n"
    if holder is not None:
        holder.kill()
        holder.communicate()


def test_a_very_large_array(cluster):
    assert cluster.run(THERE_AND_BACK, "300", "tcp", tcp=True).stdout == "right\n"
    cluster.wait_for_nothing_held()


MANY_NUMBERS = """
    import sys, jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    seed = int(sys.argv[1])
    mesh = Mesh(np.array(jax.devices()), ("x",))
    step = jax.jit(lambda a, b: (a @ b) % 1009 + a.sum() % 7)
    host = np.random.default_rng(seed).integers(0, 9, (8, 8)).astype(np.int32)
    b = jax.device_put(host.T.copy(), NamedSharding(mesh, P(None, "x")))
    a, want = jax.device_put(host, NamedSharding(mesh, P("x"))), host
    for i in range(40):
        a, want = step(a, b), (want @ host.T) % 1009 + want.sum() % 7
        np.testing.assert_array_equal(np.asarray(a), want)
        if i % 8 == seed % 8:
            a = jax.device_put(jax.device_put(a, jax.devices()[seed % 4]), NamedSharding(mesh, P("x")))
    print("right", seed)
"""


def test_clients_at_once_each_check_their_numbers(cluster):
    clients = [cluster.start_client(MANY_NUMBERS, str(seed), tcp=seed % 2 == 0) for seed in range(5)]
    assert [cluster.finish(client).stdout for client in clients] == [f"right {seed}\n" for seed in range(5)]

"""pathwaysutils against a live cluster: the package's own tests, and its moves and requests unmocked. The client is of
JAX 0.11.2, in an environment of its own."""

import os
import re
import signal
from pathlib import Path

import pytest
from client_venvs import python_with

HERE = Path(__file__).parent
REQUIREMENTS = (
    "jax==0.11.2 jaxlib==0.11.2 pathwaysutils==0.1.13 absl-py numpy portpicker pytest==9.2.0 pytest-timeout==2.4.0"
)

# Which of the package's test files can face a server, and how many tests of each run (one skips itself).
PACKAGE_TESTS = {
    "plugin_executable_test": 2,
    "lru_cache_test": 4,
    "reshard_test": 4,
    "experimental/reshard_test": 7,
    "proxy_backend_test": 3,
}

pytestmark = pytest.mark.timeout(1200)  # the environment may have to be made


@pytest.fixture(scope="module")
def python() -> str:
    return str(python_with(*REQUIREMENTS.split()))


@pytest.mark.parametrize("name", PACKAGE_TESTS)
def test_the_packages_own(cluster, python, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    client = cluster.run(HERE / "run_package.py", name, python=python, check=False)
    passed = len(re.findall(r"^\[ +OK \]", client.stderr, re.MULTILINE))
    assert (client.returncode, passed) == (0, PACKAGE_TESTS[name]), client.stdout + client.stderr + cluster.logs()


@pytest.mark.parametrize(
    ("checks", "tcp"),
    [("moves.py", False), ("random_reshards.py", False), ("requests.py", False), ("random_reshards.py", True)],
)
def test_live(cluster, python, checks, tcp):
    program = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    words = [str(HERE / "live" / checks), "-q", "--tb=short", "-p", "no:cacheprovider"]
    client = cluster.run(program, *words, python=python, tcp=tcp, seconds=280, check=False)
    assert client.returncode == 0, client.stdout + client.stderr + cluster.logs()


# Moves an array from one slice to the other and back, for ever; after an error, until it has gone well again.
SHUTTLE = """
    import jax, numpy as np, pathwaysutils
    pathwaysutils.initialize()
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from pathwaysutils.experimental import reshard
    devices = np.array(jax.devices())
    here, there = (NamedSharding(Mesh(half, ("x",)), P("x")) for half in (devices[:2], devices[2:]))
    host = np.arange(8 << 20, dtype=np.float32)
    def trip(array):
        array = reshard.reshard(array, there, donate=True, cache_resharding_plans=True)
        return reshard.reshard(array, here, donate=True, cache_resharding_plans=True)
    array = trip(jax.device_put(host, here))
    print("going", flush=True)
    try:
        while True:
            array = trip(array)
    except jax.errors.JaxRuntimeError as error:
        print(str(error).splitlines()[0], flush=True)
    while True:
        try:
            np.testing.assert_array_equal(np.asarray(trip(jax.device_put(host, here))), host)
            break
        except jax.errors.JaxRuntimeError as error:
            assert "DATA_LOSS" in str(error), error
    print("right", flush=True)
"""


@pytest.mark.parametrize("slice_index", [0, 1])
def test_an_engine_killed_during_a_reshard(own_cluster, python, slice_index):
    own_cluster.wait_until_whole()
    client = own_cluster.start_client(SHUTTLE, python=python)
    assert client.stdout.readline() == "going\n", client.communicate()
    victim = own_cluster.engine_pids()[slice_index]
    os.kill(victim, signal.SIGKILL)
    error = client.stdout.readline()
    assert f"DATA_LOSS: slice {slice_index}, host 0 was lost" in error, error
    assert own_cluster.finish(client).stdout == "right\n"
    own_cluster.wait_for_nothing_held()

"""Clients of every supported JAX version at once, and every version of the protocol and of serialized forms."""

import sys
from pathlib import Path

import pytest
from client_venvs import python_with

NUMBERS = Path(__file__).parent / "numbers_of_a_client.py"
OLDER = ["0.11.2", "0.10.1"]


def older_python(version: str) -> str:
    return str(python_with(f"jax=={version}", f"jaxlib=={version}", "pathwaysutils==0.1.13"))


def test_clients_of_all_versions_at_once(cluster):
    """Each checks all that it computes, while the others do the same on the same devices."""
    pythons = {"0.12.0.1": sys.executable, **{version: older_python(version) for version in OLDER}}
    clients = {
        version: cluster.start_client(NUMBERS, str(seed), "10", "all", python=python)
        for seed, (version, python) in enumerate(pythons.items())
    }
    for version, client in clients.items():
        said = cluster.finish(client).json()
        assert said["jax"] == version and said["devices"] == 4 and said["rounds"] >= 1
    cluster.wait_for_nothing_held()


@pytest.fixture(scope="module")
def roles(binary, tmp_path_factory):
    """A manager and a worker, for proxies one after the other."""
    from roles import ByHand

    made = ByHand(binary, tmp_path_factory.mktemp("versions"))
    made.manager("--instance_count=1")
    made.worker(0)
    yield made
    made.stop()


def proxy_with(roles, *flags: str) -> None:
    if (old := roles.processes.pop("proxy", None)) is not None:
        old.terminate()
        assert old.wait(timeout=20) == 0, roles.log("proxy")
        (roles.directory / "proxy.log").unlink()
    roles.proxy(*flags, slices="cpu:1x2")
    roles.wait_for_log("proxy", "IFRT proxy server started with status OK")


# Each protocol version and each serdes version at least once.
VERSIONS = [(16, 3), (17, 4), (18, 5), (19, 6), (20, 3), (21, 4), (22, 5), (23, 6), (24, 3), (25, 4)]


@pytest.mark.parametrize(("protocol", "serdes"), VERSIONS)
def test_each_version_of_the_protocol(roles, protocol, serdes):
    proxy_with(roles, f"--max_protocol_version={protocol}", f"--max_serdes_version={serdes}")
    oldest = (
        roles.start_client(NUMBERS.read_text(), "2", "0", "some", python=older_python("0.10.1"))
        if protocol == 16
        else None
    )
    said = roles.finish(roles.start_client(NUMBERS.read_text(), "1", "0", "some"))
    assert '"rounds": 1' in said
    if oldest is not None:
        assert '"rounds": 1' in roles.finish(oldest)


CONNECT = """
    import pathwaysutils; pathwaysutils.initialize()
    import jax
    try:
        jax.devices()
    except RuntimeError as error:
        print("refused:", error)
"""


@pytest.mark.parametrize("flag", ["--max_protocol_version=15", "--max_serdes_version=-1"])
def test_a_client_whose_versions_are_too_new_is_told_so(roles, flag):
    """It raises an error with both ranges; it doesn't abort."""
    proxy_with(roles, flag)
    client = roles.start_client(CONNECT, python=older_python("0.11.2"), PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS="3")
    said = roles.finish(client)
    assert said.startswith("refused:") and "the client speaks versions" in said and "this proxy" in said

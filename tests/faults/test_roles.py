"""Roles that miss each other, or are not wanted; versions that are capped."""

import signal
import subprocess
import time

import grpc
import pytest
from raw_client import Session, messages
from roles import free_ports

WORK = """
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    a = jax.device_put(np.arange(16, dtype=np.float32), NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x")))
    b = jax.jit(lambda a: a - a.mean())(a)
    np.testing.assert_allclose(np.asarray(b), np.arange(16) - 7.5)
    text = jax.jit(lambda a: a + 1).lower(a).compile().as_text()
    print("right", text is None)
"""


def start_all(by_hand, *proxy_flags: str) -> None:
    by_hand.manager()
    by_hand.worker(0)
    by_hand.worker(1)
    by_hand.proxy(*proxy_flags)
    by_hand.wait_for_log("proxy", "IFRT proxy server started with status OK")


def manager_status(port: int):
    m = messages()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(
            "/parkway.Manager/Status", m.ManagerStatusRequest.SerializeToString, m.ManagerStatus.FromString
        )
        return call(m.ManagerStatusRequest(), timeout=30, wait_for_ready=True)


def test_without_a_manager(by_hand):
    """Workers, the proxy and its client wait, and say for what; when the manager comes, all goes on."""
    by_hand.worker(0)
    by_hand.worker(1)
    by_hand.proxy()
    client = by_hand.start_client(WORK)
    for name in ("worker-0", "worker-1", "proxy"):
        by_hand.wait_for_log(name, f"Waiting for the manager at 127.0.0.1:{by_hand.manager_port}")
    time.sleep(1)
    assert client.poll() is None
    by_hand.manager()
    assert by_hand.finish(client) == "right False\n"


def test_without_enough_slices(by_hand):
    """The proxy leases all or nothing, and says what it waits for."""
    by_hand.manager()
    by_hand.worker(0)
    by_hand.proxy()
    by_hand.wait_for_log("proxy", "waiting for 2 x cpu:1x2")
    status = manager_status(by_hand.manager_port)
    assert [lease.placed for lease in status.leases] == [False] and status.leases[0].waiting_for
    client = by_hand.start_client(WORK)
    by_hand.worker(1)
    assert by_hand.finish(client) == "right False\n"


def test_a_second_proxy_waits_for_the_first(by_hand):
    start_all(by_hand)
    assert by_hand.finish(by_hand.start_client(WORK)) == "right False\n"
    first = by_hand.processes["proxy"]
    by_hand.proxy_port = free_ports(1)[0]
    by_hand.proxy(name="second")
    by_hand.wait_for_log("second", "waiting for 2 x cpu:1x2")
    client = by_hand.start_client(WORK)
    first.kill()
    first.wait()
    assert by_hand.finish(client) == "right False\n"


@pytest.mark.parametrize(("protocol", "serdes"), [(16, 3), (20, 4), (22, 5)])
def test_older_versions(by_hand, protocol, serdes):
    """A proxy that speaks old versions serves a new client, which asks for no more than both have."""
    start_all(by_hand, f"--max_protocol_version={protocol}", f"--max_serdes_version={serdes}")
    assert by_hand.finish(by_hand.start_client(WORK)) == f"right {protocol < 20}\n"
    m = messages()
    session = Session(f"127.0.0.1:{by_hand.proxy_port}")
    request = m.GrpcGetVersionRequest(
        min_version={"protocol_version": 1, "ifrt_serdes_version_number": 0},
        max_version={"protocol_version": 99, "ifrt_serdes_version_number": 99},
    )
    chosen = session.unary("GetVersion", request, "GrpcGetVersionResponse").version
    assert (chosen.protocol_version, chosen.ifrt_serdes_version_number) == (protocol, serdes)
    session.close()


def test_all_roles_end_when_they_are_told(by_hand):
    start_all(by_hand)
    assert by_hand.finish(by_hand.start_client(WORK)) == "right False\n"
    for name in ("proxy", "worker-0", "manager", "worker-1"):
        by_hand.processes[name].send_signal(signal.SIGTERM)
        assert by_hand.processes[name].wait(timeout=30) == 0, by_hand.log(name)


def test_a_manager_knows_its_state_directory(by_hand, tmp_path):
    """Killed and started anew it is the same instance, and the lease goes on."""
    state = f"--state_dir={tmp_path / 'state'}"
    by_hand.manager(state)
    by_hand.worker(0)
    by_hand.worker(1)
    by_hand.proxy()
    assert by_hand.finish(by_hand.start_client(WORK)) == "right False\n"
    before = manager_status(by_hand.manager_port)
    assert before.instance != 0 and before.starts == 1
    by_hand.processes["manager"].kill()
    by_hand.processes["manager"].wait()
    by_hand.manager(state)
    by_hand.wait_for_log("manager", "goes on as instance")
    assert by_hand.finish(by_hand.start_client(WORK)) == "right False\n"
    after = manager_status(by_hand.manager_port)
    assert (after.instance, after.starts) == (before.instance, 2)
    assert [(one.lease, one.epoch) for one in after.leases] == [(one.lease, one.epoch) for one in before.leases]


def test_a_state_directory_has_one_manager(by_hand, tmp_path):
    state = f"--state_dir={tmp_path / 'state'}"
    by_hand.manager(state)
    by_hand.wait_for_log("manager", "Pathways Server serving")
    by_hand.manager_port = free_ports(1)[0]
    with (tmp_path / "second.log").open("w") as log:
        words = [
            by_hand.binary,
            "server",
            "--node_type=resource_manager",
            f"--server_port={by_hand.manager_port}",
            state,
        ]
        second = subprocess.run(words, stdout=log, stderr=log, timeout=60, check=False)
    assert second.returncode == 1
    assert "another --state_dir" in (tmp_path / "second.log").read_text()


def test_flags_of_xla(by_hand):
    """What this XLA knows reaches the compilers, and what it doesn't know is said and does no harm."""
    start_all(by_hand, f"--xla_dump_to={by_hand.directory / 'dump'}", "--xla_tpu_spmd_threshold=7")
    assert by_hand.finish(by_hand.start_client(WORK)) == "right False\n"
    assert "--xla_tpu_spmd_threshold=7: INVALID_ARGUMENT: No such compile option" in by_hand.log("proxy")
    assert any((by_hand.directory / "dump").iterdir())

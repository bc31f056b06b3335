"""`parkway up` and the commands around it, as a user meets them."""

import json
import os
import signal
import socket
import subprocess
import time
import uuid
from pathlib import Path

import pytest


def children_of(pid: int) -> list[int]:
    rows = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    table = [tuple(map(int, row.split())) for row in rows.splitlines()]
    members = {pid}
    while grown := {child for child, parent in table if parent in members} - members:
        members |= grown
    return sorted(members - {pid})


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def wait_until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def own_name(binary):
    name = f"up-{uuid.uuid4().hex[:12]}"
    yield name
    subprocess.run([binary, "down", f"--name={name}"], capture_output=True, check=False)


def start_in_foreground(binary, name):
    process = subprocess.Popen([binary, "up", f"--name={name}", "--port=auto"], stdout=subprocess.PIPE, text=True)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "Ctrl-C stops it" in line:
            return process, "".join(lines)
    pytest.fail(f"it ended with {process.wait()}: {''.join(lines)}")
    return None


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_takes_all_of_it_down(binary, own_name, stop):
    process, text = start_in_foreground(binary, own_name)
    assert "export JAX_PLATFORMS=proxy" in text and f"parkway run --name {own_name} -- python script.py" in text
    members = children_of(process.pid)
    assert len(members) >= 4  # manager, two workers, proxy
    process.send_signal(stop)
    assert process.wait(timeout=30) == 0
    wait_until(lambda: not any(map(exists, members)))


def test_nothing_outlives_a_killed_supervisor(binary, own_name):
    process, _ = start_in_foreground(binary, own_name)
    members = children_of(process.pid)
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(exists, members)))


def test_a_second_one_of_a_name_is_refused(cluster):
    words = [cluster.binary, "up", f"--name={cluster.name}", "--port=auto", "--detach"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "already runs here" in done.stderr and f"parkway down --name {cluster.name}" in done.stderr


def test_a_port_in_use_is_named(binary, own_name):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = [binary, "up", f"--name={own_name}", f"--port={port - 1}", "--detach"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"port {port} is in use by process {os.getpid()}" in done.stderr and "--port auto" in done.stderr


def test_status(cluster):
    status = cluster.status()
    assert status["devices"] == 4 and status["hosts"] == 2
    assert [s["type"] for s in status["slices"]] == ["cpu:1x2", "cpu:1x2"] and all(s["ready"] for s in status["slices"])
    assert {role["role"] for role in status["roles"]} == {"manager", "worker-0-0", "worker-1-0", "proxy"}
    text = cluster.parkway("status")
    assert "devices 4" in text and "cpu:1x2" in text


def test_status_of_no_cluster(binary):
    done = subprocess.run([binary, "status", "--name=none"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "`parkway up --name none` starts it" in done.stderr


def test_logs(cluster):
    assert "argv[1]: 'proxy_server'" not in cluster.parkway("logs", "manager")
    assert "--node_type=resource_manager" in cluster.parkway("logs", "manager")
    assert "resource_manager_address" in cluster.parkway("logs", "worker")


def test_run_sets_the_environment_and_gives_the_exit_code(cluster):
    program = "import json, os, sys; print(json.dumps(dict(os.environ))); sys.exit(7)"
    client = cluster.run(program, check=False)
    assert client.returncode == 7
    environment = client.json()
    assert environment["JAX_PLATFORMS"] == "proxy"
    assert environment["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] == "true"
    target = environment["JAX_BACKEND_TARGET"]
    assert target.startswith("grpc://unix:/") and target == target.lower()
    tcp = cluster.run(program, check=False, tcp=True).json()
    assert tcp["JAX_BACKEND_TARGET"].startswith("grpc://127.0.0.1:")
    assert "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY" not in tcp


def test_one_client_at_a_time_has_the_transfer_directory(cluster):
    program = "import os, sys; print('LARGE' in str(os.environ), flush=True); sys.stdin.read()"
    words = [cluster.binary, "run", f"--name={cluster.name}", "--", "python3", "-c", program]
    first = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "True\n"
    second = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert second.stdout == "False\n"
    first.communicate()
    third = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert third.stdout == "True\n"


@pytest.mark.parametrize("role", ["manager", "worker-0-0", "proxy"])
def test_a_role_that_dies_starts_again(new_cluster, role):
    own = new_cluster()
    before = own.pids()
    os.kill(before[role], signal.SIGKILL)
    record = Path(os.environ["XDG_STATE_HOME"]) / "parkway" / own.name / "cluster.json"

    def pid_now() -> int:
        return next(r["pid"] for r in json.loads(record.read_text())["roles"] if r["role"] == role)

    wait_until(lambda: pid_now() not in (0, before[role]))
    supervisor_log = own.parkway("logs", "supervisor")
    assert f"{role} killed by signal 9" in supervisor_log and "starts again" in supervisor_log
    wait_until(
        lambda: (s := own.status())["devices"] == 4 and all(lease["placed"] for lease in s["leases"]) and s["leases"]
    )

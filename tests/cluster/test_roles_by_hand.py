"""Each role started by hand, with Google's flags, in any order; a client that comes before the slices do."""

import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from environment import clean_environment
from roles import free_ports

CLIENT = """
import jax, numpy as np
x = jax.device_put(np.arange(8.0), jax.devices()[-1])
print(len(jax.devices()), float((x + 1).sum()))
"""


class Roles:
    def __init__(self, binary: str, directory: Path) -> None:
        self.binary, self.directory = binary, directory
        self.manager_port, self.proxy_port, *self.worker_ports = free_ports(4)
        self.processes: dict[str, subprocess.Popen] = {}

    def start(self, name: str) -> None:
        address = f"--resource_manager_address=127.0.0.1:{self.manager_port}"
        slices = "--virtual_slices=cpu:1x2,cpu:1x2"
        words = {
            "manager": ["server", "--node_type=resource_manager", f"--server_port={self.manager_port}"]
            + ["--instance_count=2", "--instance_type=cpu:1x2", "--gcs_scratch_location=gs://bucket/scratch"],
            "worker-0": [
                "server",
                f"--server_port={self.worker_ports[0]}",
                address,
                "--tpu_premapped_buffer_size=4294967296",
            ],
            "worker-1": ["server", "--server_port", str(self.worker_ports[1]), address],
            "proxy": [
                "proxy_server",
                f"--server_port={self.proxy_port}",
                address,
                slices,
                "--xla_tpu_spmd_threshold=7",
            ],
        }[name]
        with (self.directory / f"{name}.log").open("a") as log:
            self.processes[name] = subprocess.Popen([self.binary, *words], stdout=log, stderr=log)

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def wait_for_log(self, name: str, words: str, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while words not in self.log(name):
            assert self.processes[name].poll() is None, self.log(name)
            assert time.monotonic() < deadline, self.log(name)
            time.sleep(0.05)

    def start_client(self) -> subprocess.Popen:
        environment = {
            "JAX_PLATFORMS": "proxy",
            "JAX_BACKEND_TARGET": f"grpc://127.0.0.1:{self.proxy_port}",
            "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
        }
        words = [sys.executable, "-c", CLIENT]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**clean_environment(), **environment})

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for name, process in self.processes.items():
            try:
                assert process.wait(timeout=20) == 0, (name, process.returncode, self.log(name))
            finally:
                process.kill()


@pytest.fixture
def roles(binary, tmp_path):
    made = Roles(binary, tmp_path)
    yield made
    made.stop()


@pytest.mark.parametrize(
    "order", [("proxy", "manager", "worker-0", "worker-1"), ("worker-1", "proxy", "worker-0", "manager")]
)
def test_any_order_and_a_client_before_the_slices(roles, order):
    for name in order[:2]:
        roles.start(name)
    roles.wait_for_log("proxy", "IFRT proxy server started with status OK")
    client = roles.start_client()
    time.sleep(1)
    for name in order[2:]:
        roles.start(name)
    out, _ = client.communicate(timeout=120)
    assert out == "4 36.0\n", "".join(roles.log(name) for name in order)

    roles.wait_for_log("manager", "*** 2/2 Pathways Slices Now Ready ***")
    assert len(re.findall("unplaced -> placed", roles.log("proxy"))) == 2
    assert re.search(rf"Pathways Server serving on \[::\]:{roles.manager_port}", roles.log("manager"))
    assert re.search(rf"Pathways Server serving on \[::\]:{roles.worker_ports[0]}", roles.log("worker-0"))
    assert re.search(r"argv\[2\]: '--resource_manager_address=127.0.0.1:\d+'", roles.log("worker-0"))
    assert "--gcs_scratch_location has no effect" in roles.log("manager")
    assert re.search(r"^I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ \w+\.cc:\d+\] ", roles.log("manager"), re.MULTILINE)


def test_two_workers_with_one_identity(roles):
    roles.start("manager")
    address = f"--resource_manager_address=127.0.0.1:{roles.manager_port}"
    for name, port in zip(("twin-0", "twin-1"), roles.worker_ports, strict=True):
        words = [roles.binary, "server", f"--server_port={port}", address, "--worker_name=twin"]
        with (roles.directory / f"{name}.log").open("w") as log:
            roles.processes[name] = subprocess.Popen(words, stdout=log, stderr=log)
        time.sleep(1)
    refused = roles.processes.pop("twin-1")
    assert refused.wait(timeout=60) == 1
    assert "twin" in roles.log("twin-1")


def test_a_port_in_use(roles):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", roles.manager_port))
        taken.listen()
        roles.start("manager")
        assert roles.processes.pop("manager").wait(timeout=30) == 1
    assert str(roles.manager_port) in roles.log("manager")

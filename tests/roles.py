"""Roles started one by one, for tests that need flags of their own."""

import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from environment import clean_environment


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class ByHand:
    """A manager, workers and a proxy as processes on loopback, each with a log of its own."""

    def __init__(self, binary: str, directory: Path) -> None:
        self.binary, self.directory = binary, directory
        self.manager_port, self.proxy_port, *self.worker_ports = free_ports(4)
        self.to_manager = f"--resource_manager_address=127.0.0.1:{self.manager_port}"
        self.processes: dict[str, subprocess.Popen] = {}

    def start(self, name: str, *words: str) -> subprocess.Popen:
        """One process of the binary under a name of the test's choice."""
        with (self.directory / f"{name}.log").open("a") as log:
            self.processes[name] = subprocess.Popen([self.binary, *words], stdout=log, stderr=log)
        return self.processes[name]

    def manager(self, *flags: str) -> subprocess.Popen:
        port = f"--server_port={self.manager_port}"
        slices = ["--instance_count=2", "--instance_type=cpu:1x2"]
        return self.start(
            "manager", "server", "--node_type=resource_manager", port, "--bind_address=127.0.0.1", *slices, *flags
        )

    def worker(self, index: int, *flags: str) -> subprocess.Popen:
        port = f"--server_port={self.worker_ports[index]}"
        return self.start(f"worker-{index}", "server", port, "--bind_address=127.0.0.1", self.to_manager, *flags)

    def proxy(self, *flags: str, name: str = "proxy", slices: str = "cpu:1x2,cpu:1x2") -> subprocess.Popen:
        words = [f"--server_port={self.proxy_port}", "--bind_address=127.0.0.1", f"--virtual_slices={slices}"]
        return self.start(name, "proxy_server", *words, self.to_manager, *flags)

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def wait_for_log(self, name: str, words: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while words not in self.log(name):
            assert self.processes[name].poll() is None, self.log(name)
            assert time.monotonic() < deadline, self.log(name)
            time.sleep(0.05)

    def start_client(
        self, program: str, *arguments: str, python: str = sys.executable, **variables: str
    ) -> subprocess.Popen:
        environment = {
            **clean_environment(),
            "JAX_PLATFORMS": "proxy",
            "JAX_BACKEND_TARGET": f"grpc://127.0.0.1:{self.proxy_port}",
            "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
            **variables,
        }
        words = [python, "-c", textwrap.dedent(program), *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)

    def finish(self, client: subprocess.Popen, seconds: float = 120) -> str:
        """What the client printed. It must end well."""
        try:
            out, errors = client.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            client.kill()
            out, errors = client.communicate()
        assert client.returncode == 0, out + errors + "".join(self.log(name)[-4000:] for name in self.processes)
        return out

    def stop(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=20)
            finally:
                process.kill()

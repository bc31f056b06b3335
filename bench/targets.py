"""The processes that are measured: a cluster, null proxies, JAX by itself, and the small programs that give the floors.

All are started when first needed and end with `close()`.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parkway.local_cluster import find_parkway

HERE = Path(__file__).resolve().parent
SLICES, HOSTS, DEVICES = 2, 1, 2  # of the cluster; two-process JAX has as many
START_SECONDS, REQUEST_SECONDS = 120.0, 600.0
TCP, UNIX = "tcp", "unix"

Figures = dict[str, float]


class BenchError(RuntimeError):
    """Something that is to be measured does not run; the message says why."""


def clean_environment() -> dict[str, str]:
    """This process's environment without what points JAX somewhere."""
    return {key: value for key, value in os.environ.items() if not re.match(r"JAX_|IFRT_PROXY_|XLA_", key)}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def output_of(words: Sequence[str | Path], seconds: float = START_SECONDS) -> str:
    """What a command prints."""
    text = [str(word) for word in words]
    try:
        done = subprocess.run(
            text, capture_output=True, text=True, timeout=seconds, env=clean_environment(), check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"`{' '.join(text)}`: {error}") from error
    if done.returncode != 0:
        raise BenchError(f"`{' '.join(text)}` ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


class Client:
    """A client.py process."""

    def __init__(self, name: str, log: Path, environment: dict[str, str], arguments: Sequence[str] = ()) -> None:
        self.name = name
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "client.py"), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**clean_environment(), **environment},
            )
        self._started = False

    def ask(self, request: dict[str, Any]) -> None:
        """Sends a request; `answer` waits for what comes back."""
        if not self._started:
            self._reply(START_SECONDS)
            self._started = True
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._failure("has ended") from error

    def answer(self) -> Figures:
        return self._reply(REQUEST_SECONDS)

    def measure(self, measure: str, **arguments: Any) -> Figures:
        self.ask({"measure": measure, **arguments})
        return self.answer()

    def _reply(self, seconds: float) -> dict:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise self._failure(f"did not answer within {seconds:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise self._failure("has ended")
        reply = json.loads(line)
        if "error" in reply:
            raise BenchError(f"{self.name}: {reply['error']}")
        return reply

    def _failure(self, what: str) -> BenchError:
        tail = self._log.read_text(errors="replace")[-1500:]
        return BenchError(f"{self.name} {what}: {tail}")

    def close(self) -> None:
        stop(self._process, signal.SIGKILL)


def stop(process: subprocess.Popen, how: int = signal.SIGTERM) -> None:
    """Ends a process that was started here, and waits for it."""
    if process.poll() is None:
        process.send_signal(how)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


class MultiProcess:
    """JAX's own way to several hosts: a process for each, the same program in all, Gloo between them."""

    def __init__(self, scratch: Path) -> None:
        coordinator = f"127.0.0.1:{free_port()}"
        environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(DEVICES)}
        count = SLICES * HOSTS
        self._clients = [
            Client(
                f"process {rank} of {count}",
                scratch / f"process-{rank}.log",
                environment,
                [f"--coordinator={coordinator}", f"--processes={count}", f"--rank={rank}"],
            )
            for rank in range(count)
        ]

    def measure(self, measure: str, **arguments: Any) -> Figures:
        for client in self._clients:
            client.ask({"measure": measure, **arguments})
        return [client.answer() for client in self._clients][0]

    def close(self) -> None:
        for client in self._clients:
            client.close()


class ManyClients:
    """Clients that do the same at the same time."""

    def __init__(self, clients: list[Client]) -> None:
        self._clients = clients

    def rate(self, measure: str, times: int) -> Figures:
        """rate: calls/s of all together, each doing `times`, from the first's start to the last's end."""
        self._measure(measure, 1)  # all are up and have compiled
        return {"rate": len(self._clients) * times / self._measure(measure, times)}

    def _measure(self, measure: str, times: int) -> float:
        start = time.perf_counter()
        for client in self._clients:
            client.ask({"measure": measure, "times": times})
        for client in self._clients:
            client.answer()
        return time.perf_counter() - start

    def close(self) -> None:
        for client in self._clients:
            client.close()


class NullProxy:
    """A null proxy of its own for one client."""

    def __init__(self, binary: Path, devices: int, scratch: Path, transport: str) -> None:
        address = f"127.0.0.1:{free_port()}"
        path = scratch / f"null-{transport}.sock"
        self.target = address if transport == TCP else f"unix:{path}"
        words = [binary, "--listen", address, "--unix", path, "--devices", devices]
        words += ["--python", sys.executable, "--types_script", HERE / "null_proxy_types.py"]
        self._process = subprocess.Popen(
            [str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=clean_environment()
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise BenchError(f"{binary} did not start")

    def close(self) -> None:
        stop(self._process)


class Cluster:
    """A cluster of `parkway up`."""

    def __init__(self, port: str) -> None:
        self.binary = find_parkway()
        self.name = f"bench-{os.getpid()}"
        shape = [f"--slices={SLICES}", f"--hosts-per-slice={HOSTS}", f"--devices-per-host={DEVICES}"]
        self._parkway("up", "--detach", f"--port={port}", f"--stop-with-pid={os.getpid()}", *shape)

    def _parkway(self, command: str, *arguments: str) -> str:
        return output_of([self.binary, command, f"--name={self.name}", *arguments])

    def environment(self, transport: str) -> dict[str, str]:
        """Of a client; over the unix socket with the large-transfer directory."""
        tcp = ["--tcp"] if transport == TCP else []
        return json.loads(self._parkway("run", "--print-environment", *tcp))

    def proxy_pid(self) -> int:
        return next(
            role["pid"] for role in json.loads(self._parkway("status", "--json"))["roles"] if role["role"] == "proxy"
        )

    def close(self) -> None:
        self._parkway("down")


class PeakOf:
    """Watches a process's anonymous memory (RssAnon, bytes) while a `with` block runs."""

    def __init__(self, pid: int) -> None:
        self._path = Path(f"/proc/{pid}/status")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.bytes = self._now()

    def _now(self) -> int:
        found = re.search(r"^RssAnon:\s+(\d+) kB", self._path.read_text(), re.MULTILINE)
        if found is None:
            raise BenchError(f"{self._path} names no RssAnon")
        return int(found[1]) * 1024

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            try:
                self.bytes = max(self.bytes, self._now())
            except OSError:
                return  # it ended, and so will what is measured

    def __enter__(self) -> PeakOf:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


class Targets:
    """All of them, each made at its first use."""

    def __init__(self, build: Path, port: str = "auto") -> None:
        self._build = build
        self._port = port
        self._made: dict[str, Any] = {}
        self._scratch = Path(tempfile.mkdtemp(prefix="parkway-bench-"))

    def _get(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def cluster(self) -> Cluster:
        return self._get("cluster", lambda: Cluster(self._port))

    def parkway(self, transport: str, directory: bool = False) -> Client:
        """A client of the cluster; with `directory` it hands over large arrays in files."""

        def make() -> Client:
            environment = self.cluster().environment(transport)
            if not directory:
                environment = {key: value for key, value in environment.items() if "LARGE_TRANSFER" not in key}
            return Client(f"the client of the cluster ({key})", self._log(key), environment)

        key = f"parkway-{transport}{'-directory' if directory else ''}"
        return self._get(f"client {key}", make)

    def clients(self, transport: str, count: int) -> ManyClients:
        """So many clients of the cluster, each a process."""

        def make() -> ManyClients:
            environment = self.cluster().environment(transport)
            names = [f"client {number} of {count}" for number in range(count)]
            return ManyClients([Client(name, self._log(f"{name} {transport}"), environment) for name in names])

        return self._get(f"clients {transport} {count}", make)

    def null(self, transport: str) -> Client:
        """A client of a null proxy."""

        def make() -> Client:
            binary = self._build / "bench" / "null_proxy"
            proxy = self._get(
                f"null {transport}", lambda: NullProxy(binary, SLICES * HOSTS * DEVICES, self._scratch, transport)
            )
            environment = {
                "JAX_PLATFORMS": "proxy",
                "JAX_BACKEND_TARGET": f"grpc://{proxy.target}",
                "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
            }
            return Client(f"the client of the null proxy ({transport})", self._log(f"null-{transport}"), environment)

        return self._get(f"client null-{transport}", make)

    def local(self) -> Client:
        environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(SLICES * HOSTS * DEVICES)}
        return self._get("client local", lambda: Client("local JAX", self._log("local"), environment))

    def multi_process(self) -> MultiProcess:
        return self._get("client multi-process", lambda: MultiProcess(self._scratch))

    def stream(self, transport: str, messages: int, pings: int) -> Figures:
        """rate: GB/s of a gRPC stream in 1 MiB messages; round_trip_us of an empty one."""
        unix = ["--unix", self._scratch / "stream.sock"] if transport == UNIX else []
        words = [self._build / "bench" / "stream_rate", "--messages", messages, "--pings", pings, *unix]
        return json.loads(output_of([str(word) for word in words]))

    def memcpy(self, size: int) -> Figures:
        """rate: GB/s of a copy into fresh shared memory."""
        return json.loads(output_of([self._build / "bench" / "memcpy_shm", "--bytes", str(size)]))

    def plain_write(self, size: int, times: int) -> Figures:
        """rate: GB/s of writing a new file where the cluster's large-transfer directory is."""
        beside = Path(self.cluster().environment(UNIX)["IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY"]).parent
        content = memoryview(os.urandom(1 << 20) * (size >> 20))
        took = []
        with tempfile.TemporaryDirectory(prefix="parkway-bench-", dir=beside) as directory:
            for number in range(times):
                start = time.perf_counter()
                file = os.open(f"{directory}/{number}", os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
                left = content
                while left:
                    left = left[os.write(file, left) :]
                os.close(file)
                took.append(time.perf_counter() - start)
                os.unlink(f"{directory}/{number}")
        return {"rate": size / sorted(took)[len(took) // 2] / 1e9}

    def gang(self, transport: str, launches: int) -> Figures:
        """launch_ms and pipelined_ms over 256 hosts x 4 devices of simulated engines in 8 processes."""
        words = [self._build / "bench" / "gang_launch", "--parkway", find_parkway(), "--launches", launches]
        return json.loads(output_of([str(word) for word in words] + (["--unix"] if transport == UNIX else [])))

    def proxy_peak(self) -> PeakOf:
        return PeakOf(self.cluster().proxy_pid())

    def _log(self, name: str) -> Path:
        return self._scratch / f"{name}.log"

    def drop_clients(self) -> None:
        """Ends the clients: after a failure the next figure has new ones."""
        for key in [key for key in self._made if not key.startswith("cluster")]:
            self._made.pop(key).close()

    def close(self) -> None:
        self.drop_clients()
        if "cluster" in self._made:
            self._made.pop("cluster").close()
        shutil.rmtree(self._scratch)

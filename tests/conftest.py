"""What all Python tests share: clusters of real processes, and client programs that run against them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from environment import clean_environment

CLIENT_SECONDS = 120
LOG_LINES = 40


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A skipped test is a failed one: whatever a test needs, `make build` installs."""
    report = yield
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped: {report.longrepr}"
    return report


def find_binary() -> str:
    binary = os.environ.get("PARKWAY_BINARY", str(Path(sys.prefix) / "bin" / "parkway"))
    assert os.access(binary, os.X_OK), f"{binary} is not there; run `make build`, or set PARKWAY_BINARY"
    return binary


@dataclass
class Client:
    """How a client program ended."""

    returncode: int
    stdout: str
    stderr: str

    def json(self):
        """The last line that the program printed."""
        return json.loads(self.stdout.strip().splitlines()[-1])


@dataclass
class Cluster:
    """A cluster that `parkway up --detach` runs, and programs against it."""

    name: str
    binary: str
    shape: list[str] = field(default_factory=list)

    def parkway(self, command: str, *arguments: str, check: bool = True, seconds: float = 60) -> str:
        words = [self.binary, command, f"--name={self.name}", *arguments]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=seconds, env=clean_environment(), check=False
        )
        assert not check or done.returncode == 0, (
            f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}{self.logs()}"
        )
        return done.stdout if check else done.stdout + done.stderr

    def up(self) -> Cluster:
        self.parkway("up", "--detach", "--port=auto", f"--stop-with-pid={os.getpid()}", *self.shape)
        return self

    def down(self) -> None:
        self.parkway("down")

    def status(self) -> dict:
        return json.loads(self.parkway("status", "--json"))

    def record(self) -> dict:
        """What `parkway up` wrote down."""
        return json.loads((Path(os.environ["XDG_STATE_HOME"]) / "parkway" / self.name / "cluster.json").read_text())

    def proxy_address(self) -> str:
        return self.record()["proxy_address"]

    def transfer_directory(self) -> Path:
        return Path(self.record()["transfers"])

    def engine_pids(self) -> list[int]:
        """The process of each host's engine, 0 while it has none."""
        hosts = [host for one in self.status()["slices"] for host in one["hosts"]]
        return [host["engine_pid"] if host["engine_up"] else 0 for host in hosts]

    def wait_for_nothing_held(self, seconds: float = 40) -> None:
        """Until no session and none of its bytes are left."""
        self.wait(lambda: (s := self.status())["sessions"] == 0 and s["bytes_held"] == 0 and s["leases"], seconds)

    def wait(self, condition: Callable[[], object], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{json.dumps(self.status(), indent=1)}{self.logs()}"
            time.sleep(0.05)

    def wait_until_whole(self, but_not: Iterable[int] = ()) -> None:
        """Until the lease is placed and each host has a live engine, none of them one of `but_not`."""

        def whole() -> bool:
            status = self.status()
            hosts = [host for one in status["slices"] for host in one["hosts"]]
            engines = [host["engine_pid"] for host in hosts if host["engine_up"] and host["alive"]]
            placed = bool(status["leases"]) and all(lease["placed"] for lease in status["leases"])
            return placed and len(engines) == len(hosts) > 0 and not set(engines) & set(but_not)

        self.wait(whole)

    def pids(self) -> dict[str, int]:
        """Process of each role, as the supervisor last started it."""
        return {role["role"]: role["pid"] for role in self.status()["roles"]}

    def logs(self) -> str:
        """The end of each role's log, for the message of a failure."""
        words = [self.binary, "logs", f"--name={self.name}", f"--lines={LOG_LINES}"]
        return "\n" + subprocess.run(words, capture_output=True, text=True, check=False).stdout

    def start_client(
        self,
        program: str | Path,
        *arguments: str,
        tcp: bool = False,
        python: str = sys.executable,
        env: dict | None = None,
    ) -> subprocess.Popen:
        """Starts a program (a file, or its text) with the cluster's devices as JAX's. Its stdin stays open."""
        words = [python, str(program)] if isinstance(program, Path) else [python, "-c", textwrap.dedent(program)]
        run = [self.binary, "run", f"--name={self.name}", *(["--tcp"] if tcp else []), "--", *words, *arguments]
        environment = {**clean_environment(), **(env or {})}
        pipe = subprocess.PIPE
        return subprocess.Popen(run, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)

    def finish(self, process: subprocess.Popen, seconds: float = CLIENT_SECONDS, check: bool = True) -> Client:
        """Waits for a client. It fails the test when it takes longer, or (with `check`) ends with an error."""
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
            pytest.fail(f"the client did not end within {seconds} s\n{stdout}\n{stderr}\n{self.logs()}")
        client = Client(process.returncode, stdout, stderr)
        if check and client.returncode != 0:
            pytest.fail(f"the client ended with {client.returncode}\n{stdout}\n{stderr}\n{self.logs()}")
        return client

    def run(
        self, program: str | Path, *arguments: str, seconds: float = CLIENT_SECONDS, check: bool = True, **how
    ) -> Client:
        """Runs a client program to its end; see start_client and finish."""
        return self.finish(self.start_client(program, *arguments, **how), seconds, check)


def make_cluster(binary: str, slices: int = 2, hosts_per_slice: int = 1, devices_per_host: int = 2) -> Cluster:
    shape = [f"--slices={slices}", f"--hosts-per-slice={hosts_per_slice}", f"--devices-per-host={devices_per_host}"]
    return Cluster(f"test-{uuid.uuid4().hex[:12]}", binary, shape).up()


@pytest.fixture(scope="session")
def binary() -> str:
    """Path of the parkway binary that is tested."""
    return find_binary()


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory) -> Iterator[Path]:
    """The clusters' state and logs lie apart from the user's."""
    path = tmp_path_factory.mktemp("state")
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(path)
    yield path
    if before is None:
        del os.environ["XDG_STATE_HOME"]
    else:
        os.environ["XDG_STATE_HOME"] = before


@pytest.fixture(scope="session")
def cluster(binary) -> Iterator[Cluster]:
    """2 slices x 1 host x 2 devices, for tests that leave it as they found it."""
    shared = make_cluster(binary)
    yield shared
    shared.down()


@pytest.fixture
def new_cluster(binary) -> Iterator[Callable[..., Cluster]]:
    """Makes clusters of the test's own: new_cluster(slices=2, hosts_per_slice=1, devices_per_host=2)."""
    made: list[Cluster] = []

    def make(**shape: int) -> Cluster:
        made.append(make_cluster(binary, **shape))
        return made[-1]

    yield make
    for one in made:
        one.parkway("down", check=False)


@pytest.fixture(scope="module")
def own_cluster(binary) -> Iterator[Cluster]:
    """2 slices x 1 host x 2 devices for one module, whose tests kill parts of it."""
    own = make_cluster(binary)
    yield own
    own.parkway("down", check=False)


@pytest.fixture
def by_hand(binary, tmp_path) -> Iterator:
    """roles.ByHand: roles with flags of the test's own."""
    from roles import ByHand

    made = ByHand(binary, tmp_path)
    yield made
    made.stop()

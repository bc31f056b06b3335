"""`make conformance`: JAX's own tests against a cluster of separate processes, with an unmodified JAX as the client.

The tests stay where they are: --jax-tests is the tests/ folder of a JAX checkout, jax_tests/expected.txt says which to
run. Each file of them has a client process of its own; a test that kills or hangs it is counted, and the rest goes on in
a new one. Prints counts for each file and in total, then every test that did not pass; exit status 0 when all passed.
With --local each file also runs on JAX's own CPU backend in one process, for the time that the tests take there: what a
client's start takes is in neither.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from client_venvs import python_with  # noqa: E402

BINARY = Path(os.environ.get("PARKWAY_BINARY", Path(sys.prefix) / "bin" / "parkway"))
PLUGIN = HERE / "jax_tests" / "report_plugin.py"
EXPECTED = HERE / "jax_tests" / "expected.txt"
JAX_VERSION = "0.11.2"
CLIENT_PACKAGES = f"""jax=={JAX_VERSION} jaxlib=={JAX_VERSION} pathwaysutils==0.1.13 pytest pytest-timeout absl-py numpy
    scipy cloudpickle hypothesis flatbuffers opt_einsum setuptools matplotlib pillow portpicker""".split()
OUTCOMES = ["passed", "failed", "skipped", "crash", "timeout", "missing"]
MAX_CLIENTS = 25  # for one file


@dataclass
class Outcome:
    """How a test ended; `seconds` that it took, where it came to its end."""

    what: str
    message: str = ""
    seconds: float = 0.0


def client_environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not re.match(r"JAX_|IFRT_PROXY_|XLA_", key)}
    return {
        **kept,
        "JAX_NUM_GENERATED_CASES": "2",  # part of what a test's name means
        "JAX_SKIP_SLOW_TESTS": "1",
        "PYTHONPATH": str(PLUGIN.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def expected_tests(files: list[str]) -> dict[str, list[str]]:
    """The tests to run, by file: those of `files`, or all."""
    tests = collections.defaultdict(list)
    for line in EXPECTED.read_text().splitlines():
        if not line.startswith("#"):
            tests[line.split("::")[0]].append(line)
    if unknown := set(files) - set(tests):
        sys.exit(f"no test of {', '.join(sorted(unknown))} is in {EXPECTED}")
    return {file: tests[file] for file in (files or tests)}


class Cluster:
    """`parkway up` of one shape, for as long as the with statement lasts."""

    def __init__(self, slices: int, hosts: int, devices: int):
        self.name = f"conformance-{uuid.uuid4().hex[:8]}"
        self.shape = [f"--slices={slices}", f"--hosts-per-slice={hosts}", f"--devices-per-host={devices}"]

    def command(self, command: str, *arguments: str) -> list[str]:
        return [str(BINARY), command, f"--name={self.name}", *arguments]

    def run(self, command: list[str]) -> list[str]:
        return self.command("run", "--", *command)

    def __enter__(self) -> "Cluster":
        up = self.command("up", "--detach", "--port=auto", f"--stop-with-pid={os.getpid()}", *self.shape)
        subprocess.run(up, check=True, stdout=subprocess.DEVNULL)
        return self

    def __exit__(self, *_) -> None:
        subprocess.run(self.command("down"), check=True, stdout=subprocess.DEVNULL)


class LocalJax:
    """JAX's own CPU backend, with as many devices, in the place of a cluster."""

    DEVICES = 8

    def run(self, command: list[str]) -> list[str]:
        flags = f"XLA_FLAGS=--xla_force_host_platform_device_count={self.DEVICES}"
        return ["env", "JAX_PLATFORMS=cpu", flags, *command]


def run_client(
    command: list[str], tests: list[str], directory: Path, seconds: float
) -> tuple[dict[str, Outcome], list[str], str]:
    """One client process: the tests' outcomes, those that are missing, and its own end of output."""
    chosen, report = directory / "tests", directory / "report"
    chosen.write_text("\n".join(tests))
    report.unlink(missing_ok=True)
    environment = {**client_environment(), "PARKWAY_TESTS": str(chosen), "PARKWAY_REPORT": str(report)}
    with open(directory / "output", "w+b") as output:
        try:
            code = subprocess.run(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=directory, timeout=seconds
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
        output.seek(0)
        tail = output.read()[-4000:].decode(errors="replace")
    started, ended, missing = None, {}, None
    for line in report.read_text().splitlines() if report.exists() else []:
        event = json.loads(line)
        if event["event"] == "collected":
            missing = event["missing"]
        elif event["event"] == "start":
            started = event["test"]
        else:
            ended[event["test"]] = Outcome(event["outcome"], event["message"], event["seconds"])
    if missing is None:
        return {}, tests, tail
    if started is not None and started not in ended:
        hung = code is None or "+ Timeout +" in tail
        ended[started] = Outcome("timeout" if hung else "crash", f"the client ended with {code}: {tail[-300:]}")
    return ended, missing, tail


def run_file(
    where: Cluster | LocalJax, python: Path, path: Path, tests: list[str], seconds: float
) -> dict[str, Outcome]:
    """All of a file's tests; a new client for those behind one that took its client with it."""
    pytest = f"-m pytest -q --tb=line -W ignore --noconftest -p no:cacheprovider -p {PLUGIN.stem}".split()
    limits = [f"--timeout={seconds}", "--timeout-method=thread"]
    outcomes = {}
    with tempfile.TemporaryDirectory(prefix="parkway-conformance-") as scratch:
        directory = Path(scratch)
        (directory / "pytest.ini").write_text("[pytest]\n")
        rooted = ["-c", str(directory / "pytest.ini"), "--rootdir", str(path.parent)]
        command = where.run([str(python), *pytest, *limits, *rooted, str(path)])
        for _ in range(MAX_CLIENTS):
            left = [test for test in tests if test not in outcomes]
            ended, missing, tail = run_client(command, left, directory, seconds * (len(left) + 1))
            outcomes.update(ended)
            outcomes.update(dict.fromkeys(missing, Outcome("missing", tail[-300:])))
            if not ended or len(outcomes) == len(tests):
                break
    return {test: outcomes.get(test, Outcome("missing", "not reached")) for test in tests}


class Times:
    """Seconds of the tests that pass on the cluster and by local JAX, on each."""

    def __init__(self) -> None:
        self.cluster = self.local = 0.0

    def add(self, cluster: dict[str, Outcome], local: dict[str, Outcome]) -> None:
        for test, outcome in cluster.items():
            if outcome.what == local[test].what == "passed":
                self.cluster += outcome.seconds
                self.local += local[test].seconds

    def __str__(self) -> str:
        ratio = f"{self.cluster / self.local:.2f}" if self.local else "-"
        return f"{self.cluster:.1f} s on the cluster, {self.local:.1f} s by local JAX: {ratio} x"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jax-tests", type=Path, required=True, help="tests/ of a JAX checkout")
    parser.add_argument("--files", default="", help="comma-separated, without .py (default: all)")
    parser.add_argument(
        "--shape", default="1x1x8", help="SLICESxHOSTSxDEVICES, 8 devices in all (default: %(default)s)"
    )
    parser.add_argument("--python", type=Path, help="an interpreter with the client's JAX (default: made when absent)")
    parser.add_argument("--local", action="store_true", help="compare the time with local JAX's")
    parser.add_argument("--timeout", type=float, default=240, help="seconds for one test (default: %(default)s)")
    arguments = parser.parse_args()
    folder = arguments.jax_tests.resolve()
    if not (folder / "pjit_test.py").is_file():
        sys.exit(f"{folder} is not the tests/ folder of a JAX checkout: it has no pjit_test.py")
    by_file = expected_tests([file for file in arguments.files.split(",") if file])
    python = arguments.python or python_with(*CLIENT_PACKAGES)
    total, bad, times = collections.Counter(), [], Times()
    print(f"{'file':42s}" + "".join(f"{outcome:>9s}" for outcome in OUTCOMES), flush=True)
    with Cluster(*map(int, arguments.shape.split("x"))) as cluster:
        for file, tests in by_file.items():
            path = folder / f"{file}.py"
            outcomes = run_file(cluster, python, path, tests, arguments.timeout)
            if arguments.local:
                times.add(outcomes, run_file(LocalJax(), python, path, tests, arguments.timeout))
            counts = collections.Counter(outcome.what for outcome in outcomes.values())
            total += counts
            bad += [(test, outcome) for test, outcome in outcomes.items() if outcome.what != "passed"]
            print(f"{file:42s}" + "".join(f"{counts[outcome]:9d}" for outcome in OUTCOMES), flush=True)
    print(f"{'total':42s}" + "".join(f"{total[outcome]:9d}" for outcome in OUTCOMES))
    for test, outcome in bad:
        print(f"{outcome.what} {test}: {' '.join(outcome.message.split())}")
    if arguments.local:
        print(times)
    print(f"{total['passed']} of {total.total()} passed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

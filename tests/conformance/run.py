"""`make conformance`: JAX's own tests against a cluster of separate processes, with an unmodified JAX as the client.

The tests stay where they are: --jax-tests is the tests/ folder of a JAX checkout, jax_tests/expected.txt says which to
run. Each file of them has a client process of its own; a test that kills or hangs it is counted, and the rest goes on in
a new one. Prints counts for each file and in total, then every test that did not pass; exit status 0 when all passed.
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

    def __enter__(self) -> "Cluster":
        up = self.command("up", "--detach", "--port=auto", f"--stop-with-pid={os.getpid()}", *self.shape)
        subprocess.run(up, check=True, stdout=subprocess.DEVNULL)
        return self

    def __exit__(self, *_) -> None:
        subprocess.run(self.command("down"), check=True, stdout=subprocess.DEVNULL)


def run_client(command: list[str], tests: list[str], directory: Path, seconds: float) -> tuple[dict, list[str], str]:
    """One client process: the tests' outcomes (outcome, message), those that are missing, and its own end of output."""
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
            ended[event["test"]] = (event["outcome"], event["message"])
    if missing is None:
        return {}, tests, tail
    if started is not None and started not in ended:
        hung = code is None or "+ Timeout +" in tail
        ended[started] = ("timeout" if hung else "crash", f"the client ended with {code}: {tail[-300:]}")
    return ended, missing, tail


def run_file(cluster: Cluster, python: Path, path: Path, tests: list[str], seconds: float) -> dict:
    """All of a file's tests; a new client for those behind one that took its client with it."""
    pytest = f"-m pytest -q --tb=line -W ignore --noconftest -p no:cacheprovider -p {PLUGIN.stem}".split()
    limits = [f"--timeout={seconds}", "--timeout-method=thread"]
    outcomes = {}
    with tempfile.TemporaryDirectory(prefix="parkway-conformance-") as scratch:
        directory = Path(scratch)
        (directory / "pytest.ini").write_text("[pytest]\n")
        rooted = ["-c", str(directory / "pytest.ini"), "--rootdir", str(path.parent)]
        command = cluster.command("run", "--", str(python), *pytest, *limits, *rooted, str(path))
        for _ in range(MAX_CLIENTS):
            left = [test for test in tests if test not in outcomes]
            ended, missing, tail = run_client(command, left, directory, seconds * (len(left) + 1))
            outcomes.update(ended)
            outcomes.update(dict.fromkeys(missing, ("missing", tail[-300:])))
            if not ended or len(outcomes) == len(tests):
                break
    return {test: outcomes.get(test, ("missing", "not reached")) for test in tests}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jax-tests", type=Path, required=True, help="tests/ of a JAX checkout")
    parser.add_argument("--files", default="", help="comma-separated, without .py (default: all)")
    parser.add_argument(
        "--shape", default="1x1x8", help="SLICESxHOSTSxDEVICES, 8 devices in all (default: %(default)s)"
    )
    parser.add_argument("--python", type=Path, help="an interpreter with the client's JAX (default: made when absent)")
    parser.add_argument("--timeout", type=float, default=240, help="seconds for one test (default: %(default)s)")
    arguments = parser.parse_args()
    folder = arguments.jax_tests.resolve()
    if not (folder / "pjit_test.py").is_file():
        sys.exit(f"{folder} is not the tests/ folder of a JAX checkout: it has no pjit_test.py")
    by_file = expected_tests([file for file in arguments.files.split(",") if file])
    python = arguments.python or python_with(*CLIENT_PACKAGES)
    total, bad = collections.Counter(), []
    print(f"{'file':42s}" + "".join(f"{outcome:>9s}" for outcome in OUTCOMES), flush=True)
    with Cluster(*map(int, arguments.shape.split("x"))) as cluster:
        for file, tests in by_file.items():
            outcomes = run_file(cluster, python, folder / f"{file}.py", tests, arguments.timeout)
            counts = collections.Counter(outcome for outcome, _ in outcomes.values())
            total += counts
            bad += [(test, *result) for test, result in outcomes.items() if result[0] != "passed"]
            print(f"{file:42s}" + "".join(f"{counts[outcome]:9d}" for outcome in OUTCOMES), flush=True)
    print(f"{'total':42s}" + "".join(f"{total[outcome]:9d}" for outcome in OUTCOMES))
    for test, outcome, message in bad:
        print(f"{outcome} {test}: {' '.join(message.split())}")
    print(f"{total['passed']} of {total.total()} passed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

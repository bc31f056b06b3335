"""A pytest plugin that runs chosen tests and tells of each when it starts, how it ended and how many seconds it took, one
JSON line each. Connecting to the devices is in none of them.

Environment: PARKWAY_TESTS, a file with the tests to run, one a line; PARKWAY_REPORT, the file to append to. The process
may die at any test: a line that says "start" and has no "end" tells at which.
"""

import json
import os
import pathlib

LOST = "Connection to IFRT proxy server was terminated"
SESSION_LOST = 97  # the exit status; run.py goes on with the next test in a new process

_outcomes = {}
_seconds = {}


def test_name(nodeid):
    path, _, rest = nodeid.partition("::")
    name = f"{pathlib.Path(path).stem}::{rest}"
    return name.replace("\n", "\\n").replace("\t", "\\t").strip()


def _report(**event):
    with open(os.environ["PARKWAY_REPORT"], "a") as file:
        file.write(json.dumps(event) + "\n")


def pytest_configure(config):
    import pathwaysutils  # this JAX learns of the platform "proxy" from it

    pathwaysutils.initialize()


def pytest_collection_modifyitems(config, items):
    left = set(pathlib.Path(os.environ["PARKWAY_TESTS"]).read_text().splitlines())
    chosen = []
    for item in items:
        name = test_name(item.nodeid)
        if name in left:
            left.remove(name)
            chosen.append(item)
    items[:] = chosen
    _report(event="collected", missing=sorted(left))


def pytest_collection_finish(session):
    import jax  # after the test's own module, which may say how many devices it wants

    jax.devices()


def pytest_runtest_logstart(nodeid, location):
    _report(event="start", test=test_name(nodeid))


def pytest_runtest_logreport(report):
    name = test_name(report.nodeid)
    _seconds[name] = _seconds.get(name, 0.0) + report.duration
    if report.outcome == "failed":
        lines = [line[4:].strip() for line in str(report.longrepr).splitlines() if line.startswith("E   ")]
        _outcomes.setdefault(name, ("failed", " | ".join(filter(None, lines))[:600] or str(report.longrepr)[-300:]))
    elif report.outcome == "skipped":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _outcomes.setdefault(name, ("skipped", reason[:200]))
    if report.when == "teardown":
        outcome, message = _outcomes.pop(name, ("passed", ""))
        lost = LOST in message
        seconds = _seconds.pop(name)
        _report(event="end", test=name, outcome="crash" if lost else outcome, message=message, seconds=seconds)
        if lost:
            os._exit(SESSION_LOST)

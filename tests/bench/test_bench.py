"""The benchmarks run, and their table says what was measured."""

import json
import subprocess
import sys

import pytest
from environment import ROOT, clean_environment

sys.path.insert(0, str(ROOT / "bench"))
from report import table
from rows import Experiment, Row
from targets import BenchError


def row(**fields) -> Row:
    return Row("title", "rate", "GB/s", **fields)


def test_ratio_is_the_median_of_the_pairs():
    slow_for_a_while = row(reach=1.0, measured=[1.0, 10.0, 1.0], floors=[2.0, 10.0, 2.0])
    assert slow_for_a_while.ratio == 0.5
    assert slow_for_a_while.value == 1.0
    assert slow_for_a_while.met


@pytest.mark.parametrize(
    ("fields", "met"),
    [
        ({"reach": 0.8, "at_least": True, "measured": [0.9], "floors": [1.0]}, True),
        ({"reach": 0.8, "at_least": True, "measured": [0.7], "floors": [1.0]}, False),
        ({"reach": 1.5, "measured": [1.4], "floors": [1.0]}, True),
        ({"reach": 1.5, "measured": [1.6], "floors": [1.0]}, False),
        ({"reach": 4.0, "measured": [5.0]}, False),  # of the figure itself
        ({"measured": [5.0]}, None),
    ],
)
def test_met(fields, met):
    assert row(**fields).met is met


class NoTargets:
    def drop_clients(self):
        pass


def test_pairs_alternate():
    order = []

    def measure(who):
        return lambda targets, transport: order.append(who) or {"rate": 1.0}

    (done,) = Experiment("e", lambda: [row()], measure("ours"), measure("floor"), "N").run(NoTargets(), "tcp", 3)
    assert order == ["floor", "ours", "ours", "floor", "floor", "ours"]
    assert len(done.measured) == len(done.floors) == 3


def test_a_failure_is_told_in_its_row():
    def fail(targets, transport):
        raise BenchError("no such program")

    (done,) = Experiment("e", lambda: [row(reach=1.0)], fail).run(NoTargets(), "tcp", 3)
    assert done.failure == "no such program"
    assert done.met is None
    assert "not run" in table([done])


def test_other_losses_than_the_peers_are_a_failure():
    ours = {"rate": 1.0, "loss": 2.0}
    experiment = Experiment("e", lambda: [row()], lambda *_: ours, lambda *_: ours | {"loss": 2.1}, "T")
    (done,) = experiment.run(NoTargets(), "tcp", 1)
    assert "the loss is 2.000000, but 2.100000" in done.failure


def test_a_run_against_a_cluster(binary, tmp_path):
    output = tmp_path / "figures.json"
    words = [sys.executable, str(ROOT / "bench" / "run.py"), "--quick", "--only=stream", "--only=chain"]
    done = subprocess.run(
        [*words, f"--output={output}"],
        capture_output=True,
        text=True,
        env={**clean_environment(), "PARKWAY_BINARY": binary},
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "dependent chain, whole per call" in done.stdout
    rows = json.loads(output.read_text())["rows"]
    assert {(found["key"], found["transport"]) for found in rows} == {
        (key, transport) for key in ("rate", "round_trip_us", "dispatch", "whole") for transport in ("tcp", "unix")
    }
    assert all(len(found["measured"]) == 2 for found in rows)

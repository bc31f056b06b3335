"""Parkway's sharding arithmetic against jaxlib's own answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ORACLE = HERE.parents[2] / "build/tests/conformance/sharding/sharding_oracle"


def test_random_shardings_agree_with_jaxlib():
    assert ORACLE.exists(), f"{ORACLE} is not built: run `make build`"
    command = [sys.executable, HERE / "sharding_cases.py", ORACLE, "--cases=20000", "--seed=1"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stdout + run.stderr[-8000:]
    counts = json.loads(run.stdout.splitlines()[-1])
    assert min(counts[kind] for kind in ("tiled", "named", "replicated", "tuple")) > 1000, counts

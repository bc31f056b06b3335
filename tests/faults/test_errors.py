"""Failures that a client can cause with JAX alone: each error says what failed and where, and the session goes on."""

import json
from pathlib import Path

CASES = Path(__file__).parent / "errors_of_a_client.py"


def test_every_error_names_its_cause_and_the_session_goes_on(cluster):
    engines = cluster.engine_pids()
    seen = [json.loads(line) for line in cluster.run(CASES).stdout.splitlines() if line.startswith('{"case"')]
    assert len(seen) == CASES.read_text().count("\n@case(")
    wrong = [one for one in seen if one["missing"]]
    assert not wrong, json.dumps(wrong, indent=1)
    lost = ("DATA_LOSS", "NOT_FOUND", "INTERNAL", "DEADLINE_EXCEEDED")  # programs take these for a lost slice
    assert not [one for one in seen if any(word in one["text"] for word in lost)]
    assert cluster.engine_pids() == engines

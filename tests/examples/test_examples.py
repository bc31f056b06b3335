"""Each example holds what it claims, on a cluster."""

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize(
    "example", ["digits_classifier.py", "batch_inference.py", "actor_learner.py", "pipeline_two_stages.py"]
)
def test_example(cluster, example):
    client = cluster.run(EXAMPLES / example)
    assert "4 devices in 2 slices, on a Parkway cluster" in client.stdout


def test_transformer_learns(cluster):
    client = cluster.run(EXAMPLES / "train_transformer.py", "--steps", "120")
    assert "nats per byte" in client.stdout


def test_examples_are_short():
    for example in EXAMPLES.glob("*.py"):
        assert len(example.read_text().splitlines()) < 150, example

"""Programs with libraries from PyPI, unmodified: what they print on a cluster is what they print on local JAX."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from client_venvs import python_with
from environment import clean_environment

SCRIPTS = Path(__file__).parent / "scripts"
SECONDS = 240
REQUIREMENTS = ["jax==0.12.0.1", "jaxlib==0.12.0.1", "numpy==2.5.5", "flatbuffers==25.12.19", "flax==0.12.12"]
REQUIREMENTS += ["optax==0.2.8", "orbax-checkpoint==0.12.8", "blackjax==1.7.1", "diffrax==0.7.2"]
LOCAL = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"}


@pytest.fixture(scope="session")
def python() -> str:
    return str(python_with(*REQUIREMENTS))


def check_alike(got, expected, tolerance: float, where: str = "") -> None:
    assert type(got) is type(expected), where
    if isinstance(got, dict):
        assert got.keys() == expected.keys(), where
        for name in got:
            check_alike(got[name], expected[name], tolerance, f"{where}/{name}")
    elif isinstance(got, list):
        assert len(got) == len(expected), where
        for i, (one, want) in enumerate(zip(got, expected, strict=True)):
            check_alike(one, want, tolerance, f"{where}/{i}")
    elif isinstance(got, float):
        assert got == pytest.approx(expected, rel=tolerance, abs=tolerance), where
    else:
        assert got == expected, where


# Each with the relative difference that another order of its sums may make.
PROGRAMS = {
    "nnx_training.py": 1e-3,
    "nuts.py": 5e-2,
    "ode.py": 1e-3,
    "optimisers.py": 1e-3,
    "export_import.py": 1e-5,
}


@pytest.mark.parametrize("script", PROGRAMS)
def test_as_on_local_jax(cluster, python, tmp_path, script):
    for name in ("cluster", "local"):
        (tmp_path / name).mkdir()
    words = [python, str(SCRIPTS / script), str(tmp_path / "local")]
    local = subprocess.Popen(
        words, env={**clean_environment(), **LOCAL, "HOME": os.environ["HOME"]}, stdout=subprocess.PIPE, text=True
    )
    try:
        client = cluster.run(SCRIPTS / script, str(tmp_path / "cluster"), python=python, seconds=SECONDS)
        out, _ = local.communicate(timeout=SECONDS)
    finally:
        local.kill()
    assert local.returncode == 0
    check_alike(client.json(), json.loads(out.strip().splitlines()[-1]), PROGRAMS[script])

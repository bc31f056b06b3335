"""parkway.LocalCluster, as a notebook uses it."""

import subprocess
import sys
import textwrap

import pytest
from environment import clean_environment


def run_python(program: str, **env: str) -> str:
    words = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=180, env={**clean_environment(), **env}, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def supervisors() -> str:
    rows = subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True, check=True).stdout
    return "\n".join(row for row in rows.splitlines() if "--name=python-" in row)


def test_before_jax_is_imported():
    out = run_python("""
        import parkway
        c = parkway.LocalCluster(slices=2, devices_per_host=1)
        c.connect()
        import jax, time
        print([d.slice_index for d in jax.devices()], jax.numpy.arange(4).sum())
        deadline = time.monotonic() + 20  # proxies report each second
        while c.status()["sessions"] != 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        print(c.status()["sessions"])
    """)
    assert out.splitlines() == ["[0, 1] 6", "1"]


def test_after_jax_was_used_and_back_again():
    out = run_python(
        """
        import jax
        print(len(jax.devices()), float(jax.numpy.ones(3).sum()))
        import parkway
        with parkway.LocalCluster(slices=1, devices_per_host=2) as c:
            c.connect()
            print(len(jax.devices()), jax.devices()[0].client.runtime_type, float(jax.numpy.ones(4).sum()))
        print(len(jax.devices()), float(jax.numpy.ones(5).sum()))
        """,
        JAX_PLATFORMS="cpu",
        JAX_NUM_CPU_DEVICES="3",
    )
    assert out.splitlines() == ["3 3.0", "2 proxy/pathways 4.0", "3 5.0"]


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(0)", "import os; os.kill(os.getpid(), 9)"])
def test_no_process_outlives_python(end):
    program = f"import parkway, sys\nc = parkway.LocalCluster(slices=1)\nprint(c.name, flush=True)\n{end}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    name = done.stdout.strip()
    assert name.startswith("python-")
    for _ in range(300):
        if name not in supervisors():
            return
        subprocess.run(["sleep", "0.1"], check=True)
    pytest.fail(supervisors())


def test_an_error_says_what_parkway_said():
    out = run_python("""
        import parkway
        try:
            parkway.LocalCluster(slices=0)
        except parkway.ClusterError as error:
            print(error)
    """)
    assert "--slices" in out


def test_a_missing_binary_says_what_to_do():
    out = run_python(
        """
        import sys
        sys.prefix = "/nowhere"
        import parkway
        try:
            parkway.LocalCluster()
        except parkway.ClusterError as error:
            print(error)
        """,
        PATH="/nowhere",
        PARKWAY_BINARY="",
    )
    assert "make build" in out

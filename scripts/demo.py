"""`make demo`: a cluster of separate processes trains a transformer, and local JAX says whether it did so rightly.

Starts a manager, a proxy and the workers of 2 slices x 1 host x 2 devices, trains examples/train_transformer.py on them,
trains the same on local JAX with 4 devices, compares the losses, and leaves no process behind.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BINARY = Path(sys.prefix) / "bin" / "parkway"
SCRIPT = ROOT / "examples" / "train_transformer.py"
SLICES, HOSTS, DEVICES = 2, 1, 2
TOLERANCE = 2e-3  # relative; the order of additions differs between the two


def say(text: str) -> None:
    print(f"\n--- {text}", flush=True)


def parkway(name: str, command: str, *arguments: str) -> list[str]:
    return [str(BINARY), command, f"--name={name}", *arguments]


def local_environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not re.match(r"JAX_|IFRT_PROXY_|XLA_", key)}
    return {**kept, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(SLICES * HOSTS * DEVICES)}


def train(command: list[str], steps: int, losses: Path, **kwargs) -> tuple[list[float], float]:
    """Runs the training script; its losses and its seconds."""
    started = time.monotonic()
    subprocess.run(
        [*command, sys.executable, str(SCRIPT), f"--steps={steps}", f"--json={losses}"], check=True, **kwargs
    )
    return json.loads(losses.read_text())["losses"], time.monotonic() - started


def processes_of(name: str) -> list[str]:
    """Command lines of this machine's processes that belong to the cluster: its supervisor and all below it."""
    rows = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    table = [row.split(None, 2) for row in rows.splitlines()]
    members = {pid for pid, _, args in table if re.search(rf"parkway up .*--name={name}\b", args)}
    while grown := {pid for pid, parent, _ in table if parent in members} - members:
        members |= grown
    return [f"{pid} {args}" for pid, _, args in table if pid in members]


def alive(processes: list[str]) -> list[str]:
    """Those that still run under the same command line."""
    rows = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    now = {" ".join(row.split(None, 1)) for row in rows.splitlines()}
    return [process for process in processes if process in now]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    name = f"demo-{os.getpid()}"

    say(f"starting a manager, a proxy and the workers of {SLICES} slices x {HOSTS} host x {DEVICES} devices")
    shape = [f"--slices={SLICES}", f"--hosts-per-slice={HOSTS}", f"--devices-per-host={DEVICES}"]
    up = parkway(name, "up", "--detach", "--port=auto", f"--stop-with-pid={os.getpid()}", *shape)
    started = subprocess.run(up, capture_output=True, text=True, check=False)
    if started.returncode != 0:
        print(started.stderr, file=sys.stderr)
        return 1
    print(started.stdout.splitlines()[0])
    processes = processes_of(name)
    print("its processes:", *processes, sep="\n  ")

    with tempfile.TemporaryDirectory() as scratch:
        try:
            say(f"training a transformer for {steps} steps on the cluster, with stock JAX as its client")
            got, took = train(parkway(name, "run", "--"), steps, Path(scratch) / "cluster.json")
            say("what the cluster says")
            subprocess.run(parkway(name, "status"), check=True)
            processes = sorted({*processes, *processes_of(name)})
        finally:
            say("stopping the cluster")
            subprocess.run(parkway(name, "down"), check=True)
        say("training the same on local JAX, in one process with as many devices")
        wanted, took_local = train([], steps, Path(scratch) / "local.json", env=local_environment())

    left = alive(processes)
    worst = max(abs(a - b) / abs(b) for a, b in zip(got, wanted, strict=True))
    say("result")
    print(f"An unmodified JAX program saw the {SLICES * HOSTS * DEVICES} devices of {SLICES * HOSTS} hosts as its own")
    print("and trained on all of them: data parallel between the slices, parameters split inside each.")
    print(f"In {steps} steps the loss went from {got[0]:.3f} to {got[-1]:.3f} nats per byte.")
    print(f"The same script on local JAX gives the same losses: none differs by more than {worst:.1e} of itself.")
    print(f"The cluster's run took {took:.1f} s, local JAX's {took_local:.1f} s, start-up and compiling included.")
    if worst > TOLERANCE:
        print(f"FAILED: the losses differ by {worst:.1e}; allowed is {TOLERANCE:.0e}", file=sys.stderr)
    if left:
        print("FAILED: these processes are still there:", *left, sep="\n  ", file=sys.stderr)
    else:
        print(f"None of the {len(processes)} processes that were started is left.")
    return 1 if left or worst > TOLERANCE else 0


if __name__ == "__main__":
    sys.exit(main())

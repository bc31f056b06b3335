"""`make bench`: what a stock JAX client feels on Parkway, each figure beside a floor or a peer of the same run.

Measures in alternating pairs, prints a table and writes bench/results/<date>.json. A figure that can't be measured says why
and makes the exit code 1; one that misses its reach does not.
"""

import argparse
import json
import os
import platform
import signal
import sys
import time
from pathlib import Path

from report import as_json, table
from rows import Row, experiments
from sizes import FULL, QUICK
from targets import BenchError, Targets

ROOT = Path(__file__).resolve().parent.parent


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 pairs and few repetitions: does everything run?")
    parser.add_argument("--pairs", type=int, help="alternating pairs of each figure (9)")
    parser.add_argument("--only", action="append", metavar="NAME", help="an experiment; see --list; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the experiments' names")
    parser.add_argument("--port", default="auto", help="first port of the cluster, for `parkway up`")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build folder")
    parser.add_argument("--output", type=Path, help="JSON file instead of bench/results/<date>.json")
    return parser.parse_args()


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def measure(arguments: argparse.Namespace) -> tuple[list[Row], list[dict]]:
    """All rows, and when and under which load each experiment ran."""
    pairs = arguments.pairs or (2 if arguments.quick else 9)
    rows, runs = [], []
    targets = Targets(arguments.build, arguments.port)
    try:
        for experiment in experiments(QUICK if arguments.quick else FULL):
            if arguments.only and experiment.name not in arguments.only:
                continue
            for transport in experiment.transports:
                print(f"{experiment.name} over {transport}", file=sys.stderr, flush=True)
                started, before = time.time(), load()
                done = experiment.run(targets, transport, pairs)
                runs.append(
                    {
                        "experiment": experiment.name,
                        "transport": transport,
                        "seconds": round(time.time() - started, 1),
                        "load_before": before,
                        "load_after": load(),
                    }
                )
                rows += done
                if done[0].failure:
                    print(f"  could not be measured: {done[0].failure}", file=sys.stderr, flush=True)
    finally:
        targets.close()
    return rows, runs


def main() -> int:
    arguments = parse_arguments()
    names = [experiment.name for experiment in experiments(FULL)]
    if arguments.list:
        print(*names, sep="\n")
        return 0
    if unknown := set(arguments.only or []) - set(names):
        print(f"--only={min(unknown)}: there is no such experiment; --list prints them", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing is left running

    started, before = time.strftime("%Y-%m-%dT%H%M%SZ", time.gmtime()), load()
    rows, runs = measure(arguments)
    after = load()

    print(table(rows))
    print(f"\nload averages: {before} at the start, {after} at the end; {os.cpu_count()} CPUs")
    output = arguments.output or ROOT / "bench" / "results" / f"{started}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    summary = {
        "started": started,
        "quick": arguments.quick,
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "load_start": before,
        "load_end": after,
        "rows": [as_json(row) for row in rows],
        "runs": runs,
    }
    output.write_text(json.dumps(summary, indent=1) + "\n")
    print(f"written to {output}")
    failed = [row for row in rows if row.failure]
    for row in failed:
        print(f"not run: {row.title} over {row.transport}: {row.failure}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"bench: {error}")

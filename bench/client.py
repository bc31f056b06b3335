"""A JAX process that measures when it is told to. The backend is what its environment says.

Reads requests as lines of JSON on stdin, {"measure": "chain", "times": 100}, and answers each with one line on stdout:
the figures of measures.py, or {"error": "..."}. Ends when stdin does. With --coordinator it is one process of several.
"""

import argparse
import json
import os
import sys
import traceback


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--coordinator", help="host:port; the processes of one program meet there")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    arguments = parser.parse_args()

    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not a reply

    import jax

    if arguments.coordinator:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(arguments.coordinator, arguments.processes, arguments.rank)
    from measures import MEASURES

    def answer(reply: dict) -> None:
        print(json.dumps(reply), file=replies, flush=True)

    answer({"devices": len(jax.devices()), "jax": jax.__version__})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(MEASURES[request.pop("measure")](**request))
        except Exception as error:
            traceback.print_exc()
            answer({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()

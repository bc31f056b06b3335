"""How large and how often."""

from dataclasses import dataclass

BIG = 128 << 20  # bytes of a large array
MANY = 200  # arguments
CLIENTS = 16  # at once


@dataclass(frozen=True)
class Sizes:
    """How much each measurement repeats."""

    calls: int  # of a small program, each waited for
    chain: int
    collectives: int
    steps: int  # of training
    transfers: int  # of a large array
    traffic: int  # large arrays each way, while memory is watched
    launches: int  # over many hosts


FULL = Sizes(calls=300, chain=3000, collectives=500, steps=60, transfers=3, traffic=32, launches=200)
QUICK = Sizes(calls=50, chain=300, collectives=50, steps=10, transfers=1, traffic=4, launches=20)

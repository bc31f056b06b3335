"""The figures of the table: what each is compared with, and how far from it Parkway may be.

The floors: N is a null proxy that answers at once, W a gRPC stream in 1 MiB messages, M a memcpy into fresh shared memory,
L local JAX, T two-process JAX with Gloo.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from sizes import BIG, CLIENTS, MANY, Sizes
from targets import TCP, UNIX, BenchError, Figures, Targets

BOTH = (TCP, UNIX)
MIB = 1 << 20
SAME_LOSS = 1e-3  # relative: the order of additions differs
ROUND_TRIPS = 15  # what a call of many arguments may take over local JAX, in empty messages


@dataclass
class Row:
    """One line of the table. `reach` is of the ratio to the floor, or of the figure itself where there is no floor."""

    title: str
    key: str  # in the figures that are measured
    unit: str
    reach: float | None = None  # None: for reference only
    at_least: bool = False
    floor_name: str = ""
    transport: str = ""
    measured: list[float] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def value(self) -> float:
        return statistics.median(self.measured)

    @property
    def floor(self) -> float | None:
        return statistics.median(self.floors) if self.floors else None

    @property
    def ratio(self) -> float | None:
        """Median of the pairs' ratios: what slows the machine for a while slows both of a pair."""
        if not self.floors:
            return None
        return statistics.median(ours / floor for ours, floor in zip(self.measured, self.floors, strict=True))

    @property
    def met(self) -> bool | None:
        if self.failure or self.reach is None:
            return None
        figure = self.value if self.ratio is None else self.ratio
        return figure >= self.reach if self.at_least else figure <= self.reach


Measure = Callable[[Targets, str], Figures]


@dataclass
class Experiment:
    """Rows that one pair of measurements gives: Parkway's and the floor's, by transport."""

    name: str
    rows: Callable[[], list[Row]]
    ours: Measure
    floor: Measure | None = None
    floor_name: str = ""
    transports: tuple[str, ...] = BOTH
    most_pairs: int = 1000  # where more tell no more

    def run(self, targets: Targets, transport: str, pairs: int) -> list[Row]:
        """Alternating pairs. A measurement that fails is told in its rows."""
        rows = self.rows()
        for row in rows:
            row.transport, row.floor_name = transport, self.floor_name
        try:
            for number in range(min(pairs, self.most_pairs)):
                self._pair(targets, transport, rows, floor_first=number % 2 == 0)
        except BenchError as error:
            for row in rows:
                row.failure = str(error)
            targets.drop_clients()
        return rows

    def _pair(self, targets: Targets, transport: str, rows: list[Row], floor_first: bool) -> None:
        floor: Figures = {}
        if self.floor is not None and floor_first:
            floor = self.floor(targets, transport)
        ours = self.ours(targets, transport)
        if self.floor is not None and not floor_first:
            floor = self.floor(targets, transport)
        if "loss" in floor and not math.isclose(ours["loss"], floor["loss"], rel_tol=SAME_LOSS):
            raise BenchError(f"{self.name}: the loss is {ours['loss']:.6f}, but {floor['loss']:.6f} by the floor's way")
        for row in rows:
            row.measured.append(ours[row.key])
            if floor:
                row.floors.append(floor[row.key])


def against_null(name: str, rows: Callable[[], list[Row]], measure: str, **arguments: int) -> Experiment:
    """The same measurement on the cluster and on a null proxy."""
    return Experiment(
        name,
        rows,
        ours=lambda targets, transport: targets.parkway(transport).measure(measure, **arguments),
        floor=lambda targets, transport: targets.null(transport).measure(measure, **arguments),
        floor_name="N",
    )


def against_multi_process(name: str, rows: Callable[[], list[Row]], measure: str, times: int) -> Experiment:
    """The same measurement on the cluster and by two processes of JAX."""
    return Experiment(
        name,
        rows,
        ours=lambda targets, transport: targets.parkway(transport).measure(measure, times=times),
        floor=lambda targets, transport: targets.multi_process().measure(measure, times=times),
        floor_name="T",
    )


def latency(sizes: Sizes) -> list[Experiment]:
    def read(what: str, size: int) -> Experiment:
        return against_null(
            f"read-{size}",
            lambda: [
                Row(f"execute + read {what}, p50", "p50", "us", 1.4),
                Row(f"execute + read {what}, p99", "p99", "us", 2.0),
            ],
            "execute_and_read",
            times=sizes.calls,
            size=size,
        )

    return [
        against_null(
            "execute",
            lambda: [Row("execute + block, p50", "p50", "us", 1.6)],
            "execute_and_block",
            times=sizes.calls,
        ),
        read("4 B", 4),
        read("1 KiB", 1024),
        against_null(
            "chain",
            lambda: [
                Row("dependent chain, dispatch per call", "dispatch", "us", 1.3),
                Row("dependent chain, whole per call", "whole", "us", 2.5),
            ],
            "chain",
            times=sizes.chain,
        ),
        Experiment(
            "arguments",
            lambda: [Row(f"call of {MANY} arguments, whole, p50", "p50", "us", 1.0)],
            ours=lambda targets, transport: targets.parkway(transport).measure(
                "many_arguments", times=sizes.calls // 5
            ),
            floor=lambda targets, transport: many_arguments_floor(targets, transport, sizes),
            floor_name=f"(L + {ROUND_TRIPS} trips)",
        ),
    ]


def many_arguments_floor(targets: Targets, transport: str, sizes: Sizes) -> Figures:
    local = targets.local().measure("many_arguments", times=sizes.calls // 5)
    stream = targets.stream(transport, messages=16, pings=sizes.calls)
    return {"p50": local["p50"] + ROUND_TRIPS * stream["round_trip_us"]}


def across_hosts(sizes: Sizes) -> list[Experiment]:
    def training(name: str, title: str) -> Experiment:
        return against_multi_process(
            name.replace("_", "-"), lambda: [Row(f"training step, {title}", "step", "us", 1.05)], name, sizes.steps
        )

    return [
        against_multi_process(
            "all-reduce",
            lambda: [Row("all-reduce over 2 hosts, chained", "whole", "us", 1.3)],
            "all_reduce",
            sizes.collectives,
        ),
        training("train_mlp", "perceptron over 2 hosts"),
        training("train_transformer", "transformer over 2 hosts"),
        Experiment(
            "gang",
            lambda: [
                Row("one program to 256 simulated hosts x 4 devices, until the last is done", "launch_ms", "ms", 4.0),
                Row("the same, a chain of launches, per launch", "pipelined_ms", "ms"),
            ],
            ours=lambda targets, transport: targets.gang(transport, sizes.launches),
        ),
    ]


def bulk(sizes: Sizes) -> list[Experiment]:
    times, size = sizes.transfers, BIG

    def rate(title: str, reach: float) -> Callable[[], list[Row]]:
        return lambda: [Row(title, "rate", "GB/s", reach, at_least=True)]

    def memory(targets: Targets, transport: str) -> Figures:
        client = targets.parkway(transport)
        with targets.proxy_peak() as peak:
            client.measure("traffic", times=sizes.traffic)
        return {"MiB": peak.bytes / MIB}

    gibibytes = sizes.traffic * size / (1 << 30)
    return [
        against_null("put", rate("device_put 128 MiB, over gRPC", 0.8), "put", times=times),
        Experiment(
            "put-directory",
            rate("device_put 128 MiB, through the directory", 0.7),
            ours=lambda targets, transport: targets.parkway(transport, directory=True).measure("put", times=times),
            floor=lambda targets, transport: targets.plain_write(size, times),
            floor_name="file write",
            transports=(UNIX,),
        ),
        against_null("read-back", rate("read 128 MiB back", 0.8), "read", times=times),
        Experiment(
            "copy",
            rate("copy 128 MiB to another host's device", 0.25),
            ours=lambda targets, transport: targets.parkway(transport).measure("copy", times=times),
            floor=lambda targets, transport: targets.memcpy(size),
            floor_name="M",
        ),
        Experiment(
            "memory",
            lambda: [
                Row(f"proxy's RssAnon, {gibibytes:g} GiB in and {gibibytes:g} GiB out, peak", "MiB", "MiB", 300.0)
            ],
            ours=memory,
            most_pairs=2,
        ),
    ]


def together(sizes: Sizes) -> list[Experiment]:
    def rate(count: int) -> Measure:
        return lambda targets, transport: targets.clients(transport, count).rate("chain", 4 * sizes.chain // count)

    return [
        Experiment(
            "clients",
            lambda: [Row(f"launches of {CLIENTS} clients together", "rate", "1/s", 0.9, at_least=True)],
            ours=rate(CLIENTS),
            floor=rate(1),
            floor_name="one alone",
        )
    ]


def references(sizes: Sizes) -> list[Experiment]:
    return [
        Experiment(
            "stream",
            lambda: [
                Row("W: a gRPC stream in 1 MiB messages", "rate", "GB/s"),
                Row("round trip of an empty message on it", "round_trip_us", "us"),
            ],
            ours=lambda targets, transport: targets.stream(transport, messages=256, pings=5 * sizes.calls),
        ),
    ]


def experiments(sizes: Sizes) -> list[Experiment]:
    return [*references(sizes), *latency(sizes), *across_hosts(sizes), *bulk(sizes), *together(sizes)]

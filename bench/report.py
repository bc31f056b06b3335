"""The table on the terminal, and the same as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from rows import Row

HEADER = ("figure", "over", "Parkway", "floor", "ratio", "reach", "met")


def number(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def cells(row: Row) -> tuple[str, ...]:
    if row.failure:
        return (row.title, row.transport, "-", "-", "-", reach_of(row), "not run")
    floor = f"{row.floor_name} {number(row.floor)} {row.unit}" if row.floor is not None else "-"
    ratio = f"{row.ratio:.2f}" if row.ratio is not None else "-"
    met = {True: "yes", False: "NO", None: "-"}[row.met]
    return (row.title, row.transport, f"{number(row.value)} {row.unit}", floor, ratio, reach_of(row), met)


def reach_of(row: Row) -> str:
    if row.reach is None:
        return "-"
    what = f"{row.reach:g} {row.floor_name}" if row.floor_name else f"{row.reach:g} {row.unit}"
    return f"{'>=' if row.at_least else '<='} {what}"


def table(rows: list[Row]) -> str:
    lines = [HEADER, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text)


def as_json(row: Row) -> dict[str, Any]:
    fields = dataclasses.asdict(row)
    if not row.failure:
        fields |= {"value": row.value, "floor": row.floor, "ratio": row.ratio, "met": row.met}
    return fields

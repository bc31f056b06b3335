"""Random shardings: which part of an array each device has, in jaxlib's answer and in Parkway's.

    python tests/conformance/sharding/sharding_cases.py build/tests/conformance/sharding/sharding_oracle --cases 5000

Prints a JSON object {"kind": number of cases compared, ...} and fails at the first difference. There are tiles (listed,
iota, transposed, with copies and subgroups), named shardings with sub-axes and any order of devices, and tuples of
those. Even shapes are answered by jaxlib's GSPMDSharding.devices_indices_map, uneven ones and summands by its tile
assignment and the rule of ceil-divided tiles.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import random
import subprocess
import sys

DEVICES = 16
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"

import jax  # noqa: E402  (after the environment)
from jax._src.sharding_impls import GSPMDSharding  # noqa: E402
from jaxlib._hlo import HloSharding, OpSharding  # noqa: E402

Json = dict


def product(numbers) -> int:
    out = 1
    for number in numbers:
        out *= number
    return out


def random_split(rng: random.Random, number: int, parts: int) -> list[int]:
    """`parts` factors whose product is `number`."""
    factors = [1] * parts
    for prime in (2, 3, 5, 7, 11, 13):
        while number % prime == 0:
            factors[rng.randrange(parts)] *= prime
            number //= prime
    return factors


def random_shape(rng: random.Random, tiles: list[int]) -> list[int]:
    """Mostly divisible by the tiles, else of any size from 0."""
    if rng.random() < 0.6:
        return [n * rng.randint(0 if rng.random() < 0.1 else 1, 4) for n in tiles]
    return [rng.randint(0, 4 * n + 3) for n in tiles]


def tiled_case(rng: random.Random, n: int) -> tuple[Json, list[int]]:
    rank = rng.randint(1, 4)
    groups = rng.choice([[], [], [], ["REPLICATED"], ["REPLICATED"], ["UNREDUCED"]])
    dims = random_split(rng, n, rank + len(groups))
    op: Json = {"type": "OTHER", "tileAssignmentDimensions": dims}
    if groups == ["REPLICATED"] and rng.random() < 0.7:
        op["replicateOnLastTileDim"] = True
    elif groups:
        op["lastTileDims"] = groups
    if rng.random() < 0.5:
        axes = rng.randint(1, 4)
        op["iotaReshapeDims"] = random_split(rng, n, axes)
        op["iotaTransposePerm"] = rng.sample(range(axes), axes)
    else:
        op["tileAssignmentDevices"] = rng.sample(range(n), n)
    return op, dims[:rank]


def named_case(rng: random.Random, n: int) -> tuple[Json, list[int]]:
    sizes = random_split(rng, n, rng.randint(1, 4))
    refs = []
    for axis, size in enumerate(sizes):
        if rng.random() < 0.5:
            refs.append(({"meshAxisIndex": axis}, size))
            continue
        pre = 1
        for part in random_split(rng, size, 2 + (rng.random() < 0.3)):
            if part > 1:
                refs.append(({"meshAxisIndex": axis, "subAxisInfo": {"preSize": pre, "size": part}}, part))
            pre *= part
    # A whole axis written as its only part is no sub-axis.
    refs = [(r, s) if s < sizes[r["meshAxisIndex"]] else ({"meshAxisIndex": r["meshAxisIndex"]}, s) for r, s in refs]
    rng.shuffle(refs)
    dims, tiles = [], []
    for _ in range(rng.randint(0, 3)):
        mine = [refs.pop() for _ in range(rng.randint(0, 2)) if refs]
        # jaxlib aborts on neighbouring parts of one axis that are not written as one.
        mine = [r for i, r in enumerate(mine) if i == 0 or r[0]["meshAxisIndex"] != mine[i - 1][0]["meshAxisIndex"]]
        dims.append({"axes": [ref for ref, _ in mine], "isClosed": True})
        tiles.append(product(size for _, size in mine))
    mesh: Json = {"axes": [{"name": f"a{i}", "size": size} for i, size in enumerate(sizes)]}
    order = rng.choice(["plain", "plain", "listed", "iota"])
    if order == "listed" and (ids := rng.sample(range(n), n)) != list(range(n)):
        mesh["deviceIds"] = ids
    elif order == "iota":
        axes = rng.randint(2, 4)
        transform = {"reshapeDims": random_split(rng, n, axes), "transposePerm": rng.sample(range(axes), axes)}
        mesh["iotaTransform"] = transform
    named: Json = {"mesh": mesh, "dimShardings": dims}
    for kind in ("unreducedAxes", "manualAxes"):
        if refs and rng.random() < 0.15:
            named[kind] = [refs.pop()[0]]
    return {"namedSharding": named}, tiles


def random_case(rng: random.Random) -> tuple[str, Json]:
    n = rng.choice([1, 2, 3, 4, 6, 8, 12, 16])

    def leaf():
        kind = rng.choice(["tiled", "tiled", "named", "named", "replicated"])
        if kind == "replicated":
            return kind, {"type": "REPLICATED"}, random_shape(rng, [1] * rng.randint(0, 3))
        op, tiles = (tiled_case if kind == "tiled" else named_case)(rng, n)
        return kind, op, random_shape(rng, tiles)

    if rng.random() < 0.1:
        leaves = [leaf() for _ in range(rng.randint(1, 4))]
        op = {"type": "TUPLE", "tupleShardings": [op for _, op, _ in leaves]}
        return "tuple", {"op_sharding": op, "devices": n, "shapes": [shape for _, _, shape in leaves]}
    kind, op, shape = leaf()
    return kind, {"op_sharding": op, "devices": n, "shapes": [shape]}


def regions_of_tiles(sharding: HloSharding, shape: list[int], n: int) -> list:
    """The rule of ceil-divided tiles, over jaxlib's tile assignment."""
    dims = sharding.tile_assignment_dimensions()
    devices = sharding.tile_assignment_devices()
    regions: list = [None] * n
    for tile, device in zip(itertools.product(*map(range, dims)), devices, strict=True):
        box = []
        for size, tiles, at in zip(shape, dims, tile, strict=False):
            length = -(-size // tiles)
            start = min(at * length, size)
            box.append([start, min(start + length, size)])
        regions[device] = box
    return regions


def jaxlib_regions(sharding: HloSharding, shape: list[int], n: int) -> list:
    if sharding.is_unreduced() or sharding.is_manual():
        return [[[0, size] for size in shape]] * n
    tiled = sharding.is_tiled() and not sharding.is_replicated()
    even = not tiled or all(
        size % tiles == 0 for size, tiles in zip(shape, sharding.tile_assignment_dimensions(), strict=False)
    )
    # JAX gives no indices for summands, and none under manual axes.
    groups = sharding.subgroup_types()
    if not even or OpSharding.Type.UNREDUCED in groups or OpSharding.Type.MANUAL in groups:
        return regions_of_tiles(sharding, shape, n)
    devices = jax.devices()[:n]
    indices = GSPMDSharding(devices, sharding).devices_indices_map(tuple(shape))
    return [
        [list(index.indices(size)[:2]) for index, size in zip(indices[device], shape, strict=True)]
        for device in devices
    ]


def devices_by_tile(devices: list[int], copies: int) -> list[list[int]]:
    return [sorted(devices[at : at + copies]) for at in range(0, len(devices), copies)]


def compare(request: Json, answer: Json) -> str | None:
    """What differs, if something does."""
    if "error" in answer:
        return answer["error"]
    op = OpSharding()
    op.ParseFromString(bytes.fromhex(answer["wire"]))
    sharding = HloSharding.from_proto(op)
    protos = request["op_sharding"].get("tupleShardings", [request["op_sharding"]])
    leaves = sharding.tuple_elements() if "tupleShardings" in request["op_sharding"] else [sharding]
    for proto, leaf, shape, ours in zip(protos, leaves, request["shapes"], answer["leaves"], strict=True):
        if "namedSharding" in proto:
            leaf = leaf.v3_to_v2_sharding()
        theirs = jaxlib_regions(leaf, shape, request["devices"])
        if theirs != ours["regions"]:
            return f"jaxlib's {leaf} has {theirs}"
        if "grid" in ours:
            grid = list(leaf.tile_assignment_dimensions())
            copies = product(grid[len(shape) :])
            # jaxlib sorts the devices that share a tile.
            theirs = devices_by_tile(leaf.tile_assignment_devices(), copies)
            if (grid, theirs) != (ours["grid"], devices_by_tile(ours["positions"], copies)):
                return f"jaxlib's {leaf} has the grid {grid} over {theirs}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("oracle")
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    cases = [random_case(rng) for _ in range(options.cases)]
    lines = "".join(json.dumps(request) + "\n" for _, request in cases)
    run = subprocess.run([options.oracle], input=lines, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    counts: collections.Counter = collections.Counter()
    for (kind, request), answer in zip(cases, answers, strict=True):
        if (difference := compare(request, answer)) is not None:
            sys.exit(f"{kind}: {json.dumps(request)}\nours: {json.dumps(answer)}\n{difference}")
        counts[kind] += 1
    print(json.dumps(counts))


if __name__ == "__main__":
    main()

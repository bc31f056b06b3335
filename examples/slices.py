"""What the examples share: the devices by slice, on a Parkway cluster or on local JAX.

Parkway's devices carry `slice_index`. Local CPU devices don't: their list is cut in two
halves that play the slices.
"""

import jax
import numpy as np
from jax.sharding import Mesh


def devices_by_slice(local_slices: int = 2) -> list[list[jax.Device]]:
    """The devices of each slice, in the order of slice_index and id."""
    devices = sorted(jax.devices(), key=lambda d: (getattr(d, "slice_index", 0), d.id))
    slices: dict[int, list[jax.Device]] = {}
    for position, device in enumerate(devices):
        local = position * local_slices // len(devices)
        slices.setdefault(getattr(device, "slice_index", local), []).append(device)
    return list(slices.values())


def two_slices() -> tuple[list[jax.Device], list[jax.Device]]:
    """The devices of the first two slices."""
    slices = devices_by_slice()
    if len(slices) < 2:
        raise SystemExit("this example wants 2 slices; on local JAX set JAX_NUM_CPU_DEVICES=4")
    return slices[0], slices[1]


def slice_mesh() -> Mesh:
    """A mesh with axes (slice, device). jax.make_mesh refuses to cross slices; plain Mesh does not."""
    return Mesh(np.array(devices_by_slice()), ("slice", "device"))


def describe() -> str:
    slices = devices_by_slice()
    where = "a Parkway cluster" if jax.config.jax_platforms == "proxy" else "local JAX"
    return f"{len(jax.devices())} devices in {len(slices)} slices, on {where}"

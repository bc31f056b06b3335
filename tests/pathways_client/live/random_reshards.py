"""Many arrays at once between random shardings, by plugin programs, each shard compared with numpy."""

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from pathwaysutils.experimental import reshard

DTYPES = [np.float32, np.int8, np.bool_, np.complex64, ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.float8_e4m3fn]
KINDS = [None, "device", "pinned_host", "unpinned_host"]


def random_mesh(rng, devices, count) -> Mesh:
    """`count` devices in any order, as a line or a square."""
    chosen = np.array(rng.permutation(np.array(devices)))[:count]
    shape = (2, 2) if count == 4 and rng.integers(2) else (count,)
    return Mesh(chosen.reshape(shape), ("x", "y")[: len(shape)])


def random_sharding(rng, mesh, rank) -> NamedSharding:
    """Each axis of the mesh cuts one dimension, or none."""
    axes = [[] for _ in range(rank)]
    for axis in rng.permutation(mesh.axis_names):
        where = int(rng.integers(-1, rank))
        if where >= 0:
            axes[where].append(str(axis))
    kind = KINDS[rng.integers(len(KINDS))]
    return NamedSharding(mesh, P(*(tuple(names) or None for names in axes)), memory_kind=kind)


def random_host(rng):
    shape = tuple(int(size) for size in rng.choice([4, 8, 12], size=rng.integers(0, 4)))
    dtype = np.dtype(DTYPES[rng.integers(len(DTYPES))])
    return rng.integers(0, 8, shape).astype(dtype)


def bits(array):
    return (
        np.ascontiguousarray(np.asarray(array)).view(np.uint8).tolist() if array.ndim else np.asarray(array).tobytes()
    )


@pytest.mark.parametrize("seed", range(20))
def test_random_reshards(devices, seed):
    rng = np.random.default_rng(seed)
    count = int(rng.choice([1, 2, 3, 4]))
    source = random_mesh(rng, devices, count if count != 3 else 2)
    hosts = [random_host(rng) for _ in range(rng.integers(1, 12))]
    arrays = [jax.device_put(host, random_sharding(rng, source, host.ndim)) for host in hosts]
    targets = []
    for host in hosts:
        mesh = random_mesh(rng, devices, int(rng.choice([1, 2, 4])))
        targets.append(random_sharding(rng, mesh, host.ndim))
    donate = bool(rng.integers(2))
    moved = reshard.reshard(arrays, targets, donate=donate)
    assert [array.is_deleted() for array in arrays] == [donate] * len(arrays)
    for array, host, target in zip(moved, hosts, targets, strict=True):
        assert array.sharding == target and array.dtype == host.dtype
        assert len(array.addressable_shards) == target.num_devices
        for shard in array.addressable_shards:
            assert bits(np.asarray(shard.data)) == bits(host[shard.index])

"""pathwaysutils' ways to move arrays: reshard by IFRT and by a plugin program, split and concatenate along a mesh axis."""

import jax
import jax.numpy as jnp
import numpy as np
import pathwaysutils
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from pathwaysutils import jax as pathways_jax
from pathwaysutils import reshard
from pathwaysutils.experimental import concatenate_by_mesh_axis, split_by_mesh_axis
from pathwaysutils.experimental import reshard as plugin_reshard


def check(move, source, target, dtype=np.float32, **how):
    """One array there, and each of its shards compared with numpy."""
    host = np.arange(128).reshape(8, 16).astype(dtype)
    array = jax.device_put(host, source)
    moved = move(array, target, **how)
    assert moved.sharding == target
    np.testing.assert_array_equal(np.asarray(moved), host)
    for shard in moved.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), host[shard.index])
    if how.get("donate"):
        assert array.is_deleted()
    else:
        np.testing.assert_array_equal(np.asarray(array), host)


def test_the_backend_is_taken_for_pathways(devices):
    assert pathwaysutils.is_pathways_backend_used()
    assert pathways_jax.ifrt_reshard_available()


WAYS = {"ifrt": reshard.reshard, "plugin": plugin_reshard.reshard}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


def test_same_devices(mesh, way):
    check(way, NamedSharding(mesh(4), P("x")), NamedSharding(mesh(4), P(None, "x")))


def test_other_devices(mesh, way):
    check(way, NamedSharding(mesh(2), P("x")), NamedSharding(mesh(2, first=2), P(None, "x")))


def test_fewer_devices(mesh, way):
    check(way, NamedSharding(mesh(4), P("x")), NamedSharding(mesh(2, first=1), P()))


def test_more_devices(mesh, way):
    target = NamedSharding(mesh(4, ("x", "y"), (2, 2)), P("y", "x"))
    check(way, NamedSharding(mesh(1), P()), target, dtype=jnp.bfloat16)


def test_donated(mesh, way):
    check(way, NamedSharding(mesh(4), P("x")), NamedSharding(mesh(4), P()), donate=True)


def test_donated_where_nothing_moves(mesh, way):
    check(way, NamedSharding(mesh(4), P("x")), NamedSharding(mesh(4), P("x", None)), donate=True)


def test_int4(mesh, way):
    check(way, NamedSharding(mesh(4), P("x")), NamedSharding(mesh(2), P(None, "x")), dtype=jnp.int4)


def test_memory_kinds(mesh, way):
    device, pinned = (NamedSharding(mesh(4), P("x"), memory_kind=kind) for kind in ("device", "pinned_host"))
    check(way, device, pinned)
    check(way, pinned, NamedSharding(mesh(2, first=2), P(None, "x"), memory_kind="device"))
    check(way, device, NamedSharding(mesh(2), P(), memory_kind="unpinned_host"))


def test_a_tree_of_arrays(mesh, way):
    source, target = NamedSharding(mesh(4), P("x")), NamedSharding(mesh(2), P("x"))
    tree = {"a": jax.device_put(np.arange(8.0), source), "b": [jax.device_put(np.ones((4, 4)), source)]}
    moved = way({**tree, "key": jax.random.key(0)}, {"a": target, "b": [target], "key": NamedSharding(mesh(2), P())})
    np.testing.assert_array_equal(np.asarray(moved["a"]), np.arange(8.0))
    np.testing.assert_array_equal(np.asarray(moved["b"][0]), np.ones((4, 4)))
    assert moved["a"].sharding == target and len(moved["key"].sharding.device_set) == 2


def test_a_plan_that_is_kept(mesh):
    for _ in range(3):
        source, target = NamedSharding(mesh(4), P("x")), NamedSharding(mesh(4), P())
        check(plugin_reshard.reshard, source, target, donate=True, cache_resharding_plans=True)


@pytest.mark.parametrize("by", ["ifrt", "plugin"])
def test_by_an_intermediate_sharding(mesh, by):
    source = NamedSharding(mesh(4, ("fsdp", "tp"), (4, 1)), P("fsdp", "tp"))
    target = NamedSharding(mesh(2, ("fsdp", "tp"), (1, 2)), P("fsdp", "tp"))
    move, how = reshard.reshard_with_intermediate_sharding, {}
    if by == "plugin":
        move = plugin_reshard.sidechannel_reshard_with_intermediate_sharding
        how = {"cache_resharding_plans": False}
    check(lambda array, out: move(array, source, out, **how), source, target)


def test_split_and_concatenate_along_a_mesh_axis(mesh):
    host = np.arange(64, dtype=np.int32).reshape(8, 8)
    array = jax.device_put(host, NamedSharding(mesh(4, ("x", "y"), (2, 2)), P("x", "y")))
    parts = split_by_mesh_axis.split_by_mesh_axis(array, "x")
    assert len(parts) == 2
    for part, expected in zip(parts, (host[:4], host[4:]), strict=True):
        np.testing.assert_array_equal(np.asarray(part), expected)
    whole = concatenate_by_mesh_axis.concatenate_by_mesh_axis(parts, "x")
    np.testing.assert_array_equal(np.asarray(whole), host)

"""Arrays: host bytes there and back, shardings, copies, deletion, memory kinds."""

import gc

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

DTYPES = [np.dtype(t) for t in ("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")]
SMALL_DTYPES = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2fnuz"]
SMALL_DTYPES += ["float8_e3m4", "float8_e4m3", "float8_e8m0fnu", "int4", "uint4"]
ALL_DTYPES = DTYPES + [np.dtype(getattr(ml_dtypes, name)) for name in SMALL_DTYPES]


def numbers(shape, dtype=np.float32):
    """Values that every type holds exactly and that differ from their neighbours."""
    base = np.arange(np.prod(shape, dtype=int)) % 4
    if np.dtype(dtype) == np.dtype(ml_dtypes.float8_e8m0fnu):
        base = 2.0**base
    return np.asarray(base.reshape(shape)).astype(dtype)


def check_equal(array, expected):
    got = np.asarray(array)
    assert got.shape == expected.shape and got.dtype == expected.dtype
    assert np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_each_dtype_there_and_back(devices, dtype):
    with jax.enable_x64(True):
        for shape in [(), (5,), (3, 4)]:
            expected = numbers(shape, dtype)
            for device in (devices[0], devices[3]):
                check_equal(jax.device_put(expected, device), expected)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_each_dtype_through_a_program(line, dtype):
    with jax.enable_x64(True):
        expected = numbers((8, 3), dtype)
        array = jax.device_put(expected, NamedSharding(line, P("x")))
        check_equal(jax.jit(lambda a: a.reshape(3, 8)[::-1])(array), expected.reshape(3, 8)[::-1])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (7, 1, 3), (1, 1, 1, 1), (2,) * 12], ids=str)
def test_shapes(devices, shape):
    expected = numbers(shape)
    array = jax.device_put(expected, devices[2])
    check_equal(array, expected)
    check_equal(array + 1, expected + 1)


STRIDED = {
    "F order": lambda a: np.asfortranarray(a),
    "transposed": lambda a: a.transpose(2, 0, 1),
    "every second": lambda a: a[::2, :, ::3],
    "a corner": lambda a: a[1:5, 2:4, 3:],
    "a column": lambda a: a[:, 1, 2],
    "an element": lambda a: a[3:4, 2:3, 1:2],
    "none": lambda a: a[:0],
}


@pytest.mark.parametrize("view", STRIDED)
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.complex64, ml_dtypes.bfloat16])
def test_strided_host_arrays(devices, line, view, dtype):
    expected = STRIDED[view](numbers((6, 5, 12), dtype))
    check_equal(jax.device_put(expected, devices[1]), expected)
    check_equal(jax.device_put(expected, NamedSharding(line, P())), expected)


def test_negative_strides_as_jax_has_them(devices):
    expected = np.arange(6.0, dtype=np.float32)[::-1]
    check_equal(jax.device_put(np.ascontiguousarray(expected), devices[0]), expected)


SPECS = [P(), P("slice"), P(None, "device"), P("slice", "device"), P(("slice", "device")), P(None, ("device", "slice"))]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_shards(grid, spec):
    expected = np.arange(8 * 12, dtype=np.int32).reshape(8, 12)
    sharding = NamedSharding(grid, spec)
    array = jax.device_put(expected, sharding)
    check_equal(array, expected)
    assert array.sharding.is_equivalent_to(sharding, 2) and array.is_fully_addressable
    assert len(array.addressable_shards) == 4
    for shard in array.addressable_shards:
        check_equal(shard.data, expected[shard.index])
        assert shard.data.devices() == {shard.device}


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [2, 0, 3, 1], [1, 2], [3], [0, 3, 1]], ids=str)
def test_meshes_of_any_devices(devices, order):
    mesh = Mesh(np.array([devices[i] for i in order]), ("x",))
    expected = np.arange(12, dtype=np.float32)
    array = jax.device_put(expected, NamedSharding(mesh, P("x")))
    check_equal(array, expected)
    np.testing.assert_allclose(jax.jit(lambda a: a / a.sum())(array), expected / expected.sum(), rtol=1e-6)
    assert [shard.device.id for shard in array.addressable_shards] == order


@pytest.mark.parametrize("source", range(4))
@pytest.mark.parametrize("target", range(4))
def test_copies_between_devices(devices, source, target):
    expected = np.arange(1000 + source, dtype=np.int32)
    first = jax.device_put(expected, devices[source])
    second = jax.device_put(first, devices[target])
    assert second.devices() == {devices[target]}
    del first
    check_equal(second, expected)


@pytest.mark.parametrize("before", SPECS, ids=str)
@pytest.mark.parametrize("after", SPECS, ids=str)
def test_resharding(grid, before, after):
    expected = np.arange(8 * 12, dtype=np.float32).reshape(8, 12)
    array = jax.device_put(expected, NamedSharding(grid, before))
    moved = jax.device_put(array, NamedSharding(grid, after))
    check_equal(moved, expected)
    for shard in moved.addressable_shards:
        check_equal(shard.data, expected[shard.index])


def test_resharding_to_other_devices(devices):
    expected = np.arange(64, dtype=np.float32).reshape(8, 8)
    first = NamedSharding(Mesh(np.array(devices[:2]), ("x",)), P("x"))
    second = NamedSharding(Mesh(np.array(devices[2:]), ("x",)), P("x"))
    crossed = NamedSharding(Mesh(np.array([devices[2], devices[1]]), ("x",)), P(None, "x"))
    array = jax.device_put(expected, first)
    for sharding in (second, crossed, first, SingleDeviceSharding(devices[3]), crossed):
        array = jax.device_put(array, sharding)
        check_equal(array, expected)


def test_assembling_and_splitting(devices, line):
    parts = [jax.device_put(np.full((2, 3), i, np.float32), d) for i, d in enumerate(devices)]
    whole = jax.make_array_from_single_device_arrays((8, 3), NamedSharding(line, P("x")), parts)
    expected = np.repeat(np.arange(4, dtype=np.float32), 2)[:, None] * np.ones((1, 3), np.float32)
    check_equal(whole, expected)
    del parts
    pieces = [shard.data for shard in whole.addressable_shards]
    del whole
    for i, piece in enumerate(pieces):
        check_equal(piece, np.full((2, 3), i, np.float32))


def test_array_from_callback(grid):
    expected = np.arange(32, dtype=np.int32).reshape(4, 8)
    array = jax.make_array_from_callback((4, 8), NamedSharding(grid, P("slice")), lambda index: expected[index])
    check_equal(array, expected)


def test_indexing_and_iteration(line):
    expected = np.arange(24, dtype=np.float32).reshape(8, 3)
    array = jax.device_put(expected, NamedSharding(line, P("x")))
    check_equal(array[3], expected[3])
    check_equal(array[2:7:2, 1], expected[2:7:2, 1])
    for row, want in zip(array, expected, strict=True):
        check_equal(row, want)
    check_equal(array.at[1].set(7), np.vstack([expected[:1], np.full((1, 3), 7, np.float32), expected[2:]]))


def test_donation(line):
    array = jax.device_put(np.zeros(1 << 16, np.float32), NamedSharding(line, P("x")))
    step = jax.jit(lambda a: a + 1, donate_argnums=0)
    for i in range(30):
        before, array = array, step(array)
        assert before.is_deleted()
        if i % 10 == 0:
            check_equal(array, np.full(1 << 16, i + 1, np.float32))
    with pytest.raises((RuntimeError, ValueError), match="delete"):
        before + 1
    check_equal(array, np.full(1 << 16, 30, np.float32))


def test_what_is_donated_does_not_change_what_was_read(devices):
    array = jax.device_put(np.arange(4096, dtype=np.float32), devices[0])
    seen = np.asarray(array)
    array = jax.jit(lambda a: a * 0, donate_argnums=0)(array)
    check_equal(array, np.zeros(4096, np.float32))
    np.testing.assert_array_equal(seen, np.arange(4096, dtype=np.float32))


def test_the_host_array_may_change_after_device_put(devices):
    host = np.zeros(1 << 18, np.float32)
    arrays = []
    for i in range(8):
        host[:] = i
        arrays.append(jax.device_put(host, devices[i % 4]).block_until_ready())
    for i, array in enumerate(arrays):
        check_equal(array, np.full(1 << 18, i, np.float32))


def test_deletion(line):
    array = jax.device_put(np.ones(8, np.float32), NamedSharding(line, P("x")))
    derived = array * 2
    array.delete()
    assert array.is_deleted()
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(array)
    check_equal(derived, np.full(8, 2, np.float32))


def test_a_copy_outlives_its_source(devices):
    array = jax.device_put(np.arange(10), devices[0])
    copy = jnp.array(array, copy=True)
    array.delete()
    check_equal(copy, np.arange(10, dtype=np.int32))


@pytest.mark.parametrize("kind", ["device", "pinned_host", "unpinned_host"])
def test_memory_kinds(devices, line, kind):
    assert {m.kind for m in devices[0].addressable_memories()} >= {"device", "pinned_host", "unpinned_host"}
    expected = np.arange(64, dtype=np.float32)
    single = jax.device_put(expected, SingleDeviceSharding(devices[1], memory_kind=kind))
    sharded = jax.device_put(expected, NamedSharding(line, P("x"), memory_kind=kind))
    for array in (single, sharded):
        assert array.sharding.memory_kind == kind
        check_equal(array, expected)
        back = jax.device_put(array, array.sharding.with_memory_kind("device"))
        check_equal(back + 1, expected + 1)
        check_equal(jax.device_put(back, array.sharding.with_memory_kind("pinned_host")), expected)


def test_strings(devices):
    expected = np.array(["", "slice", "mesh", "ÄÖ"], dtype=np.dtypes.StringDType())
    array = jax.device_put(expected, devices[2])
    assert np.asarray(array).tolist() == expected.tolist()
    assert np.asarray(jax.device_put(array, devices[0])).tolist() == expected.tolist()


def test_reading_ahead(devices):
    arrays = [jax.device_put(np.full(1000, i), d) for i, d in enumerate(devices)]
    for array in arrays:
        array.copy_to_host_async()
    for i, array in enumerate(arrays):
        check_equal(array, np.full(1000, i, np.int32))


def test_many_small_arrays(devices):
    arrays = jax.device_put([np.int32(i) for i in range(2000)], devices[1])
    assert [int(a) for a in jax.device_get(arrays)] == list(range(2000))
    total = jax.jit(lambda values: sum(values))(arrays[:300])
    assert int(total) == sum(range(300))


def test_trees(devices):
    tree = {"a": np.arange(3), "b": (np.float32(2), [np.ones((2, 2), np.float16), None])}
    back = jax.device_get(jax.block_until_ready(jax.device_put(tree, devices[3])))
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    np.testing.assert_array_equal(back["b"][1][0], tree["b"][1][0])


def test_live_arrays(devices):
    gc.collect()
    before = len(jax.live_arrays())
    held = [jax.device_put(np.ones(3), d) for d in devices]
    assert len(jax.live_arrays()) == before + 4
    del held


def test_pmap_sharding_and_replication(devices):
    stacked = jnp.stack([jnp.full(3, i) for i in range(4)])
    check_equal(jax.pmap(lambda a: a * 2)(stacked), np.arange(4, dtype=np.int32)[:, None] * 2 * np.ones(3, np.int32))

"""Data of every kind: all types that JAX has, odd shapes and strides, odd shardings, layouts, keys, aliases."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

INTEGERS = ["int2", "int4", "int8", "int16", "int32", "int64", "uint2", "uint4", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64", "bfloat16", "float4_e2m1fn", "float8_e3m4", "float8_e4m3", "float8_e4m3fn"]
FLOATS += ["float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
OTHERS = ["bool", "complex64", "complex128"]
TYPES = INTEGERS + FLOATS + OTHERS
SHAPES = [(), (1,), (7,), (13, 17), (0,), (5, 0, 3), (1, 1, 1), (2, 3, 4)]


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def every_value(name, shape):
    """Every value of a small type, in turn; of a larger one its extremes and what is near zero."""
    dtype = dtype_of(name)
    if name in INTEGERS:
        info = ml_dtypes.iinfo(dtype)
        values = np.array([info.min, info.max, 0, 1, info.max // 2, info.min // 2], dtype=object).astype(dtype)
    elif name in FLOATS:
        info = ml_dtypes.finfo(dtype)
        values = np.array([float(info.max), float(info.tiny), 1.0, 2.0, 0.5], np.float64).astype(dtype)
    elif name == "bool":
        values = np.array([True, False, False, True, True])
    else:
        values = np.array([1 + 2j, -3.5j, 0, complex(np.inf, -1)], dtype)
    return np.resize(values, shape).astype(dtype)


def check_equal(array, expected):
    got = np.asarray(array)
    assert got.shape == expected.shape and got.dtype == expected.dtype
    assert np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(expected).tobytes()


# ---- types and shapes ----


@pytest.mark.parametrize("name", TYPES)
def test_types_and_shapes(devices, line, name):
    for i, shape in enumerate(SHAPES):
        expected = every_value(name, shape)
        single = jax.device_put(expected, devices[i % 4])
        check_equal(single, expected)
        check_equal(jax.device_put(single, devices[(i + 1) % 4]), expected)
        check_equal(jax.device_put(expected, NamedSharding(line, P())), expected)


@pytest.mark.parametrize("name", [n for n in TYPES if n not in ("int2", "uint2")])
def test_types_in_programs(line, grid, name):
    """Turned, gathered and picked from by a program over all hosts."""
    expected = every_value(name, (8, 6))
    array = jax.device_put(expected, NamedSharding(grid, P("slice", "device")))
    for shard in array.addressable_shards:
        check_equal(shard.data, expected[shard.index])
    targets = (NamedSharding(line, P(None, "x")), NamedSharding(line, P()), NamedSharding(line, P()))
    turned, whole, row = jax.jit(lambda a: (a.T, a, a[3]), out_shardings=targets)(array)
    check_equal(turned, expected.T.copy())
    check_equal(whole, expected)
    if name != "float8_e8m0fnu":  # picked by a sum over devices, where 2^-127 is no normal number and zeros lose signs
        np.testing.assert_array_equal(np.asarray(row), expected[3])


@pytest.mark.parametrize("name", ["int2", "uint2"])
def test_types_of_two_bits_in_programs_of_one_device(devices, line, name):
    expected = every_value(name, (8, 6))
    array = jax.device_put(expected, devices[3])
    check_equal(jax.jit(lambda a: a.T)(array), expected.T.copy())
    check_equal(jax.jit(lambda a: a[::-1, 2])(array), expected[::-1, 2])
    with pytest.raises(jax.errors.JaxRuntimeError, match="UNIMPLEMENTED.*int2.*(all-gather|all-to-all)"):
        jax.jit(lambda a: a, out_shardings=NamedSharding(line, P()))(
            jax.device_put(expected, NamedSharding(line, P("x")))
        )


@pytest.mark.parametrize("name", [n for n in TYPES if n not in ("bool", "float8_e8m0fnu", "float4_e2m1fn")])
def test_types_in_arithmetic(devices, name):
    dtype = dtype_of(name)
    a, b = (np.array(v).astype(dtype) for v in ([0, 1, 1, 0, 1], [1, 0, 0, 0, 0]))
    got = jax.jit(lambda a, b: (a + b, a * b))(*jax.device_put((a, b), devices[1]))
    check_equal(got[0], np.array([1, 1, 1, 0, 1]).astype(dtype))
    check_equal(got[1], np.array([0, 0, 0, 0, 0]).astype(dtype))


@pytest.mark.parametrize("source", ["int4", "uint8", "float8_e4m3fn", "bfloat16", "bool", "int64"])
def test_conversions(devices, source):
    expected = np.array([0, 1, 1, 0, 1, 0, 0]).astype(dtype_of(source))
    targets = [dtype_of(n) for n in ("int4", "uint2", "float8_e5m2", "float32", "bool", "complex64")]
    got = jax.jit(lambda a: [a.astype(target) for target in targets])(jax.device_put(expected, devices[3]))
    for one, target in zip(got, targets, strict=True):
        check_equal(one, expected.astype(np.float32).astype(target))


def test_a_million_and_three_elements(line, devices):
    expected = np.arange(1_000_003, dtype=np.int32)
    check_equal(jax.device_put(expected, devices[3]) * 3, expected * 3)
    replicated = jax.device_put(expected, NamedSharding(line, P()))
    assert int(replicated.sum()) == int(expected.sum())
    for shard in replicated.addressable_shards:
        check_equal(shard.data, expected)


@pytest.mark.parametrize("place", ["one", "all"])
def test_strings(devices, line, place):
    if place == "all":
        expected = np.array([["a", "", "日本"], ["x" * 100_000, "\0", "end"]], dtype=np.dtypes.StringDType())
        sharding = NamedSharding(line, P())
    else:
        expected = np.array("scalar", dtype=np.dtypes.StringDType())
        sharding = SingleDeviceSharding(devices[3])
    array = jax.device_put(expected, sharding)
    got = np.asarray(array)
    assert got.shape == expected.shape and got.tolist() == expected.tolist()
    for shard in array.addressable_shards:
        assert np.asarray(shard.data).tolist() == expected.tolist()


# ---- strides ----

VIEWS = {
    "F order": np.asfortranarray,
    "transposed": lambda a: a.T,
    "a row": lambda a: a[2],
    "a column": lambda a: a[:, 3],
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype),
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1),
    "a field of a record": lambda a: np.rec.fromarrays([a, a + a])["f1"],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["float32", "int8", "bfloat16", "complex128", "uint4"])
def test_strides(devices, line, view, name):
    host = (np.arange(8 * 12).reshape(8, 12) % 7).astype(dtype_of(name))
    made = VIEWS[view](host)
    expected = np.array(made, order="C").astype(host.dtype)
    check_equal(jax.device_put(made, devices[2]), expected)
    check_equal(jax.device_put(made, NamedSharding(line, P())), expected)
    if made.ndim == 2 and made.shape[0] % 4 == 0:
        check_equal(jax.device_put(made, NamedSharding(line, P("x"))), expected)


# jaxlib's client sends no such array, to whatever server.
REFUSED_BY_THE_CLIENT = {
    "reversed": lambda a: a[::-1],
    "one of two, backwards": lambda a: a[:, ::-2],
    "broadcast": lambda a: np.broadcast_to(a[0], (5, *a[0].shape)),
    "a scalar broadcast": lambda a: np.broadcast_to(a[1, 1], (3, 7)),
}


@pytest.mark.parametrize("view", REFUSED_BY_THE_CLIENT)
def test_strides_that_the_client_refuses(devices, view):
    host = REFUSED_BY_THE_CLIENT[view](np.arange(96, dtype=np.float32).reshape(8, 12))
    with pytest.raises(jax.errors.JaxRuntimeError, match="strides"):
        jax.device_put(host, devices[1])
    check_equal(jax.device_put(np.ascontiguousarray(host), devices[1]) + 1, np.ascontiguousarray(host) + 1)
    check_equal(jnp.asarray(host.copy()), host.copy())


# ---- shardings ----

MESHES = {
    "permuted": ([2, 0, 3, 1], (2, 2)),
    "reversed": ([3, 2, 1, 0], (4, 1)),
    "half of each slice": ([1, 2], (2, 1)),
    "one device": ([3], (1, 1)),
    "across": ([0, 2, 1, 3], (1, 4)),
}
SPECS = [P(), P("a"), P("b", "a"), P(None, ("b", "a"))]


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_meshes(devices, mesh, spec):
    """Each shard is where the sharding says and has what the sharding says; a program agrees."""
    order, shape = MESHES[mesh]
    sharding = NamedSharding(Mesh(np.array([devices[i] for i in order]).reshape(shape), ("a", "b")), spec)
    expected = np.random.default_rng(1).integers(-99, 99, (8, 12))
    array = jax.device_put(expected, sharding)
    for shard in array.addressable_shards:
        assert shard.device in sharding.device_set
        check_equal(shard.data, expected[shard.index])
    check_equal(array, expected)
    replicated = NamedSharding(sharding.mesh, P())
    back, summed = jax.jit(lambda a: (a + 1, a.sum(0)), out_shardings=(sharding, replicated))(array)
    check_equal(summed, expected.sum(0))
    for shard in back.addressable_shards:
        check_equal(shard.data, expected[shard.index] + 1)


def test_uneven_shapes_are_padded_inside_programs(line):
    expected = np.arange(7.0)
    got = jax.jit(lambda a: jax.lax.with_sharding_constraint(a, NamedSharding(line, P("x"))) * 2)(
        jax.device_put(expected, NamedSharding(line, P()))
    )
    check_equal(got, expected * 2)


@pytest.mark.parametrize("before", ["device", "pinned_host", "unpinned_host"])
@pytest.mark.parametrize("after", ["device", "pinned_host", "unpinned_host"])
def test_memory_kinds(line, devices, before, after):
    """From each kind of memory to each, to the same devices and to others."""
    expected = np.arange(24, dtype=np.float32).reshape(8, 3)
    array = jax.device_put(expected, NamedSharding(line, P("x"), memory_kind=before))
    turned = Mesh(np.array(devices[::-1]), ("x",))
    for target in (NamedSharding(line, P("x"), memory_kind=after), NamedSharding(turned, P(), memory_kind=after)):
        moved = jax.device_put(array, target)
        assert moved.sharding.memory_kind == after
        check_equal(moved, expected)
    one = jax.device_put(array, SingleDeviceSharding(devices[2], memory_kind=after))
    check_equal(one, expected)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_layouts(line, devices, order):
    """Layouts asked for of arguments and results change no value."""
    expected = np.arange(8 * 6 * 5, dtype=np.float32).reshape(8, 6, 5)
    for sharding in (SingleDeviceSharding(devices[1]), NamedSharding(line, P("x"))):
        form = Format(Layout(major_to_minor=order), sharding)
        program = jax.jit(lambda a: a * 2 + 1, in_shardings=form, out_shardings=form)
        array = jax.device_put(expected, form)
        check_equal(array, expected)
        got = program(array)
        check_equal(got, expected * 2 + 1)
        assert got.format.layout.major_to_minor == order
        check_equal(jax.jit(lambda a: a.sum(2))(got), (expected * 2 + 1).sum(2))


def test_layouts_that_xla_chooses(devices):
    spec = jax.ShapeDtypeStruct((6, 4), np.float32, sharding=SingleDeviceSharding(devices[0]))
    compiled = (
        jax.jit(lambda a: a.T @ a, in_shardings=Format(Layout.AUTO), out_shardings=Format(Layout.AUTO))
        .lower(spec)
        .compile()
    )
    expected = np.arange(24, dtype=np.float32).reshape(6, 4)
    array = jax.device_put(expected, compiled.input_formats[0][0])
    check_equal(compiled(array), expected.T @ expected)


# ---- keys ----


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys(devices, line, kind):
    keys = jax.random.split(jax.random.key(3, impl=kind), 8)
    data = np.asarray(jax.random.key_data(keys))
    spread = jax.device_put(keys, NamedSharding(line, P("x")))
    check_equal(jax.random.key_data(spread), data)
    moved = jax.device_put(spread, devices[3])
    assert moved.dtype == keys.dtype
    check_equal(jax.random.key_data(jax.random.clone(moved)), data)
    for i, shard in enumerate(spread.addressable_shards):
        check_equal(jax.random.key_data(shard.data), data[2 * i : 2 * i + 2])
    drawn = jax.jit(jax.vmap(lambda k: jax.random.bits(k, (3,), "uint32")))
    if kind == "threefry2x32":
        check_equal(drawn(spread), np.asarray(drawn(jax.random.wrap_key_data(data, impl=kind))))
    empty = keys[:0]
    assert jax.device_put(empty, devices[1]).shape == (0,)


# ---- the same array twice ----


def test_an_argument_twice_and_donated_once(line, devices):
    for sharding in (NamedSharding(line, P("x")), SingleDeviceSharding(devices[2])):
        expected = np.arange(1 << 14, dtype=np.float32)
        array = jax.device_put(expected, sharding)
        with pytest.raises(Exception, match="donate|deleted"):  # as local JAX refuses it
            jax.block_until_ready(jax.jit(lambda a, b: (a + 1, b + a), donate_argnums=0)(array, array))
        array = jax.device_put(expected, sharding)
        check_equal(array + 1, expected + 1)


def test_an_alias_of_a_donated_array_keeps_its_bytes(line, devices):
    expected = np.arange(1 << 14, dtype=np.float32)
    array = jax.device_put(expected, NamedSharding(line, P("x")))
    pieces = [shard.data for shard in array.addressable_shards]
    alias = jax.device_put(array, NamedSharding(line, P("x")))
    again = jax.make_array_from_single_device_arrays(array.shape, array.sharding, pieces)
    changed = jax.jit(lambda a: a * 0, donate_argnums=0)(array)
    check_equal(changed, expected * 0)
    for i, piece in enumerate(pieces):
        check_equal(piece, expected[i * (1 << 12) : (i + 1) * (1 << 12)])
    check_equal(again, expected)
    if not alias.is_deleted():
        check_equal(alias, expected)


def test_many_names_for_one_array_in_a_program(line):
    expected = np.arange(64, dtype=np.float32)
    array = jax.device_put(expected, NamedSharding(line, P("x")))
    got = jax.jit(lambda *a: sum(a))(*[array] * 50)
    check_equal(got, expected * 50)
    same = jax.jit(lambda a: [a] * 5)(array)
    same[0].delete()
    for one in same[1:]:
        check_equal(one, expected)


def test_an_array_deleted_while_in_use(line, devices):
    """Deleted right after it was asked for: by a program, by a read, by a copy."""
    for i in range(10):
        expected = np.full(1 << 16, i, np.float32)
        array = jax.device_put(expected, NamedSharding(line, P("x")))
        used = jax.jit(lambda a: a + a.sum() * 0 + 1)(array)
        array.copy_to_host_async()
        copied = jax.device_put(array, devices[i % 4])
        split = [shard.data for shard in array.addressable_shards]
        array.delete()
        check_equal(used, expected + 1)
        check_equal(copied, expected)
        del split
        copied.delete()
        with pytest.raises(RuntimeError, match="deleted"):
            copied + 1


def test_scalars_of_python(devices):
    for value, dtype in [(1, np.int64), (1.5, np.float64), (True, np.bool_), (1j, np.complex128)]:
        check_equal(jax.device_put(value, devices[1]), np.asarray(value, dtype))
        got = jax.jit(lambda a: a)(value)
        assert np.asarray(got).item() == value


def test_bit_casts(devices):
    expected = np.arange(24, dtype=np.float32).reshape(2, 12)
    array = jax.device_put(expected, devices[1])
    check_equal(array.view(np.uint8), expected.view(np.uint8))
    check_equal(array.view(np.uint16), expected.view(np.uint16))
    check_equal(jax.lax.bitcast_convert_type(array, np.int32), expected.view(np.int32))
    small = jax.device_put(np.array([-8, 7, 3, 0]).astype(ml_dtypes.int4), devices[2])
    check_equal(small.astype(jnp.int8), np.array([-8, 7, 3, 0], np.int8))

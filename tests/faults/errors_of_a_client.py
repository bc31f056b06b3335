"""Every kind of failure that a client can cause with JAX alone. Runs inside a client's process on 2 slices x 2 devices.

Each case raises; the text has what the table says, and the session runs a program right afterwards. Prints one line of
JSON for each case.
"""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

DEVICES = jax.devices()
MESH = Mesh(np.array(DEVICES), ("x",))
ROWS = NamedSharding(MESH, P("x"))
CASES = []


def case(*words):
    """Words (regular expressions) that the error's text must have, all of them."""

    def add(function):
        CASES.append((function.__name__, function, words))
        return function

    return add


def still_works():
    host = np.arange(8, dtype=np.float32)
    got = np.asarray(jax.jit(lambda a: a - a.mean())(jax.device_put(host, ROWS)))
    np.testing.assert_allclose(got, host - 3.5)


def compiled(function, *types, **how):
    return jax.jit(function, **how).lower(*types).compile()


def on(device, shape=(4,), dtype=np.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=SingleDeviceSharding(DEVICES[device]))


def raw(executable, *arrays):
    """Gives arrays to the proxy that JAX's own checks would stop."""
    result = executable.runtime_executable().execute_sharded(list(arrays))
    return [np.asarray(one[0]) for one in result.disassemble_into_single_device_arrays()]


@case("INVALID_ARGUMENT", "jit_add_one", "argument 0", r"f32\[5\]", r"f32\[4\]")
def an_argument_of_another_shape():
    def add_one(a):
        return a + 1

    raw(compiled(add_one, on(1)), jax.device_put(np.ones(5, np.float32), DEVICES[1]))


@case("INVALID_ARGUMENT", "jit_add_one", "argument 0", r"s32\[4\]", r"f32\[4\]")
def an_argument_of_another_type():
    def add_one(a):
        return a + 1

    raw(compiled(add_one, on(1)), jax.device_put(np.ones(4, np.int32), DEVICES[1]))


@case("INVALID_ARGUMENT", "jit_add_one", "argument 0", r"f32\[4\]", "device", "2", "1")
def an_argument_on_another_device():
    def add_one(a):
        return a + 1

    raw(compiled(add_one, on(1)), jax.device_put(np.ones(4, np.float32), DEVICES[2]))


@case("INVALID_ARGUMENT", "jit_total", "argument 1", r"f32\[8\]")
def an_argument_sharded_otherwise():
    def total(a, b):
        return a.sum() + b.sum()

    rows = jax.ShapeDtypeStruct((8,), np.float32, sharding=ROWS)
    whole = jax.device_put(np.ones(8, np.float32), NamedSharding(MESH, P()))
    raw(compiled(total, rows, rows), jax.device_put(np.ones(8, np.float32), ROWS), whole)


@case("INVALID_ARGUMENT", "jit_add_one", "takes 1 arguments", "2 were given")
def too_many_arguments():
    def add_one(a):
        return a + 1

    array = jax.device_put(np.ones(4, np.float32), DEVICES[1])
    raw(compiled(add_one, on(1)), array, array)


@case("deleted")
def a_deleted_argument():
    array = jax.device_put(np.ones(4, np.float32), DEVICES[1])
    array.delete()
    jax.jit(lambda a: a + 1)(array)


@case("deleted|donated")
def a_donated_argument():
    array = jax.device_put(np.ones(4, np.float32), DEVICES[1])
    jax.jit(lambda a: a + 1, donate_argnums=0)(array)
    jax.jit(lambda a: a + 1)(array)


@case("incompatible devices|Received incompatible")
def arguments_on_two_devices():
    jax.jit(lambda a, b: a + b)(*(jax.device_put(np.ones(3), d) for d in DEVICES[:2]))


@case("FAILED_PRECONDITION", "no_such_target")
def an_unknown_custom_call():
    call = jax.ffi.ffi_call("no_such_target", jax.ShapeDtypeStruct((4,), np.float32))
    jax.block_until_ready(jax.jit(call)(jax.device_put(np.ones(4, np.float32), DEVICES[0])))


@case("callback")
def a_host_callback():
    jax.block_until_ready(jax.jit(lambda a: jax.pure_callback(lambda v: v, a, a))(jnp.ones(3)))


@case("RESOURCE_EXHAUSTED", "17592186044416 bytes")
def more_memory_than_there_is():
    def huge(a):
        return jax.lax.sort(jnp.broadcast_to(a, (1 << 42,)) + jnp.arange(1 << 42, dtype=jnp.float32))[:3]

    jax.block_until_ready(jax.jit(huge)(jnp.float32(1)))


@case("INVALID_ARGUMENT", "xla_no_such_flag")
def an_unknown_compiler_option():
    jax.jit(lambda a: a + 1).lower(jnp.ones(3)).compile(compiler_options={"xla_no_such_flag": True})


@case("memory kind|memory space|memory_kind", "hbm9")
def a_memory_kind_that_is_not():
    jax.device_put(np.ones(3), SingleDeviceSharding(DEVICES[0], memory_kind="hbm9"))


@case("UNIMPLEMENTED", "int2", "jit_gather")
def two_bits_between_devices():
    def gather(a):
        return a

    array = jax.device_put(np.ones(8).astype(jnp.int2), ROWS)
    jax.jit(gather, out_shardings=NamedSharding(MESH, P()))(array)


@case("FAILED_PRECONDITION", "no_such_target")
def an_unknown_custom_call_on_all_devices():
    call = jax.ffi.ffi_call("no_such_target", jax.ShapeDtypeStruct((8,), np.float32))
    jax.block_until_ready(
        jax.jit(call, out_shardings=NamedSharding(MESH, P()))(jax.device_put(np.ones(8, np.float32), ROWS))
    )


@case("RESOURCE_EXHAUSTED", "17592186044416 bytes")
def what_is_made_of_a_failed_array():
    def huge(a):
        return jax.lax.sort(jnp.broadcast_to(a, (1 << 42,)) + jnp.arange(1 << 42, dtype=jnp.float32))[:3]

    made = jax.jit(huge)(jax.device_put(np.float32(1), DEVICES[3]))
    np.asarray(jax.jit(lambda a: a * 2)(jax.device_put(made, DEVICES[0])))


@case("n, n", r"\(2, 3\)")
def a_matrix_that_is_not_square():
    jnp.linalg.inv(jax.device_put(np.ones((2, 3), np.float32), DEVICES[1]))


@case(r"float32\[8\]", r"\(2,\)", r"\(3,\)")
def assembling_pieces_that_do_not_fit():
    pieces = [jax.device_put(np.ones(3, np.float32), d) for d in DEVICES]
    np.asarray(jax.make_array_from_single_device_arrays((8,), ROWS, pieces))


@case("strides")
def negative_strides():
    jax.device_put(np.arange(4, dtype=np.float32)[::-1], DEVICES[0])


@case("deleted")
def a_read_of_what_is_deleted():
    array = jax.device_put(np.ones(4, np.float32), ROWS)
    array.delete()
    np.asarray(array)


@case("divisible|evenly")
def an_uneven_sharding():
    jax.device_put(np.ones(7), ROWS)


@case("FloatingPointError|nan")
def a_nan_that_jax_looks_for():
    with jax.debug_nans(True):
        jax.jit(lambda a: jnp.log(a - 1))(jax.device_put(np.zeros(3, np.float32), DEVICES[3]))


for name, function, words in CASES:
    try:
        function()
        text = "nothing was raised"
    except Exception as error:
        text = f"{type(error).__name__}: {error}".split("\n--------------------\n")[0]
    missing = [word for word in words if not re.search(word, text)]
    still_works()
    print(json.dumps({"case": name, "text": text[:1500], "missing": missing}), flush=True)

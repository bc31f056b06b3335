"""Programs of the conformance suite, compiled and serialized by jaxlib as an engine gets them.

Usage: make_conformance_programs.py DIRECTORY
Writes NAME.executable, NAME.options (xla.CompileOptionsProto) and NAME.types: a line for each parameter and output of one
shard, "in f32 4,4" or "out s32 -" (a scalar).
"""

import os
import pathlib
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib import xla_client

_NAMES = {
    "float32": "f32",
    "int32": "s32",
    "bfloat16": "bf16",
    "bool": "pred",
    "int4": "s4",
    "float8_e4m3fn": "f8e4m3fn",
    "complex64": "c64",
    "uint32": "u32",
}


def _line(kind, dtype, dims):
    return f"{kind} {_NAMES[np.dtype(dtype).name]} {','.join(map(str, dims)) or '-'}"


def _write(directory, name, function, *arguments, partitions=1, **jit_options):
    lowered = jax.jit(function, **jit_options).lower(*arguments)
    compiled = lowered.compile()
    executable = compiled.runtime_executable()
    options = xla_client.CompileOptions()
    options.num_partitions = partitions
    options.executable_build_options.num_replicas = 1
    options.executable_build_options.num_partitions = partitions
    options.executable_build_options.use_spmd_partitioning = partitions > 1
    lines = []
    shardings = jax.tree.leaves(compiled.input_shardings[0])
    for aval, sharding in zip(jax.tree.leaves(compiled.in_avals[0]), shardings, strict=True):
        lines.append(_line("in", aval.dtype, sharding.shard_shape(aval.shape)))
    out = jax.tree.leaves(lowered.out_info)
    for aval, sharding in zip(out, jax.tree.leaves(compiled.output_shardings), strict=True):
        lines.append(_line("out", aval.dtype, sharding.shard_shape(aval.shape)))
    (directory / f"{name}.executable").write_bytes(executable.client.serialize_executable(executable))
    (directory / f"{name}.options").write_bytes(options.SerializeAsString())
    (directory / f"{name}.types").write_text("\n".join(lines) + "\n")


def _sum_over(count, shape):
    """Sums over `count` devices; every shard is `shape`."""
    mesh = Mesh(np.array(jax.devices()[:count]), ("x",))
    argument = jax.ShapeDtypeStruct((count * shape[0], *shape[1:]), jnp.float32, sharding=NamedSharding(mesh, P("x")))
    function = jax.shard_map(lambda a: jax.lax.psum(a, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
    return function, argument


def _loop(a, count):
    return jax.lax.fori_loop(0, count, lambda _, x: jnp.sin(x) + 0.5, a)


def main(directory):
    four = jax.ShapeDtypeStruct((4,), jnp.float32)
    _write(directory, "add", lambda a, b: (a + b, a * 2), four, four)
    _write(directory, "donate", lambda a, b: a + b, four, four, donate_argnums=0)
    _write(directory, "increment", lambda a: a + 1, jax.ShapeDtypeStruct((65536,), jnp.float32), donate_argnums=0)
    _write(directory, "loop", _loop, jax.ShapeDtypeStruct((4096,), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32))
    _write(directory, "huge", lambda a: jnp.broadcast_to(a, (1 << 45, 4)) + 1, four)
    _write(directory, "nothing", lambda a: (), four, keep_unused=True)
    _write(
        directory,
        "types",
        lambda a, b, c, d: (a + a, ~b, c * 2, d.astype(jnp.float32)),
        *(jax.ShapeDtypeStruct((3, 5), t) for t in (jnp.bfloat16, jnp.bool_, jnp.complex64, jnp.int4)),
    )
    _write(directory, "qr", lambda a: jnp.linalg.qr(a), jax.ShapeDtypeStruct((4, 4), jnp.float32))
    _write(directory, "callback", lambda a: jax.pure_callback(lambda x: x, four, a), four)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    column_major = Format(Layout((1, 0)), device)
    _write(
        directory,
        "column_major",
        lambda a: a + 1,
        jax.ShapeDtypeStruct((3, 5), jnp.float32),
        out_shardings=column_major,
    )
    for count in (2, 4):
        function, argument = _sum_over(count, (4,))
        _write(directory, f"sum{count}", function, argument, partitions=count)
    function, argument = _sum_over(2, (1 << 18,))
    _write(directory, "big_sum2", function, argument, partitions=2)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))

"""Writes programs as a JAX client sends them: NAME.program (StableHLO artifact), NAME.options (xla.CompileOptionsProto).

Usage: make_test_programs.py DIRECTORY
"""

import os
import pathlib
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib import _jax, xla_client
from jaxlib.mlir import ir

# How far down the artifacts are written, for programs to be what clients of any age send.
_TARGET = "1.8.0"


def _write(directory, name, module, replicas=1, partitions=1, ids=None, overrides=()):
    program = _jax.mlir.serialize_portable_artifact(module, _TARGET, True)
    options = xla_client.CompileOptions()
    options.num_replicas = replicas
    options.num_partitions = partitions
    build = options.executable_build_options
    build.num_replicas = replicas
    build.num_partitions = partitions
    build.use_spmd_partitioning = True
    build.use_shardy_partitioner = True
    build.debug_options.xla_cpu_enable_fast_math = True  # fills debug_options, as clients do
    ids = range(replicas * partitions) if ids is None else ids
    options.device_assignment = xla_client.DeviceAssignment.create(
        np.array(ids, dtype=np.int32).reshape(replicas, partitions)
    )
    options.env_option_overrides = list(overrides)
    (directory / f"{name}.program").write_bytes(program)
    (directory / f"{name}.options").write_bytes(options.SerializeAsString())


def _module(function, *arguments):
    return function.lower(*arguments).compiler_ir("stablehlo")


def _parse(text):
    with jax._src.interpreters.mlir.make_ir_context():
        return ir.Module.parse(text)


_REPLICATED_SUM = """
module @replicas attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = COUNT : i32} {
  func.func public @main(%arg0: tensor<3xf32>) -> tensor<3xf32> {
    %0 = "stablehlo.all_reduce"(%arg0) <{replica_groups = dense<[GROUP]> : tensor<1xCOUNTxi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<3xf32>) -> tensor<3xf32>
    return %0 : tensor<3xf32>
  }
}
"""

_SEND = """
module @sends {
  func.func public @main(%arg0: tensor<3xf32>) -> tensor<3xf32> {
    %t = stablehlo.create_token : !stablehlo.token
    %0 = "stablehlo.send"(%arg0, %t) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 2>,
      is_host_transfer = true}> : (tensor<3xf32>, !stablehlo.token) -> !stablehlo.token
    return %arg0 : tensor<3xf32>
  }
}
"""

_TOKENS = """
module @tokens {
  func.func public @main(%t: !stablehlo.token, %x: tensor<3xf32>) -> (!stablehlo.token, tensor<3xf32>) {
    %0 = stablehlo.add %x, %x : tensor<3xf32>
    return %t, %0 : !stablehlo.token, tensor<3xf32>
  }
}
"""

_UNKNOWN_CALL = """
module @unknown_call {
  func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> {
    %0 = stablehlo.custom_call @no_such_target(%x) : (tensor<3xf32>) -> tensor<3xf32>
    return %0 : tensor<3xf32>
  }
}
"""

_NO_MAIN = "module @no_main { func.func public @other() { return } }"


def _ordered_print(x):
    jax.debug.print("{}", x, ordered=True)
    return x + 1


def main(directory):
    devices = np.array(jax.devices())
    line = Mesh(devices, ("a",))
    grid = Mesh(devices.reshape(2, 2), ("a", "b"))

    def on_grid(*spec):
        return NamedSharding(grid, P(*spec))

    psum = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "a"), mesh=line, in_specs=P("a"), out_specs=P()))
    _write(directory, "psum", _module(psum, jnp.ones((8, 8))), partitions=4)
    # Devices as a client numbers them, in an order of its own.
    _write(directory, "psum_reversed", _module(psum, jnp.ones((8, 8))), partitions=4, ids=[7, 5, 3, 1])
    matmul = jax.jit(
        lambda x, y: (x @ y.astype(jnp.float32), jnp.sin(x)),
        in_shardings=(on_grid("a", "b"), on_grid(None, "b")),
        out_shardings=(on_grid("a"), on_grid()),
    )
    _write(directory, "matmul", _module(matmul, jnp.ones((8, 8)), jnp.ones((8, 4), jnp.bfloat16)), partitions=4)
    donate = jax.jit(lambda x, y, z: (x * 2, y.sum(), z + 1), donate_argnums=(0, 2))
    _write(directory, "donate", _module(donate, jnp.ones((8, 8)), jnp.ones(3), jnp.ones(5, jnp.int8)))
    pmap = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")
    _write(directory, "pmap", pmap.lower(jnp.ones((4, 3))).compiler_ir(), partitions=4)
    for count in range(2, 8):
        text = _REPLICATED_SUM.replace("GROUP", str(list(range(count)))).replace("COUNT", str(count))
        _write(directory, f"replicas{count}", _parse(text), replicas=count)
    qr = jax.jit(jnp.linalg.qr)
    _write(directory, "lapack", _module(qr, jnp.ones((4, 4))))
    batched = jax.jit(jnp.linalg.qr, in_shardings=NamedSharding(line, P("a")))
    _write(directory, "lapack_batched", _module(batched, jnp.ones((8, 4, 4))), partitions=4)
    narrow = jax.jit(lambda x, y: (x.astype(jnp.float8_e8m0fnu), y.astype(jnp.int4), x > 0, x + 1j))
    _write(directory, "narrow", _module(narrow, jnp.ones(4), jnp.ones(4, jnp.uint4)))
    crashing = jax.jit(lambda x, y: jnp.concatenate([x, y]))  # a CHECK in XLA's CPU emitter fails
    _write(directory, "crash", _module(crashing, jnp.ones(8, jnp.int2), jnp.ones(8, jnp.int2)))
    host = NamedSharding(Mesh(devices[:1], ("a",)), P(), memory_kind="unpinned_host")
    _write(directory, "host_output", _module(jax.jit(lambda x: x * 2, out_shardings=host), jnp.ones(3)))
    empty = jax.jit(lambda: ())
    _write(directory, "empty", _module(empty))
    ordered = jax.jit(_ordered_print)
    _write(directory, "debug_print", _module(ordered, jnp.ones(3)))
    callback = jax.jit(lambda x: jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct((3,), jnp.float32), x))
    _write(directory, "pure_callback", _module(callback, jnp.ones(3)))
    for name, text in (
      ("send", _SEND), ("tokens", _TOKENS), ("unknown_call", _UNKNOWN_CALL), ("no_main", _NO_MAIN)
  ):  # fmt: skip
        _write(directory, name, _parse(text))
    _write(directory, "dump", _module(qr, jnp.ones((4, 4))), overrides=[("xla_dump_to", "/tmp/x")])
    _write(directory, "fast_math", _module(qr, jnp.ones((4, 4))), overrides=[("xla_cpu_enable_fast_math", True)])


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))

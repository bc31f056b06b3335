"""Loads an executable that a compiler process made into a fresh client, runs it on arange(n) and prints the outputs.

Usage: run_test_program.py EXECUTABLE OPTIONS DEVICES SHARD_DIMS; every parameter is float32 of SHARD_DIMS on each device.
"""

import os
import pathlib
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={sys.argv[3]}"

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib import _jax, xla_client


def main(executable, options, count, dims):
    devices = jax.devices()
    jax.numpy.linalg.qr(np.ones((2, 2), np.float32))  # initialises LAPACK
    loaded = devices[0].client.deserialize_executable(
        pathlib.Path(executable).read_bytes(),
        _jax.DeviceList(tuple(devices)),
        xla_client.CompileOptions.ParseFromString(pathlib.Path(options).read_bytes()),
    )
    shape = (count * dims[0], *dims[1:])
    value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    argument = jax.device_put(value, NamedSharding(Mesh(np.array(devices), ("a",)), P("a")))
    outputs = loaded.execute_sharded([argument]).disassemble_into_single_device_arrays()
    for output in outputs:
        for shard in output:
            print(*(f"{x:.4f}" for x in np.asarray(shard).ravel()))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), [int(d) for d in sys.argv[4].split(",")])

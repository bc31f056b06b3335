"""What the engine asks of jaxlib away from the hot path. Compiled into the engine; run once, in a module of its own.

jaxlib runs without jax: nothing here imports it, and nothing jaxlib does may import it behind our back (250 ms).
"""

import sys

sys.modules.setdefault("jax", None)

import gc

import ml_dtypes
import numpy as np
from jaxlib import _jax, xla_client

try:
    from jaxlib import _hlo
except ImportError:
    _hlo = _jax

version = (
    xla_client._version if not hasattr(sys.modules["jaxlib"], "__version__") else sys.modules["jaxlib"].__version__
)
batched_device_put = _jax.batched_device_put
copy_arrays = _jax.batched_copy_array_to_devices_with_sharding
always_copy = _jax.ArrayCopySemantics.ALWAYS_COPY
array_type = _jax.ArrayImpl
collect_garbage = _jax.collect_garbage

# numpy's types by the names of src/ifrt/dtype.h.
dtypes = {
    name: np.dtype(getattr(module, numpy_name))
    for module, names in (
        (
            np,
            {
                "pred": "bool_",
                "s8": "int8",
                "s16": "int16",
                "s32": "int32",
                "s64": "int64",
                "u8": "uint8",
                "u16": "uint16",
                "u32": "uint32",
                "u64": "uint64",
                "f16": "float16",
                "f32": "float32",
                "f64": "float64",
                "c64": "complex64",
                "c128": "complex128",
            },
        ),
        (
            ml_dtypes,
            {
                "s1": "int1",
                "s2": "int2",
                "s4": "int4",
                "u1": "uint1",
                "u2": "uint2",
                "u4": "uint4",
                "bf16": "bfloat16",
                "f8e3m4": "float8_e3m4",
                "f8e4m3": "float8_e4m3",
                "f8e4m3fn": "float8_e4m3fn",
                "f8e4m3b11fnuz": "float8_e4m3b11fnuz",
                "f8e4m3fnuz": "float8_e4m3fnuz",
                "f8e5m2": "float8_e5m2",
                "f8e5m2fnuz": "float8_e5m2fnuz",
                "f8e8m0fnu": "float8_e8m0fnu",
                "f4e2m1fn": "float4_e2m1fn",
            },
        ),
    )
    for name, numpy_name in names.items()
    if hasattr(module, numpy_name)
}


class Aval:
    """Shape and type of an array, as far as jaxlib asks for them."""

    __slots__ = ("shape", "dtype", "weak_type", "__weakref__")

    def __init__(self, shape, dtype):
        self.shape = shape
        self.dtype = dtype
        self.weak_type = False


def local_client(num_devices):
    return _jax.get_tfrt_cpu_client(asynchronous=True, num_devices=num_devices)


def connect(address, rank):
    """A coordination client of the service in this process: slow to give up on it, since its giving up ends the process."""
    client = _jax.get_distributed_runtime_client(
        address, rank, init_timeout=60, heartbeat_timeout=3600, shutdown_on_destruction=False
    )
    client.connect()
    return client


def context_client(distributed, rank, num_ranks, num_devices, host):
    """A client over all hosts of a context; device k of host r has the id 2048 r + k."""
    collectives = _jax.make_gloo_tcp_collectives(distributed_client=distributed, hostname=host)
    return _jax.get_tfrt_cpu_client(
        asynchronous=True,
        distributed_client=distributed,
        node_id=rank,
        num_nodes=num_ranks,
        collectives=collectives,
        num_devices=num_devices,
        get_local_topology_timeout_minutes=1,
        get_global_topology_timeout_minutes=1,
    )


def devices_by_id(client):
    return {device.id: device for device in client.devices()}


def memory_kinds(device):
    default = device.default_memory().kind
    return [default] + [m.kind for m in device.addressable_memories() if m.kind != default]


def device_list(devices):
    return _jax.DeviceList(tuple(devices))


def single_sharding(device, memory_kind):
    return _jax.SingleDeviceSharding(device, memory_kind=memory_kind)


def shards_sharding(device_list, memory_kind):
    """Arrays go to XLA shard by shard, each with the shard's shape; "manual" says so (of "replicated" jaxlib puts one)."""
    return _jax.GSPMDSharding(device_list, _hlo.HloSharding.manual(), memory_kind=memory_kind)


def result_handler(aval, sharding):
    return _jax.array_result_handler(aval, sharding, True)


def load(client, program, options, device_list, ids):
    """The executable, and its module as serialized HloModuleProto."""
    parsed = xla_client.CompileOptions.ParseFromString(options)
    build = parsed.executable_build_options
    replicas = max(build.num_replicas, 1)
    partitions = max(build.num_partitions, 1)
    if replicas * partitions != len(ids):
        raise ValueError(f"compile options for {replicas} replicas x {partitions} partitions, but {len(ids)} devices")
    assignment = xla_client.DeviceAssignment.create(np.array(ids, np.int32).reshape(replicas, partitions))
    parsed.device_assignment = assignment
    build.device_assignment = assignment
    executable = client.deserialize_executable(program, device_list, parsed)
    return executable, executable.execute_sharded, executable.hlo_modules()[0].as_serialized_hlo_module_proto()


def initialize_lapack():
    """Needs scipy, and so takes about 100 ms: done when the first program asks for it."""
    from jaxlib import lapack
    from jaxlib.cpu import _lapack

    xla_client.register_custom_call_handler("cpu", _jax.register_custom_call_target)
    for platform, targets in lapack.registrations().items():
        for name, value, api_version in targets:
            xla_client.register_custom_call_target(name, value, platform=platform, api_version=api_version)
    _lapack.initialize()


def collect_clients():
    """Frees clients that nobody uses any more: they and their devices hold each other."""
    gc.collect()


def settle():
    """Takes what lives now out of the garbage collector's sight: only clients make cycles, and those have collect_clients."""
    gc.collect()
    gc.freeze()
    gc.disable()

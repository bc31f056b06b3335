"""What a compiler process does with jaxlib: StableHLO in, a serialized CPU executable and its description out.

Called from C++ (src/engine/compiler/role.cc), with plain values both ways. Programs are compiled on a client that has as
many virtual devices as the program, and no peers: the executable that comes out runs wherever an engine loads it.
"""

import collections
import gc
import re

from jaxlib import _jax, lapack, xla_client
from jaxlib import version as jaxlib_version
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, sdy, stablehlo

# Clients kept, each for one number of devices.
_MAX_CLIENTS = 4

# Custom calls into the Python of the process that runs the program: they need callables that no program carries.
_CALLBACK_TARGETS = frozenset(
    {
        "xla_python_cpu_callback",
        "xla_ffi_python_cpu_callback",
        "xla_buffer_python_cpu_callback",
        "xla_ffi_partitioned_python_cpu_callback",
    }
)
_HOST_TRANSFERS = frozenset({"stablehlo.send", "stablehlo.recv"})
# The bytes that give the two away in an artifact (operations carry their version there).
_SUSPECTS = tuple(t.encode() for t in _CALLBACK_TARGETS) + (b"send_v", b"recv_v")

_CALLBACKS_REFUSED = (
    "UNIMPLEMENTED: {name} calls back into Python on the host ({what}), which Parkway's CPU engine does not do: "
    "take jax.debug.print, jax.debug.callback, jax.pure_callback and jax.experimental.io_callback out of it"
)

# XLA's collectives on CPUs write past the end of arrays of two-bit integers.
_TWO_BIT_COLLECTIVE = re.compile(
    r" = \(?[su]2\[.* (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(-start)?\("
)
_TWO_BITS_REFUSED = (
    "UNIMPLEMENTED: {name} moves int2 or uint2 values between devices ({what}), which XLA can't do on CPUs: "
    "convert them to int8 or uint8 first"
)

# xla.PrimitiveType of MLIR's element types.
_ELEMENT_TYPES = {
    "i1": 1, "i2": 26, "i4": 21, "i8": 2, "i16": 3, "i32": 4, "i64": 5,
    "ui2": 27, "ui4": 22, "ui8": 6, "ui16": 7, "ui32": 8, "ui64": 9,
    "f16": 10, "f32": 11, "f64": 12, "bf16": 16,
    "complex<f32>": 15, "complex<f64>": 18,
    "f8E5M2": 19, "f8E4M3FN": 20, "f8E4M3B11FNUZ": 23, "f8E5M2FNUZ": 24, "f8E4M3FNUZ": 25,
    "f8E4M3": 28, "f8E3M4": 29, "f4E2M1FN": 32, "f8E8M0FNU": 33, "f6E3M2FN": 35, "f6E2M3FN": 36,
}  # fmt: skip
_TOKEN = 17

_clients = collections.OrderedDict()
_flags = []  # (name, value) for each program


class _Refused(Exception):
    """An error of ours; its text begins with the status code."""


def _register_custom_calls():
    for name, function, api_version in lapack.registrations()["cpu"]:
        xla_client.register_custom_call_target(name, function, "cpu", api_version)
    # A batch of matrices that is sharded stays so: without this XLA gathers it on every device first.
    for name in lapack.batch_partitionable_targets():
        xla_client.register_custom_call_as_batch_partitionable(name)
    xla_client.register_custom_call_handler("cpu", _jax.register_custom_call_target)
    xla_client.register_custom_type_handler("cpu", _jax.register_custom_type)


_register_custom_calls()


def build() -> str:
    """The compiler's version: executables are loaded by the same one only."""
    return f"jaxlib {jaxlib_version.__version__}"


def warm(num_devices: int) -> None:
    """Makes the client for programs of `num_devices` devices, so that the first compile finds it."""
    _client(num_devices)
    gc.collect()
    gc.freeze()


def _values(text):
    """What a flag's text may mean to XLA, which takes a bool as such alone."""
    return {"true": [True, text], "false": [False, text]}.get(text.lower(), [text])


def set_flags(flags: list[str]) -> list[str]:
    """Flags of XLA's ("name=value") for each program that brings no value of its own.

    Returns:
      A text for each that this XLA doesn't take, and that is left out.
    """
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    module = ir.Module.parse("func.func public @main() { return }", context)
    program = stablehlo.serialize_portable_artifact(module, stablehlo.get_minimum_version())
    refused = []
    for flag in flags:
        name, _, text = flag.partition("=")
        for value in _values(text):
            options = xla_client.CompileOptions()
            options.env_option_overrides = [(name, value)]
            try:
                _client(1).compile_and_load(program, _jax.DeviceList((_client(1).devices()[0],)), options)
            except _jax.JaxRuntimeError as error:
                why = f"--{flag}: {error}"
                continue
            _flags.append((name, value))
            break
        else:
            refused.append(why)
    return refused


def _options(serialized):
    options = xla_client.CompileOptions.ParseFromString(serialized)
    if _flags:
        own = list(options.env_option_overrides)
        named = {name for name, _ in own}
        options.env_option_overrides = [flag for flag in _flags if flag[0] not in named] + own
    return options


def _client(num_devices):
    client = _clients.pop(num_devices, None)
    if client is None:
        while len(_clients) >= _MAX_CLIENTS:
            _clients.popitem(last=False)
        client = _jax.get_tfrt_cpu_client(asynchronous=True, num_devices=num_devices)
    _clients[num_devices] = client
    return client


def _parse(program):
    context = ir.Context()
    for dialect in (stablehlo, sdy, chlo):
        dialect.register_dialect(context)
    complaints = []
    context.attach_diagnostic_handler(lambda d: complaints.append(str(d.message)) or True)
    try:
        return stablehlo.deserialize_portable_artifact(context, program)
    except ValueError as error:
        reason = "; ".join(complaints) or str(error)
        raise _Refused(
            f"INVALID_ARGUMENT: the program is no StableHLO artifact that {build()} can read: {reason}"
        ) from None


def _name(module):
    attributes = module.operation.attributes
    return ir.StringAttr(attributes["sym_name"]).value if "sym_name" in attributes else "a program without a name"


def _refuse_callbacks(module, program):
    if not any(suspect in program for suspect in _SUSPECTS):
        return

    found = []

    def visit(operation):
        if operation.name == "stablehlo.custom_call":
            target = ir.StringAttr(operation.attributes["call_target_name"]).value
            if target in _CALLBACK_TARGETS:
                found.append(target)
        elif operation.name in _HOST_TRANSFERS:
            if (
                "is_host_transfer" in operation.attributes
                and ir.BoolAttr(operation.attributes["is_host_transfer"]).value
            ):
                found.append(operation.name)
        return ir.WalkResult.INTERRUPT if found else ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    if found:
        raise _Refused(_CALLBACKS_REFUSED.format(name=_name(module), what=found[0]))


def _global_type(mlir_type, where):
    """(xla.PrimitiveType, dims) of a parameter or output of the whole program."""
    if str(mlir_type) == "!stablehlo.token":
        return (_TOKEN, [])
    tensor = mlir_type if isinstance(mlir_type, ir.RankedTensorType) else None
    if tensor is None or not tensor.has_static_shape or str(tensor.element_type) not in _ELEMENT_TYPES:
        raise _Refused(f"UNIMPLEMENTED: {where} has the type {mlir_type}; programs take and give arrays of fixed shape")
    return (_ELEMENT_TYPES[str(tensor.element_type)], list(tensor.shape))


def _signature(module):
    for operation in module.body.operations:
        if operation.operation.name == "func.func" and ir.StringAttr(operation.attributes["sym_name"]).value == "main":
            function = ir.FunctionType(ir.TypeAttr(operation.attributes["function_type"]).value)
            name = _name(module)
            parameters = [_global_type(t, f"parameter {i} of {name}") for i, t in enumerate(function.inputs)]
            outputs = [_global_type(t, f"output {i} of {name}") for i, t in enumerate(function.results)]
            return parameters, outputs
    raise _Refused(f"INVALID_ARGUMENT: {_name(module)} has no function `main`")


def _shardings(shardings):
    return [sharding.SerializeToString() for sharding in shardings or []]


def _costs(executable):
    costs = executable.cost_analysis()
    if isinstance(costs, list):  # one for each module
        costs = costs[0] if costs else {}
    return {str(key): float(value) for key, value in costs.items()}


def _refuse_two_bit_collectives(name, text):
    found = _TWO_BIT_COLLECTIVE.search(text)
    if found:
        raise _Refused(_TWO_BITS_REFUSED.format(name=name, what=found[1]))


def _describe(client, executable):
    module = executable.hlo_modules()[0]
    text = module.to_string()
    _refuse_two_bit_collectives(module.name, text)
    memory = executable.get_compiled_memory_stats()
    return {
        "name": module.name,
        "executable": client.serialize_executable(executable),
        "parameter_shardings": _shardings(executable.get_parameter_shardings()),
        "output_shardings": _shardings(executable.get_output_shardings()),
        "parameter_layouts": [str(layout) for layout in executable.get_parameter_layouts()],
        "output_layouts": [str(layout) for layout in executable.get_output_layouts()],
        "output_memory_kinds": list(executable.get_output_memory_kinds()[0]),
        "memory": (
            memory.generated_code_size_in_bytes,
            memory.argument_size_in_bytes,
            memory.output_size_in_bytes,
            memory.alias_size_in_bytes,
            memory.temp_size_in_bytes,
        ),
        "costs": _costs(executable),
        "text": text,
        "hlo": module.as_serialized_hlo_module_proto(),
    }


def read(program: bytes) -> tuple | str:
    """Reads a program (a StableHLO portable artifact) as far as needed to know what it is called, takes and gives.

    Returns:
      (name, parameters, outputs), where a type is (xla.PrimitiveType, dims); on failure a text "CODE: message".
    """
    try:
        module = _parse(program)
        _refuse_callbacks(module, program)
        parameters, outputs = _signature(module)
        return _name(module), parameters, outputs
    except _Refused as error:
        return str(error)


def compile(program: bytes, options: bytes, num_devices: int) -> dict | str:
    """Compiles a program that `read` has accepted.

    Args:
      program: the artifact.
      options: a serialized xla.CompileOptionsProto whose device assignment has the ids 0 to num_devices - 1.
      num_devices: replicas times partitions.

    Returns:
      What CompiledProgram (compiler.proto) wants to know besides the signature; on failure a text "CODE: message".
    """
    try:
        client = _client(num_devices)
        devices = _jax.DeviceList(tuple(client.devices()[:num_devices]))
        executable = client.compile_and_load(program, devices, _options(options))
        return _describe(client, executable)
    except (_Refused, _jax.JaxRuntimeError) as error:
        return str(error)

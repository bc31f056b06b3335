"""proto/ifrt says what the definitions inside jaxlib say, message by message."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from jaxlib_descriptors import Schema, jaxlib_schema, schema_of_descriptor_set

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ["0.12.0.1", "0.11.2", "0.10.1"]

# Messages whose fields we leave out on purpose: they pass through unread, or are there for the enum inside them alone.
OPAQUE = frozenset(
    {
        "xla.CompilationEnvironmentsProto",
        "xla.DebugOptions",
        "xla.ExecutionOptions",
        "xla.GpuTopologyProto",
        "xla.OpMetadata",
        "xla.PrecisionConfig",
    }
)
# Single fields that we leave out, for the same reason; those of older versions that newer ones have given up.
LEFT_OUT = {
    ("xla.CompileOptionsProto", "target_config"),
    ("xla.ExecutableBuildOptionsProto", "exec_time_optimization_effort"),
    ("xla.ExecutableBuildOptionsProto", "memory_fitting_effort"),
    ("xla.ExecutableBuildOptionsProto", "slice_size"),
}
# What older versions don't have yet: messages and enums, fields, values of enums.
NOT_YET = {
    "0.12.0.1": set(),
    "0.11.2": set(),
    "0.10.1": {
        "xla.CompileOptionsProto.individually_defined_output_indices",
        "xla.ExecutableBuildOptionsProto.gpu_topology",
        "xla.MeshProto.IotaTransform",
        "xla.MeshProto.iota_transform",
        "xla.NamedShardingProto.ReductionOpProto",
        "xla.NamedShardingProto.reduction_op",
        "xla.PrimitiveType.F6E2M3FN",
        "xla.PrimitiveType.F6E3M2FN",
        "xla.ifrt.CustomCallCompileOptionsProto",
        "xla.ifrt.DTypeProto.Kind.KIND_F6E2M3FN",
        "xla.ifrt.DTypeProto.Kind.KIND_F6E3M2FN",
        "xla.ifrt.XlaCompileOptionsProto.outputs_bundle_slice_sizes",
        "xla.ifrt.XlaCompileOptionsProto.version_number",
    },
}
# What a session and the calls beside it are made of, and what stands inside their `bytes` fields.
ROOTS = [
    "xla.ifrt.proxy.IfrtRequest",
    "xla.ifrt.proxy.IfrtResponse",
    "xla.ifrt.proxy.GrpcIfrtSessionMetadata",
    "xla.ifrt.proxy.GrpcHostBufferStoreMetadata",
    "xla.ifrt.HloShardingProto",
    "xla.ifrt.SingleDeviceShardingProto",
    "xla.ifrt.OpaqueShardingProto",
    "xla.ifrt.ConcreteShardingProto",
    "xla.ifrt.ConcreteEvenShardingProto",
    "xla.ifrt.CompactLayoutProto",
    "xla.ifrt.PjRtLayoutProto",
    "xla.ifrt.XlaCompileOptionsProto",
    "xla.ifrt.XlaHostCallbackProto",
    "xla.ifrt.CustomCallProgramProto",
    "xla.ifrt.CustomCallCompileOptionsProto",
    "xla.ifrt.proto.StringArrayContents",
]
SERVICE = "xla.ifrt.proxy.GrpcIfrtService"


@functools.cache
def ours() -> Schema:
    protoc = shutil.which("protoc")
    assert protoc, "protoc is not installed (Debian: protobuf-compiler)"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "ours"
        files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "proto/ifrt").glob("*.proto"))
        subprocess.run([protoc, "-I.", f"--descriptor_set_out={out}", *files], cwd=ROOT, check=True)
        return schema_of_descriptor_set(out.read_bytes())


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


def test_every_message_of_ours_is_theirs(version):
    theirs, differences = jaxlib_schema(version), []
    for name, message in ours().messages.items():
        if name not in theirs.messages:
            differences.append(name)
            continue
        assert message.is_map_entry == theirs.messages[name].is_map_entry, name
        for number, field in message.fields.items():
            other = theirs.messages[name].fields.get(number)
            if other is None:
                differences.append(f"{name}.{field.name}")
            else:
                assert field == other, f"{name}, field {number}"
    assert set(differences) == {n for n in NOT_YET[version] if is_message_or_field(n)}


def is_message_or_field(name: str) -> bool:
    return name in ours().messages or name.rpartition(".")[0] in ours().messages and name not in ours().enums


def test_every_enum_of_ours_is_theirs(version):
    theirs, differences = jaxlib_schema(version), set()
    for name, values in ours().enums.items():
        if name not in theirs.enums:
            differences.add(name)
            continue
        assert theirs.enums[name].items() <= values.items(), f"{name} has values that we don't know"
        differences |= {f"{name}.{value}" for value in values.keys() - theirs.enums[name].keys()}
    assert differences == {n for n in NOT_YET[version] if not is_message_or_field(n)}


def test_nothing_that_a_client_sends_is_missing(version):
    theirs, missing = jaxlib_schema(version), set()
    for root in ROOTS:
        assert root in theirs.messages or root in NOT_YET[version], root
    for name in theirs.reachable(ROOTS, OPAQUE, LEFT_OUT):
        if name in OPAQUE or name.startswith("google.protobuf."):
            continue
        if name not in ours().messages and name not in ours().enums:
            missing.add(name)
            continue
        for number, field in theirs.messages[name].fields.items() if name in theirs.messages else ():
            if number not in ours().messages[name].fields and (name, field.name) not in LEFT_OUT:
                missing.add(f"{name}.{field.name}")
    assert missing == set()


def test_the_service_is_theirs(version):
    assert ours().services[SERVICE] == jaxlib_schema(version).services[SERVICE]
    messages = {m for method in ours().services[SERVICE].values() for m in method[:2]}
    assert messages <= ours().messages.keys()


def test_a_difference_would_be_seen():
    """The comparison is over something: counts of what was read from a wheel that is known."""
    theirs = jaxlib_schema("0.12.0.1")
    assert len(theirs.messages) > 1000
    assert len(theirs.messages["xla.ifrt.proxy.IfrtRequest"].fields) == 33
    request = theirs.messages["xla.ifrt.proxy.IfrtRequest"].fields[2]
    assert (request.name, request.type, request.oneof) == (
        "init_request",
        "xla.ifrt.proxy.InitRequest",
        "request",
    )
    assert len(theirs.reachable(ROOTS, OPAQUE, LEFT_OUT)) > 130

"""Requests that no JAX would send. The one who sends them gets an error in words; nobody else notices."""

import time

import grpc
import numpy as np
import pytest
from jaxlib.mlir.dialects import stablehlo
from raw_client import HIGHEST, SECONDS, SESSION_KEY, Refused, Session, dtype, messages, sharding

NUMBERS = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(scope="module")
def address(cluster):
    return cluster.proxy_address()


@pytest.fixture
def session(address):
    """A session; afterwards the proxy must still serve it, and others."""
    with Session(address) as one:
        yield one
        check_it_works(one)
    with Session(address) as other:
        check_it_works(other)


def check_it_works(session):
    array = session.put(NUMBERS, device=3)
    np.testing.assert_array_equal(session.read(array, NUMBERS), NUMBERS)
    session.call(destruct_array_request={"array_handle": [array]})


def error_of(session, *handles) -> Refused:
    with pytest.raises(Refused) as caught:
        session.ready(*handles)
    return caught.value


# ---- versions ----


@pytest.mark.parametrize(
    ("lowest", "highest"),
    [((1, 3), (15, 6)), ((26, 3), (99, 6)), ((16, 0), (25, 2)), ((16, 7), (25, 9)), ((25, 6), (16, 3))],
)
def test_a_range_of_versions_that_is_not_ours(address, lowest, highest):
    m = messages()
    pairs = [{"protocol_version": p, "ifrt_serdes_version_number": s} for p, s in (lowest, highest)]
    session = Session(address)
    with pytest.raises(grpc.RpcError) as caught:
        session.unary(
            "GetVersion", m.GrpcGetVersionRequest(min_version=pairs[0], max_version=pairs[1]), "GrpcGetVersionResponse"
        )
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION and "versions" in caught.value.details()
    session.close()


@pytest.mark.parametrize("highest", [(16, 3), (20, 4), (25, 6), (40, 40)])
def test_versions_that_are_ours(address, highest):
    m = messages()
    session = Session(address)
    request = m.GrpcGetVersionRequest(
        min_version={"protocol_version": 16, "ifrt_serdes_version_number": 0},
        max_version={"protocol_version": highest[0], "ifrt_serdes_version_number": highest[1]},
    )
    chosen = session.unary("GetVersion", request, "GrpcGetVersionResponse").version
    assert 16 <= chosen.protocol_version <= min(25, highest[0])
    assert 3 <= chosen.ifrt_serdes_version_number <= min(6, highest[1])
    session.close()


@pytest.mark.parametrize("metadata", [None, [], [(SESSION_KEY, b"\xff\xff\xff")]], ids=["old", "none", "garbage"])
def test_a_session_of_no_version(address, metadata):
    version = {"protocol_version": 3, "ifrt_serdes_version_number": 1}
    session = Session(address, version=version, metadata=metadata)
    ended = session.ended.result(SECONDS)
    assert ended.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)
    session.close()


# ---- messages ----


def test_a_request_that_is_no_message(address):
    session = Session(address).init()
    session.send_raw(b"\xff" * 100)
    session.ended.result(SECONDS)
    with pytest.raises(grpc.RpcError):
        session.lookup(1)
    session.close()
    with Session(address) as other:
        check_it_works(other)


def test_a_request_that_asks_nothing(session):
    with pytest.raises(Refused):
        session.call()


def test_init_twice(session):
    before = session.session_id
    try:
        assert session.call(init_request={}).session_id == before
    except Refused as refused:
        assert refused.message


def test_a_request_before_init(address):
    session = Session(address)
    try:
        session.call(is_array_deleted_request={"array_handle": 1})
    except (Refused, ConnectionError) as error:
        assert str(error)
    session.close()


# ---- handles ----

UNKNOWN = {
    "check_future_request": {"future_handle": 77},
    "check_value_ready_request": {"value_handles": [77]},
    "copy_to_host_buffer_request": {"array_handle": 77, "host_buffer_handle": 78},
    "is_array_deleted_request": {"array_handle": 77},
    "assemble_array_from_single_device_arrays_request": {
        "shape": {"dims": [4]},
        "single_device_array_handles": [77, 78],
        "result_handle": 900,
        "dtype": {"kind": 11},
        "copy_semantics": 2,
    },
    "disassemble_into_single_device_arrays_request": {"array_handle": 77, "result_handles": [901], "copy_semantics": 2},
    "fully_replicated_shard_request": {"array_handle": 77, "result_handle": 902, "copy_semantics": 2},
    "copy_arrays_request": {"array_handles": [77], "device_ids": [1], "result_handles": [903], "copy_semantics": 1},
    "remap_arrays_request": {"array_handles": [77], "result_handles": [904], "copy_semantics": 2},
    "reshard_arrays_request": {"array_handles": [77], "result_handles": [905], "copy_semantics": 2},
    "bitcast_arrays_request": {"array_handles": [77], "result_handles": [906], "copy_semantics": 2},
    "loaded_executable_metadata_request": {"loaded_executable_handle": 77},
    "loaded_executable_execute_request": {"loaded_executable_handle": 77, "args_handles": [77]},
    "loaded_executable_fetch_execute_result_request": {"result_status_handle": 77},
    "loaded_executable_cost_analysis_request": {"loaded_executable_handle": 77},
    "loaded_executable_human_readable_program_text_request": {"loaded_executable_handle": 77},
    "loaded_executable_destruct_request": {"loaded_executable_handle": 77},
    "loaded_host_callback_poll_request": {"loaded_host_callback_handle": 77},
    "loaded_host_callback_return_request": {"host_callback_execution_handle": 77},
    "loaded_executable_mpmd_metadata_request": {"mpmd_loaded_executable_handle": 77},
    "get_default_layout_request": {"dtype": {"kind": 11}, "dims": [1, 2], "device_id": 77},
}


@pytest.mark.parametrize("request_name", UNKNOWN)
@pytest.mark.parametrize("handle", [77, (1 << 48) + 77, (1 << 64) - 1])
def test_unknown_handles(session, request_name, handle):
    fields = {
        name: handle if value == 77 else [handle] if value == [77] and name != "device_ids" else value
        for name, value in UNKNOWN[request_name].items()
    }
    if request_name == "get_default_layout_request":
        fields["device_id"] = 77
    reply = session.send(**{request_name: fields}).result(SECONDS)
    status = reply.response_metadata.status
    if reply.WhichOneof("response") is not None:
        status = getattr(getattr(reply, reply.WhichOneof("response")), "status", status)
    assert status.code != 0 and status.message, reply
    assert "DATA_LOSS" not in status.message and "INTERNAL" not in status.message


def test_what_is_made_of_unknown_handles_is_an_error(session):
    session.send(
        copy_arrays_request={"array_handles": [77], "device_ids": [1], "result_handles": [500], "copy_semantics": 1}
    )
    assert "77" in error_of(session, 500).message
    session.call(destruct_array_request={"array_handle": [500]})


def test_deleting_what_is_not_there(session):
    with pytest.raises(Refused):
        future = session.call(delete_array_request={"array_handle": [77]}).deletion_future_handle
        session.call(check_future_request={"future_handle": future})


def test_destructing_what_is_not_there(session):
    session.call(destruct_array_request={"array_handle": [1234, 1235, 0]})


def test_one_handle_for_two_arrays(session):
    first = session.put(NUMBERS)
    session.ready(first)
    reply = session.send(
        copy_arrays_request={
            "array_handles": [first],
            "device_ids": [1],
            "result_handles": [first],
            "copy_semantics": 1,
        }
    ).result(SECONDS)
    assert reply.response_metadata.status.code != 0
    np.testing.assert_array_equal(session.read(first, NUMBERS), NUMBERS)


def test_a_million_handles_at_once(session):
    session.call(destruct_array_request={"array_handle": range(5000, 1_005_000)})


# ---- shapes, types, shardings ----

WRONG_ARRAYS = {
    "a negative dimension": {"shape": {"dims": [-1, 4]}},
    "a size of 2^62": {"shape": {"dims": [1 << 31, 1 << 31]}},
    "a size that overflows": {"shape": {"dims": [1 << 40, 1 << 40, 1 << 40]}},
    "many dimensions": {"shape": {"dims": [1] * 5000}},
    "another size than its bytes": {"shape": {"dims": [3, 5]}},
    "no type": {"dtype": {"kind": 0}},
    "an unknown type": {"dtype": {"kind": 77}},
    "a token": {"dtype": {"kind": 17}},
    "no sharding": {"sharding": {}},
    "an unknown sharding": {"sharding": {"serialized_sharding": {"type_name": "xla::ifrt::Nothing", "data": b"1"}}},
    "a garbled sharding": {
        "sharding": {"serialized_sharding": {"type_name": "xla::ifrt::HloSharding", "data": b"\xff\xff\xff"}}
    },
    "an unknown device": {"sharding": ("devices", 77)},
    "a negative device": {"sharding": ("devices", -5)},
    "a device twice": {"sharding": ("devices", 1, 1)},
    "no device": {"sharding": ("devices",)},
    "tiles of too many devices": {"sharding": ("tiles", [4, 4], 0, 1)},
    "strides beyond the bytes": {"byte_strides": {"strides": [1 << 40, 4]}},
    "negative strides": {"byte_strides": {"strides": [-16, 4]}},
    "strides of another rank": {"byte_strides": {"strides": [4]}},
    "a layout that is none": {"layout": {"serialized_layout": {"type_name": "xla::ifrt::Nothing", "data": b"1"}}},
}


@pytest.mark.parametrize("what", WRONG_ARRAYS)
def test_wrong_arrays(session, what):
    changes = dict(WRONG_ARRAYS[what])
    if isinstance(changes.get("sharding"), tuple):
        kind, *rest = changes["sharding"]
        changes["sharding"] = sharding(*rest) if kind == "devices" else sharding(*rest[1:], tiles=rest[0])
    array = session.make_array(NUMBERS, **changes)
    stored = session.store(array, [NUMBERS.tobytes()], NUMBERS.nbytes)
    assert error_of(session, array).message
    assert stored.exception(SECONDS) is None or stored.exception().details()
    with pytest.raises(Refused):
        session.call(copy_to_host_buffer_request={"array_handle": array, "host_buffer_handle": next(session.handles)})
    session.call(destruct_array_request={"array_handle": [array]})


def test_wrong_pieces(session):
    parts = [session.put(NUMBERS, device=d) for d in (0, 1)]
    for shape, devices, tiles in [([6, 5], (0, 1), [2, 1]), ([6, 4], (1, 0), [2, 1]), ([6, 4], (0, 1, 2), [3, 1])]:
        whole = next(session.handles)
        session.send(
            assemble_array_from_single_device_arrays_request={
                "shape": {"dims": shape},
                "sharding": sharding(*devices, tiles=tiles),
                "single_device_array_handles": parts,
                "copy_semantics": 2,
                "result_handle": whole,
                "dtype": dtype(np.float32),
            }
        )
        assert error_of(session, whole).message
    for part in parts:
        np.testing.assert_array_equal(session.read(part, NUMBERS), NUMBERS)


def test_wrong_splits(session):
    array = session.put(NUMBERS)
    for results in ([], [600, 601, 602]):
        reply = session.send(
            disassemble_into_single_device_arrays_request={
                "array_handle": array,
                "copy_semantics": 2,
                "result_handles": results,
            }
        ).result(SECONDS)
        assert reply.response_metadata.status.code != 0


def test_a_layout_for_a_size_of_2_to_the_62(session):
    reply = session.send(get_default_layout_request={"dtype": {"kind": 11}, "dims": [1 << 62], "device_id": 0})
    assert reply.result(SECONDS)


# ---- bytes ----


@pytest.mark.parametrize("sent", [0, NUMBERS.nbytes - 1, NUMBERS.nbytes + 1, 5 << 20])
def test_more_or_fewer_bytes_than_announced(session, sent):
    array = session.make_array(NUMBERS)
    stored = session.store(array, [b"x" * sent], NUMBERS.nbytes)
    assert stored.code() == grpc.StatusCode.INVALID_ARGUMENT and str(NUMBERS.nbytes) in stored.details()
    assert "announced" in error_of(session, array).message


@pytest.mark.parametrize("size", [-1, 1 << 62, (1 << 63) - 1])
def test_an_announced_size_that_cannot_be(session, size):
    array = session.make_array(NUMBERS)
    session.call(destruct_array_request={"array_handle": [999]})  # the proxy has read both
    stored = session.store(array, [NUMBERS.tobytes()], size)
    assert stored.code() == grpc.StatusCode.INVALID_ARGUMENT and str(size) in stored.details()
    assert error_of(session, array).message


def test_the_same_bytes_twice(session):
    handle = next(session.handles)
    session.store(handle, [NUMBERS.tobytes()], NUMBERS.nbytes).result(SECONDS)
    again = session.store(handle, [bytes(NUMBERS.nbytes)], NUMBERS.nbytes)
    assert again.code() == grpc.StatusCode.INVALID_ARGUMENT
    array = session.make_array(NUMBERS, host_buffer_handle=handle)
    np.testing.assert_array_equal(session.read(array, NUMBERS), NUMBERS)


def test_bytes_that_no_array_asks_for(cluster, address):
    """They are kept for a while, and go with their session."""
    with Session(address) as session:
        for handle in range(1, 20):
            session.store(handle, [bytes(1 << 20)], 1 << 20).result(SECONDS)
    cluster.wait_for_nothing_held()


def test_bytes_of_a_session_that_is_not(session):
    for wrong in (0, session.session_id ^ 1, (1 << 64) - 1):
        stored = session.store(9, [b"1234"], 4, session_id=wrong)
        assert stored.code() == grpc.StatusCode.PERMISSION_DENIED


def test_a_guessed_session_reaches_nothing(address, session):
    m = messages()
    array = session.put(NUMBERS)
    buffer = next(session.handles)
    session.call(copy_to_host_buffer_request={"array_handle": array, "host_buffer_handle": buffer})
    with Session(address) as other:
        assert other.session_id != session.session_id and min(other.session_id, session.session_id) >= 1 << 32
        for guess in (0, 1, 2, session.session_id + 1, session.session_id - 1, session.session_id ^ (1 << 63)):
            with pytest.raises(grpc.RpcError) as caught:
                other.lookup(buffer, session_id=guess)
            assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
            with pytest.raises(grpc.RpcError):
                other.unary(
                    "HostBufferDelete",
                    m.GrpcHostBufferDeleteRequest(session_id=guess, handle=buffer),
                    "GrpcHostBufferDeleteResponse",
                )
        # Its own session has none of the other's handles.
        assert error_of(other, array).message
        with pytest.raises(grpc.RpcError):
            other.lookup(buffer)
    assert session.lookup(buffer) == NUMBERS.tobytes()


def test_a_buffer_that_is_not_there(session):
    with pytest.raises(grpc.RpcError) as caught:
        session.lookup(4711)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


def test_a_read_of_an_error(session):
    array = session.make_array(NUMBERS, dtype={"kind": 0})
    with pytest.raises(Refused):
        session.call(copy_to_host_buffer_request={"array_handle": array, "host_buffer_handle": next(session.handles)})


def test_a_read_with_wrong_strides(session):
    array = session.put(NUMBERS)
    for strides in ([4], [-16, 4], [1 << 50, 1 << 50]):
        request = {
            "array_handle": array,
            "host_buffer_handle": next(session.handles),
            "byte_strides": {"strides": strides},
        }
        with pytest.raises(Refused):
            session.call(copy_to_host_buffer_request=request)


def test_a_stream_that_stalls_half_way_blocks_nobody(address, session):
    """The array waits for its bytes; the same session's other arrays and other sessions don't."""

    def half():
        yield b"x" * (1 << 20)
        time.sleep(5)

    big = np.zeros(4 << 20, np.uint8)
    array = session.make_array(big)
    stored = session.store(array, half(), big.nbytes)
    waiting = session.send(check_value_ready_request={"value_handles": [array]})
    with Session(address) as other:
        check_it_works(other)
    assert not waiting.done()
    stored.cancel()
    reply = waiting.result(SECONDS)
    assert reply.response_metadata.status.code != 0


def test_a_stream_of_a_dead_client_is_forgotten(cluster, address):
    session = Session(address).init()
    big = np.zeros(64 << 20, np.uint8)
    session.make_array(big)
    session.store(1, iter([b"x" * (1 << 20)]), big.nbytes)
    session.close()
    cluster.wait_for_nothing_held()


# ---- the directory for large arrays ----


@pytest.mark.parametrize("file", ["none", "short", "long", "link", "folder"])
def test_the_large_transfer_directory(cluster, session, tmp_path, file):
    m = messages()
    array = session.make_array(NUMBERS)
    path = cluster.transfer_directory() / f"lt_{array}"
    if file in ("short", "long"):
        path.write_bytes(NUMBERS.tobytes()[:-1] if file == "short" else NUMBERS.tobytes() + b"x")
    elif file == "link":
        (tmp_path / "secret").write_bytes(NUMBERS.tobytes())
        path.symlink_to(tmp_path / "secret")
    elif file == "folder":
        path.mkdir()
    said = {"session_id": session.session_id, "handle": array, "buffer_size": NUMBERS.nbytes}
    try:
        with pytest.raises(grpc.RpcError) as caught:
            session.unary(
                "HostBufferReadFromDisk",
                m.GrpcHostBufferReadFromDiskRequest(metadata=said),
                "GrpcHostBufferReadFromDiskResponse",
            )
        assert f"lt_{array}" in caught.value.details()
        assert error_of(session, array).message
    finally:
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)


def test_a_file_of_the_large_transfer_directory(cluster, session):
    m = messages()
    array = session.make_array(NUMBERS)
    path = cluster.transfer_directory() / f"lt_{array}"
    path.write_bytes(NUMBERS.tobytes())
    said = {"session_id": session.session_id, "handle": array, "buffer_size": NUMBERS.nbytes}
    session.unary(
        "HostBufferReadFromDisk",
        m.GrpcHostBufferReadFromDiskRequest(metadata=said),
        "GrpcHostBufferReadFromDiskResponse",
    )
    np.testing.assert_array_equal(session.read(array, NUMBERS), NUMBERS)
    assert not path.exists()


# ---- programs ----


def compile_request(
    program: bytes, type_name="xla::ifrt::XlaProgram", options=b"", options_type="XlaCompileOptions"
) -> dict:
    return {
        "program": {"type_name": type_name, "data": program},
        "compile_options": {"type_name": f"xla::ifrt::{options_type}", "data": options},
    }


NO_PROGRAMS = {
    "nothing": compile_request(b""),
    "noise": compile_request(bytes(range(256)) * 40),
    "half an artifact": compile_request(b"ML\xefR" + b"StableHLO_v1.16.3" + b"\x00" * 50),
    "text that is no MLIR": compile_request(b"int main() { return 0; }"),
    "another kind": compile_request(b"x", "xla::ifrt::Nothing"),
    "a plugin program that is none": compile_request(b"x", "xla::ifrt::PluginProgram"),
    "options that can't be read": compile_request(b"module {}", options=b"\xff\xff\xff"),
    "options of another kind": compile_request(b"module {}", options_type="Nothing"),
    "no options at all": {"program": {"type_name": "xla::ifrt::XlaProgram", "data": b"module {}"}},
}


@pytest.mark.parametrize("what", NO_PROGRAMS)
def test_what_is_no_program(session, what):
    with pytest.raises(Refused) as caught:
        session.call(compile_request=NO_PROGRAMS[what])
    assert caught.value.message and caught.value.code not in (5, 13, 15)


@pytest.mark.parametrize("kind", ["CustomCallProgram", "IfrtIRProgram"])
def test_programs_that_parkway_does_not_have(session, kind):
    with pytest.raises(Refused) as caught:
        session.call(compile_request=compile_request(b"x", f"xla::ifrt::{kind}"))
    assert caught.value.code == 12 and len(caught.value.message.split()) > 5


IDENTITY = """
    module @identity {
      func.func public @main(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> { return %arg0 : tensor<3x4xf32> }
    }
"""
IDENTITY = stablehlo.serialize_portable_artifact_str(IDENTITY, stablehlo.get_minimum_version())


def options(devices, replicas=1, partitions=1, counts=True) -> bytes:
    m = messages()
    assignment = {
        "replica_count": replicas if counts else 0,
        "computation_count": partitions if counts else 0,
        "computation_devices": [{"replica_device_ids": [d]} for d in devices],
    }
    build = {"num_replicas": replicas, "num_partitions": partitions, "device_assignment": assignment}
    return m.XlaCompileOptionsProto(compile_options={"executable_build_options": build}).SerializeToString()


@pytest.mark.parametrize(
    "wrong",
    [
        options([77]),
        options([-1]),
        options([]),
        options([0, 0], partitions=2),
        options([0], replicas=1 << 40, counts=False),
        options([0], replicas=0, partitions=-3),
        options([0, 1, 2], partitions=2),
    ],
)
def test_wrong_devices_of_a_program(session, wrong):
    with pytest.raises(Refused) as caught:
        session.call(compile_request=compile_request(IDENTITY, options=wrong))
    assert caught.value.message


def test_wrong_arguments_of_a_program(session):
    compiled = session.call(compile_request=compile_request(IDENTITY, options=options([0])))
    session.call(check_future_request={"future_handle": compiled.ready_future_handle})
    program = compiled.loaded_executable_handle
    right, elsewhere = session.put(NUMBERS), session.put(NUMBERS, device=2)
    other_shape, other_type = session.put(NUMBERS.T.copy()), session.put(NUMBERS.astype(np.int32))
    for arguments in ([], [right, right], [elsewhere], [other_shape], [other_type], [77]):
        with pytest.raises(Refused) as caught:
            session.call(
                loaded_executable_execute_request={"loaded_executable_handle": program, "args_handles": arguments}
            )
        assert caught.value.message
    for results in ([700, 701], [right]):
        reply = session.send(
            loaded_executable_execute_request={
                "loaded_executable_handle": program,
                "args_handles": [right],
                "result_array_handle": results,
            }
        ).result(SECONDS)
        assert reply.response_metadata.status.code != 0
    done = session.call(
        loaded_executable_execute_request={"loaded_executable_handle": program, "args_handles": [right]}
    )
    np.testing.assert_array_equal(session.read(done.outputs[0].array_handle, NUMBERS), NUMBERS)


def test_a_client_that_never_reads_its_replies(address):
    """It sends on and on; the proxy stops listening to it, and to nobody else."""
    m = messages()
    slow = grpc.insecure_channel(address)
    said = m.GrpcIfrtSessionMetadata(version=HIGHEST).SerializeToString()
    stream = slow.stream_stream("/xla.ifrt.proxy.GrpcIfrtService/IfrtSession", m.IfrtRequest.SerializeToString, None)

    def requests():
        yield m.IfrtRequest(request_metadata={"op_id": 1}, init_request={})
        for op_id in range(2, 200_000):
            yield m.IfrtRequest(request_metadata={"op_id": op_id}, is_array_deleted_request={"array_handle": op_id})

    call = stream(requests(), metadata=[(SESSION_KEY, said)])
    with Session(address) as other:
        for _ in range(20):
            check_it_works(other)
    call.cancel()
    slow.close()

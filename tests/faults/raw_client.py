"""A client that says to a proxy what no JAX would: each message of the protocol by hand, over gRPC.

The messages are made of proto/ by protoc when they are first needed.
"""

from __future__ import annotations

import functools
import itertools
import queue
import subprocess
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

ROOT = Path(__file__).resolve().parents[2]
FILES = ["ifrt/grpc_ifrt_service.proto", "ifrt/program.proto", "ifrt/sharding.proto", "parkway/manager.proto"]
SECONDS = 60  # cap of every wait
SERVICE = "/xla.ifrt.proxy.GrpcIfrtService/"
SESSION_KEY = "ifrt-proxy-grpc-ifrt-session-metadata-bin"
STORE_KEY = "ifrt-proxy-grpc-host-buffer-store-metadata-bin"
HIGHEST = {"protocol_version": 25, "ifrt_serdes_version_number": 6}


@functools.cache
def messages() -> SimpleNamespace:
    """Every message by its name, those of the client's wire and the manager's."""
    with tempfile.NamedTemporaryFile(suffix=".bin") as out:
        words = ["protoc", f"-I{ROOT}", "--include_imports", f"--descriptor_set_out={out.name}"]
        subprocess.run([*words, *(f"proto/{name}" for name in FILES)], cwd=ROOT, check=True)
        found = descriptor_pb2.FileDescriptorSet.FromString(Path(out.name).read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in found.file:
        pool.Add(file)
    classes = message_factory.GetMessageClassesForFiles([file.name for file in found.file], pool)
    return SimpleNamespace(**{name.rsplit(".", 1)[-1]: made for name, made in classes.items()})


class Refused(Exception):
    """The reply of a request was this status."""

    def __init__(self, status) -> None:
        super().__init__(f"{status.code}: {status.message}")
        self.code = status.code  # as absl counts them
        self.message = status.message


def dtype(numpy_dtype) -> dict:
    kinds = {"float32": 11, "int32": 4, "uint8": 6, "int8": 2, "bool": 1}
    return {"kind": kinds[np.dtype(numpy_dtype).name]}


def sharding(*devices: int, tiles: list[int] | None = None) -> dict:
    """Replicated over the devices, or cut in tiles."""
    m = messages()
    op = m.OpSharding()
    if tiles:
        op.type = 3
        op.tile_assignment_dimensions.extend(tiles)
        op.iota_reshape_dims.append(int(np.prod(tiles)))
        op.iota_transpose_perm.append(0)
    value = m.HloShardingProto(devices={"device_ids": devices}, xla_op_sharding=op)
    return {"serialized_sharding": {"type_name": "xla::ifrt::HloSharding", "data": value.SerializeToString()}}


class Session:
    """One connection to a proxy: a session's stream, and calls for host buffers beside it."""

    def __init__(self, address: str, version: dict | None = None, metadata: list | None = None) -> None:
        m = messages()
        self.channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        if metadata is None:
            said = m.GrpcIfrtSessionMetadata(version=version or HIGHEST)
            metadata = [(SESSION_KEY, said.SerializeToString())]
        self._requests: queue.SimpleQueue = queue.SimpleQueue()
        self._waiting: dict[int, Future] = {}
        self._op_ids = itertools.count(1)
        call = self.channel.stream_stream(
            SERVICE + "IfrtSession",
            request_serializer=lambda r: r if isinstance(r, bytes) else r.SerializeToString(),
            response_deserializer=m.IfrtResponse.FromString,
        )
        self._stream = call(iter(self._requests.get, None), metadata=metadata)
        self.ended: Future = Future()  # holds how the stream ended
        self.session_id = 0
        self.handles = itertools.count(1)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for reply in self._stream:
                waiting = self._waiting.pop(reply.response_metadata.op_id, None)
                if waiting is not None:
                    waiting.set_result(reply)
            self.ended.set_result(grpc.StatusCode.OK)
        except grpc.RpcError as error:
            self.ended.set_result(error)
        for waiting in self._waiting.values():
            waiting.set_exception(ConnectionError(f"the stream ended: {self.ended.result()}"))

    def send(self, **request) -> Future:
        """Sends one request; its reply comes in the future."""
        op_id = next(self._op_ids)
        future: Future = Future()
        self._waiting[op_id] = future
        self._requests.put(messages().IfrtRequest(request_metadata={"op_id": op_id}, **request))
        return future

    def send_raw(self, data) -> None:
        self._requests.put(data)

    def call(self, **request):
        """Sends one request and gives its reply's member; raises Refused when that is an error."""
        reply = self.send(**request).result(SECONDS)
        if reply.response_metadata.status.code != 0:
            raise Refused(reply.response_metadata.status)
        return getattr(reply, reply.WhichOneof("response"))

    def init(self) -> Session:
        self.devices = self.call(init_request={})
        self.session_id = self.devices.session_id
        return self

    def close(self) -> None:
        self._stream.cancel()
        self.channel.close()

    def __enter__(self) -> Session:
        return self.init()

    def __exit__(self, *_) -> None:
        self.close()

    # ---- host buffers

    def unary(self, method: str, request, response: str):
        call = self.channel.unary_unary(
            SERVICE + method,
            request_serializer=lambda r: r if isinstance(r, bytes) else r.SerializeToString(),
            response_deserializer=getattr(messages(), response).FromString,
        )
        return call(request, timeout=SECONDS)

    def store(self, handle: int, chunks, size: int, session_id: int | None = None):
        """The HostBufferStore call: a grpc call that is also a future. `chunks` may be an iterator that never ends."""
        m = messages()
        session_id = self.session_id if session_id is None else session_id
        said = m.GrpcHostBufferStoreMetadata(session_id=session_id, handle=handle, buffer_size=size)
        call = self.channel.stream_unary(
            SERVICE + "HostBufferStore",
            request_serializer=m.GrpcHostBufferStoreRequest.SerializeToString,
            response_deserializer=m.GrpcHostBufferStoreResponse.FromString,
        )
        data = (m.GrpcHostBufferStoreRequest(data=chunk) for chunk in chunks)
        return call.future(data, metadata=[(STORE_KEY, said.SerializeToString())])

    def lookup(self, handle: int, session_id: int | None = None) -> bytes:
        m = messages()
        call = self.channel.unary_stream(
            SERVICE + "HostBufferLookup",
            request_serializer=m.GrpcHostBufferLookupRequest.SerializeToString,
            response_deserializer=m.GrpcHostBufferLookupResponse.FromString,
        )
        session_id = self.session_id if session_id is None else session_id
        request = m.GrpcHostBufferLookupRequest(session_id=session_id, handle=handle)
        return b"".join(part.data for part in call(request, timeout=SECONDS))

    # ---- what most tests need

    def make_array(self, host: np.ndarray, device: int = 0, **changes) -> int:
        """Asks for an array whose bytes come (or came) under the same handle. `changes` to the request."""
        handle = next(self.handles)
        request = {
            "dtype": dtype(host.dtype),
            "shape": {"dims": host.shape},
            "sharding": sharding(device),
            "host_buffer_handle": handle,
            "array_handle": handle,
            **changes,
        }
        self.send(make_array_from_host_buffer_request=request)
        return handle

    def put(self, host: np.ndarray, device: int = 0, **changes) -> int:
        handle = self.make_array(host, device, **changes)
        self.store(handle, [host.tobytes()], host.nbytes).result(SECONDS)
        return handle

    def ready(self, *handles: int) -> None:
        self.call(check_value_ready_request={"value_handles": handles})

    def read(self, handle: int, like: np.ndarray) -> np.ndarray:
        buffer = next(self.handles)
        self.call(copy_to_host_buffer_request={"array_handle": handle, "host_buffer_handle": buffer})
        return np.frombuffer(self.lookup(buffer), like.dtype).reshape(like.shape)

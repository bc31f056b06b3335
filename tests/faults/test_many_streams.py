"""Thousands of host buffers on their way at once over one connection, as a program of many arguments sends them."""

import asyncio

import grpc
import numpy as np
from raw_client import SERVICE, STORE_KEY, Session, messages

COUNT = 4000


async def store_all(address: str, session_id: int, hosts: dict[int, np.ndarray]) -> None:
    """All streams are open, each half sent, before the first one ends; the last one opened ends first."""
    m = messages()
    async with grpc.aio.insecure_channel(address) as channel:
        store = channel.stream_unary(
            SERVICE + "HostBufferStore",
            request_serializer=m.GrpcHostBufferStoreRequest.SerializeToString,
            response_deserializer=m.GrpcHostBufferStoreResponse.FromString,
        )
        calls = {}
        for handle, host in hosts.items():
            said = m.GrpcHostBufferStoreMetadata(session_id=session_id, handle=handle, buffer_size=host.nbytes)
            calls[handle] = store(metadata=[(STORE_KEY, said.SerializeToString())])
        half = {handle: host.nbytes // 2 for handle, host in hosts.items()}
        for handle, call in calls.items():
            await call.write(m.GrpcHostBufferStoreRequest(data=hosts[handle].tobytes()[: half[handle]]))
        for handle, call in reversed(calls.items()):
            await call.write(m.GrpcHostBufferStoreRequest(data=hosts[handle].tobytes()[half[handle] :]))
            await call.done_writing()
        await asyncio.gather(*calls.values())


def test_four_thousand_host_buffers_at_once(cluster):
    with Session(cluster.proxy_address()) as session:
        hosts = {}
        for i in range(COUNT):
            host = np.full(7 if i % 100 else 40_000, i, np.float32)
            hosts[session.make_array(host, device=i % 4)] = host
        asyncio.run(store_all(cluster.proxy_address(), session.session_id, hosts))
        session.ready(*hosts)
        for handle in list(hosts)[::97] + list(hosts)[-3:]:
            np.testing.assert_array_equal(session.read(handle, hosts[handle]), hosts[handle])
    cluster.wait_for_nothing_held()

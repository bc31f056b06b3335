"""Bytes that no peer of ours would send, on each port and socket of each process; ports that are taken."""

import os
import random
import re
import socket
import struct
import time
from pathlib import Path

import pytest
from raw_client import Session

SPREAD = """
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    a = jax.device_put(np.arange(1 << 20, dtype=np.float32), NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x")))
    assert float((a - a.mean()).max()) > 0
    print("held", flush=True)
    import sys; sys.stdin.readline()
    assert np.asarray(a)[-1] == (1 << 20) - 1 and float((a - a.mean()).sum()) < 1e9
    print("right")
"""


def listening(pid: int) -> list:
    """The TCP ports and unix sockets that a process listens on."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if found := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(fd)):
                inodes.add(found[1])
        except FileNotFoundError:
            continue
    ports: list = []
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = row.split()
            host, port = words[1].split(":")
            if words[3] == "0A" and words[9] in inodes:
                v6 = host == "00000000000000000000000001000000"
                ports.append(
                    (socket.AF_INET6, ("::1", int(port, 16))) if v6 else (socket.AF_INET, ("127.0.0.1", int(port, 16)))
                )
    for row in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        words = row.split()
        if len(words) > 7 and words[6] in inodes and words[3] == "00010000":
            ports.append((socket.AF_UNIX, words[7]))
    return ports


NOISE = random.Random(5).randbytes(1 << 16)
GARBAGE = {
    "nothing": b"",
    "a zero": b"\0",
    "text": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "noise": NOISE,
    "a huge length": struct.pack("<Q", (1 << 62)) + NOISE,
    "a huge length of 32 bits": b"\xff\xff\xff\xff" + NOISE,
    "zeros": bytes(1 << 16),
    "the start of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + NOISE,
}


def send(family: int, address, data: bytes) -> None:
    with socket.socket(family) as one:
        one.settimeout(0.3)
        try:
            one.connect(address)
            one.sendall(data)
            one.shutdown(socket.SHUT_WR)
            while one.recv(1 << 16):
                pass
        except OSError:
            pass


def test_garbage_on_each_port(own_cluster):
    """Every process stays; a client that was there before goes on, and another one finds all as it was."""
    client = own_cluster.start_client(SPREAD)
    assert client.stdout.readline() == "held\n"
    processes = {**own_cluster.pids(), **{f"engine-{i}": pid for i, pid in enumerate(own_cluster.engine_pids())}}
    found = {name: listening(pid) for name, pid in processes.items()}
    assert all(found.values()), found
    assert len(found["proxy"]) >= 3  # by TCP, by its socket, bulk bytes
    for name, ports in found.items():
        for family, address in ports:
            for what, data in GARBAGE.items():
                send(family, address, data)
                assert Path(f"/proc/{processes[name]}").exists(), (name, address, what, own_cluster.logs())
    client.stdin.write("\n")
    client.stdin.flush()
    assert own_cluster.finish(client).stdout == "right\n"
    assert own_cluster.pids() == {name: pid for name, pid in processes.items() if "engine" not in name}
    assert own_cluster.engine_pids() == [pid for name, pid in processes.items() if "engine" in name]


def test_connections_that_say_nothing(own_cluster):
    """Hundreds of them on each port keep nobody else out."""
    silent = []
    for pid in [*own_cluster.pids().values(), *own_cluster.engine_pids()]:
        for family, address in listening(pid):
            for _ in range(100):
                one = socket.socket(family)
                one.settimeout(2)
                try:
                    one.connect(address)
                except (OSError, TimeoutError):
                    one.close()
                    break
                silent.append(one)
    assert len(silent) > 500
    client = own_cluster.start_client(SPREAD)
    assert client.stdout.readline() == "held\n"
    client.stdin.write("\n")
    client.stdin.flush()
    assert own_cluster.finish(client).stdout == "right\n"
    for one in silent:
        one.close()


@pytest.mark.parametrize("cut", [1, 9, 24, 60])
def test_a_connection_that_breaks_off(own_cluster, cut):
    """What a real client sends, cut off at different lengths."""
    host, port = own_cluster.proxy_address().split(":")
    with socket.socket() as front:
        front.bind(("127.0.0.1", 0))
        front.listen()
        session = Session(f"127.0.0.1:{front.getsockname()[1]}")
        session.send(init_request={})
        near, _ = front.accept()
        with near, socket.create_connection((host, int(port))) as far:
            near.settimeout(5)
            data = b""
            deadline = time.monotonic() + 10
            while len(data) < cut and time.monotonic() < deadline:
                data += near.recv(1 << 16)
            far.sendall(data[:cut])
        session.close()
    with Session(own_cluster.proxy_address()) as whole:
        assert whole.session_id


def taken_port():
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return taken, taken.getsockname()[1]


@pytest.mark.parametrize("role", ["manager", "worker", "proxy"])
def test_a_port_in_use(by_hand, role):
    taken, port = taken_port()
    by_hand.manager_port = by_hand.proxy_port = port
    by_hand.worker_ports = [port]
    process = {"manager": by_hand.manager, "worker": lambda: by_hand.worker(0), "proxy": by_hand.proxy}[role]()
    assert process.wait(timeout=60) == 1
    log = by_hand.log("worker-0" if role == "worker" else role)
    assert str(port) in log and "in use" in log.lower()
    taken.close()

"""A worker that speaks ZeroMQ's protocol itself, against ZeroMQ's own ROUTER."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.transport.zmtp import GREETING, Dealer, path_of

SIZES = (0, 1, 2, 254, 255, 256, 257, 65_535, 65_536, 1_000_000)


@pytest.fixture
def router(tmp_path: Path) -> Iterator[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    engine = context.socket(zmq.ROUTER)
    engine.linger = 0
    engine.rcvtimeo = 10_000
    engine.bind(f"ipc://{tmp_path}/engine")
    yield engine
    engine.close()
    context.term()


def dealer(tmp_path: Path, identity: bytes = b"d/gate#1", wait_ms: int = 10_000) -> Dealer:
    return Dealer(f"{tmp_path}/engine", identity, connect_ms=10_000, wait_ms=wait_ms)


def test_messages_of_all_sizes_both_ways(router, tmp_path: Path) -> None:
    worker = dealer(tmp_path)
    for size in SIZES:
        worker.send(b"x" * size)
        assert router.recv_multipart() == [b"d/gate#1", b"x" * size]
        router.send_multipart([b"d/gate#1", b"y" * size])
        assert worker.receive(10_000) == b"y" * size
    assert worker.receive(0) is None
    worker.close()
    worker.close()


@settings(max_examples=10)
@given(bodies=st.lists(st.binary(max_size=600), max_size=40))
def test_what_came_together_is_given_one_by_one(tmp_path_factory, bodies: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("zmtp")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as engine:
        engine.linger = 0
        engine.bind(f"ipc://{folder}/engine")
        with contextlib.closing(dealer(folder)) as worker:
            worker.send(b"hello")
            engine.recv_multipart()
            for body in bodies:
                engine.send_multipart([b"d/gate#1", body])
            take: list[Callable[[], bytes | None]] = [
                worker.wait, lambda: worker.receive(None), lambda: worker.receive(10_000)
            ]  # fmt: skip
            assert [take[number % 3]() for number in range(len(bodies))] == bodies
            for body in bodies:
                worker.send(body)
        # it is closed; what was sent arrives all the same
        assert [engine.recv_multipart()[1] for _ in bodies] == bodies


def test_a_peer_that_dribbles(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{tmp_path}/engine")
    listener.listen()
    body = bytes(range(256)) * 2

    def peer() -> None:
        connection, _ = listener.accept()
        ready = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER"
        ping = b"\x04\x07\x04PING\x00\x00"
        for part in (GREETING, ready[:5], ready[5:], b"\x02" + len(body).to_bytes(8, "big")[:3]):
            connection.sendall(part)
            time.sleep(0.01)
        connection.sendall(len(body).to_bytes(8, "big")[3:] + body[:100])
        time.sleep(0.01)
        connection.sendall(body[100:] + ping + b"\x00\x02ok")
        connection.recv(1000)
        connection.close()

    thread = threading.Thread(target=peer)
    thread.start()
    worker = dealer(tmp_path)
    assert worker.receive(10_000) == body
    assert worker.wait() == b"ok"
    thread.join()
    listener.close()
    worker.close()


def test_nothing_comes(router, tmp_path: Path) -> None:
    worker = dealer(tmp_path, wait_ms=30)
    for ask, least_s in ((lambda: worker.receive(0), 0.0), (lambda: worker.receive(20), 0.015), (worker.wait, 0.02)):
        began = time.monotonic()
        assert ask() is None
        assert least_s <= time.monotonic() - began < 30
    worker.close()


def test_a_peer_that_is_gone_is_silent_and_keeps_nobody_busy(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    engine = context.socket(zmq.ROUTER)
    engine.bind(f"ipc://{tmp_path}/engine")
    worker = dealer(tmp_path, wait_ms=20)
    engine.close(linger=0)
    context.term()
    cpu = time.process_time()
    assert worker.wait() is None
    assert worker.receive(20) is None
    assert worker.receive(0) is None
    worker.send(b"lost")
    worker.send(b"lost")
    assert time.process_time() - cpu < 0.1
    worker.close()


def test_many_that_connect_at_once(router, tmp_path: Path) -> None:
    found: list[Dealer] = []
    threads = [
        threading.Thread(target=lambda n=number: found.append(dealer(tmp_path, b"w#%d" % n))) for number in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for worker in found:
        worker.send(b"here")
    assert {router.recv_multipart()[0] for _ in found} == {b"w#%d" % number for number in range(40)}
    for worker in found:
        worker.close()


def test_what_is_no_engine_is_refused(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{tmp_path}/engine")
    listener.listen()

    def peer() -> None:
        connection, _ = listener.accept()
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n".ljust(64))
        connection.recv(100)
        connection.close()

    thread = threading.Thread(target=peer)
    thread.start()
    with pytest.raises(ValueError, match="ZMTP"):
        dealer(tmp_path)
    thread.join()
    listener.close()
    with pytest.raises(OSError):  # refused, or not there
        dealer(tmp_path / "nobody")


def test_an_address_that_is_too_long(router, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="300 bytes"):
        dealer(tmp_path, b"d" * 300)
    assert path_of("ipc:///run/x/engine") == "/run/x/engine"
    with pytest.raises(ValueError, match="no UNIX socket"):
        path_of("tcp://127.0.0.1:1")

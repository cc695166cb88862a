"""Who listens to a publishing socket: one descriptor for two connections, limits, floods that come and go."""

from __future__ import annotations

import os
import socket as sockets
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from made.zmtp_peer import introduce

from stages.messages import Status
from stages.sinks import audience, topics
from stages.sinks.audience import Audience
from stages.sinks.publish import PublishSink

PATIENCE_S = 30.0
ROOM_BYTES = 120 << 20  # it was 500 MB, and more with every turn
LONGEST_S = 5.0


class Frame:
    def __init__(self, descriptor: int, said: bytes) -> None:
        self.bytes, self._descriptor = said, descriptor

    def get(self, _: int) -> int:
        return self._descriptor


class Queue:
    """In place of a socket: what it gives, and after how many messages of the other one."""

    def __init__(self, *waiting: Any) -> None:
        self.waiting = list(waiting)

    def recv(self, *_: object, **__: object) -> Any:
        if not self.waiting or callable(self.waiting[0]):
            if self.waiting:
                self.waiting.pop(0)()
            raise zmq.Again
        return self.waiting.pop(0)

    recv_multipart = recv

    def poll(self, _: int) -> int:
        return len(self.waiting)


def event(number: int, descriptor: int) -> list[bytes]:
    return [struct.pack("=HI", number, descriptor), b""]


def asks(number: int, name: str, descriptor: int = 7) -> list[Frame]:
    return [Frame(descriptor, b"\1" + f"{name}{each}".encode()) for each in range(number)]


@pytest.fixture
def watched() -> tuple[Any, Queue, Queue, list[int]]:
    """An audience, its socket and its monitor, and who was ended."""
    made: Any = Audience()
    made._socket, made._monitor = socket, monitor = Queue(), Queue()
    ended: list[int] = []
    made.on_excess = lambda descriptor, _: ended.append(descriptor)
    return made, socket, monitor, ended


def test_one_that_gets_the_descriptor_of_another_is_not_ended_for_what_that_one_asked_for(watched: Any) -> None:
    made, socket, monitor, ended = watched
    monitor.waiting = [event(zmq.EVENT_ACCEPTED, 7)]
    socket.waiting = asks(4990, "a")
    made.look()
    assert 7 in made._topics
    socket.waiting = [
        lambda: monitor.waiting.extend([event(zmq.EVENT_DISCONNECTED, 7), event(zmq.EVENT_ACCEPTED, 7)]),
        *asks(4900, "b"),
    ]
    while socket.waiting:
        made.look()
    assert ended == []
    assert 4836 <= made._topics._number <= 4900


def test_the_late_end_of_one_does_not_undo_the_account_of_the_next_with_its_descriptor(watched: Any) -> None:
    made, socket, monitor, ended = watched
    monitor.waiting = [event(zmq.EVENT_ACCEPTED, 7)]
    made.look()
    socket.waiting = asks(20, "b")
    end = [event(zmq.EVENT_DISCONNECTED, 7), event(zmq.EVENT_ACCEPTED, 7)]
    monitor.waiting = [lambda: monitor.waiting.extend(end)]  # in the monitor only after the subscriptions were read
    made.look()
    assert made._topics._number == 20
    socket.waiting = asks(5000, "c")
    while socket.waiting:
        made.look()
    assert ended == [7]


def test_of_too_many_connections_the_oldest_that_asks_for_nothing_is_ended(
    watched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, socket, monitor, ended = watched
    monkeypatch.setattr(audience, "MOST_CONNECTIONS", 3)
    monitor.waiting = [event(zmq.EVENT_ACCEPTED, each) for each in (7, 8, 9)]
    socket.waiting = asks(1, "a", 7)
    made.look()
    monitor.waiting = [event(zmq.EVENT_ACCEPTED, 10)]
    made.look()
    assert ended == [8]


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(0)


def open_sink(**more: Any) -> PublishSink:
    sink = PublishSink("tcp://127.0.0.1:0", clock_ns=time.monotonic_ns, **more)
    sink.open()
    return sink


def test_a_lossless_run_begins_when_a_subscriber_of_many_cameras_has_asked_for_all(context: Any) -> None:
    names = [f"camera-{each}" for each in range(400)]
    sink = open_sink(lossless=True, join_ms=100)
    subscriber = context.socket(zmq.SUB)
    subscriber.sndhwm = 0
    for name in names:
        subscriber.subscribe(f"status/{name}")
    subscriber.connect(sink.address)
    for name in names:
        while not sink.take(Status(camera=name, epoch=0, state="x", cause="", detail="", time_ns=1)):
            time.sleep(0.002)
    got = set()
    while len(got) < len(names):
        assert subscriber.poll(PATIENCE_S * 1000), f"{len(got)} only"
        got.add(subscriber.recv_multipart()[0])
    subscriber.close(0)
    assert sink.close(time.monotonic_ns() + 10**9) == ""


def test_peers_below_the_limit_that_come_and_leave_cost_bounded_memory_and_time(context: Any) -> None:
    sink = open_sink(lossless=False, live=("a",), join_ms=0)
    before, longest_s = psutil.Process().memory_info().rss, 0.0
    for _ in range(2):
        peers = [context.socket(zmq.XSUB) for _ in range(3)]
        for peer in peers:
            peer.sndhwm, peer.linger = 0, 0
            peer.reconnect_ivl = -1
            peer.connect(sink.address)
            for _ in range(topics.MOST_TOPICS // 2):
                peer.send(b"\1" + os.urandom(75))
        until_s = time.monotonic() + 0.3
        while time.monotonic() < until_s:
            began_s = time.thread_time()
            sink.service()
            longest_s = max(longest_s, time.thread_time() - began_s)
            time.sleep(0.01)
        for peer in peers:
            peer.close()
    assert psutil.Process().memory_info().rss - before < ROOM_BYTES
    assert longest_s < LONGEST_S
    sink.close(time.monotonic_ns())


def test_one_that_leaves_while_its_topics_are_unread_does_not_hold_up_the_end(tmp_path: Path) -> None:
    sink = PublishSink(f"ipc://{tmp_path}/p", clock_ns=time.monotonic_ns, lossless=True, join_ms=0)
    sink.open()
    assert sink._socket is not None
    with sockets.socket(sockets.AF_UNIX) as peer:
        peer.connect(f"{tmp_path}/p")
        introduce(peer)
        peer.sendall(b"".join(b"\0\x65\1" + os.urandom(100) for _ in range(300)))
        assert sink._socket.poll(PATIENCE_S * 1000)
        sink._socket.recv()
    time.sleep(0.05)  # its end is seen, and not acted on while something of it is unread
    assert sink.take(Status(camera="a", epoch=0, state="x", cause="", detail="", time_ns=1))
    assert sink.close(time.monotonic_ns() + 2 * 10**9) == ""

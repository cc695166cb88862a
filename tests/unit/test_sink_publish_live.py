"""Slow and stopped subscribers of live cameras: what waits for them is short, and dead ones are let go of."""

from __future__ import annotations

import contextlib
import socket as sockets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq
from made import messages
from made.plans import run_plan

from pipeline import sinks
from pipeline.plan import PublishPlan, RunPlan
from stages.camera import CameraSpec
from stages.messages import Detections
from stages.sinks import live_connection, publish
from stages.sinks.live_connection import cut, duplicate, keep_short
from stages.sinks.publish import PublishSink

PER_S = 1000
USER_TIMEOUT, NOTSENT_LOWAT = 18, 25
BIG = "m" * 50_000
MADE: list[zmq.Socket[bytes]] = []  # kept until their context is destroyed


def plan(*, live: bool, bind: str = "tcp://127.0.0.1:0") -> RunPlan:
    return run_plan(CameraSpec("gate", "/gate", "m", live=live), publish=PublishPlan(bind, join_ms=0))


def detections(seq: int, camera: str = "gate", model: str = "m") -> Detections:
    captured_ns = time.monotonic_ns()
    return messages.detections(seq, camera, pts_ns=0, captured_ns=captured_ns, clock="arrival", model=model)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(0)
    MADE.clear()


def subscribe(context: zmq.Context[zmq.Socket[bytes]], address: str, *, hwm: int = 1) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = context.socket(zmq.SUB)
    socket.rcvhwm, socket.rcvbuf, socket.linger = hwm, 4096, 0
    socket.subscribe(b"")
    socket.connect(address)
    MADE.append(socket)
    return socket


def opened(run: RunPlan, **more: bool) -> PublishSink:
    [sink] = sinks.build(run, **more)
    assert isinstance(sink, PublishSink)
    sink.open()
    return sink


def until_subscribers(sink: PublishSink, count: int, within_s: float = 30) -> None:
    end_s = time.monotonic() + within_s
    while sink.subscribers != count:
        assert time.monotonic() < end_s, f"{sink.subscribers} subscribers, not {count}"
        sink.service()
        time.sleep(0.005)


def connections(address: str) -> list[sockets.socket]:
    """This process's own ends of connections to ``address``."""
    found = []
    for entry in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError), duplicate(int(entry.name)) as connection:
            local, _ = connection.getsockname(), connection.getpeername()
            if local == address or (isinstance(local, tuple) and f"tcp://{local[0]}:{local[1]}" == address):
                found.append(connection.dup())
    return found


@pytest.mark.parametrize("told", [keep_short, cut])
def test_a_descriptor_that_is_no_connection_any_more_costs_none(told: Any, tmp_path: Path) -> None:
    (tmp_path / "another-thing").touch()
    with (tmp_path / "another-thing").open() as file:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(5):
            told(file.fileno(), "tcp://127.0.0.1:5600")
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def tcp_options(address: str) -> list[tuple[int, int]]:
    options = []
    for connection in connections(address):
        with connection:
            options.append(tuple(connection.getsockopt(sockets.IPPROTO_TCP, n) for n in (USER_TIMEOUT, NOTSENT_LOWAT)))
    return options  # type: ignore[return-value]


def test_a_stopped_subscriber_of_a_live_camera_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    monkeypatch.setattr(live_connection, "GONE_AFTER_MS", 300)
    sink = opened(plan(live=True))
    try:
        subscribe(context, sink.address)
        until_subscribers(sink, 1)
        for seq in range(400):
            assert sink.take(detections(seq, model=BIG))
        until_subscribers(sink, 0)
    finally:
        sink.close(0)


@pytest.mark.parametrize("joined_first", [True, False])
def test_a_subscriber_is_cut_off_also_where_the_live_camera_came_later(
    context: zmq.Context[zmq.Socket[bytes]], joined_first: bool
) -> None:
    sink = opened(plan(live=False), live_may_come=True)
    try:
        if joined_first:
            subscribe(context, sink.address)
            until_subscribers(sink, 1)
            assert tcp_options(sink.address)[0][0] == 0
        sink.camera_added("yard", live=True)
        if not joined_first:
            subscribe(context, sink.address)
            until_subscribers(sink, 1)
        assert tcp_options(sink.address) == [(live_connection.GONE_AFTER_MS, live_connection.UNSENT_BYTES)]
    finally:
        sink.close(0)


def test_a_paused_subscriber_of_a_replay_is_never_cut_off(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    sink = opened(plan(live=False))
    try:
        subscribe(context, sink.address)
        until_subscribers(sink, 1)
        sink.camera_added("another", live=False)
        sink.service()
        assert tcp_options(sink.address)[0][0] == 0
    finally:
        sink.close(0)


def test_little_waits_in_a_local_socket_of_a_live_camera(
    tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    sink = opened(plan(live=True, bind=f"ipc://{tmp_path}/s"))
    try:
        subscribe(context, sink.address)
        until_subscribers(sink, 1)
        sizes = []
        for connection in connections(f"{tmp_path}/s"):
            with connection:
                sizes.append(connection.getsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF))
        assert sizes == [live_connection.LOCAL_SEND_BYTES]
    finally:
        sink.close(0)


def test_a_slow_subscriber_of_live_cameras_reads_what_is_young_and_delays_nobody(
    monkeypatch: pytest.MonkeyPatch, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """It takes a fifth of what comes. Its age is counted in messages that it took meanwhile: machines may be busy."""
    monkeypatch.setattr(publish, "LIVE_QUEUE", 32)
    sink = opened(plan(live=True))
    sends = 2 * PER_S
    done = threading.Event()
    slow: list[int] = []
    taken_when_sent: list[int] = []

    def read_slowly() -> None:
        socket = subscribe(context, sink.address)
        while not done.is_set():
            if socket.poll(50):
                slow.append(msgpack.unpackb(socket.recv_multipart()[1])["seq"])
                time.sleep(5 / PER_S)

    reader = threading.Thread(target=read_slowly)
    try:
        reader.start()
        keen = subscribe(context, sink.address)
        until_subscribers(sink, 2)
        model = "m" * 600  # so that little fits into the system's buffers
        for seq in range(sends):
            taken_when_sent.append(len(slow))
            assert sink.take(detections(seq, model=model))
            assert keen.poll(30_000)
            assert msgpack.unpackb(keen.recv_multipart()[1])["seq"] == seq
            if seq % 5 == 4:
                sink.service()
                time.sleep(5 / PER_S)
    finally:
        done.set()
        reader.join(30)
        sink.close(0)
    missed = slow[-1] + 1 - len(slow)
    assert missed > 0
    assert missed <= sink.lost_messages < sends
    waited = [taken - taken_when_sent[seq] for taken, seq in enumerate(slow)]
    assert max(waited) < 160, "its queue, and small buffers of the system"

"""The publishing sink among peers that are no subscribers: old protocols, other protocols, half-open, floods.

The sink is in a process of its own: what is looked for here are hangs inside libzmq, which no thread of this process
could end.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket as sockets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import psutil
import pytest
import zmq
from made.zmtp_peer import GREETING, INTRODUCTION, SIGNATURE, command, introduce

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0  # long: a busy machine must not fail a test
PATIENCE_MS = 60_000
FLOOD_ROOM_BYTES = 60 << 20  # without a limit 190 MB

# Commands on stdin, an answer to each on stdout.
PUBLISHER = """
import sys, time
from stages.messages import Detections, Status
from stages.sinks.publish import PublishSink

sink = PublishSink(sys.argv[1], clock_ns=time.monotonic_ns, lossless=True, join_ms=0)
sink.open()
print(sink.address, flush=True)

def publish(message):
    while not sink.take(message):
        sink.service()
        time.sleep(0.001)

for command in sys.stdin:
    match command.split():
        case ["count"]:
            sink.service()
            print(sink.subscribers, flush=True)
        case ["detections", first, last]:
            for seq in range(int(first), int(last)):
                publish(Detections(camera="a", epoch=0, seq=seq, pts_ns=seq, captured_ns=0, clock="file", width=8,
                                   height=6, model="m", objects=[]))
                sink.service()
            print("done", flush=True)
        case ["ended"]:
            publish(Status(camera="a", epoch=0, state="ended", cause="ended", detail="", time_ns=0))
            print("done", flush=True)
        case ["close"]:
            began = time.monotonic()
            said = sink.close(time.monotonic_ns() + 5_000_000_000)
            print(f"{time.monotonic() - began:.2f} {said}", flush=True)
"""


FIVE_BYTES = b"\x01\x00\x02\x00\x01"  # ZMTP 1: no name; a frame of 2 bytes, the last one: subscribe to everything
OPENINGS = {
    "ZMTP 1, subscribes": FIVE_BYTES,
    "ZMTP 1, a message that is no subscription": b"\x01\x00\x03\x00\x02x",
    "ZMTP 2, subscribes": SIGNATURE + b"\x01\x02" + b"\0\0" + b"\0\x01\x01",
    "ZMTP 3, nothing after the greeting": GREETING,
    "ZMTP 3, not a subscriber": GREETING + command(b"READY", b"\x0bSocket-Type\0\0\0\x03PUB"),
    "ZMTP 3, a frame of endless size": INTRODUCTION + b"\x02" + b"\xff" * 8 + b"x" * 1000,
    "ZMTP 3, an unknown command": INTRODUCTION + command(b"NONSENSE", b"x" * 50),
    "ZMTP 3, a message in parts": INTRODUCTION + b"\x01\x01\x01" + b"\0\x01\x01",
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + b"\x5a" * 192,
    "zeros": bytes(20_000),
    "noise": bytes(range(255, -1, -1)) * 20,
    "half a signature": b"\xff\0\0",
    "nothing": b"",
}


class Publisher:
    """The sink in its process."""

    def __init__(self, bind: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PUBLISHER, bind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.address = self._answer()
        self.port = int(self.address.rpartition(":")[2]) if self.address.startswith("tcp") else 0

    def ask(self, command: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._answer()

    def wait_for(self, subscribers: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (count := int(self.ask("count"))) != subscribers:
            assert time.monotonic() < deadline, f"{count} subscribers, not {subscribers}"
            time.sleep(0.01)

    def close(self) -> tuple[float, str]:
        """Seconds that it took, and what was said of losses."""
        seconds, _, said = self.ask("close").partition(" ")
        return float(seconds), said

    def _answer(self) -> str:
        assert self.process.stdout is not None
        previous = signal.signal(signal.SIGALRM, _hangs)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
        try:
            line = self.process.stdout.readline()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        assert line.endswith("\n"), f"the publisher has ended: {self.process.poll()}"
        return line.removesuffix("\n").rstrip()


def _hangs(*_: object) -> None:
    raise AssertionError("the publisher hangs")


@pytest.fixture
def start() -> Iterator[Callable[..., Publisher]]:
    started: list[Publisher] = []

    def start(bind: str = "tcp://127.0.0.1:0") -> Publisher:
        started.append(Publisher(bind))
        return started[-1]

    yield start
    for publisher in started:
        publisher.process.kill()
        publisher.process.communicate()


@pytest.fixture
def subscribe() -> Iterator[Callable[[str], zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    opened: list[zmq.Socket[bytes]] = []

    def subscribe(address: str) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = context.socket(zmq.SUB)
        socket.subscribe(b"")
        socket.connect(address)
        opened.append(socket)
        return socket

    yield subscribe
    for socket in opened:
        socket.close(0)
    context.term()


@pytest.fixture
def peers() -> Iterator[list[sockets.socket]]:
    """Connections that stay open until the test's end."""
    opened: list[sockets.socket] = []
    yield opened
    for peer in opened:
        peer.close()


def connect(publisher: Publisher, opening: bytes) -> sockets.socket:
    if publisher.port:
        peer = sockets.create_connection(("127.0.0.1", publisher.port), timeout=PATIENCE_S)
    else:
        peer = sockets.socket(sockets.AF_UNIX)
        peer.settimeout(PATIENCE_S)
        peer.connect(publisher.address.removeprefix("ipc://"))
    with contextlib.suppress(OSError):  # thrown out already
        if opening.startswith(INTRODUCTION):
            introduce(peer)
        peer.sendall(opening.removeprefix(INTRODUCTION))
    return peer


def received(subscriber: zmq.Socket[bytes]) -> list[Any]:
    """Numbers of the frames, then ``ended``."""
    found: list[Any] = []
    while "ended" not in found:
        assert subscriber.poll(PATIENCE_MS), f"only {found}"
        message = msgpack.unpackb(subscriber.recv_multipart()[1])
        found.append(message["seq"] if message["type"] == "detections" else message["state"])
    return found


def settle(publisher: Publisher) -> None:
    """Let the publisher see what has been sent to it."""
    for _ in range(10):
        publisher.ask("count")
        time.sleep(0.02)


def is_over(peer: sockets.socket, publisher: Publisher) -> bool:
    """Whether the publisher ends the connection."""
    peer.settimeout(0.05)
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        publisher.ask("count")
        try:
            if not peer.recv(4096):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def survives(publisher: Publisher, good: zmq.Socket[bytes], opening: bytes, peers: list[sockets.socket]) -> None:
    """One peer connects, another one too and leaves; the good subscriber gets everything."""
    publisher.wait_for(1)
    publisher.ask("detections 0 5")
    peers.append(connect(publisher, opening))
    connect(publisher, opening).close()
    settle(publisher)
    publisher.ask("detections 5 10")
    publisher.ask("ended")
    seconds, said = publisher.close()
    assert said == ""
    assert seconds < PATIENCE_S / 2
    assert received(good) == [*range(10), "ended"]


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS)
def test_one_peer_that_is_no_subscriber_ends_nothing(
    start: Any, subscribe: Any, peers: list[sockets.socket], opening: bytes
) -> None:
    publisher = start()
    survives(publisher, subscribe(publisher.address), opening, peers)


def test_five_bytes_end_nothing_at_a_local_socket_either(
    start: Any, subscribe: Any, peers: list[sockets.socket], tmp_path: Path
) -> None:
    publisher = start(f"ipc://{tmp_path}/s")
    survives(publisher, subscribe(publisher.address), FIVE_BYTES, peers)


def test_a_good_subscriber_among_two_hundred_others_gets_everything(
    start: Any, subscribe: Any, peers: list[sockets.socket]
) -> None:
    publisher = start()
    peers += [connect(publisher, opening) for opening in OPENINGS.values() for _ in range(5)]
    good = subscribe(publisher.address)
    for first in range(0, 200, 20):
        for number, opening in enumerate(OPENINGS.values()):
            peer = connect(publisher, opening)
            if number % 2:
                peers.append(peer)
            else:
                peer.close()
        if not first:
            deadline = time.monotonic() + PATIENCE_S
            while not good.poll(0):  # counts are of no use here: some of the others do subscribe
                publisher.ask("detections 0 1")
                assert time.monotonic() < deadline
            publisher.ask("detections 1000 1001")
            while msgpack.unpackb(good.recv_multipart()[1])["seq"] != 1000:
                assert good.poll(PATIENCE_MS), "what was published before this does not come"
        publisher.ask(f"detections {first} {first + 20}")
    publisher.ask("ended")
    _, said = publisher.close()
    assert said == ""
    assert received(good) == [*range(200), "ended"]


@pytest.mark.parametrize("last", ["close", "terminate"])
def test_more_connections_than_anyone_counts_while_the_publisher_is_busy_hold_up_neither_it_nor_its_end(
    start: Any, subscribe: Any, last: str
) -> None:
    # 2 events each; 2000 of them used to fill a queue, and nothing was accepted from then on
    publisher = start()
    began = time.monotonic()
    for number in range(1500):
        connect(publisher, (FIVE_BYTES, b"GET / HTTP/1.1\r\n\r\n")[number % 2]).close()
    time.sleep(max(0.0, 2.0 - (time.monotonic() - began)))
    if last == "close":
        seconds, said = publisher.close()
        assert (seconds < PATIENCE_S / 2, said) == (True, "")
        return
    good = subscribe(publisher.address)
    publisher.wait_for(1)
    publisher.ask("detections 0 5")
    publisher.ask("ended")
    assert received(good) == [*range(5), "ended"]
    publisher.process.send_signal(signal.SIGTERM)
    assert publisher.process.wait(PATIENCE_S) == -signal.SIGTERM


@pytest.mark.parametrize("bind", ["tcp://127.0.0.1:0", "ipc"])
def test_a_subscriber_of_any_number_of_topics_costs_bounded_memory_and_no_other_a_message(
    start: Any, subscribe: Any, peers: list[sockets.socket], tmp_path: Path, bind: str
) -> None:
    publisher = start(bind if bind != "ipc" else f"ipc://{tmp_path}/p")
    good = subscribe(publisher.address)
    publisher.wait_for(1)
    peer = connect(publisher, INTRODUCTION)
    peers.append(peer)
    process = psutil.Process(publisher.process.pid)
    before = process.memory_info().rss
    topics = [random.randbytes(100) for _ in range(40_000)]
    flood = b"".join(b"\0" + bytes([1 + len(topic)]) + b"\1" + topic for topic in topics)

    def send() -> None:
        with contextlib.suppress(OSError):  # cut off meanwhile, or only when the system has taken everything
            peer.sendall(flood)

    sender = threading.Thread(target=send)
    sender.start()
    until_s = time.monotonic() + PATIENCE_S
    while sender.is_alive() and time.monotonic() < until_s:
        publisher.ask("count")
        time.sleep(0.02)
    sender.join(PATIENCE_S)
    assert is_over(peer, publisher), "all of them were taken"
    publisher.ask("detections 0 5")
    publisher.ask("ended")
    assert received(good) == [*range(5), "ended"]
    assert process.memory_info().rss - before < FLOOD_ROOM_BYTES
    assert publisher.close()[1] == ""

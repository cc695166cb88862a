"""The control socket under clients that mean no good, and under those that do: real sockets."""

from __future__ import annotations

import contextlib
import random
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from pipeline.control.client import _connect, ask
from pipeline.control.protocol import MAX_REQUEST_BYTES, Answer, Malformed, Request, framed, request_in
from pipeline.control.server import MAX_CLIENTS, PATIENCE_NS, ControlServer
from pipeline.observe import logs
from stages.errors import CampipeError, UserError


class Served:
    """A server that is serviced by a thread, as the engine's loop would, and says what it was asked."""

    def __init__(self, path: Path) -> None:
        self.server = ControlServer(path)
        self.server.open()
        self.asked: list[Request] = []
        self.skip_ns = 0  # into the future
        self.longest_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.002):
            now_ns = time.monotonic_ns() + self.skip_ns
            before = time.thread_time()
            for client in self.server.service(now_ns):
                assert client.request is not None
                self.asked.append(client.request)
                self.server.answer(client, Answer(ok=True, text=[client.request.do]), now_ns)
            self.longest_s = max(self.longest_s, time.thread_time() - before)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self.server.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "control")
    yield made
    made.close()


def connect(served: Served) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    _connect(connection, served.server.path)
    return connection


def works(served: Served) -> bool:
    return ask(served.server.path, Request(do="status"), 10).text == ["status"]


def test_a_request_gets_its_answer_and_the_connection_is_closed(served: Served) -> None:
    assert works(served)
    assert ask(served.server.path, Request(do="pause", camera="gate-1"), 5).text == ["pause"]
    assert [r.camera for r in served.asked] == ["", "gate-1"]
    with connect(served) as connection:
        connection.sendall(framed(Request(do="reload")))
        data = b""
        while piece := connection.recv(1000):
            data += piece
    assert msgpack.unpackb(data[4:]) == {"ok": True, "text": ["reload"]}


def test_only_the_owner_may_connect_and_nothing_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "control"
    server = ControlServer(path)
    server.open()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    server.close()
    server.close()
    assert not path.exists()


def test_a_socket_left_by_a_crash_is_taken_over_a_living_one_and_a_file_are_not(tmp_path: Path) -> None:
    path = tmp_path / "control"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    first = ControlServer(path)
    first.open()
    with pytest.raises(UserError, match="another campipe"):
        ControlServer(path).open()
    assert path.exists()
    first.close()
    path.write_text("mine")
    with pytest.raises(UserError, match="a file is there"):
        ControlServer(path).open()
    assert path.read_text() == "mine"
    with pytest.raises(UserError, match="too long"):
        ControlServer(tmp_path / ("x" * 120)).open()
    with pytest.raises(UserError, match=r"control\.socket"):
        ControlServer(tmp_path / "no-folder" / "control").open()


@pytest.mark.parametrize("seed", range(8))
def test_garbage_is_refused_or_dropped_and_others_are_served(served: Served, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        with connect(served) as connection, contextlib.suppress(OSError):
            connection.sendall(rng.randbytes(rng.randint(1, 300)))
            if rng.random() < 0.5:
                connection.sendall(rng.randbytes(5000))
    assert works(served)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"do": "explode"},
        {"do": 3},
        {"do": "pause", "camera": ["a"]},
        {"do": "pause", "camera": "x" * 9000},
        {"do": "status", "v": 99},
        [1, 2],
        "status",
        None,
    ],
)
def test_what_is_no_request_is_told_so(served: Served, body: object) -> None:
    packed = msgpack.packb(body)
    with connect(served) as connection:
        connection.sendall(struct.pack(">I", len(packed)) + packed)
        answer = msgpack.unpackb(connection.recv(10_000)[4:])
    assert answer["ok"] is False
    assert answer["text"]
    assert served.asked == []


def test_nesting_without_end_is_no_request() -> None:
    body = b"\x91" * 60_000 + b"\xc0"
    with pytest.raises(Malformed):
        request_in(struct.pack(">I", len(body)) + body)


def test_a_message_that_says_it_is_huge_is_refused_before_it_is_read(served: Served) -> None:
    with connect(served) as connection:
        connection.sendall(struct.pack(">I", MAX_REQUEST_BYTES + 1) + b"x" * 1000)
        answer = msgpack.unpackb(connection.recv(10_000)[4:])
    assert answer["ok"] is False
    assert "too long" in answer["text"][0]
    with connect(served) as connection, contextlib.suppress(OSError):
        connection.sendall(struct.pack(">I", 2**32 - 1))
        for _ in range(1000):
            connection.sendall(b"x" * 10_000)
    assert works(served)


def test_a_request_in_single_bytes_is_understood(served: Served) -> None:
    with connect(served) as connection:
        for byte in framed(Request(do="resume", camera="a")):
            connection.sendall(bytes([byte]))
        assert msgpack.unpackb(connection.recv(1000)[4:])["text"] == ["resume"]


def test_half_a_request_is_waited_for_only_so_long(served: Served) -> None:
    with connect(served) as connection:
        connection.sendall(framed(Request(do="reload"))[:-1])
        assert works(served)
        served.skip_ns = PATIENCE_NS + 1
        assert connection.recv(100) == b"", "hung up"
    assert [r.do for r in served.asked] == ["status"]


def test_silent_clients_do_not_keep_others_out_for_long(served: Served) -> None:
    silent = [connect(served) for _ in range(MAX_CLIENTS)]
    deadline = threading.Timer(0.2, lambda: setattr(served, "skip_ns", PATIENCE_NS + 1))
    deadline.start()
    assert works(served)
    deadline.join()
    for each in silent:
        each.close()


def test_a_thousand_connects_cost_no_descriptor(served: Served) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(1000):
        with connect(served) as connection:
            if number % 3 == 0:
                connection.sendall(b"\0\0")
    assert works(served)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + MAX_CLIENTS
    assert served.longest_s < 0.5


def test_a_client_that_does_not_read_its_answer_is_given_up(tmp_path: Path) -> None:
    server = ControlServer(tmp_path / "control")
    server.open()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(server.path))
        connection.sendall(framed(Request(do="status")))
        (client,) = server.service(0)
        server.answer(client, Answer(ok=True, text=["x" * 8_000_000]), 0)
        assert server.service(PATIENCE_NS - 1) == []
        assert server._clients, "it still may read"
        server.service(PATIENCE_NS + 1)
        assert server._clients == []
        server.answer(client, Answer(ok=True), 0)  # to one that has left
    server.close()


def test_whoever_asks_in_vain_is_told_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nobody can be asked"):
        ask(tmp_path / "nothing", Request(do="status"), 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mute:
        mute.bind(str(tmp_path / "mute"))
        mute.listen(1)
        with pytest.raises(CampipeError, match=r"no answer within 0\.1 s"):
            ask(tmp_path / "mute", Request(do="status"), 0.1)


def test_a_secret_is_in_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_secrets", set())
    monkeypatch.setattr(logs, "_secret_pattern", None)
    logs.register_secret("cnry-Zq7-w91x")
    told = "ValueError: rtsp://viewer:cnry-Zq7-w91x@camera and cnry-Zq7-w91x"
    server = ControlServer(tmp_path / "control")
    server.open()
    try:
        for answer in (Answer(ok=False, text=[told]), Answer(ok=True, status={"problems": (told,), "uptime_s": 1.0})):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(tmp_path / "control"))
                client.sendall(framed(Request(do="status")))
                while not (asked := server.service(time.monotonic_ns())):
                    pass
                server.answer(asked[0], answer, time.monotonic_ns())
                said = client.recv(65536)
            assert b"ValueError: rtsp://***@camera and ***" in said
            assert b"cnry" not in said
    finally:
        server.close()

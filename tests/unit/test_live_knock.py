"""Asking once more whether an RTSP server answers: any answer of RTSP counts, nothing secret is said, nothing hangs."""

from __future__ import annotations

import socket
import threading

import pytest

from stages.camera import CameraSpec
from stages.decode.address import address_of
from stages.decode.knock import answers


def ask(answer: bytes | None) -> tuple[bool, bytes]:
    """What is made of ``answer`` (None: silence), and what was asked."""
    asked = b""
    done = threading.Event()

    def serve(listening: socket.socket) -> None:
        nonlocal asked
        connection, _ = listening.accept()
        with connection:
            while b"\r\n\r\n" not in asked and (more := connection.recv(4096)):
                asked += more
            if answer is None:
                done.wait(10)
            else:
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=serve, args=(listening,), daemon=True)
        serving.start()
        url = f"rtsp://127.0.0.1:{listening.getsockname()[1]}/gate?a=1"
        camera = CameraSpec("gate", url, "m", network=True, user="user", password="kanarienvogel-7@")
        found = answers(address_of(camera), 0.3 if answer is None else 5.0)
        done.set()
        serving.join(10)
    return found, asked


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"RTSP/1.0 200 OK\r\n\r\n", True),
        (b"RTSP/1.0 401 Unauthorized\r\n\r\n", True),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False),
        (b"RTSP/1.0 200 OK\r\n", False),
        (b"", False),
        (None, False),
    ],
)
def test_who_speaks_rtsp_answers(answer, expected) -> None:
    found, asked = ask(answer)
    assert found == expected
    assert asked.startswith(b"DESCRIBE rtsp://127.0.0.1:")
    assert b"/gate?a=1 RTSP/1.0\r\n" in asked
    assert b"kanarienvogel" not in asked
    assert b"user" not in asked


def test_who_is_not_there_or_speaks_something_else_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    assert not answers(address_of(CameraSpec("gate", f"rtsp://127.0.0.1:{port}/x", "m", network=True)), 1.0)
    assert not answers(address_of(CameraSpec("gate", f"http://127.0.0.1:{port}/x", "m", network=True)), 1.0)
    assert not answers(address_of(CameraSpec("gate", "/dev/video0", "m", network=True)), 1.0)

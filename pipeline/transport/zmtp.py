"""Owns a worker's end of one ZeroMQ connection, spoken by the worker itself. Not the engine's end, not the messages.

ZeroMQ hands each message over between the worker's thread and an I/O thread of its own: two wake-ups and some 25 system
calls for a frame that comes and goes. A worker talks to one peer only, over a UNIX socket, and may as well write to it:
one call to receive and one to send. The engine's end stays ZeroMQ's ROUTER and sees a DEALER like any other.

The protocol is ZMTP 3.0 (rfc.zeromq.org/spec/23) with the NULL mechanism; a message has one part.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from typing import Final

GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
MORE: Final = 1
LONG: Final = 2
COMMAND: Final = 4
_LONG_HEADER: Final = struct.Struct(">BQ")
_SHORT: Final = 256  # a body below that has its length in one byte
_AT_ONCE_BYTES: Final = 65536
_GONE_S: Final = 0.05  # the peer is gone: whoever asks again and again is held up for so long each time


class Dealer:
    """One connection. Used by one thread. Messages to a peer that is gone are lost, as with ZeroMQ."""

    def __init__(self, path: str, identity: bytes, *, connect_ms: int, wait_ms: int) -> None:
        """Connect. ``wait_ms``: of ``wait``. Raises OSError, ValueError when the peer does not speak ZMTP 3."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._rest = bytearray()
        self._gone = False
        try:
            # The kernel's own deadlines: a Python timeout would make connect fail where many connect at once.
            self._limit(socket.SO_SNDTIMEO, connect_ms)
            self._limit(socket.SO_RCVTIMEO, connect_ms)
            self._socket.connect(path)
            self._greet(identity)
            self._limit(socket.SO_SNDTIMEO, 0)
            self._limit(socket.SO_RCVTIMEO, wait_ms)
        except BaseException:
            self._socket.close()
            raise
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def fileno(self) -> int:
        """Readable when ``receive`` may have something, provided that it gave nothing the last time."""
        return self._socket.fileno()

    def send(self, body: bytes) -> None:
        """Send; waits while the peer's buffer is full."""
        size = len(body)
        header = bytes((0, size)) if size < _SHORT else _LONG_HEADER.pack(LONG, size)
        try:
            self._socket.sendall(header + body)
        except (BrokenPipeError, ConnectionResetError):
            self._gone = True

    def receive(self, timeout_ms: int | None) -> bytes | None:
        """One message; None when none came within ``timeout_ms`` (0: only what is there, None: wait for ever)."""
        body = self._parsed()
        if body is not None:
            return body
        if timeout_ms == 0:
            return self._next()
        until_ns = None if timeout_ms is None else time.monotonic_ns() + timeout_ms * 1_000_000
        while body is None:
            left_ms = None if until_ns is None else max(0, (until_ns - time.monotonic_ns()) // 1_000_000)
            if not self._poll.poll(left_ms):
                break
            body = self._next()
            if body is None and left_ms == 0:
                break
        return body

    def wait(self) -> bytes | None:
        """One message; None when none came for ``wait_ms``. The cheapest way to wait for nothing else."""
        body = self._parsed()
        while body is None and self._read(0):
            body = self._parsed()
        return body

    def close(self) -> None:
        """Close; what was sent still arrives. May be called twice."""
        self._socket.close()

    def _limit(self, option: int, timeout_ms: int) -> None:
        seconds, left_ms = divmod(timeout_ms, 1000)
        self._socket.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", seconds, left_ms * 1000))

    def _next(self) -> bytes | None:
        body = self._parsed()
        while body is None and self._read(socket.MSG_DONTWAIT):
            body = self._parsed()
        return body

    def _read(self, flags: int) -> bool:
        """Whether something was read; as long as ``wait_ms`` may pass without MSG_DONTWAIT."""
        try:
            data = self._socket.recv(_AT_ONCE_BYTES, flags)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if not data:
            self._gone = True
        if self._gone:
            time.sleep(_GONE_S)
            return False
        self._rest += data
        return True

    def _parsed(self) -> bytes | None:
        """The next message that is there as a whole; commands are passed over. Raises ValueError for other frames."""
        rest = self._rest
        while len(rest) >= 2:
            flags = rest[0]
            start = 9 if flags & LONG else 2
            if len(rest) < start:
                return None
            end = start + (int.from_bytes(rest[1:9], "big") if flags & LONG else rest[1])
            if len(rest) < end:
                return None
            body = bytes(rest[start:end])
            del rest[:end]
            if flags & COMMAND:
                continue
            if flags & MORE:
                raise ValueError("a message has several parts")
            return body
        return None

    def _greet(self, identity: bytes) -> None:
        """The greeting, and the two commands READY. The peer's is not looked at: any socket type may answer."""
        self._socket.sendall(GREETING)
        theirs = self._exactly(len(GREETING))
        if theirs[0] != GREETING[0] or theirs[9] != GREETING[9] or theirs[10] < 3 or theirs[12:32] != GREETING[12:32]:
            raise ValueError("it does not speak ZMTP 3 without a password")
        body = b"\x05READY" + _property(b"Socket-Type", b"DEALER") + _property(b"Identity", identity)
        if len(body) >= _SHORT:
            raise ValueError(f"an identity of {len(identity)} bytes is too long")
        self._socket.sendall(bytes((COMMAND, len(body))) + body)
        flags, size = self._exactly(2)
        if flags != COMMAND or not self._exactly(size).startswith(b"\x05READY"):
            raise ValueError("it refuses the connection")

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionResetError("the peer has hung up")
            data += more
        return data


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value


def path_of(endpoint: str) -> str:
    """The path of a socket that ZeroMQ calls ``ipc://…``. Raises ValueError for other transports."""
    scheme, _, path = endpoint.partition("://")
    if scheme != "ipc" or not path:
        raise ValueError(f"{endpoint} is no UNIX socket")
    return path

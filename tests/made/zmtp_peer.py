"""The first bytes of a hand-made ZMTP 3 subscriber: greeting and READY, and the wait for those of the other side."""

from __future__ import annotations

import socket as sockets

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
GREETING = SIGNATURE + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def command(name: bytes, body: bytes) -> bytes:
    """A ZMTP 3 command frame."""
    return bytes([4, 1 + len(name) + len(body), len(name)]) + name + body


READY = command(b"READY", b"\x0bSocket-Type\0\0\0\x03SUB")
INTRODUCTION = GREETING + READY


def introduce(peer: sockets.socket) -> None:
    """Send both and read theirs; raises OSError, ConnectionResetError too where the other side hangs up.

    What is sent before their READY has come is a violation of ZMTP (rfc.zeromq.org/spec/23): libzmq takes it for a
    part of the handshake and ends the connection, if it reads it together with ours; so whoever sends on at once is
    heard on an idle machine only.
    """
    peer.sendall(INTRODUCTION)
    _exactly(peer, len(GREETING))
    _exactly(peer, _exactly(peer, 2)[1])


def _exactly(peer: sockets.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = peer.recv(size - len(data))
        if not more:
            raise ConnectionResetError("hung up")
        data += more
    return data

"""Owns what the system is told of the connection of one subscriber to live cameras. Does not own the connection.

The system would keep megabytes of what was sent for a subscriber that takes little, minutes of it, and keep a dead one
for a quarter of an hour. libzmq has options for some of this, but takes them for addresses that are bound later only;
a live camera may join a run whose subscribers have long been there.
"""

from __future__ import annotations

import contextlib
import os
import socket as sockets
import struct
from collections.abc import Iterator
from typing import Final

GONE_AFTER_MS = 60_000  # one that has taken nothing for so long is cut off
UNSENT_BYTES: Final = 16 * 1024  # what waits beyond that is the publisher's, who knows how old it is
LOCAL_SEND_BYTES: Final = 32 * 1024  # the same for a local socket, which has nothing but its send buffer
DISCARD_BYTES: Final = 256 * 1024  # at a time
DISCARD_MAX_BYTES: Final = 64 << 20  # more than the system holds of a connection
_TCP_USER_TIMEOUT: Final = 18
_TCP_NOTSENT_LOWAT: Final = 25


@contextlib.contextmanager
def duplicate(descriptor: int) -> Iterator[sockets.socket]:
    """The connection behind a descriptor of somebody else, who keeps his. Raises OSError if it is no socket."""
    copy = os.dup(descriptor)
    try:
        connection = sockets.socket(fileno=copy)
    except BaseException:  # it has not become the socket's, which would close it
        os.close(copy)
        raise
    with connection:
        yield connection


def keep_short(descriptor: int, address: str) -> None:
    """Let little wait in the system for the connection ``descriptor`` of a socket bound to ``address``.

    Does nothing for a descriptor that is another thing by now: the connection may have ended meanwhile.
    """
    with contextlib.suppress(OSError), duplicate(descriptor) as connection:
        if connection.family == sockets.AF_UNIX:
            if connection.getsockname() == _local_name(address):
                connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, LOCAL_SEND_BYTES // 2)  # Linux doubles it
        elif str(connection.getsockname()[1]) == address.rpartition(":")[2]:
            connection.setsockopt(sockets.IPPROTO_TCP, _TCP_USER_TIMEOUT, GONE_AFTER_MS)
            connection.setsockopt(sockets.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def cut(descriptor: int, address: str) -> None:
    """End the connection ``descriptor`` of a socket bound to ``address``; nothing if it is another thing by now.

    What it has sent is thrown away: libzmq would read all that the system holds of it, megabytes.
    """
    with contextlib.suppress(OSError), duplicate(descriptor) as connection:
        if connection.family == sockets.AF_UNIX:
            ours = connection.getsockname() == _local_name(address)
        else:
            ours = str(connection.getsockname()[1]) == address.rpartition(":")[2]
        if ours:
            # Its close, by libzmq, resets it: a peer whose window is shut would wait a minute for it to open again.
            connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
            connection.shutdown(sockets.SHUT_RDWR)
            for _ in range(DISCARD_MAX_BYTES // DISCARD_BYTES):
                if not connection.recv(DISCARD_BYTES, sockets.MSG_DONTWAIT):
                    break


def _local_name(address: str) -> str | bytes:
    path = address.removeprefix("ipc://")
    return b"\0" + path[1:].encode() if path.startswith("@") else path

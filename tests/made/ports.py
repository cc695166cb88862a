"""A TCP port for what is started in a moment, and that nobody else takes meanwhile. Opens nothing."""

from __future__ import annotations

import contextlib
import secrets
import socket

# Below those that the kernel gives to connections and to whoever binds to port 0 (32768 and up, by default): tests that
# run beside each other open thousands, and one of them would get this port sooner or later.
FIRST, COUNT = 20_000, 12_000
TRIES = 100


def free_port() -> int:
    """Of the loopback; not drawn from ``random``, which gives the same numbers to all processes of pytest-xdist."""
    for _ in range(TRIES):
        number = FIRST + secrets.randbelow(COUNT)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", number))
            return number
    raise AssertionError(f"no port of {FIRST} to {FIRST + COUNT} is free")

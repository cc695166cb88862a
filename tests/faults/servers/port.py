"""Owns a TCP port of the loopback that refuses or listens in turn, and is nobody else's in between."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEADER_LIMIT_BYTES = 1 << 20


class Port:
    """A port is bound at once; a socket that is bound and doesn't listen makes the kernel refuse whoever comes."""

    def __init__(self, number: int = 0, host: str = "127.0.0.1") -> None:
        self.host = host
        self._bound: socket.socket | None = self._bind(number)
        self.number: int = self._bound.getsockname()[1]
        self._server: asyncio.Server | None = None

    def _bind(self, number: int) -> socket.socket:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((self.host, number))
        return bound

    @property
    def listens(self) -> bool:
        """Whether connections are accepted."""
        return self._server is not None

    async def listen(self, handler: Handler, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections from now on."""
        if self._server is not None:
            return

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await handler(reader, writer)
            except asyncio.CancelledError:  # the loop ends; asyncio 3.11 would complain of a cancelled handler
                writer.close()

        bound, self._bound = self._bound or self._bind(self.number), None
        self._server = await asyncio.start_server(handle, sock=bound, ssl=tls, limit=HEADER_LIMIT_BYTES)

    async def refuse(self) -> None:
        """Refuse connections from now on; those that are open are the caller's."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        await asyncio.sleep(0)
        self._bound = self._bind(self.number)

    async def close(self) -> None:
        """Give the port back."""
        server, bound, self._server, self._bound = self._server, self._bound, None, None
        if server is not None:
            server.close()
        if bound is not None:
            bound.close()


def end_at_once(writer: asyncio.StreamWriter) -> None:
    """Close with a reset: what waits to be sent is thrown away, the other side sees ECONNRESET."""
    raw = writer.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()

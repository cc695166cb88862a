"""Owns the RTSP server of the fault tests: requests, sessions, transports. Pictures are made and sent by others.

``RtspServer`` is used from blocking code; it serves in a thread of its own. Several paths, each with its own mishaps
that may be changed while clients play. Not for anything but tests: it trusts its clients to be FFmpeg.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import ssl
import struct
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from faults.servers.authentication import Gatekeeper
from faults.servers.elementary import ElementaryStream, make_stream
from faults.servers.loop_thread import LoopThread
from faults.servers.mishaps import Mishaps
from faults.servers.player import Player, Sent
from faults.servers.port import Port, end_at_once
from faults.servers.sdp import describe

REASONS = {
    200: "OK", 302: "Moved Temporarily", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
    453: "Not Enough Bandwidth", 454: "Session Not Found", 461: "Unsupported Transport", 500: "Internal Server Error",
    503: "Service Unavailable",
}  # fmt: skip
METHODS = "OPTIONS, DESCRIBE, SETUP, PLAY, PAUSE, TEARDOWN, GET_PARAMETER, SET_PARAMETER"
SEND_BUFFER_BYTES = 64 * 1024


@dataclass
class Mount:
    """One path: its streams by name of variant, what is wrong with it, what it sent."""

    streams: dict[str, ElementaryStream]
    mishaps: Mishaps = field(default_factory=Mishaps)
    sent: Sent = field(default_factory=Sent)
    clients: set[_Client] = field(default_factory=set)


class RtspServer:
    """``paths``: name of the path -> its stream, or its variants (``main`` is sent first).

    The port is bound in the constructor's turn and refuses until ``start``; ``stop`` makes it refuse again, ``start``
    serves again on the same port. Use as a context manager: enters started.
    """

    def __init__(
        self,
        paths: dict[str, ElementaryStream | dict[str, ElementaryStream]] | None = None,
        *,
        scheme: str = "none",
        user: str = "",
        password: str = "",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        given = {"gate": make_stream()} if paths is None else paths
        self.mounts = {n: Mount(s if isinstance(s, dict) else {"main": s}) for n, s in given.items()}
        self.gatekeeper = Gatekeeper(scheme, user, password)
        self.requests: Counter[str] = Counter()
        self.connections = 0
        self._tls = tls
        self._port = Port(port)
        self.port = self._port.number
        self._thread = LoopThread("rtsp-server")
        self._open: set[_Client] = set()
        self._lock = threading.Lock()

    # --- from any thread ----------------------------------------------------------------------------------------------

    def url(self, path: str = "gate", credentials: str = "") -> str:
        """Where ``path`` is; ``credentials`` as ``user:password``, escaped by the caller."""
        scheme = "rtsps" if self._tls else "rtsp"
        return f"{scheme}://{credentials + '@' if credentials else ''}127.0.0.1:{self.port}/{path}"

    def start(self) -> None:
        """Accept connections."""
        self._thread.open()
        self._thread.run(self._port.listen(self._serve, self._tls))

    def stop(self) -> None:
        """Close every connection and refuse new ones."""
        if self._thread.loop is None:
            return
        self._thread.run(self._port.refuse())
        self.cut()

    def close(self) -> None:
        """End for good; may be called twice."""
        if self._thread.loop is not None:
            self.stop()
            self._thread.run(self._port.close())
            self._thread.close()

    def __enter__(self) -> RtspServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def mishap(self, path: str, **values: Any) -> None:
        """Change what is wrong with ``path``, see Mishaps, for present and future clients."""
        self.mounts[path].mishaps.change(**values)

    def heal(self, path: str) -> None:
        """Nothing is wrong with ``path`` any more."""
        self.mounts[path].mishaps.heal()

    def cut(self, path: str | None = None, *, reset: bool = False) -> int:
        """Close the connections of ``path`` (None: all), in order or with a reset; how many there were."""
        return self._thread.run(self._cut(path, reset))

    def bye(self, path: str) -> None:
        """RTCP BYE to the clients of ``path``."""
        for client in list(self.mounts[path].clients):
            if client.player is not None:
                client.player.bye()

    def playing(self, path: str) -> int:
        """How many clients are played to."""
        return len(self.mounts[path].clients)

    @property
    def open_connections(self) -> int:
        """Connections that are open now."""
        return len(self._open)

    # --- in the loop --------------------------------------------------------------------------------------------------

    async def _cut(self, path: str | None, reset: bool) -> int:
        clients = list(self._open if path is None else self.mounts[path].clients)
        for client in clients:
            client.end(reset=reset)
        await asyncio.sleep(0)
        return len(clients)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(self, reader, writer)
        self.connections += 1
        self._open.add(client)
        try:
            await client.run()
        finally:
            self._open.discard(client)


class _Client:
    """One connection. One session, as FFmpeg uses it."""

    def __init__(self, server: RtspServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._session = secrets.token_hex(8)
        self._channels: dict[str, tuple[Any, Any]] = {}  # track -> interleaved channel or (socket, address)
        self._sockets: list[asyncio.DatagramTransport] = []
        self._mount: Mount | None = None
        self._task: asyncio.Task[None] | None = None
        self.player: Player | None = None
        writer.transport.set_write_buffer_limits(high=SEND_BUFFER_BYTES)

    async def run(self) -> None:
        """Answer until the connection ends."""
        try:
            while (request := await self._request()) is not None:
                if not await self._answer(*request):
                    return
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, TimeoutError, ValueError):
            pass
        finally:
            self._forget()
            with contextlib.suppress(Exception):
                self._writer.close()

    def end(self, *, reset: bool) -> None:
        """Close the connection from the camera's side."""
        self._forget()
        if reset:
            end_at_once(self._writer)
        else:
            self._writer.close()

    def _forget(self) -> None:
        if self._mount is not None:
            self._mount.clients.discard(self)
        if self._task is not None:
            self._task.cancel()
        for transport in self._sockets:
            transport.close()
        self._sockets.clear()

    async def _request(self) -> tuple[str, str, dict[str, str]] | None:
        while True:
            first = await self._reader.read(1)
            if not first:
                return None
            if first != b"$":
                break
            _, length = struct.unpack(">BH", await self._reader.readexactly(3))
            await self._reader.readexactly(length)  # the client's own reports
        text = (first + await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        head, *lines = text.split("\r\n")
        method, url, _ = head.split(" ", 2)
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if ":" in line)}
        if "content-length" in headers:
            await self._reader.readexactly(int(headers["content-length"]))
        return method, url, headers

    async def _answer(self, method: str, url: str, headers: dict[str, str]) -> bool:
        """Answer one request; False when the connection shall end."""
        self._server.requests[method] += 1
        path, _, track = re.sub(r"^rtsps?://[^/]*/?", "", url).split("?")[0].partition("/trackID=")
        mount = self._server.mounts.get(path.strip("/"))
        mishaps = mount.mishaps if mount else Mishaps()
        if mishaps.answer_delay_s:
            await asyncio.sleep(mishaps.answer_delay_s)
        if mishaps.silent_on == method:
            return True
        if mishaps.garbage_answer and method == "DESCRIBE":
            self._writer.write(os.urandom(4096))
            await self._writer.drain()
            return True
        status, more, body = 200, [], b""
        if method == "OPTIONS":
            more = [f"Public: {METHODS}"]
        elif not self._server.gatekeeper.admits(method, headers.get("authorization")):
            status, more = 401, [f"WWW-Authenticate: {each}" for each in self._server.gatekeeper.challenges()]
        elif mount is None:
            status = 404
        elif method in mishaps.status:
            status = mishaps.status[method]
        elif method == "DESCRIBE" and mishaps.redirect:
            status, more = 302, [f"Location: {mishaps.redirect}"]
        elif method == "DESCRIBE":
            body = describe(mount.streams["main"], mishaps)
            more = ["Content-Type: application/sdp", f"Content-Base: {url.rstrip('/')}/"]
        elif method == "SETUP":
            status, more = await self._set_up("audio" if track == "1" else "video", headers, mishaps)
        elif method == "PLAY":
            more = [f"Session: {self._session}", "Range: npt=0-"]
        else:
            more = [f"Session: {self._session}"]
        lines = [f"RTSP/1.0 {status} {REASONS.get(status, 'Odd')}", f"CSeq: {headers.get('cseq', '0')}", *more]
        lines.append(f"Content-Length: {len(body)}")
        self._writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        await self._writer.drain()
        if method == "PLAY" and status == 200 and mount is not None:
            self._play(mount)
        return method != "TEARDOWN"

    async def _set_up(self, track: str, headers: dict[str, str], mishaps: Mishaps) -> tuple[int, list[str]]:
        transport = headers.get("transport", "")
        kind = "tcp" if "TCP" in transport else "udp"
        if kind not in mishaps.transports:
            return 461, []
        session = f"Session: {self._session};timeout=60"
        if kind == "tcp":
            found = re.search(r"interleaved=(\d+)-(\d+)", transport)
            pair = (int(found[1]), int(found[2])) if found else (0, 1)
            self._channels[track] = pair
            return 200, [f"Transport: RTP/AVP/TCP;unicast;interleaved={pair[0]}-{pair[1]}", session]
        found = re.search(r"client_port=(\d+)-(\d+)", transport)
        if found is None:
            return 400, []
        host = self._writer.get_extra_info("peername")[0]
        ends = []
        for port in (int(found[1]), int(found[2])):
            loop = asyncio.get_running_loop()
            own, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))
            self._sockets.append(own)
            ends.append((own, (host, port)))
        self._channels[track] = (ends[0], ends[1])
        own_ports = "-".join(str(end[0].get_extra_info("sockname")[1]) for end in ends)
        client = f"client_port={found[1]}-{found[2]}"
        return 200, [f"Transport: RTP/AVP;unicast;{client};server_port={own_ports}", session]

    def _play(self, mount: Mount) -> None:
        if self._task is not None:
            return
        self._mount = mount
        mount.clients.add(self)
        self.player = Player(mount.streams, mount.mishaps, mount.sent, self._send, self._channels.__contains__)
        self._task = asyncio.create_task(self._play_to_end(self.player))

    async def _play_to_end(self, player: Player) -> None:
        with contextlib.suppress(ConnectionError):
            await player.run()
        self._writer.close()

    async def _send(self, track: str, packet: bytes) -> None:
        name, _, control = track.partition("/")
        if name not in self._channels:
            return
        channel = self._channels[name][1 if control else 0]
        if isinstance(channel, int):
            self._writer.write(struct.pack(">BBH", 0x24, channel, len(packet)) + packet)
            await self._writer.drain()
        else:
            own, address = channel
            own.sendto(packet, address)

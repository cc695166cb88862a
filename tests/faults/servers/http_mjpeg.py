"""Owns an HTTP camera of the fault tests: endless MJPEG as multipart, with Basic or Digest authentication."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from typing import Any

import cv2
from faults.servers.authentication import Gatekeeper
from faults.servers.loop_thread import LoopThread
from faults.servers.mishaps import Mishaps
from faults.servers.port import Port
from media.odd.making import scene

BOUNDARY = "frame-of-the-camera"


@functools.lru_cache(maxsize=8)
def jpegs(width: int = 320, height: int = 240, count: int = 30) -> tuple[bytes, ...]:
    """``count`` pictures of the test scene."""
    return tuple(bytes(cv2.imencode(".jpg", image[..., ::-1])[1]) for image in scene(count, width, height))


class MjpegServer:
    """One camera at ``/mjpeg``; of Mishaps it has ``stall``, ``close_after``, ``speed``, ``status`` (GET),
    ``silent_on`` (GET) and ``garbage_every`` (pictures). Use as a context manager: enters started."""

    def __init__(self, fps: int = 15, *, scheme: str = "none", user: str = "", password: str = "") -> None:
        self.mishaps = Mishaps()
        self.gatekeeper = Gatekeeper(scheme, user, password)
        self._fps = fps
        self._port = Port()
        self.port = self._port.number
        self._thread = LoopThread("mjpeg-server")
        self._open: set[asyncio.StreamWriter] = set()

    def url(self, credentials: str = "") -> str:
        """Where the camera is."""
        return f"http://{credentials + '@' if credentials else ''}127.0.0.1:{self.port}/mjpeg"

    def mishap(self, **values: Any) -> None:
        """Change what is wrong with it."""
        self.mishaps.change(**values)

    def start(self) -> None:
        """Accept connections."""
        self._thread.open()
        self._thread.run(self._port.listen(self._serve))

    def stop(self) -> None:
        """Close every connection and refuse new ones."""
        self._thread.run(self._port.refuse())
        for writer in list(self._open):
            assert self._thread.loop is not None
            self._thread.loop.call_soon_threadsafe(writer.close)

    def close(self) -> None:
        """End for good."""
        if self._thread.loop is not None:
            self.stop()
            self._thread.run(self._port.close())
            self._thread.close()

    def __enter__(self) -> MjpegServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.LimitOverrunError):
            text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            await self._answer(text, writer)
        self._open.discard(writer)
        writer.close()

    async def _answer(self, text: str, writer: asyncio.StreamWriter) -> None:
        head, *lines = text.split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if ":" in line)}
        method, path, _ = head.split(" ", 2)
        if self.mishaps.silent_on == method:
            await asyncio.Event().wait()
        status = self.mishaps.status.get(method, 200 if path.split("?")[0] == "/mjpeg" else 404)
        if not self.gatekeeper.admits(method, headers.get("authorization")):
            challenges = "".join(f"WWW-Authenticate: {each}\r\n" for each in self.gatekeeper.challenges())
            writer.write(f"HTTP/1.1 401 Unauthorized\r\n{challenges}Content-Length: 0\r\n\r\n".encode())
        elif status != 200:
            writer.write(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        else:
            writer.write(
                f"HTTP/1.1 200 OK\r\nContent-Type: multipart/x-mixed-replace; boundary={BOUNDARY}\r\n\r\n".encode()
            )
            await self._pictures(writer)
        await writer.drain()

    async def _pictures(self, writer: asyncio.StreamWriter) -> None:
        pictures, due_s, number = jpegs(), time.monotonic(), 0
        while self.mishaps.close_after is None or number < self.mishaps.close_after:
            while self.mishaps.stall:
                await asyncio.sleep(0.02)
            picture = pictures[number % len(pictures)]
            number += 1
            if self.mishaps.garbage_every and number % self.mishaps.garbage_every == 0:
                picture = picture[: len(picture) // 2]
            head = f"--{BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(picture)}\r\n\r\n"
            writer.write(head.encode() + picture + b"\r\n")
            await writer.drain()
            due_s = max(due_s + 1 / (self._fps * self.mishaps.speed), time.monotonic())
            await asyncio.sleep(max(due_s - time.monotonic(), 0))

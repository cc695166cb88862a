"""Owns what systemd is told of a run: ready, what it does, that it lives, that it stops. Without systemd: nothing.

The protocol is sd_notify(3): one datagram of ``KEY=VALUE`` lines to the socket named by ``NOTIFY_SOCKET``.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping

from pipeline.observe.snapshot import EngineSnapshot

STATUS_EVERY_S = 10.0


class ServiceNotifier:
    """Call ``update`` with each snapshot. A service manager that doesn't answer is no reason to fail."""

    def __init__(self, environ: Mapping[str, str], clock_s: Callable[[], float]) -> None:
        name = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        watchdog_s = _watchdog_s(environ)
        self._beat_every_s = watchdog_s / 4 if watchdog_s else None
        self._clock_s = clock_s
        self._ready = False
        self._stopping = False
        self._next_beat_s = 0.0
        self._next_status_s = 0.0

    def update(self, snapshot: EngineSnapshot) -> None:
        """Tell what is new."""
        if not self._address:
            return
        now_s = self._clock_s()
        lines: list[str] = []
        if not self._ready and not any(worker.state == "starting" for worker in snapshot.workers):
            self._ready = True
            lines.append("READY=1")
        if snapshot.stopping and not self._stopping:
            self._stopping = True
            lines.append("STOPPING=1")
        if self._beat_every_s is not None and now_s >= self._next_beat_s:
            self._next_beat_s = now_s + self._beat_every_s
            lines.append("WATCHDOG=1")
        if lines or now_s >= self._next_status_s:
            self._next_status_s = now_s + STATUS_EVERY_S
            lines.append(f"STATUS={_status(snapshot)}")
            self._send("\n".join(lines))

    def _send(self, text: str) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(text.encode(), self._address)


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    """The interval that systemd set for this process, None without one."""
    text, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not text.isdecimal() or int(text) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(text) / 1e6


def _status(snapshot: EngineSnapshot) -> str:
    streaming = sum(camera.state == "streaming" for camera in snapshot.cameras)
    rate = sum(camera.fps_out for camera in snapshot.cameras)
    failed = [camera.name for camera in snapshot.cameras if camera.state == "failed"]
    told = f"{streaming} of {len(snapshot.cameras)} cameras streaming, {rate:.0f} frames/s"
    return f"{told}, failed: {', '.join(failed[:5])}" if failed else told

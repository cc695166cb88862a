"""What systemd is told, read from a real datagram socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.observe.notify import ServiceNotifier
from pipeline.observe.snapshot import CameraSnapshot, EngineSnapshot, WorkerSnapshot


class Systemd:
    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.socket.setblocking(False)

    def told(self) -> list[str]:
        try:
            return self.socket.recv(4096).decode().split("\n")
        except BlockingIOError:
            return []


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    listener = Systemd(str(tmp_path / "notify"))
    yield listener
    listener.socket.close()


def snapshot(worker: str, *, stopping: bool = False, camera: str = "streaming") -> EngineSnapshot:
    cameras = (CameraSnapshot("gate", camera, "m", 10, 10, 1, 1, 1, 0, {}, None, 0),)
    return EngineSnapshot(1, cameras, (WorkerSnapshot("nms/0", "nms", 1, worker, 0, 0, 0, 0),), stopping=stopping)


def test_ready_comes_once_and_the_watchdog_is_fed(systemd: Systemd, tmp_path: Path) -> None:
    now_s = [0.0]
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "8000000", "WATCHDOG_PID": str(os.getpid())}
    notifier = ServiceNotifier(environ, lambda: now_s[0])
    notifier.update(snapshot("starting"))
    assert systemd.told() == ["WATCHDOG=1", "STATUS=1 of 1 cameras streaming, 10 frames/s"]
    notifier.update(snapshot("ready"))
    assert systemd.told()[0] == "READY=1"
    notifier.update(snapshot("ready"))
    assert systemd.told() == []  # nothing new
    now_s[0] = 2.0
    notifier.update(snapshot("ready", camera="failed"))
    assert systemd.told() == ["WATCHDOG=1", "STATUS=0 of 1 cameras streaming, 10 frames/s, failed: gate"]
    notifier.update(snapshot("ready", stopping=True))
    assert systemd.told()[0] == "STOPPING=1"


def test_without_systemd_nothing_is_sent_and_a_dead_socket_is_harmless(tmp_path: Path) -> None:
    ServiceNotifier({}, lambda: 0.0).update(snapshot("ready"))
    ServiceNotifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}, lambda: 0.0).update(snapshot("ready"))


def test_a_watchdog_meant_for_another_process_is_not_fed(systemd: Systemd, tmp_path: Path) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "8000000", "WATCHDOG_PID": "1"}
    ServiceNotifier(environ, lambda: 0.0).update(snapshot("starting"))
    assert systemd.told() == ["STATUS=1 of 1 cameras streaming, 10 frames/s"]

"""A worker that finds no engine: silent when the engine has ended, and telling the cause of anything else."""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.runtime import worker
from pipeline.runtime.executor_loop import EXIT_FAILED
from pipeline.transport import channel


class Left(Exception):
    """The process would be gone."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def leave(status: int) -> None:
        raise Left(status)

    monkeypatch.setattr(os, "_exit", leave)
    return tmp_path / "engine"


@pytest.fixture
def listener(place: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(place))
        yield listening


def status_at(place: Path) -> int:
    start: Any = dataclasses.make_dataclass("Start", ["name", "where", "addresses"])(
        "decode/gate-1", f"ipc://{place}", ("decode/gate-1#1",)
    )
    with pytest.raises(Left) as left:
        worker._connected(start)
    status: int = left.value.args[0]
    return status


def test_an_engine_whose_folder_is_gone_has_ended(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert (status_at(place), caplog.records) == (worker.EXIT_ORPHANED, [])


@pytest.mark.usefixtures("listener")
def test_an_engine_that_listens_no_more_has_ended(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert (status_at(place), caplog.records) == (worker.EXIT_ORPHANED, [])


def test_an_engine_that_hangs_up_has_ended(
    place: Path, listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    listener.listen()

    def hang_up() -> None:
        listener.accept()[0].close()

    thread = threading.Thread(target=hang_up)
    thread.start()
    assert (status_at(place), caplog.records) == (worker.EXIT_ORPHANED, [])
    thread.join()


def test_an_engine_that_does_not_answer_in_time_is_told(
    place: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(channel, "CONNECT_MS", 20)
    listener.listen(0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as first:  # nobody accepts it: the queue is full
        first.connect(str(place))
        assert status_at(place) == EXIT_FAILED
    assert "decode/gate-1: no connection to the engine: BlockingIOError: " in caplog.text


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, os.strerror(errno.EMFILE)), PermissionError(errno.EACCES, "no"), ValueError("odd")]
)
def test_whatever_else_keeps_a_worker_from_its_engine_is_told(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(worker, "WorkerChannel", refuse)
    assert status_at(place) == EXIT_FAILED
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == f"decode/gate-1: no connection to the engine: {type(error).__name__}: {error}"

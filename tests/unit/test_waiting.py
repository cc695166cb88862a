"""What ends the engine's sleep: deaths, ``wake``, time; however short it is meant to be."""

from __future__ import annotations

import os
import resource
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.runtime.waiting import Waiting

SHORT_NS, LONG_NS = 300_000, 600_000_000_000


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    made = Waiting()
    made.open()
    yield made
    made.close()


def workers(**sentinels: int) -> Any:
    found = {descriptor: name for name, descriptor in sentinels.items()}
    return type("Supervisor", (), {"changes": 1, "sentinels": found})()


def test_nothing_happens_in_a_short_sleep_and_in_none(waiting: Waiting) -> None:
    assert waiting.wait(None, workers(), SHORT_NS) == []
    assert waiting.wait(None, workers(), 0) == []


@pytest.mark.parametrize("timeout_ns", [0, 20_000_000, LONG_NS])
def test_a_death_ends_any_sleep_and_is_told(waiting: Waiting, timeout_ns: int) -> None:
    read, write = os.pipe()
    try:
        os.write(write, b"\0")
        assert waiting.wait(None, workers(nms=read), timeout_ns) == ["nms"]
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("timeout_ns", [20_000_000, LONG_NS])
def test_a_wake_before_the_sleep_ends_it_once(waiting: Waiting, timeout_ns: int) -> None:
    waiting.wake()
    assert waiting.wait(None, workers(), timeout_ns) == []
    assert waiting.wait(None, workers(), SHORT_NS) == []


@pytest.fixture
def many_open() -> Iterator[None]:
    """More descriptors than select can name, opened after the wait was."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("no more than 1024 files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    opened = [os.dup(0)]
    try:
        while opened[-1] < 1100:
            opened.append(os.dup(0))
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_with_more_files_open_than_select_knows_a_short_sleep_is_still_no_whole_milliseconds(
    waiting: Waiting, many_open: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def told(read: Any, write: Any, other: Any, timeout_s: float) -> Any:
        slept.append(timeout_s)
        return select_select(read, write, other, timeout_s)

    select_select = select.select
    monkeypatch.setattr(select, "select", told)
    assert waiting.wait(None, workers(), SHORT_NS) == []
    assert slept == [SHORT_NS / 1e9]
    read, write = os.pipe()
    try:
        assert read > 1024
        os.write(write, b"\0")
        changed = workers(nms=read)
        changed.changes = 2
        assert waiting.wait(None, changed, 20_000_000) == ["nms"]
    finally:
        os.close(read)
        os.close(write)


def test_what_was_opened_is_closed(waiting: Waiting) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    other = Waiting()
    other.open()
    for change in range(3):
        supervisor = workers()
        supervisor.changes = change
        other.wait(None, supervisor, 0)
    other.close()
    other.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before

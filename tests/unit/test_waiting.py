"""What ends the engine's sleep: deaths, ``wake``, time; however short it is meant to be."""

from __future__ import annotations

import os
from collections.abc import Iterator
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

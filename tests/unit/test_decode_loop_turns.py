"""The loop of a decode worker: how often it turns while its stage waits for a time to come."""

from __future__ import annotations

import os
import time
import types
from typing import Any

import pytest

from pipeline.runtime import decode_loop, meter
from stages.messages import Begin, InternalMessage, WorkerStats

MS = 1_000_000


class Waiting:
    """A stage that does something once, ``wait_ns`` after its opening, and is done then."""

    wake_fd = -1
    skipped = 0
    done = False

    def __init__(self, wait_ns: int) -> None:
        self._until_ns = time.monotonic_ns() + wait_ns

    def open(self) -> list[InternalMessage]:
        return []

    def wait_ns(self) -> int:
        return max(0, self._until_ns - time.monotonic_ns())

    def step(self) -> list[InternalMessage]:
        self.done = True
        return []

    def close(self) -> None:
        pass


class Quiet:
    """A channel on which nothing comes but the beginning."""

    def __init__(self, readable: int) -> None:
        self.socket = readable
        self.turns = -1
        self.sent: list[InternalMessage] = []

    def send(self, message: InternalMessage) -> None:
        self.sent.append(message)

    def receive(self, _timeout_ms: int) -> InternalMessage | None:
        self.turns += 1
        return None if self.turns else Begin(*[0] * len(Begin.__struct_fields__))


def test_a_report_that_is_due_before_the_chores_is_not_polled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "STATS_EVERY_NS", 50 * MS)
    monkeypatch.setattr(decode_loop, "CHORES_EVERY_NS", 200 * MS)
    monkeypatch.setattr("stages.decode.choose.stage_of", lambda *_, **__: Waiting(150 * MS))
    ring = types.SimpleNamespace(slots=4, close=lambda: None)
    work: Any = types.SimpleNamespace(camera=types.SimpleNamespace(name="gate-1"), model=None, ring=ring)
    readable, writable = os.pipe()
    try:
        channel: Any = Quiet(readable)
        decode_loop.run_decode(channel, work)
    finally:
        os.close(readable)
        os.close(writable)
    assert channel.turns < 20, "it went round and round until the chores' turn"
    assert sum(isinstance(message, WorkerStats) for message in channel.sent) >= 3, "each report when it was due"

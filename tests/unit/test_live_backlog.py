"""Cameras that send more than can be decoded: noticed, caught up with, and no false alarm."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.runtime.decode_loop import Behind
from stages.decode.backlog import KEYFRAME_NS, MS, WINDOW_NS, Backlog


class Reader:
    """Reads packets of a camera with ``fps`` and a group of ten, decoding each in ``decode_ms``; time goes on alone."""

    def __init__(self, fps: float, decode_ms: float) -> None:
        self.backlog = Backlog()
        self.every_ns, self.decode_ns = int(1000 * MS / fps), int(decode_ms * MS)
        self.now_ns = 1000 * MS
        self.sent_ns = self.now_ns  # when the next packet is sent
        self.number = 0
        self.oldest_ns = 0  # the longest that a decoded packet had waited

    def read(self, seconds: float) -> list[int]:
        """Numbers of the packets that were decoded."""
        decoded, until_ns = [], self.now_ns + int(seconds * 1000 * MS)
        while self.now_ns < until_ns:
            waited_ns = max(self.sent_ns - self.now_ns, 50_000)
            self.now_ns += waited_ns
            if self.backlog.decodes(self.now_ns, waited_ns, keyframe=self.number % 10 == 0):
                decoded.append(self.number)
                self.oldest_ns = max(self.oldest_ns, self.now_ns - self.sent_ns)
                self.now_ns += self.decode_ns
            self.number += 1
            self.sent_ns += self.every_ns
        return decoded


@pytest.mark.parametrize(("fps", "decode_ms"), [(25, 1), (25, 30), (5, 150), (100, 8), (1, 0.1)])
def test_who_keeps_up_decodes_everything(fps, decode_ms) -> None:
    reader = Reader(fps, decode_ms)
    assert reader.read(60) == list(range(reader.number))
    assert reader.backlog.skipped == 0


@pytest.mark.parametrize(("fps", "decode_ms"), [(25, 41), (25, 60), (30, 200), (100, 30)])
def test_who_is_too_slow_stays_near_the_newest_for_ever(fps, decode_ms) -> None:
    reader = Reader(fps, decode_ms)
    decoded = reader.read(600)
    assert reader.oldest_ns < 2 * WINDOW_NS + 10 * reader.every_ns + 20 * reader.decode_ns
    assert reader.backlog.skipped + len(decoded) == reader.number
    assert len(decoded) > 100
    gaps = [(a, b) for a, b in itertools.pairwise(decoded) if b != a + 1]
    assert all(b % 10 == 0 for _, b in gaps)  # after what was left out only a keyframe can be begun with


def test_a_burst_after_a_pause_of_the_network_is_no_backlog() -> None:
    reader = Reader(25, 2)
    reader.read(10)
    reader.now_ns += 3000 * MS  # 75 packets come at once, decoded in 150 ms
    reader.read(10)
    assert reader.backlog.skipped == 0


def test_a_process_that_was_stopped_is_soon_back_at_the_newest() -> None:
    reader = Reader(25, 35)
    reader.read(10)
    reader.now_ns += 30_000 * MS
    reader.read(5)
    assert reader.backlog.skipped > 100
    assert reader.now_ns - reader.sent_ns < 100 * MS
    assert not reader.backlog.catching_up


def test_where_each_picture_is_a_keyframe_few_are_decoded_meanwhile() -> None:
    backlog, now_ns = Backlog(), 1000 * MS
    decoded = []
    for _ in range(3000):
        now_ns += MS
        if backlog.decodes(now_ns, 10_000, keyframe=True) and backlog.catching_up:
            decoded.append(now_ns)
    assert backlog.catching_up
    assert all(b - a >= KEYFRAME_NS for a, b in itertools.pairwise(decoded))
    assert len(decoded) > 5


@given(st.lists(st.tuples(st.integers(0, 3000 * MS), st.integers(0, 300 * MS), st.booleans()), max_size=80))
def test_it_only_ever_resumes_at_a_keyframe(packets) -> None:
    backlog, now_ns, before, whole = Backlog(), MS, 0, True
    for waited_ns, worked_ns, keyframe in packets:
        now_ns += waited_ns
        decodes = backlog.decodes(now_ns, waited_ns, keyframe=keyframe)
        assert backlog.skipped == before + (not decodes)
        before = backlog.skipped
        whole = (whole or keyframe) and decodes
        assert not decodes or whole or keyframe
        now_ns += worked_ns


def test_it_is_said_but_not_all_the_time(caplog: pytest.LogCaptureFixture) -> None:
    behind = Behind("gate")
    for second in range(100):
        behind.look(0 if second < 10 else (second - 9) * 5, second * 1000 * MS)
    behind.look(3, 200_000 * MS)  # a new connection counts from 0
    told = [int(record.getMessage().partition("decoded: ")[2].partition(" ")[0]) for record in caplog.records]
    assert told == [5, 150, 150, 3]

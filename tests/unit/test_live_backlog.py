"""Cameras that send more than can be decoded: noticed, caught up with, and no false alarm."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.runtime.decode_loop import Behind
from stages.decode.backlog import KEYFRAME_NS, MS, WINDOW_NS, Backlog
from stages.decode.lag import Lag

SECOND = 1000 * MS


class Reader:
    """Reads packets of a camera with ``fps`` and a group of ``group``, decoding each in ``decode_ms``.

    Time goes on alone. ``read_ms``: what each read takes though its data is there. ``clock``: the camera's pace.
    """

    def __init__(self, fps: float, decode_ms: float, *, read_ms: float = 0.05, group: int = 10, clock=1.0) -> None:
        self.backlog = Backlog(SECOND)
        self.every_ns, self.decode_ns, self.read_ns = int(SECOND / fps), int(decode_ms * MS), int(read_ms * MS)
        self.group, self.clock = group, clock
        self.now_ns = 1000 * SECOND
        self.sent_ns = self.now_ns  # when the next packet is sent
        self.number = 0
        self.oldest_ns = 0  # the longest that a decoded packet had waited
        self.hidden_ns = 0  # the most of it that its lag did not say

    def read(self, seconds: float) -> list[int]:
        """Numbers of the packets that were decoded."""
        decoded, until_ns = [], self.now_ns + int(seconds * SECOND)
        while self.now_ns < until_ns:
            waited_ns = max(self.sent_ns - self.now_ns, self.read_ns)
            self.now_ns += waited_ns
            stream_ns = None if self.clock is None else int(self.clock * (self.sent_ns - 900 * SECOND))
            if self.backlog.decodes(self.now_ns, waited_ns, stream_ns, keyframe=self.number % self.group == 0):
                decoded.append(self.number)
                late_ns = self.now_ns - self.sent_ns
                self.oldest_ns = max(self.oldest_ns, late_ns)
                self.hidden_ns = max(self.hidden_ns, late_ns - self.backlog.lag_ns)
                self.now_ns += self.decode_ns
            self.number += 1
            self.sent_ns += self.every_ns
        return decoded


CLOCKS = pytest.mark.parametrize("clock", [1.0, 0.99, 1.01, None])


@CLOCKS
@pytest.mark.parametrize(("fps", "decode_ms"), [(25, 1), (25, 30), (25, 37), (25, 39), (5, 150), (100, 8), (1, 0.1)])
def test_half_the_pictures_of_a_camera_that_keeps_up_are_not_dropped(fps, decode_ms, clock) -> None:
    reader = Reader(fps, decode_ms, clock=clock)
    assert reader.read(120) == list(range(reader.number))
    assert reader.backlog.skipped == 0


@pytest.mark.parametrize("decode_ms", [30, 33, 35.5])
def test_who_keeps_up_though_each_read_waits_for_the_cpu_is_not_touched(decode_ms) -> None:
    reader = Reader(25, decode_ms, read_ms=4, group=50)
    assert reader.read(300) == list(range(reader.number))


@pytest.mark.parametrize("group", [10, 50])
@pytest.mark.parametrize(
    ("decode_ms", "read_ms"), [(38, 4), (45, 4), (60, 4), (60, 9), (41, 0.05), (45, 0.05), (60, 0.05)]
)
def test_no_lag_of_half_a_minute_grows_where_reads_are_slow(decode_ms, read_ms, group) -> None:
    """Processes that wait for the CPU, or threads for the interpreter, seem to wait for the camera."""
    reader = Reader(25, decode_ms, read_ms=read_ms, group=group)
    decoded = reader.read(600)
    assert reader.backlog.skipped + len(decoded) == reader.number
    assert reader.backlog.skipped > 0
    assert reader.oldest_ns < 2 * SECOND
    assert reader.hidden_ns < SECOND
    assert len(decoded) * decode_ms * MS > 200 * SECOND  # of 600: it does not sit idle


@pytest.mark.parametrize(("fps", "decode_ms"), [(25, 41), (25, 60), (30, 200), (100, 30)])
@pytest.mark.parametrize("clock", [1.0, None])
def test_who_is_too_slow_stays_near_the_newest_for_ever(fps, decode_ms, clock) -> None:
    reader = Reader(fps, decode_ms, clock=clock)
    decoded = reader.read(600)
    assert reader.oldest_ns < 2 * WINDOW_NS + 10 * reader.every_ns + 20 * reader.decode_ns
    assert reader.backlog.skipped + len(decoded) == reader.number
    assert len(decoded) > 100
    gaps = [(a, b) for a, b in itertools.pairwise(decoded) if b != a + 1]
    assert all(b % 10 == 0 for _, b in gaps)  # after what was left out only a keyframe can be begun with


@CLOCKS
def test_a_burst_after_a_pause_of_the_network_is_no_backlog(clock) -> None:
    reader = Reader(25, 2, clock=clock)
    reader.read(10)
    reader.now_ns += 3000 * MS  # 75 packets come at once, decoded in 150 ms
    reader.read(10)
    assert reader.backlog.skipped == 0


@CLOCKS
def test_a_process_that_was_stopped_is_soon_back_at_the_newest(clock) -> None:
    reader = Reader(25, 35, clock=clock)
    reader.read(10)
    reader.now_ns += 30_000 * MS
    reader.read(5)
    assert reader.backlog.skipped > 100
    assert reader.now_ns - reader.sent_ns < 100 * MS
    assert not reader.backlog.catching_up


@pytest.mark.parametrize("clock", [0.1, 0.5, 0.9, 1.1, 10.0])
def test_a_clock_that_runs_wrong_costs_few_pictures(clock) -> None:
    reader = Reader(25, 30, clock=clock, group=50)
    decoded = reader.read(600)
    assert len(decoded) > reader.number - 3 * 50


@pytest.mark.parametrize("jump_s", [-3600, -1.5, 5, 3600])
def test_a_clock_that_was_set_is_no_lag(jump_s) -> None:
    reader = Reader(25, 30)
    reader.read(30)
    lag, now_ns = Lag(), 1000 * SECOND
    for number in range(500):
        now_ns += 40 * MS
        lag.measure(now_ns, 20 * MS, number * 40 * MS + (int(jump_s * SECOND) if number > 250 else 0))
        assert lag.ns < 50 * MS


def test_what_had_waited_when_the_clock_was_set_still_has() -> None:
    lag = Lag()
    lag.measure(1000 * SECOND, 0, 0)
    assert lag.measure(1003 * SECOND, 0, SECOND) == 2 * SECOND
    assert lag.measure(1003 * SECOND + MS, 0, -3600 * SECOND) == 2 * SECOND


def test_where_each_picture_is_a_keyframe_few_are_decoded_meanwhile() -> None:
    backlog, now_ns = Backlog(), 1000 * MS
    decoded = []
    for _ in range(3000):
        now_ns += MS
        if backlog.decodes(now_ns, 5_000, None, keyframe=True) and backlog.catching_up:
            decoded.append(now_ns)
    assert backlog.catching_up
    assert all(b - a >= KEYFRAME_NS for a, b in itertools.pairwise(decoded))
    assert len(decoded) > 5


stamps = st.none() | st.integers(0, 20_000 * MS) | st.integers(-(2**62), 2**62)


@given(st.lists(st.tuples(st.integers(0, 3000 * MS), st.integers(0, 300 * MS), stamps, st.booleans()), max_size=80))
def test_it_only_ever_resumes_at_a_keyframe(packets) -> None:
    backlog, now_ns, before, whole = Backlog(), MS, 0, True
    for waited_ns, worked_ns, stream_ns, keyframe in packets:
        now_ns += waited_ns
        decodes = backlog.decodes(now_ns, waited_ns, stream_ns, keyframe=keyframe)
        assert backlog.lag_ns >= 0
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

"""Timestamps of containers, as odd as they come, to nanoseconds that only go up."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.decode.clock import (
    DEFAULT_NOMINAL_NS,
    REORDER_FRAMES,
    SECOND_NS,
    StreamClock,
    nominal_ns,
    utc_ns,
)

MS = Fraction(1, 1000)
GAP_NS = 10 * SECOND_NS
NOMINAL_NS = 40_000_000


def run(pts, *, dts=None, base=MS, nominal=NOMINAL_NS, gap=GAP_NS):
    """Milliseconds that come out for ``pts`` in milliseconds."""
    clock = StreamClock(base, nominal, gap)
    found = [clock.next_ns(p, None if dts is None else d) for p, d in zip(pts, dts or pts, strict=True)]
    return [ns / 1e6 for ns in found]


@pytest.mark.parametrize(
    ("name", "pts", "expected"),
    [
        ("regular", [0, 40, 80], [0, 40, 80]),
        ("starts at 100 s", [100_000, 100_040, 100_080], [0, 40, 80]),
        ("starts below zero", [-2720, -2680, -2640], [0, 40, 80]),
        ("variable rate is kept", [0, 40, 480, 520, 1320], [0, 40, 480, 520, 1320]),
        ("none at all", [None, None, None], [0, 40, 80]),
        ("none at first", [None, 5000, 5040], [0, 40, 80]),
        ("none in between", [0, None, 90, None, 170], [0, 40, 90, 130, 170]),
        ("the same twice", [0, 0, 40, 80], [0, 40, 80, 120]),
        ("one step back by a frame", [0, 40, 20, 80, 120], [0, 40, 80, 120, 160]),
        ("jump forward", [0, 40, 5_000_000, 5_000_040], [0, 40, 80, 120]),
        ("jump back", [5_000_000, 5_000_040, 0, 40], [0, 40, 80, 120]),
        ("back by four seconds, as joined files do", [0, 2000, 4000, 0, 2000], [0, 2000, 4000, 4040, 6040]),
        ("a wild value and back", [0, 40, 7_000_000, 120, 160], [0, 40, 80, 120, 160]),
        ("33-bit clock wraps", [95_443_680, 95_443_717, 0, 40], [0, 37, 77, 117]),
        ("a pause of nine seconds is believed", [0, 9000, 9040], [0, 9000, 9040]),
    ],
)
def test_table(name, pts, expected) -> None:
    assert run(pts) == expected


def test_a_time_lapse_has_no_jumps() -> None:
    assert run([0, 30_000, 60_000, 90_000], nominal=30 * SECOND_NS) == [0, 30_000, 60_000, 90_000]


def test_an_hour_between_frames_is_believed_where_clocks_cannot_wrap() -> None:
    assert run([0, 3_500_000, 3_500_040], gap=3600 * SECOND_NS) == [0, 3_500_000, 3_500_040]


def test_b_frames_in_avi_follow_the_order_of_decoding() -> None:
    """AVI has only decoding times: pts come shuffled, dts of the frames as shown are right."""
    pts = [1, 4, 3, 5, 2, 7, 6, 10, 9, 11, 8, 14, 13, 15, 12]
    dts = list(range(2, 17))
    shuffled, steady = [p * 40 for p in pts], [d * 40 for d in dts]
    # the first few still find out which to believe
    assert [b - a for a, b in pairwise(run(shuffled, dts=steady))] == [120] + [40] * 13
    # and when the header's rate is wrong, the times are right all the same
    assert [b - a for a, b in pairwise(run(shuffled, dts=steady, nominal=10_000_000))] == [120, 10, 30] + [40] * 11
    assert max(b - a for a, b in pairwise(run(shuffled, nominal=10_000_000)[4:])) > 40  # pts alone don't


def test_dts_stands_in_for_missing_pts() -> None:
    clock = StreamClock(MS, NOMINAL_NS, GAP_NS)
    assert [clock.next_ns(None, d) for d in (10, 50, 130)] == [0, 40_000_000, 120_000_000]


def test_exact_for_90_khz_over_a_day() -> None:
    clock = StreamClock(Fraction(1, 90_000), NOMINAL_NS, GAP_NS)
    clock.next_ns(0)
    for number in range(1, 86_400):
        found = clock.next_ns(number * 90_000)
    assert found == 86_399 * SECOND_NS


@pytest.mark.parametrize("base", [None, Fraction(0, 1)])
def test_without_a_time_base_timestamps_say_nothing(base) -> None:
    clock = StreamClock(base, NOMINAL_NS, GAP_NS)
    assert [clock.next_ns(pts) for pts in (7, 7, 900)] == [0, 40_000_000, 80_000_000]


timestamps = st.lists(st.none() | st.integers(-(2**62), 2**62), max_size=60)


@given(timestamps, timestamps, st.integers(1_000_000, 60 * SECOND_NS), st.sampled_from([MS, Fraction(1, 90_000)]))
def test_always_starts_at_zero_and_goes_up(pts, dts, nominal, base) -> None:
    clock = StreamClock(base, nominal, GAP_NS)
    found = [clock.next_ns(p, d) for p, d in zip(pts, dts, strict=False)]
    assert found[:1] in ([], [0])
    steps = [b - a for a, b in pairwise(found)]
    assert all(0 < step <= max(GAP_NS, 10 * nominal) for step in steps)


@given(timestamps)
def test_the_same_timestamps_give_the_same_times(pts) -> None:
    assert run(pts) == run(pts)


@given(st.lists(st.integers(1, 9_999), min_size=1, max_size=50), st.integers(-(2**40), 2**40))
def test_believable_timestamps_come_out_as_they_are(steps, start) -> None:
    pts = [start]
    for step in steps:
        pts.append(pts[-1] + step)
    assert run(pts) == [p - start for p in pts]


@given(st.data())
def test_a_jump_keeps_the_distances_after_it(data) -> None:
    steps = st.lists(st.integers(1, 2_000), min_size=2, max_size=20)
    before, after = data.draw(steps), data.draw(steps)
    far = 10_001 + REORDER_FRAMES * 40 + sum(before)
    jump = data.draw(st.integers(far, 10**9) | st.integers(-(10**9), -far))
    first = [sum(before[:n]) for n in range(len(before) + 1)]
    second = [first[-1] + jump + sum(after[:n]) for n in range(len(after) + 1)]
    found = run(first + second)
    assert found[: len(first)] == first
    assert found[len(first)] == first[-1] + 40
    assert [b - a for a, b in pairwise(found[len(first) :])] == after


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (Fraction(25), 40_000_000),
        (Fraction(30000, 1001), 33_366_666),
        (Fraction(1000), 1_000_000),
        (Fraction(1, 30), 30 * SECOND_NS),
        (Fraction(90_000), DEFAULT_NOMINAL_NS),
        (Fraction(1, 10_000), DEFAULT_NOMINAL_NS),
        (Fraction(0), DEFAULT_NOMINAL_NS),
        (None, DEFAULT_NOMINAL_NS),
    ],
)
def test_nominal_duration(rate, expected) -> None:
    assert nominal_ns(rate) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2018-04-19T22:46:00.000000Z", 1_524_177_960_000_000_000),
        ("2018-04-19T22:46:00.250000+02:00", 1_524_170_760_250_000_000),
        ("2018-04-19 22:46:00", 1_524_177_960_000_000_000),
        ("1904-01-01T00:00:00.000000Z", None),
        ("1970-01-01T00:00:00.000000Z", None),
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
def test_creation_times(text, expected) -> None:
    assert utc_ns(text) == expected

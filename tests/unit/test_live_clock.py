"""The clock of live streams: what cameras say of time, and what is made of it."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.decode.live_clock import BACK_NS, SLACK_NS, LiveClock, captured

MS = 1_000_000
SECOND = 1000 * MS
BASE = Fraction(1, 90_000)
FRAME = 3600  # ticks of 40 ms


def run(stamps, arrivals=None, base=BASE):
    """pts in ms of frames with these stamps, each arriving 40 ms after the one before unless told otherwise."""
    clock = LiveClock(base, 40 * MS)
    arrivals = arrivals or [5 * SECOND + 40 * MS * n for n in range(len(stamps))]
    return [clock.next_ns(stamp, at) // MS for stamp, at in zip(stamps, arrivals, strict=True)]


STEADY = [0, 40, 80, 120, 160]


@pytest.mark.parametrize(
    ("stamps", "expected"),
    [
        ([n * FRAME for n in range(5)], STEADY),
        ([10**12 + n * FRAME for n in range(5)], STEADY),
        ([-(10**9) + n * FRAME for n in range(5)], STEADY),
        ([None, *(n * FRAME for n in range(1, 5))], STEADY),  # the first one is often missing
        ([2**40, *(n * FRAME for n in range(1, 5))], STEADY),  # or wild
        ([0, FRAME, None, 3 * FRAME, 4 * FRAME], STEADY),
        ([None] * 5, STEADY),
        ([0, FRAME, 2 * FRAME + 3600 * 90_000, 3 * FRAME + 3600 * 90_000, 4 * FRAME + 3600 * 90_000], STEADY),
        ([10**10, 10**10 + FRAME, 5, 5 + FRAME, 5 + 2 * FRAME], STEADY),  # wrapped, or its encoder was restarted
        ([0, 0, FRAME, FRAME, 2 * FRAME], [0, 0, 40, 40, 80]),  # twice the same: a little later, and no drift of it
        ([0, 2 * FRAME, FRAME, 3 * FRAME, 4 * FRAME], [0, 80, 80, 120, 160]),
    ],
)
def test_stamps_of_all_kinds(stamps, expected) -> None:
    assert run(stamps) == expected


def test_stamps_that_stand_still_say_nothing_after_a_while() -> None:
    pts = run([0, FRAME] + [2 * FRAME] * 100 + [3 * FRAME, 4 * FRAME])
    assert pts[:3] == [0, 40, 80]
    assert max(b - a for a, b in itertools.pairwise(pts)) == 40  # no leap, neither into it nor out of it
    assert pts[60:] == [pts[60] + 40 * n for n in range(len(pts) - 60)]


def test_without_a_unit_stamps_say_nothing() -> None:
    assert run([7, 7, 7], [0, 100 * MS, 250 * MS], base=None) == [0, 100, 250]
    assert run([7, 7, 7], [0, 100 * MS, 250 * MS], base=Fraction(0, 1)) == [0, 100, 250]


def test_a_pause_of_the_network_is_no_jump_and_its_burst_keeps_the_distances() -> None:
    stamps = [n * FRAME for n in range(200)]
    arrivals = [40 * MS * n if n < 50 else 8 * SECOND for n in range(200)]
    assert run(stamps, arrivals) == [40 * n for n in range(200)]


def test_a_pause_of_the_camera_is_as_long_as_it_says() -> None:
    assert run([0, FRAME, FRAME + 30 * 90_000], [0, 40 * MS, 30 * SECOND + 70 * MS]) == [0, 40, 30_040]


def test_a_pause_in_which_the_clock_was_set_is_as_long_as_it_was_here() -> None:
    assert run([0, FRAME, 10**11], [0, 40 * MS, 30 * SECOND]) == [0, 40, 30_000]


@pytest.mark.parametrize("drift", [0.99, 1.0, 1.01])
def test_a_clock_that_runs_wrong_by_one_percent_is_believed_for_ever(drift) -> None:
    stamps = [int(n * FRAME * drift) for n in range(20_000)]
    pts = run(stamps)
    assert pts == [stamp * 1000 // 90_000 for stamp in stamps]


def at_pace(rate: float, seconds: int, clock: LiveClock, *, from_ns: int = 1000 * SECOND, from_tick: int = 0) -> int:
    """25 frames a second for so long, stamped ``rate`` times too fast; the last one's pts."""
    found_ns = 0
    for number in range(seconds * 25):
        found_ns = clock.next_ns(from_tick + int(number * FRAME * rate), from_ns + number * 40 * MS)
    return found_ns


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8, 0.9, 1.1, 1.3, 2.0, 10.0])
def test_ten_minutes_of_stamps_do_not_pass_in_one(rate) -> None:
    clock = LiveClock(BASE, 40 * MS)
    at_pace(rate, 60, clock)
    assert not clock.believed
    remark = clock.remark
    assert remark.startswith(f"its timestamps run {rate:.2g} times as fast as time")
    before_ns = clock._last_ns
    after_ns = at_pace(rate, 60, clock, from_ns=1060 * SECOND, from_tick=int(60 * 25 * FRAME * rate))
    assert abs(after_ns - before_ns - 60 * SECOND) < SECOND
    assert (clock.believed, clock.remark) == (False, remark)  # said once


def test_stamps_that_are_all_jumps_are_judged_one_by_one() -> None:
    assert abs(at_pace(1000, 60, LiveClock(BASE, 40 * MS)) - 60 * SECOND) < SECOND


def test_a_clock_that_runs_right_again_is_believed_again_without_a_leap() -> None:
    clock = LiveClock(BASE, 40 * MS)
    at_pace(10, 30, clock)
    assert not clock.believed
    last_ns, tick = clock._last_ns, 30 * 25 * FRAME * 10
    steps = []
    for number in range(60 * 25):
        found_ns = clock.next_ns(tick + number * FRAME, 1030 * SECOND + number * 40 * MS)
        steps.append(found_ns - last_ns)
        last_ns = found_ns
    assert clock.believed
    assert clock.remark == ""
    assert {step // MS for step in steps} == {40}


@pytest.mark.parametrize("pause_s", [1, 5, 20, 60])
@pytest.mark.parametrize("kept", [True, False])
def test_pauses_and_bursts_are_no_wrong_pace(pause_s, kept) -> None:
    """Now and then nothing comes for a while; what was sent meanwhile comes at once, or never, and the clock stood."""
    clock, arrived_ns, late = LiveClock(BASE, 40 * MS), 1000 * SECOND, 0
    for number in range(300 * 25):
        if number % 2500 == 999:
            arrived_ns += pause_s * SECOND
            late = pause_s * 25 if kept else 0
        elif late > 0:
            late -= 1
        else:
            arrived_ns += 40 * MS
        clock.next_ns(number * FRAME, arrived_ns)
        assert clock.believed


def test_old_pictures_at_once_at_the_start_are_no_wrong_pace() -> None:
    clock = LiveClock(BASE, 40 * MS)
    for number in range(100 * 25):
        clock.next_ns(number * FRAME, 1000 * SECOND + max(number - 100, 0) * 40 * MS)
        assert clock.believed


events = st.tuples(
    st.none() | st.integers(-(2**40), 2**40) | st.integers(0, 400).map(lambda n: n * FRAME), st.integers(0, 10**11)
)


@given(st.lists(events, max_size=60), st.sampled_from([BASE, Fraction(1, 1000), None]))
def test_time_always_goes_on_and_never_faster_than_it_may(events, base) -> None:
    clock = LiveClock(base, 40 * MS)
    now_ns, last_ns, last_arrived_ns = 0, -1, 0
    for stamp, later_ns in events:
        now_ns += later_ns
        pts_ns = clock.next_ns(stamp, now_ns)
        assert pts_ns > last_ns
        if last_ns < 0:
            assert pts_ns == 0
        else:
            assert pts_ns - last_ns <= now_ns - last_arrived_ns + SLACK_NS + 80 * MS
        last_ns, last_arrived_ns = pts_ns, now_ns


def test_what_is_further_back_than_any_reordering_is_a_jump() -> None:
    back = int(BACK_NS / SECOND * 90_000)
    assert run([10 * 90_000, 10 * 90_000 + FRAME, 10 * 90_000 - back, 10 * 90_000 - back + FRAME]) == [0, 40, 80, 120]


@pytest.mark.parametrize(
    ("rtcp_ns", "expected"),
    [
        (None, (100 * SECOND, "arrival")),
        (99 * SECOND, (99 * SECOND, "rtcp")),
        (90 * SECOND, (90 * SECOND, "rtcp")),
        (90 * SECOND - 1, (100 * SECOND, "arrival")),
        (101 * SECOND, (101 * SECOND, "rtcp")),
        (101 * SECOND + 1, (100 * SECOND, "arrival")),
        (-(10**18), (100 * SECOND, "arrival")),
    ],
)
def test_a_camera_that_is_absurdly_wrong_about_the_time_of_day_is_not_believed(rtcp_ns, expected) -> None:
    assert captured(rtcp_ns, 100 * SECOND) == expected

"""When a camera's next frame is expected: stamps in, a moment out."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.runtime.rhythm import NEEDED, REGULAR_NS, WAY_NS, Rhythm

MS = 1_000_000


def after(*stamps_ms: float) -> Rhythm:
    rhythm = Rhythm()
    for stamp_ms in stamps_ms:
        rhythm.came(int(stamp_ms * MS))
    return rhythm


def test_nothing_is_expected_of_a_camera_that_has_hardly_begun() -> None:
    for count in range(NEEDED + 1):
        assert after(*(100 + 40 * index for index in range(count))).next_ns(1) is None
    assert after(*(100 + 40 * index for index in range(NEEDED + 1))).next_ns(1) is not None


def test_a_regular_camera_is_expected_one_interval_later_and_after_that_no_more() -> None:
    rhythm = after(*range(100, 500, 40))
    assert rhythm.next_ns(461 * MS) == 500 * MS + WAY_NS
    assert rhythm.next_ns(500 * MS + WAY_NS) is None


@pytest.mark.parametrize("odd_ms", [5, 39, 80, 4000])
def test_one_interval_of_another_length_changes_nothing(odd_ms: int) -> None:
    regular = [100 + 40 * index for index in range(6)]
    rhythm = after(*regular, regular[-1] + odd_ms, *(regular[-1] + odd_ms + 40 * index for index in (1, 2)))
    last = regular[-1] + odd_ms + 80
    assert rhythm.next_ns(last * MS) == (last + 40) * MS + WAY_NS


def test_a_late_frame_is_expected_a_little_longer_by_as_much_as_others_vary() -> None:
    rhythm = after(0, 40, 79, 120, 159, 200, 239, 280, 319)  # 41 and 39 in turn
    assert rhythm.next_ns(320 * MS) == 360 * MS + WAY_NS
    assert rhythm.next_ns(360 * MS + WAY_NS) == 362 * MS + WAY_NS
    assert rhythm.next_ns(362 * MS + WAY_NS) is None


def test_of_an_irregular_camera_nothing_is_expected() -> None:
    rng = random.Random(1)
    stamps = [0.0]
    for _ in range(50):
        stamps.append(stamps[-1] + rng.choice([10, 20, 30, 40, 50]))
        assert len(stamps) < 12 or after(*stamps[-9:]).next_ns(int(stamps[-1] * MS)) is None


@given(st.integers(5 * MS, 200 * MS), st.lists(st.integers(0, REGULAR_NS // 4), min_size=9, max_size=30))
def test_what_varies_little_is_expected_near_its_time_and_never_in_the_past(period_ns: int, late_ns: list[int]) -> None:
    rhythm = Rhythm()
    for index, late in enumerate(late_ns):
        rhythm.came(10**9 + index * period_ns + late)
    last_ns = 10**9 + (len(late_ns) - 1) * period_ns + late_ns[-1]
    due_ns = last_ns + period_ns
    next_ns = rhythm.next_ns(last_ns)
    assert next_ns is not None
    assert due_ns - REGULAR_NS // 2 <= next_ns <= due_ns + REGULAR_NS // 2 + WAY_NS
    for now_ns in range(last_ns, due_ns + REGULAR_NS, MS):
        expected_ns = rhythm.next_ns(now_ns)
        assert expected_ns is None or expected_ns > now_ns

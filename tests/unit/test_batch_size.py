"""How many frames a batch should have: by table, and against runs of all that could be done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.runtime.batch_size import WORTH, company_ns, first_part

MS = 1_000_000
STEPS = {1: 5.2, 2: 12.8, 3: 12.8, 4: 12.8, 5: 17.2, 6: 17.2, 7: 17.2, 8: 17.2}
FOUR = dict.fromkeys(range(1, 5), 9.0)
LINE = {size: 3.5 + 1.7 * size for size in range(1, 9)}
SUM = {size: 5.0 * size for size in range(1, 9)}


def ns(table: dict[int, float]) -> dict[int, int]:
    return {size: int(time_ms * MS) for size, time_ms in table.items()}


@pytest.mark.parametrize(
    ("table", "frames", "part"),
    [
        (STEPS, 1, 1),
        (STEPS, 2, 1),
        (STEPS, 3, 3),  # 12.8 against 15.6
        (STEPS, 4, 4),
        (STEPS, 5, 5),  # 17.2 against 12.8 + 5.2
        (STEPS, 8, 8),
        (FOUR, 2, 2),
        (FOUR, 4, 4),
        (LINE, 2, 2),
        (LINE, 8, 8),
        (SUM, 8, 8),  # nothing is won
        ({1: 1.0, 2: 6.0, 3: 6.0, 4: 6.0}, 4, 1),
        ({4: 5.0, 8: 30.0}, 8, 4),
        ({1: 5.2}, 2, 2),  # never seen: tried
        ({2: 12.8}, 2, 2),
        ({}, 2, 2),
    ],
)
def test_a_batch_is_cut_only_where_its_parts_end_sooner(table: dict[int, float], frames: int, part: int) -> None:
    assert first_part(frames, ns(table).get) == part


@pytest.mark.parametrize(
    ("table", "frames", "in_ms", "until_ms"),
    [
        (STEPS, 1, [], None),
        (STEPS, 1, [0.5], None),  # 5.2 and 10.4 in place of 13.3 twice
        (STEPS, 3, [1], 1),  # the fourth costs nothing
        (STEPS, 3, [4.9], None),  # 3 frames wait 4.9 for one that would have waited 7.9
        (STEPS, 1, [0.2, 0.3, 0.4], 0.4),
        (FOUR, 1, [4], 4),
        (FOUR, 1, [1, 4], 1),  # and when it has come the question is another
        (FOUR, 1, [0.5, 0.6, 0.7], 0.7),
        (LINE, 1, [1], None),
        (LINE, 1, [0, 0, 0, 0, 0, 0, 0.1], 0.1),
        ({}, 1, [0.1], None),
        ({1: 5.2}, 1, [0.1], None),
    ],
)
def test_frames_wait_for_others_only_where_all_together_have_their_results_sooner(
    table: dict[int, float], frames: int, in_ms: list[float], until_ms: float | None
) -> None:
    now_ns = 10**12
    expected_ns = [now_ns + int(each * MS) for each in in_ms]
    found_ns = company_ns(frames, expected_ns, now_ns, ns(table).get)
    assert found_ns == (None if until_ms is None else now_ns + int(until_ms * MS))


def test_frames_for_which_another_device_is_free_are_not_waited_for() -> None:
    args = (1, [10**12 + MS // 2], 10**12, ns(FOUR).get)
    assert company_ns(*args) is not None
    assert company_ns(*args, elsewhere=True) is None


tables = st.lists(st.integers(1, 50), min_size=8, max_size=8).map(
    lambda times: {size: sum(times[:size]) * MS // 4 for size in range(1, 9)}
)


@given(tables, st.integers(1, 8))
def test_cut_batches_are_never_slower_together_than_the_whole_one(table: dict[int, int], frames: int) -> None:
    part = first_part(frames, table.get)
    assert 1 <= part <= frames
    if part < frames:
        sizes = [part] * (frames // part) + ([frames % part] if frames % part else [])
        assert sum(table[size] for size in sizes) <= table[frames] * (WORTH - 1) / WORTH + 1


@given(tables, st.integers(1, 4), st.lists(st.integers(0, 10 * MS), max_size=4).map(sorted), st.booleans())
def test_waiting_brings_results_sooner_on_average_than_going_at_once(
    table: dict[int, int], frames: int, expected_ns: list[int], elsewhere: bool
) -> None:
    until_ns = company_ns(frames, expected_ns, 0, table.get, elsewhere=elsewhere)
    if until_ns is None:
        return
    assert until_ns in expected_ns
    found = False
    for count, at_ns in enumerate(expected_ns, 1):
        if at_ns == until_ns:
            together = (frames + count) * (at_ns + table[frames + count])
            free_ns = 0 if elsewhere else table[frames]
            at_once = frames * table[frames] + count * (max(at_ns, free_ns) + table[count])
            found = found or together < at_once
    assert found

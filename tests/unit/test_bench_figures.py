"""The arithmetic of the bench against tables and slow, plain ways of saying the same."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.bench.batches import (
    BatchRun,
    Interval,
    covered_ns,
    full_share,
    hidden_share,
    idle_share,
    lanes,
    occupancy,
)
from pipeline.bench.ceiling import Part, ceiling
from pipeline.bench.figures import Percentiles, Spread, crossings, paced_rate, percentile, rate, spreads
from pipeline.bench.search import Search
from pipeline.bench.windows import SECOND_NS, Windows

# --- percentiles, spreads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [
        (1, 0.5, 1),
        (1, 1.0, 1),
        (2, 0.5, 1),
        (3, 0.5, 2),
        (20, 0.95, 19),
        (21, 0.95, 20),
        (100, 0.99, 99),
        (100, 1, 100),
    ],
)
def test_percentiles_are_by_nearest_rank(count: int, share: float, expected: int) -> None:
    assert percentile(list(range(1, count + 1)), share) == expected


def test_percentiles_of_nothing_are_not_known() -> None:
    assert all(map(math.isnan, (Percentiles.of([]).p50, Percentiles.of([]).most, Spread.of([]).median)))
    assert Spread.of([math.nan]).text() == "-"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.sampled_from([0.5, 0.8, 0.95, 0.99, 1.0]))
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(values: list[float], share: float) -> None:
    found = percentile(sorted(values), share)
    enough = share * len(values) - 1e-6
    assert found in values
    assert sum(value <= found for value in values) >= enough
    assert sum(value < found for value in values) < share * len(values) + 1e-6
    assert found == min(v for v in values if sum(each <= v for each in values) >= enough)


def test_spreads_of_figures_that_only_some_runs_have() -> None:
    found = spreads([{"a": 1.0, "b": 5.0}, {"a": 3.0}, {"a": 2.0}])
    assert (found["a"], found["b"]) == (Spread(2, 1, 3), Spread(5, 5, 5))
    assert (found["a"].text(2), found["b"].text(0), found["a"].text(0, 100)) == (
        "2.00 (1.00 .. 3.00)",
        "5",
        "200 (100 .. 300)",
    )


# --- rates ------------------------------------------------------------------------------------------------------------


@given(st.floats(1, 60), st.floats(0, 5), st.floats(0.5, 8))
def test_a_steady_stream_has_its_rate_whatever_the_window(fps: float, start: float, length: float) -> None:
    times = [number / fps for number in range(int(15 * fps))]
    assert rate(times, start, start + length) == pytest.approx(fps, rel=1e-6)


def test_before_the_first_and_after_the_last_event_nothing_passes() -> None:
    times = [1.0, 2.0, 4.0]
    assert [crossings(times, at) for at in (0, 0.99, 1, 1.5, 2, 3, 4, 9)] == [0, 0, 1, 1.5, 2, 2.5, 3, 3]
    assert rate(times, 4, 8) == 0
    assert rate(times, 3, 3) == 0
    assert rate([], 0, 1) == 0


@given(st.integers(5, 60), st.floats(3, 10), st.randoms())
def test_delays_of_single_frames_hardly_change_the_rate_of_a_paced_stream(fps: int, seconds: float, draw) -> None:
    times = sorted(number / fps + draw.uniform(0, 0.03) for number in range(int(fps * (seconds + 2))))
    assert paced_rate(times, 1, 1 + seconds) == pytest.approx(fps, abs=max(0.2, fps / 100))


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([number / 25 for number in range(150)], 25.0),
        ([number / 20 for number in range(150)], 20.0),  # falls behind
        ([number / 25 for number in range(150) if number % 5], 20.0),  # every fifth was dropped
        ([number / 25 for number in range(75)], 12.75),  # stopped after 3 of 5 seconds: 50 frames of 1 .. 5, and one
        ([], 0.0),
        ([2.0], 0.25),
        ([2.0, 2.0, 2.0, 2.0], 1.0),
    ],
)
def test_a_paced_stream_that_loses_frames_is_slower(times: list[float], expected: float) -> None:
    assert paced_rate(times, 1, 5) == pytest.approx(expected, abs=0.06)


# --- windows ----------------------------------------------------------------------------------------------------------


@given(st.floats(0.1, 1000), st.integers(3, 40))
def test_windows_leave_out_the_first_and_the_last(seconds: float, count: int) -> None:
    windows = Windows.of(seconds, count)
    start_ns, end_ns = windows.kept_ns
    assert windows.kept_s == pytest.approx(seconds, rel=1e-6)
    assert (start_ns, windows.total_ns - end_ns) == (windows.length_ns, windows.length_ns)
    edges = windows.edges_ns()
    assert (edges[0], edges[-1], len(edges)) == (start_ns, end_ns, count - 1)


def test_two_windows_leave_nothing_between_them() -> None:
    with pytest.raises(ValueError, match="none between"):
        Windows(SECOND_NS, 2)


# --- search -----------------------------------------------------------------------------------------------------------


def searched(limit: int, first: int, most: int, trials: int) -> tuple[Search, list[int]]:
    search, tried = Search(first, most, trials), []
    while (count := search.next()) is not None:
        tried.append(count)
        search.tell(count, passed=count <= limit)
    return search, tried


@given(st.integers(0, 200), st.integers(1, 200), st.integers(1, 200))
def test_a_search_finds_the_limit_and_tries_nothing_twice(limit: int, first: int, most: int) -> None:
    search, tried = searched(limit, first, most, 100)
    assert search.passed == min(limit, most)
    assert search.exact
    assert len(set(tried)) == len(tried) <= 20
    assert all(1 <= count <= most for count in tried)


@given(st.integers(0, 200), st.integers(1, 200), st.integers(1, 12))
def test_a_search_that_runs_out_of_tries_says_what_is_known(limit: int, first: int, trials: int) -> None:
    search, tried = searched(limit, first, 200, trials)
    assert len(tried) <= trials
    assert search.passed == max((count for count in tried if count <= limit), default=0)
    assert search.failed == min((count for count in tried if count > limit), default=None)


@pytest.mark.parametrize(
    ("limit", "first", "tried"),
    [(10, 10, [10, 12, 11]), (13, 10, [10, 12, 16, 14, 13]), (3, 10, [10, 8, 4, 1, 2, 3]), (0, 1, [1]), (64, 64, [64])],
)
def test_the_numbers_that_are_tried(limit: int, first: int, tried: list[int]) -> None:
    assert searched(limit, first, 64, 20)[1] == tried


# --- batches ----------------------------------------------------------------------------------------------------------


def runs_of(*times: tuple[int, int, int, int], executor: str = "executor/x/0", frames: int = 8) -> list[BatchRun]:
    return [BatchRun(executor, frames, *each) for each in times]


def test_a_run_computes_from_its_upload_or_the_end_of_the_run_before() -> None:
    told = lanes(runs_of((0, 10, 50, 55), (20, 30, 90, 95), (100, 120, 160, 161)))
    assert told.execute == (Interval(10, 50), Interval(50, 90), Interval(120, 160))
    assert told.upload == (Interval(0, 10), Interval(20, 30), Interval(100, 120))
    assert told.download == (Interval(50, 55), Interval(90, 95), Interval(160, 161))


def test_idle_and_hidden_shares() -> None:
    runs = runs_of((0, 10, 50, 55), (20, 30, 90, 95), (100, 120, 160, 161))
    assert idle_share(runs, 0, 200, parallel=False) == pytest.approx(1 - (80 + 40) / 200)
    assert idle_share(runs, 10, 90, parallel=False) == 0
    assert hidden_share(runs) == pytest.approx((10 + 5) / (10 + 5 + 10 + 5 + 20 + 1))
    assert (idle_share([], 0, 10, parallel=False), idle_share(runs, 5, 5, parallel=False), hidden_share([])) == (
        1,
        1,
        1,
    )


def test_copies_at_the_edges_of_a_window_lie_under_the_compute_of_batches_outside() -> None:
    every = runs_of((0, 5, 30, 35), (10, 15, 60, 65), (40, 45, 90, 95))
    assert hidden_share(every[1:2]) == 0.0  # its upload and its download, each while another batch computes
    assert hidden_share(every[1:2], every) == 1.0


def test_executors_of_a_cpu_compute_beside_one_another() -> None:
    runs = [*runs_of((0, 0, 100, 100)), *runs_of((0, 0, 50, 50), executor="executor/x/1")]
    assert idle_share(runs, 0, 100, parallel=True) == pytest.approx(0.25)
    assert idle_share(runs, 0, 100, parallel=False) == 0


def test_occupancy() -> None:
    runs = [*runs_of((0, 1, 2, 3)), *runs_of((0, 1, 2, 3), frames=4)]
    assert (occupancy(runs, 8), full_share(runs, 8), occupancy([], 8), full_share([], 8)) == (0.75, 0.5, 0, 0)


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda t: Interval(t[0], t[0] + t[1])))


@given(intervals, st.integers(0, 60), st.integers(0, 60))
def test_covered_time_is_that_of_a_count_tick_by_tick(some: list[Interval], start: int, length: int) -> None:
    ticks = sum(any(each.start_ns <= tick < each.end_ns for each in some) for tick in range(start, start + length))
    assert covered_ns(some, start, start + length) == ticks


@given(st.lists(st.tuples(*[st.integers(0, 9)] * 4), max_size=12))
def test_hidden_copies_are_those_of_a_count_tick_by_tick(steps: list[tuple[int, int, int, int]]) -> None:
    runs, now = [], 0
    for wait, upload, compute, download in steps:  # as a device gives them: one ends after the other
        submitted = now + wait
        now = submitted + upload + compute
        runs += runs_of((submitted, submitted + upload, now, now + download))
    told = lanes(runs)
    copies = [tick for each in (*told.upload, *told.download) for tick in range(each.start_ns, each.end_ns)]
    hidden = sum(any(each.start_ns <= tick < each.end_ns for each in told.execute) for tick in copies)
    assert hidden_share(runs) == pytest.approx(hidden / len(copies) if copies else 1)


# --- ceilings ---------------------------------------------------------------------------------------------------------


def test_the_ceiling_is_the_slowest_part_or_the_cores() -> None:
    found = ceiling([Part("decode", 500, 4.0), Part("device", 465, 0.5), Part("post", 900, 1.1)], 2)
    assert (found.of_parts, found.slowest) == (465, "device")
    assert found.of_cores == pytest.approx(2000 / 5.6)
    assert found.nearest == found.of_cores
    assert math.isinf(ceiling([Part("device", 465, 0.0)], 2).of_cores)


def test_a_median_is_a_value_of_a_run() -> None:
    values = [3.0, 1.0, 2.0]
    assert Spread.of(values).median == statistics.median(values)

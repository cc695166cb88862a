"""When an executor will be free: stamps of its batches in, a moment out."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from searching import examples

from pipeline.runtime.executor_forecast import FIRST_LEAD_NS, OUTLIERS, REMEMBERED, WAKE_NS, Durations, ExecutorForecast
from stages.messages import ItemFailed, RawOutput

MS = 1_000_000


def raw(uploaded_ns: int, executed_ns: int, failed: int = 0) -> RawOutput:
    told = [ItemFailed(index, "stale", "") for index in range(failed)]
    return RawOutput(1, 2, told, uploaded_ns, uploaded_ns, executed_ns, executed_ns)


def taught(
    *, copy_ns: int = MS, frames: int = 4, service_ns: int = 10 * MS, batches: int = REMEMBERED
) -> ExecutorForecast:
    """It has seen batches that came one after the other to a device that was free."""
    forecast = ExecutorForecast()
    for number in range(batches):
        at_ns = number * 100 * MS
        forecast.given(number, "m", frames, at_ns)
        took_ns = forecast.ended(number, raw(at_ns + copy_ns, at_ns + copy_ns + service_ns))
        assert took_ns == service_ns
    return forecast


def test_nothing_is_forecast_before_anything_is_known() -> None:
    forecast = ExecutorForecast()
    assert forecast.free_ns == 0
    forecast.given(1, "m", 4, 5)
    assert (forecast.free_ns, forecast.latest_ns("m", 1)) == (None, None)
    forecast.ended(1, raw(6, 20))
    assert forecast.free_ns == 20


def test_batches_are_computed_one_after_the_other() -> None:
    forecast, now_ns = taught(), 10_000 * MS
    forecast.given(100, "m", 4, now_ns)
    assert forecast.free_ns == now_ns + 11 * MS
    forecast.given(101, "m", 4, now_ns + 2 * MS)
    assert forecast.free_ns == now_ns + 21 * MS
    assert forecast.latest_ns("m", 4) == now_ns + 21 * MS - MS - WAKE_NS
    # the first one took 3 ms longer
    assert forecast.ended(100, raw(now_ns + MS, now_ns + 14 * MS)) == 13 * MS
    assert forecast.free_ns == now_ns + 24 * MS
    assert forecast.ended(101, raw(now_ns + 3 * MS, now_ns + 24 * MS)) == 10 * MS, "not while it waited"


def test_a_batch_given_to_a_device_that_is_overdue_begins_when_it_is_given() -> None:
    forecast, now_ns = taught(), 10_000 * MS
    forecast.given(100, "m", 4, now_ns)
    forecast.given(101, "m", 4, now_ns + 50 * MS)
    assert forecast.free_ns == now_ns + 61 * MS


def test_another_model_is_learnt_for_itself() -> None:
    forecast = taught()
    forecast.given(100, "other", 4, 10_000 * MS)
    assert forecast.free_ns is None
    assert taught().latest_ns("other", 4) == 1511 * MS - FIRST_LEAD_NS - WAKE_NS


def test_what_was_not_run_teaches_nothing() -> None:
    forecast = taught(frames=4)
    for number in range(100, 100 + REMEMBERED):
        forecast.given(number, "m", 4, 10_000 * MS)
        forecast.ended(number, raw(10_001 * MS, 10_001 * MS, failed=4))
    forecast.given(200, "m", 4, 20_000 * MS)
    assert forecast.free_ns == 20_011 * MS


def test_the_death_of_an_executor_ends_what_it_held_and_not_what_was_learnt() -> None:
    forecast = taught()
    forecast.given(100, "m", 4, 10_000 * MS)
    forecast.lost()
    assert forecast.free_ns == 0
    forecast.given(101, "m", 4, 20_000 * MS)
    assert forecast.free_ns == 20_011 * MS


def test_stamps_that_make_no_sense_forecast_no_later_than_now() -> None:
    forecast = taught(copy_ns=-50 * MS, service_ns=0, batches=3)
    forecast.given(9, "m", 4, 10_000 * MS)
    assert forecast.free_ns == 10_000 * MS


@given(st.lists(st.integers(9 * MS, 11 * MS), min_size=REMEMBERED), st.integers(0, OUTLIERS), st.integers(0, OUTLIERS))
@settings(max_examples=examples(100))
def test_single_outliers_move_nothing(times: list[int], slow: int, fast: int) -> None:
    durations = Durations()
    for time_ns in [*times, *[1000 * MS] * slow, *[0] * fast]:
        durations.took(3, time_ns)
    low_ns, high_ns = durations.low_ns(3), durations.high_ns(3)
    assert low_ns is not None
    assert high_ns is not None
    assert 9 * MS <= low_ns <= high_ns <= 11 * MS


@given(st.integers(0, 20 * MS), st.integers(1, 5 * MS), st.sets(st.integers(1, 64), min_size=1), st.integers(1, 64))
@settings(max_examples=examples(200))
def test_sizes_that_were_not_seen_are_guessed_on_the_safe_side(
    fixed_ns: int, each_ns: int, seen: set[int], size: int
) -> None:
    """Of a device that takes some time for a batch and some for each frame."""
    durations = Durations()
    assert (durations.low_ns(size), durations.high_ns(size)) == (None, None)
    for frames in seen:
        durations.took(frames, fixed_ns + frames * each_ns)
    low_ns, high_ns = durations.low_ns(size), durations.high_ns(size)
    assert low_ns is not None
    assert high_ns is not None
    assert low_ns <= fixed_ns + size * each_ns <= high_ns
    if size in seen:
        assert low_ns == high_ns

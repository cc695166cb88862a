"""Histograms of durations against counting by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.observe.latency import BOUNDS_S, BUCKETS, Histogram


@given(st.lists(st.integers(-(10**9), 10**12), max_size=50))
def test_each_duration_is_below_its_bound(durations: list[int]) -> None:
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration)
    kept = [max(duration, 0) for duration in durations]
    below = [sum(duration < bound * 1e9 for duration in kept) for bound in BOUNDS_S]
    assert histogram.cumulative() == [*below, len(durations)]
    assert histogram.sum_ns == sum(kept)
    assert len(BOUNDS_S) == BUCKETS - 1

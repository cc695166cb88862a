"""Owns histograms of durations, cheap enough to count every frame in the engine's loop. Names no stage, no metric.

Buckets double: bucket ``i`` holds durations below ``2**i`` ticks of 131 µs (2**17 ns), so that counting is a shift and
a ``bit_length``, and 0.13 ms to 1.1 minutes take 20 buckets. That is coarse; exact percentiles come from ``trace``.
"""

from __future__ import annotations

TICK_BITS = 17
BUCKETS = 20
BOUNDS_S = tuple((1 << (bucket + TICK_BITS)) / 1e9 for bucket in range(BUCKETS - 1))  # of all but the last, open one


class Histogram:
    """Durations seen so far: ``counts`` by bucket, and their sum."""

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.sum_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count one duration; what is negative, by clocks read in another order, counts as none."""
        bucket = (max(duration_ns, 0) >> TICK_BITS).bit_length()
        self.counts[bucket if bucket < BUCKETS else BUCKETS - 1] += 1
        self.sum_ns += max(duration_ns, 0)

    def cumulative(self) -> list[int]:
        """Durations below each of ``BOUNDS_S``, and at last all of them."""
        total, found = 0, []
        for count in self.counts:
            total += count
            found.append(total)
        return found

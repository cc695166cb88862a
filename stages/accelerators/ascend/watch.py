"""Owns the judgement whether a device's free memory shrinks for good. Pure: is told samples, asks no device.

A device is shared with other processes, and runtimes allocate lazily in their first batches; so a leak is told only
when free memory falls over many samples, in each of several spans, by much; and again only when twice as much is lost.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

WARM_UP_SAMPLES: Final = 2  # what the runtime allocates when it first runs is no leak
SPANS: Final = 4  # in each of these the memory must have fallen
MOST_SAMPLES: Final = 64
LEAST_BYTES: Final = 32 << 20  # two pages of 2 MiB per span and more: below that it may be chance


@dataclass(frozen=True, slots=True)
class Leak:
    """Free memory fell steadily: ``lost_bytes`` over ``batches``; the least-squares slope."""

    lost_bytes: int
    batches: int
    bytes_per_batch: float


class MemoryWatch:
    """Samples of one device."""

    def __init__(self, every_batches: int) -> None:
        self.every_batches = every_batches
        self._batches = 0
        self._seen = 0
        self._least_bytes = LEAST_BYTES
        self._samples: list[tuple[int, int]] = []  # batches so far, free bytes

    def batch(self) -> bool:
        """Count a batch; True when a sample is due."""
        self._batches += 1
        return self.every_batches > 0 and self._batches % self.every_batches == 0

    def add(self, free_bytes: int) -> Leak | None:
        """Take a sample; the leak that it proves, if any."""
        self._seen += 1
        if self._seen <= WARM_UP_SAMPLES:
            return None
        self._samples.append((self._batches, free_bytes))
        if len(self._samples) > MOST_SAMPLES:
            self._samples = self._samples[:2] + self._samples[2::2]  # the span stays, half of the samples goes
        leak = self._leak()
        if leak is not None:
            self._samples = self._samples[-1:]  # told: from here on anew
            self._least_bytes = 2 * leak.lost_bytes
        return leak

    def _leak(self) -> Leak | None:
        samples = self._samples
        if len(samples) <= 2 * SPANS:
            return None
        lost = samples[0][1] - samples[-1][1]
        if lost < self._least_bytes:
            return None
        corners = [samples[(len(samples) - 1) * span // SPANS][1] for span in range(SPANS + 1)]
        if not all(later < earlier for earlier, later in itertools.pairwise(corners)):
            return None
        return Leak(lost, samples[-1][0] - samples[0][0], -slope(samples))


def slope(samples: list[tuple[int, int]]) -> float:
    """Least-squares slope of y over x; 0 when all x are equal."""
    count = len(samples)
    mean_x = sum(x for x, _ in samples) / count
    mean_y = sum(y for _, y in samples) / count
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread if spread else 0.0

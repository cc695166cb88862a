"""Owns what a machine could do at best, from its parts measured alone. Pure.

Two bounds, for different reasons. No whole is faster than its slowest part (``of_parts``): what a perfect overlap of
parts that don't get in each other's way would give. Parts that share the cores do get in each other's way: with every
core busy all the time, a frame costs the sum of its parts' CPU times (``of_cores``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """One part alone: frames per second, and CPU milliseconds that a frame took of the host."""

    name: str
    rate: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class Ceiling:
    """``of_parts`` and ``of_cores`` in frames per second; ``slowest`` names the part that bounds ``of_parts``."""

    of_parts: float
    of_cores: float
    slowest: str

    @property
    def nearest(self) -> float:
        """The lower one: what nothing can exceed."""
        return min(self.of_parts, self.of_cores)


def ceiling(parts: list[Part], cores: int) -> Ceiling:
    """The two bounds. NaN and infinity where no part says anything."""
    if not parts:
        return Ceiling(math.nan, math.inf, "")
    slowest = min(parts, key=lambda part: part.rate)
    cpu_ms = sum(part.cpu_ms for part in parts)
    return Ceiling(slowest.rate, cores * 1000 / cpu_ms if cpu_ms > 0 else math.inf, slowest.name)

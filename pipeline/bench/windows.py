"""Owns which part of a run is measured: windows of equal length, the first and the last left out. Pure."""

from __future__ import annotations

from dataclasses import dataclass

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Windows:
    """``count`` windows of ``length_ns`` each; the first warms up, the last may see the end. At least three."""

    length_ns: int
    count: int

    def __post_init__(self) -> None:
        if self.count < 3 or self.length_ns < 1:
            raise ValueError(f"{self.count} windows of {self.length_ns} ns: there is none between the first and last")

    @classmethod
    def of(cls, seconds: float, count: int = 6) -> Windows:
        """So that ``seconds`` in all are measured."""
        return cls(max(1, round(seconds * SECOND_NS / (count - 2))), count)

    @property
    def kept_ns(self) -> tuple[int, int]:
        """Begin and end of what is measured, since the run's first frame."""
        return self.length_ns, self.length_ns * (self.count - 1)

    @property
    def total_ns(self) -> int:
        """When a run is over."""
        return self.length_ns * self.count

    @property
    def kept_s(self) -> float:
        """Length of what is measured."""
        return self.length_ns * (self.count - 2) / SECOND_NS

    def edges_ns(self) -> list[int]:
        """Begin and end of each window that is measured, in order: ``count - 1`` moments."""
        return [self.length_ns * number for number in range(1, self.count)]

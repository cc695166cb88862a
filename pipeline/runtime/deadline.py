"""Owns how long a worker may hold a piece of work before it is taken to hang: learnt from what its work took. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEAST_NS: Final = 8_000_000_000  # shorter ones are a machine's that is busy with other things
FACTOR: Final = 20  # of the longest that it took lately
LEARNT: Final = 20  # pieces of work, before which only the ceiling holds: the first ones load and compile
REMEMBERED: Final = 100  # the longest of the last 100 to 200 counts


@dataclass(slots=True)
class WorkDeadline:
    """What work took, from when it was given to its result, of one worker over all its incarnations."""

    _count: int = 0
    _longest_ns: int = 0
    _longest_before_ns: int = 0

    def took(self, work_ns: int) -> None:
        """A piece of work was done."""
        if self._count and self._count % REMEMBERED == 0:
            self._longest_before_ns, self._longest_ns = self._longest_ns, 0
        self._count += 1
        self._longest_ns = max(self._longest_ns, work_ns)

    def limit_ns(self, ceiling_ns: int) -> int:
        """How long it may hold the next one; never more than ``ceiling_ns``."""
        if self._count < LEARNT:
            return ceiling_ns
        longest_ns = max(self._longest_ns, self._longest_before_ns)
        return min(ceiling_ns, max(LEAST_NS, FACTOR * longest_ns))

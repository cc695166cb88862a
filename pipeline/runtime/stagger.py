"""Owns when live cameras may connect, so that not all do at once. Pure: times in, delays out."""

from __future__ import annotations

SPACING_NS = 40_000_000  # a hundred cameras are asked within four seconds
LONGEST_NS = 5_000_000_000  # nobody waits longer, however many there are


class Stagger:
    """Gives each connection its turn."""

    def __init__(self) -> None:
        self._next_ns = 0

    def delay_ms(self, now_ns: int) -> int:
        """How long the one that asks now has to wait."""
        turn_ns = min(max(self._next_ns, now_ns), now_ns + LONGEST_NS)
        self._next_ns = turn_ns + SPACING_NS
        return (turn_ns - now_ns) // 1_000_000

"""Owns the count of every frame of one camera. Pure. ``decoded == published + sum(dropped) + in_flight``, exactly."""

from __future__ import annotations

from collections import Counter

from stages.messages import LedgerEntry


class Ledger:
    """Counts of one camera over all its epochs.

    ``decoded`` and ``sampled_out`` are totals told by the decode worker with each message; the other counts are made
    where a frame is settled. ``in_flight`` is counted on its own, so that ``exact`` is a real check and no tautology.
    """

    def __init__(self) -> None:
        self.decoded = 0
        self.published = 0
        self.in_flight = 0
        self._dropped: Counter[str] = Counter()

    def admitted(self, decoded: int, sampled_out: int) -> None:
        """A frame with an identity came in; the totals are the decode worker's."""
        self.totals(decoded, sampled_out)
        self.in_flight += 1

    def totals(self, decoded: int, sampled_out: int) -> None:
        """The decode worker's totals; they never go back."""
        self.decoded = max(self.decoded, decoded)
        self._dropped["sampling"] = max(self._dropped["sampling"], sampled_out)

    def dropped(self, cause: str) -> None:
        """An admitted frame ended for ``cause``."""
        self.in_flight -= 1
        self._dropped[cause] += 1

    def published_one(self) -> None:
        """An admitted frame's detections were taken by every sink."""
        self.in_flight -= 1
        self.published += 1

    @property
    def exact(self) -> bool:
        """Whether the equation holds."""
        return self.decoded == self.published + self._dropped.total() + self.in_flight and self.in_flight >= 0

    def entry(self) -> LedgerEntry:
        """The counts as a message; causes that never occurred are left out."""
        return LedgerEntry(
            decoded=self.decoded,
            published=self.published,
            dropped={cause: n for cause, n in sorted(self._dropped.items()) if n},
            in_flight=self.in_flight,
        )

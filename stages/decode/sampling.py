"""Owns which decoded frames are wanted (``sampling`` of a camera). Pure; counts nothing for the ledger."""

from __future__ import annotations

from fractions import Fraction

from stages.decode.clock import SECOND_NS

TOLERANCE_NS = 1_000_000  # MKV and FLV round to milliseconds: a frame that is due at 33.33 ms may say 33


class Sampler:
    """Decides frame by frame, from the start of an epoch. ``fps`` goes before ``every``."""

    def __init__(self, every: int = 1, fps: float | None = None) -> None:
        rate = None if fps is None else Fraction(fps).limit_denominator(1_000_000)
        if every < 1 or (rate is not None and rate <= 0):
            raise ValueError(f"sampling every {every}, fps {fps}")
        self._every = every
        self._index = 0
        self._due = 0  # number of the next wanted point of the grid k / fps
        self._rate = None if rate is None else (rate.numerator, rate.denominator * SECOND_NS)
        self._tolerance_ns = 0 if rate is None else min(TOLERANCE_NS, int(SECOND_NS / (4 * rate)))

    def keep(self, pts_ns: int) -> bool:
        """Whether the next frame, at ``pts_ns`` since the first one, is wanted.

        ``every: n`` keeps frames 0, n, 2n … of the epoch. ``fps: f`` keeps the first frame, then each first frame that
        reaches the next point of the grid k / f: no drift, and a gap in the stream isn't made up for.
        """
        index, self._index = self._index, self._index + 1
        if self._rate is None:
            return index % self._every == 0
        numerator, denominator = self._rate
        reached = (pts_ns + self._tolerance_ns) * numerator // denominator
        if reached < self._due:
            return False
        self._due = reached + 1
        return True

"""Owns the search for the most streams that pass: which number is tried next, and when to stop. Pure."""

from __future__ import annotations


class Search:
    """Finds the largest number from 1 to ``most`` that passes, as long as more streams never pass where fewer fail.

    From ``first``, a guess, it goes in steps that double, up while it passes or down while it fails, and halves what
    is left between the two. After ``trials`` tries it stops with what is known.
    """

    def __init__(self, first: int, most: int, trials: int) -> None:
        if most < 1 or trials < 1:
            raise ValueError(f"a search up to {most} in {trials} tries finds nothing")
        self.passed = 0  # the most that passed; 0: none did
        self.failed: int | None = None  # the fewest that failed
        self._most = most
        self._left = trials
        self._guess = min(max(first, 1), most)
        self._step = max(1, self._guess // 4)

    @property
    def exact(self) -> bool:
        """Whether the next number after ``passed`` is known to fail, or is more than there may be."""
        return self.passed + 1 == self.failed or self.passed == self._most

    def next(self) -> int | None:
        """The number to try now; None when there is nothing more to find out, or no try is left."""
        if self._left <= 0 or self.exact:
            return None
        if self.failed is None and self.passed == 0:
            return self._guess
        if self.failed is None:
            return min(self.passed + self._step, self._most)
        if self.passed == 0:
            return max(1, self.failed - self._step)
        return (self.passed + self.failed) // 2

    def tell(self, streams: int, *, passed: bool) -> None:
        """The result of a try."""
        self._left -= 1
        if self.passed or self.failed:  # the second step is as long as the first
            self._step *= 2
        if passed:
            self.passed = max(self.passed, streams)
        else:
            self.failed = streams if self.failed is None else min(self.failed, streams)

"""Owns how long a publisher waits for subscribers that were there before it. Pure: the clock is passed in."""

from __future__ import annotations

from typing import Final

NS_PER_MS: Final = 1_000_000
QUIET_NS: Final = 20 * NS_PER_MS  # without a word of any subscriber's, until messages are taken ...
MORE_NS: Final = 3000 * NS_PER_MS  # ... but not longer than that after ``join_ns``


class Joining:
    """From the binding of an address on, for ``join_ns``, and longer while what subscribers ask for still comes in."""

    def __init__(self, now_ns: int, join_ns: int) -> None:
        self._least_ns = now_ns + join_ns
        self._quiet_ns = self._least_ns - QUIET_NS  # nothing has come from subscribers since

    def goes_on(self, now_ns: int, *, news: bool) -> bool:
        """Whether to wait still; ``news``: something has come from subscribers since the last call."""
        if news:
            self._quiet_ns = now_ns
        quiet = now_ns - self._quiet_ns >= QUIET_NS
        return now_ns < self._least_ns + (0 if quiet else MORE_NS)

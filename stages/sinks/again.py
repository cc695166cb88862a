"""Owns when what could not be written is tried again. Pure: reads no clock, opens nothing."""

from __future__ import annotations

FIRST_NS = 1_000_000_000
LONGEST_NS = 30_000_000_000


class Again:
    """Trouble lasts from the first failure until something was written again; tries become ever less frequent.

    ``why``: what the first failure of this trouble was, empty when there is none; ``last_why``: of this or the last
    one. ``waits``: nothing is to be tried until ``look`` finds that it is due.
    """

    def __init__(self) -> None:
        self.why = self.last_why = ""
        self.waits = False
        self._wait_ns = FIRST_NS
        self._due_ns = 0

    def failed(self, why: str, now_ns: int) -> bool:
        """It could not be written; whether that is news."""
        news = not self.why
        if news:
            self.why = self.last_why = why
        self.waits, self._due_ns = True, now_ns + self._wait_ns
        self._wait_ns = min(2 * self._wait_ns, LONGEST_NS)
        return news

    def look(self, now_ns: int) -> None:
        """Let it be tried if it is due."""
        self.waits = self.waits and now_ns < self._due_ns

    def written(self) -> None:
        """All is well again."""
        self.why, self.waits, self._wait_ns = "", False, FIRST_NS

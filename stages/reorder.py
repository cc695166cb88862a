"""Owns the order of one camera's results: what comes back in any order leaves in the order of admission. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Settleable(Protocol):
    """Anything that was admitted and is at some time settled (found, or dropped for a cause)."""

    @property
    def settled(self) -> bool:
        """It may leave when everything before it has left."""


S = TypeVar("S", bound=Settleable)


class Reorder(Generic[S]):
    """First admitted, first out, once settled."""

    def __init__(self) -> None:
        self._line: deque[S] = deque()

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[S]:
        return iter(self._line)

    def admit(self, item: S) -> None:
        """Add an item behind all others."""
        self._line.append(item)

    def leave(self) -> Iterator[S]:
        """Items at the head that are settled, removed as they are given."""
        while self._line and self._line[0].settled:
            yield self._line.popleft()

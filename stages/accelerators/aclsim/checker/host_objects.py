"""Owns which Python objects host addresses came from, and whether they still live. Does not own pinned memory.

The pointer helpers take no reference. To know later that an object was dropped, one is kept here, so its memory is not
used again while its address is remembered: the last few, and not more than some megabytes of what is gone.
"""

from __future__ import annotations

import sys
from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.accelerators.aclsim.checker.order import Site

_MOST = 256
_MOST_GONE_BYTES = 32 << 20
_OWN_REFERENCES = 2  # that of the entry, and the argument of getrefcount


@dataclass(slots=True)
class HostObject:
    """An address that a pointer helper told, and whose memory it is."""

    address: int
    size: int
    owner: Any
    site: Site

    @property
    def gone(self) -> bool:
        """Whether nobody else holds the object."""
        return sys.getrefcount(self.owner) <= _OWN_REFERENCES


class HostObjects:
    """See the module."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._by_start: dict[int, HostObject] = {}

    def add(self, value: Any, address: int, site: Site) -> None:
        """A helper told where the memory of ``value`` lies."""
        size = value.nbytes if isinstance(value, np.ndarray) else len(value)
        owner = value
        while isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        if size == 0 or address == 0:
            return
        if address not in self._by_start:
            insort(self._starts, address)
        self._by_start.pop(address, None)
        self._by_start[address] = HostObject(address, size, owner, site)
        self._forget()

    def of(self, address: int) -> HostObject | None:
        """The object that an address lies in; the innermost when they overlap."""
        index = bisect_right(self._starts, address) - 1
        while index >= 0:
            found = self._by_start[self._starts[index]]
            if address < found.address + found.size:
                return found
            index -= 1
            if address - found.address > 1 << 32:
                break
        return None

    def _forget(self) -> None:
        gone = [entry for entry in self._by_start.values() if entry.size > 4096 and entry.gone]
        spare = sum(entry.size for entry in gone) - _MOST_GONE_BYTES
        for entry in gone:
            if spare <= 0:
                break
            spare -= entry.size
            self._drop(entry)
        while len(self._by_start) > _MOST:
            self._drop(next(iter(self._by_start.values())))

    def _drop(self, entry: HostObject) -> None:
        del self._by_start[entry.address]
        self._starts.pop(bisect_right(self._starts, entry.address) - 1)

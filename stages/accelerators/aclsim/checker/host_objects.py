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
_OWN_REFERENCES = 2  # that of the holder, and the argument of getrefcount


class _Holder:
    """The one reference to an object that is kept here, whatever number of addresses in it is known."""

    __slots__ = ("entries", "owner")

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.entries = 0


@dataclass(slots=True)
class HostObject:
    """An address that a pointer helper told, and whose memory it is."""

    address: int
    size: int
    holder: _Holder
    site: Site

    @property
    def gone(self) -> bool:
        """Whether nobody else holds the object."""
        return sys.getrefcount(self.holder.owner) <= _OWN_REFERENCES


class HostObjects:
    """See the module."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._by_start: dict[int, HostObject] = {}
        self._holders: dict[int, _Holder] = {}  # by id of the object

    def add(self, value: Any, address: int, site: Site) -> None:
        """A helper told where the memory of ``value`` lies."""
        size = value.nbytes if isinstance(value, np.ndarray) else len(value)
        owner = value
        while isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        if size == 0 or address == 0:
            return
        known = self._by_start.get(address)
        if known is not None:
            self._drop(known)
        holder = self._holders.get(id(owner))
        if holder is None:
            holder = self._holders[id(owner)] = _Holder(owner)
        holder.entries += 1
        insort(self._starts, address)
        self._by_start[address] = HostObject(address, size, holder, site)
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
        entry.holder.entries -= 1
        if entry.holder.entries == 0:
            del self._holders[id(entry.holder.owner)]
        self._starts.pop(bisect_right(self._starts, entry.address) - 1)

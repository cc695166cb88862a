"""Owns what lives on a device: each thing has a name, a size and a context manager that gives it back. Knows no order.

Whoever opens things puts their managers on a stack, so that they go in the opposite order, whatever fails between. A
thing that the vendor refuses to take back stays in the register and is told; the others still go.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from stages.accelerators.ascend.calls import Acl
from stages.accelerators.ascend.constants import EVENT_SYNC, MALLOC_HUGE_FIRST
from stages.accelerators.ascend.errors import AclError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Held:
    """One thing that lives. ``size_bytes``: 0 for what has no size of its own."""

    kind: str
    name: str
    size_bytes: int


class Register:
    """What lives, by name and size. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, Held] = {}
        self._next = 0

    def add(self, kind: str, name: str, size_bytes: int = 0) -> int:
        """Note a thing; the number to drop it by."""
        with self._lock:
            self._next += 1
            self._held[self._next] = Held(kind, name, size_bytes)
            return self._next

    def drop(self, number: int) -> None:
        """Forget a thing."""
        with self._lock:
            self._held.pop(number, None)

    def held(self) -> tuple[Held, ...]:
        """All that lives, in the order of creation."""
        with self._lock:
            return tuple(self._held.values())

    def size_bytes(self, kind: str) -> int:
        """Bytes of all things of a kind."""
        return sum(held.size_bytes for held in self.held() if held.kind == kind)

    def lines(self) -> list[str]:
        """The owner table, largest first; things of one kind and name are one line."""
        totals: dict[tuple[str, str], tuple[int, int]] = {}
        for held in self.held():
            count, size = totals.get((held.kind, held.name), (0, 0))
            totals[held.kind, held.name] = (count + 1, size + held.size_bytes)
        ranked = sorted(totals.items(), key=lambda item: (-item[1][1], item[0]))
        return [
            f"{kind}: {name}" + (f" x {count}" if count > 1 else "") + (f", {_mib(size)}" if size else "")
            for (kind, name), (count, size) in ranked
        ]


class Thing(AbstractContextManager[int]):
    """One thing: made on entering, which gives its handle or address, given back on leaving.

    No generator: those release when they are collected, which for things of the vendor's is never the right moment.
    """

    def __init__(  # noqa: PLR0917  made by Owner alone
        self,
        owner: Owner,
        kind: str,
        name: str,
        make: Callable[[], int],
        give_back: Callable[[int], object],
        size: int = 0,
    ) -> None:
        self._owner = owner
        self._kind = kind
        self._name = name
        self._make = make
        self._give_back = give_back
        self._size_bytes = size
        self._handle = 0
        self._number = 0

    def __enter__(self) -> int:
        self._handle = self._make()
        self._number = self._owner.register.add(self._kind, self._name, self._size_bytes)
        return self._handle

    def __exit__(self, *_error: object) -> None:
        if self._owner.abandoned:
            return
        try:
            self._give_back(self._handle)
        except AclError as error:
            log.warning("%s %s is not given back: %s", self._kind, self._name, error)
            if self._kind == "model":  # it still uses its work and weight memory: nothing is given back from here on
                self._owner.abandoned = str(error)
        else:
            self._owner.register.drop(self._number)


class Owner:
    """Makes things of one device. The context they belong to is current when they are made and given back."""

    def __init__(self, acl: Acl, register: Register) -> None:
        self.acl = acl
        self.register = register
        self.abandoned = ""  # why nothing may be given back any more: work that never ended may still use it

    def device_memory(self, name: str, size_bytes: int) -> Thing:
        """Device memory, 64-byte aligned, not initialised; its address."""
        rt = self.acl.rt
        make = partial(rt.malloc, size_bytes, MALLOC_HUGE_FIRST)
        return Thing(self, "device memory", name, make, rt.free, size_bytes)

    def pinned_memory(self, name: str, size_bytes: int) -> Thing:
        """Host memory that asynchronous copies may use, 64-byte aligned; its address."""
        rt = self.acl.rt
        return Thing(self, "pinned memory", name, partial(rt.malloc_host, size_bytes), rt.free_host, size_bytes)

    def context(self, name: str, device: int) -> Thing:
        """An explicit context, current for the calling thread from now on."""
        rt = self.acl.rt
        return Thing(self, "context", name, partial(rt.create_context, device), rt.destroy_context)

    def stream(self, name: str) -> Thing:
        """A stream of the current context."""
        rt = self.acl.rt
        return Thing(self, "stream", name, rt.create_stream, rt.destroy_stream)

    def event(self, name: str) -> Thing:
        """An event that one stream may wait for and reset."""
        rt = self.acl.rt
        return Thing(self, "event", name, partial(rt.create_event_with_flag, EVENT_SYNC), rt.destroy_event)

    def description(self, name: str) -> Thing:
        """An empty model description."""
        mdl = self.acl.mdl
        return Thing(self, "model description", name, mdl.create_desc, mdl.destroy_desc)

    def model(self, name: str, load: Callable[[], int]) -> Thing:
        """A loaded model, unloaded in the context that is current then: let it be that of the load."""
        return Thing(self, "model", name, load, self.acl.mdl.unload)

    def data_buffer(self, name: str, address: int, size_bytes: int) -> Thing:
        """An address and a size as datasets take them; the memory itself is somebody else's."""
        acl = self.acl
        make = partial(acl.create_data_buffer, address, size_bytes)
        return Thing(self, "data buffer", name, make, acl.destroy_data_buffer)

    def dataset(self, name: str) -> Thing:
        """An empty dataset; the buffers that are added stay their owners'."""
        mdl = self.acl.mdl
        return Thing(self, "dataset", name, mdl.create_dataset, mdl.destroy_dataset)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"

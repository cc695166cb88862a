"""Owns what lives on a device: each thing has a name, a size and a context manager that gives it back. Knows no order.

Whoever opens things puts their managers on a stack, so that they go in the opposite order, whatever fails between. A
thing that the vendor refuses to take back stays in the register and is told; the others still go.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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


class Owner:
    """Makes things of one device. The context they belong to is current when they are made and given back."""

    def __init__(self, acl: Acl, register: Register) -> None:
        self.acl = acl
        self.register = register
        self.abandoned = ""  # why nothing may be given back any more: work that never ended may still use it

    @contextmanager
    def device_memory(self, name: str, size_bytes: int) -> Iterator[int]:
        """Device memory, 64-byte aligned, not initialised; its address."""
        address = self.acl.rt.malloc(size_bytes, MALLOC_HUGE_FIRST)
        with self._held("device memory", name, self.acl.rt.free, address, size_bytes):
            yield address

    @contextmanager
    def pinned_memory(self, name: str, size_bytes: int) -> Iterator[int]:
        """Host memory that asynchronous copies may use, 64-byte aligned; its address."""
        address = self.acl.rt.malloc_host(size_bytes)
        with self._held("pinned memory", name, self.acl.rt.free_host, address, size_bytes):
            yield address

    @contextmanager
    def context(self, name: str, device: int) -> Iterator[int]:
        """An explicit context, current for the calling thread from now on."""
        handle = self.acl.rt.create_context(device)
        with self._held("context", name, self.acl.rt.destroy_context, handle):
            yield handle

    @contextmanager
    def stream(self, name: str) -> Iterator[int]:
        """A stream of the current context."""
        handle = self.acl.rt.create_stream()
        with self._held("stream", name, self.acl.rt.destroy_stream, handle):
            yield handle

    @contextmanager
    def event(self, name: str) -> Iterator[int]:
        """An event that one stream may wait for and reset."""
        handle = self.acl.rt.create_event_with_flag(EVENT_SYNC)
        with self._held("event", name, self.acl.rt.destroy_event, handle):
            yield handle

    @contextmanager
    def description(self, name: str) -> Iterator[int]:
        """An empty model description."""
        handle = self.acl.mdl.create_desc()
        with self._held("model description", name, self.acl.mdl.destroy_desc, handle):
            yield handle

    @contextmanager
    def model(self, name: str, load: Callable[[], int]) -> Iterator[int]:
        """A loaded model, unloaded in the context that is current then: let it be that of the load."""
        model_id = load()
        with self._held("model", name, self.acl.mdl.unload, model_id):
            yield model_id

    @contextmanager
    def data_buffer(self, name: str, address: int, size_bytes: int) -> Iterator[int]:
        """An address and a size as datasets take them; the memory itself is somebody else's."""
        handle = self.acl.create_data_buffer(address, size_bytes)
        with self._held("data buffer", name, self.acl.destroy_data_buffer, handle):
            yield handle

    @contextmanager
    def dataset(self, name: str) -> Iterator[int]:
        """An empty dataset; the buffers that are added stay their owners'."""
        handle = self.acl.mdl.create_dataset()
        with self._held("dataset", name, self.acl.mdl.destroy_dataset, handle):
            yield handle

    @contextmanager
    def _held(
        self, kind: str, name: str, give_back: Callable[[int], object], handle: int, size_bytes: int = 0
    ) -> Iterator[None]:
        number = self.register.add(kind, name, size_bytes)
        try:
            yield
        finally:
            if not self.abandoned:
                try:
                    give_back(handle)
                except AclError as error:
                    log.warning("%s %s is not given back: %s", kind, name, error)
                else:
                    self.register.drop(number)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"

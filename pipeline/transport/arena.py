"""Owns shared memory: rings of equal slots in anonymous files, handed to workers when they are started.

memfd + mmap instead of named segments: nothing has a name, so nothing is left behind when a process is killed, and
Python's resource tracker is not involved. The engine keeps the descriptor, so a ring outlives its workers. Pages are
reserved when the ring is made: a machine that is too small says so at the start (ENOMEM) and not by SIGBUS in mid-run.

Layout: one page-aligned header of 64 bytes per slot (its generation, uint64, own cache line), then the slots, each
starting at a page. Linux only, as the devices are.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from multiprocessing import reduction
from typing import Any

from pipeline.transport.memory import usable_bytes
from stages.errors import StaleSlot, UserError

PAGE_BYTES = 4096
HEADER_BYTES = 64
_GENERATION_STRIDE = HEADER_BYTES // 8


def _pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def ring_bytes(slots: int, slot_bytes: int) -> int:
    """Shared memory that a ring takes."""
    return _pages(slots * HEADER_BYTES) + slots * _pages(slot_bytes)


class SharedRing:
    """A SlotRing in shared memory. Made by ``create``; pickled only while a worker is being started (descriptor)."""

    def __init__(self, name: str, slots: int, slot_bytes: int, descriptor: int) -> None:
        self.name = name
        self.slots = slots
        self.slot_bytes = slot_bytes
        self._descriptor = descriptor
        self._map: mmap.mmap | None = mmap.mmap(descriptor, ring_bytes(slots, slot_bytes))
        self._first = _pages(slots * HEADER_BYTES)
        self._stride = _pages(slot_bytes)
        # A memoryview of native words: each is read and written whole, and for a tenth of what numpy's scalars cost.
        self._generations: Any = memoryview(self._map)[: slots * HEADER_BYTES].cast("Q")

    @property
    def descriptor(self) -> int:
        """Of the memory, to hand to another process while this ring is open."""
        return self._descriptor

    @classmethod
    def create(cls, name: str, slots: int, slot_bytes: int) -> SharedRing:
        """Reserve the memory. Raises UserError when the machine has not got it."""
        size = ring_bytes(slots, slot_bytes)
        refusal = (
            "{}: can't reserve {:.0f} MiB of shared memory ({}); use fewer cameras, a smaller batch, or a machine or "
            "container with more memory"
        )
        free = usable_bytes()
        if size > free:  # the kernel would not say no: it would kill somebody
            raise UserError(refusal.format(name, size / 2**20, f"{free / 2**20:.0f} MiB can be used"))
        descriptor = os.memfd_create(f"campipe-{name.replace('/', '-')[:200]}", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, size)
            return cls(name, slots, slot_bytes, descriptor)
        except OSError as error:
            os.close(descriptor)
            if error.errno in {errno.ENOMEM, errno.ENOSPC, errno.EFBIG, errno.EPERM}:
                raise UserError(refusal.format(name, size / 2**20, error.strerror)) from error
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (self.name, self.slots, self.slot_bytes, reduction.DupFd(self._descriptor))

    def _slot(self, slot: int) -> memoryview:
        if self._map is None:
            raise StaleSlot(f"{self.name} is closed")
        if not 0 <= slot < self.slots:
            raise StaleSlot(f"{self.name} has no slot {slot}: it has {self.slots}")
        start = self._first + slot * self._stride
        return memoryview(self._map)[start : start + self.slot_bytes]

    def begin_write(self, slot: int) -> memoryview:
        """See SlotRing."""
        view = self._slot(slot)
        self._generations[slot * _GENERATION_STRIDE] |= 1
        return view

    def end_write(self, slot: int) -> int:
        """See SlotRing."""
        generation: int = (self._generations[slot * _GENERATION_STRIDE] | 1) + 1
        self._generations[slot * _GENERATION_STRIDE] = generation
        return generation

    def read(self, slot: int, generation: int) -> memoryview:
        """See SlotRing."""
        view = self._slot(slot)
        self.check(slot, generation)
        return view.toreadonly()

    def check(self, slot: int, generation: int) -> None:
        """See SlotRing."""
        found = self._generations[slot * _GENERATION_STRIDE]
        if found != generation:
            raise StaleSlot(f"{self.name} slot {slot}: generation {found}, reference says {generation}")

    def close(self) -> None:
        """See SlotRing. Memory is unmapped when the last view given out is gone."""
        if self._map is None:
            return
        mapped, self._map, self._generations = self._map, None, None
        os.close(self._descriptor)
        with contextlib.suppress(BufferError):  # somebody still holds a view: the mapping goes with the last one
            mapped.close()


def _attach(name: str, slots: int, slot_bytes: int, descriptor: Any) -> SharedRing:
    return SharedRing(name, slots, slot_bytes, descriptor.detach())

"""Owns the protocol of slot memory (frames and raw outputs) and its in-process twin. Not the shared memory itself.

A ring is a fixed number of equal slots. The *engine* decides who may write which slot; the ring only counts
generations: odd while a slot is being written, even when it is whole, so that a reference to a slot that has been
rewritten since is caught (StaleSlot) and not read as another picture.
"""

from __future__ import annotations

from typing import Protocol

from stages.errors import StaleSlot


class SlotRing(Protocol):
    """Equal slots of memory with generation numbers."""

    @property
    def name(self) -> str:
        """For messages to people: ``frames/gate-1``, ``outputs/coco-ssd``."""

    @property
    def slots(self) -> int:
        """Number of slots."""

    @property
    def slot_bytes(self) -> int:
        """Usable bytes of each slot; every slot starts at a multiple of 4096 bytes."""

    def begin_write(self, slot: int) -> memoryview:
        """Mark the slot as being written (generation becomes odd) and give its bytes, writable."""

    def end_write(self, slot: int) -> int:
        """Mark the slot as whole and give its new, even generation."""

    def read(self, slot: int, generation: int) -> memoryview:
        """The bytes of the slot, read-only. Raises StaleSlot when it holds another generation."""

    def check(self, slot: int, generation: int) -> None:
        """Raise StaleSlot when the slot holds another generation by now: call it after a copy."""

    def close(self) -> None:
        """Unmap; may be called twice. Views given out before must not be used any more."""


class HeapRing:
    """The in-process twin of the shared-memory ring: same contract, plain memory."""

    def __init__(self, name: str, slots: int, slot_bytes: int) -> None:
        self.name = name
        self.slots = slots
        self.slot_bytes = slot_bytes
        self._memory = [bytearray(slot_bytes) for _ in range(slots)]
        self._generations = [0] * slots

    def begin_write(self, slot: int) -> memoryview:
        """See SlotRing."""
        self._generations[slot] |= 1
        return memoryview(self._memory[slot])

    def end_write(self, slot: int) -> int:
        """See SlotRing."""
        self._generations[slot] = (self._generations[slot] | 1) + 1
        return self._generations[slot]

    def read(self, slot: int, generation: int) -> memoryview:
        """See SlotRing."""
        self.check(slot, generation)
        return memoryview(self._memory[slot]).toreadonly()

    def check(self, slot: int, generation: int) -> None:
        """See SlotRing."""
        found = self._generations[slot]
        if found != generation:
            raise StaleSlot(f"{self.name} slot {slot}: generation {found}, reference says {generation}")

    def close(self) -> None:
        """See SlotRing."""
        self._memory = []

"""Owns the bytes of device and pinned host memory, found by address. Does not own how much a device has (allocators).

Device addresses are no addresses of this process: bits 48 to 55 are set, so that a CPU faults on them, on x86-64
because they are not canonical, on AArch64 beyond its 48 bits (its top byte may be ignored, these bits are not). They
are never given out twice, except by the buddy allocator. Memory takes room in this process when it is touched.
"""

from __future__ import annotations

import ctypes
import mmap
from bisect import bisect_right, insort
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

DEVICE_BASE = 0x00D0_0000_0000_0000
DEVICE_SPAN = 1 << 42  # addresses per device
POISON = np.frombuffer(b"\xf5\x7f", np.uint16)[0]  # NaN as float16, float32 and float64, in either order
_CHUNK = 256 << 10  # what is poisoned at once in large blocks
_LAZY_BYTES = 1 << 20  # larger blocks are mapped: they take no room before they are touched
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_KEPT_BYTES = 32 << 20  # of freed pinned memory, so that views that outlive it read poison instead of crashing


def poison(view: Bytes) -> None:
    """Fill with NaN."""
    even = len(view) & ~1
    view[:even].view(np.uint16)[:] = POISON
    if even < len(view):
        view[even] = 0xF5


def is_device(address: int) -> bool:
    """Whether this is an address of any simulated device."""
    return DEVICE_BASE <= address < DEVICE_BASE + 64 * DEVICE_SPAN


class Block:
    """One allocation, on a device or pinned."""

    __slots__ = ("_array", "_fresh", "address", "device", "kind", "pending", "poisoned", "size", "takes")

    def __init__(self, address: int, size: int, kind: str, *, device: int, takes: int, poisoned: bool) -> None:
        self.address = address
        self.size = size
        self.kind = kind  # malloc, dvpp, host
        self.device = device
        self.takes = takes  # bytes of the device's memory, rounded as the allocator does
        self.poisoned = poisoned
        self.pending: list[tuple[int, int, Any]] = []  # ranges of queued copies, for pinned memory
        self._array: Bytes | None = None
        self._fresh: set[int] | None = None  # chunks that were not poisoned yet

    def view(self, address: int, size: int) -> Bytes:
        """The bytes [address, address + size) of this block."""
        if self._array is None:
            self._array = self._room()
        start = address - self.address
        if self._fresh:
            self._poison_chunks(start, start + size)
        return self._array[start : start + size]

    def _room(self) -> Bytes:
        if self.size > _LAZY_BYTES:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
            if self.poisoned:
                self._fresh = set(range(-(-self.size // _CHUNK)))
            return np.frombuffer(mmap.mmap(-1, self.size, flags=flags), np.uint8)
        array = np.empty(self.size, np.uint8)
        if self.poisoned:
            poison(array)
        return array

    def _poison_chunks(self, start: int, end: int) -> None:
        assert self._fresh is not None
        assert self._array is not None
        for chunk in range(start // _CHUNK, -(-end // _CHUNK)):
            if chunk in self._fresh:
                self._fresh.discard(chunk)
                poison(self._array[chunk * _CHUNK : (chunk + 1) * _CHUNK])


class PinnedBlock(Block):
    """Pinned memory: real memory of this process, 64-byte aligned."""

    __slots__ = ()

    def __init__(self, size: int, poisoned: bool) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        array = np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint8)  # whole pages: aligned
        super().__init__(array.ctypes.data, size, "host", device=-1, takes=0, poisoned=poisoned)
        self._array = array
        if poisoned:
            poison(array)


class AddressBook:
    """Which block an address lies in."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._blocks: dict[int, Block] = {}
        self._kept: deque[Block] = deque()
        self._kept_bytes = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def blocks(self) -> list[Block]:
        """All that live, in order of addresses."""
        return [self._blocks[start] for start in self._starts]

    def add(self, block: Block) -> None:
        """A new block lives."""
        insort(self._starts, block.address)
        self._blocks[block.address] = block

    def at(self, address: int) -> Block | None:
        """The block that starts here."""
        return self._blocks.get(address)

    def of(self, address: int, size: int = 1) -> Block | None:
        """The block that holds all of [address, address + size)."""
        block = self._blocks.get(address)
        if block is None:
            index = bisect_right(self._starts, address) - 1
            if index < 0:
                return None
            block = self._blocks[self._starts[index]]
        return block if address + size <= block.address + block.size else None

    def remove(self, block: Block) -> None:
        """The block was freed. Pinned memory is poisoned, and kept for a while for views that still exist."""
        del self._blocks[block.address]
        self._starts.pop(bisect_right(self._starts, block.address) - 1)
        if block.kind == "host":
            if block.poisoned:
                poison(block.view(block.address, block.size))
            self._kept.append(block)
            self._kept_bytes += block.size
            while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
                self._kept_bytes -= self._kept.popleft().size

    def view(self, address: int, size: int) -> Bytes | None:
        """The bytes of a range: of a block, or of this process's own memory; None for a device's that no block holds.

        Host memory outside of blocks is taken at its word, as the vendor's runtime does.
        """
        block = self.of(address, size)
        if block is not None:
            return block.view(address, size)
        if is_device(address) or address < 4096:
            return None
        return host_view(address, size)


def host_view(address: int, size: int) -> Bytes:
    """This process's memory at an address, not owned."""
    return np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(address)).cast("B"), np.uint8)

"""Owns how much of a device's memory an allocation takes and where it lies. Does not own the bytes.

``PageAllocator`` counts pages as the documents tell: sizes are rounded to 32 and 32 are added; up to 1 MiB comes in
pages of 4 KiB, more in pages of 2 MiB unless normal pages are asked for. Pages never fragment. ``BuddyAllocator`` is
what an often-copied article says of this device (nothing of it is documented): blocks of a power of two that split
and merge, so that memory can be free and still not be had.
"""

from __future__ import annotations

from stages.accelerators.aclsim import codes

SMALL_PAGE = 4 << 10
HUGE_PAGE = 2 << 20
HUGE_ABOVE = 1 << 20
ALIGN = 64


def rounded_bytes(size: int) -> int:
    """What the runtime asks the driver for: a multiple of 32, and 32 more."""
    return -(-size // 32) * 32 + 32


def page_bytes(size: int, policy: int) -> int:
    """What an allocation takes in pages, for an allocation policy."""
    wanted = rounded_bytes(size)
    base_policy = policy % 3 if 0 <= policy <= 5 else 0  # 3 to 5 are 0 to 2 for peers; unknown ones act like the first
    huge = base_policy == codes.MALLOC_HUGE_ONLY or (base_policy != codes.MALLOC_NORMAL_ONLY and size > HUGE_ABOVE)
    page = HUGE_PAGE if huge else SMALL_PAGE
    return -(-wanted // page) * page


class PageAllocator:
    """Pages, at addresses that are never used again."""

    def __init__(self, base: int, total: int, span: int) -> None:
        self.total = total
        self.used = 0
        self._base, self._span = base, span
        self._next = SMALL_PAGE

    @property
    def free_bytes(self) -> int:
        """What is left."""
        return self.total - self.used

    def take(self, size: int, policy: int) -> tuple[int, int] | None:
        """Address and bytes taken; None when there is not enough."""
        takes = page_bytes(size, policy)
        if self.used + takes > self.total:
            return None
        if self._next + takes + SMALL_PAGE > self._span:
            self._next = SMALL_PAGE  # after terabytes
        address = self._base + self._next
        self._next += takes + SMALL_PAGE  # a page between blocks belongs to nobody
        self.used += takes
        return address, takes

    def give(self, address: int, takes: int) -> None:
        """An allocation is over."""
        self.used -= takes


class BuddyAllocator:
    """Blocks of a power of two of at least 4 KiB; memory that is no power of two starts as several such blocks."""

    def __init__(self, base: int, total: int, span: int) -> None:
        self.total = total // SMALL_PAGE * SMALL_PAGE
        self.used = 0
        self._base, self._span = base + HUGE_PAGE, span
        self._free: dict[int, set[int]] = {}  # by size: offsets
        self._tops: dict[int, int] = {}  # blocks that have no buddy: offset -> size
        offset = 0
        for bit in reversed(range(self.total.bit_length())):
            if self.total >> bit & 1:
                self._tops[offset] = 1 << bit
                self._free.setdefault(1 << bit, set()).add(offset)
                offset += 1 << bit

    @property
    def free_bytes(self) -> int:
        """What is left, in pieces."""
        return self.total - self.used

    @property
    def largest_free_bytes(self) -> int:
        """The largest block that could be had."""
        return max((size for size, offsets in self._free.items() if offsets), default=0)

    def take(self, size: int, policy: int) -> tuple[int, int] | None:
        """Address and bytes taken; None when no block is large enough. ``policy`` means nothing here."""
        del policy
        wanted = max(SMALL_PAGE, 1 << (rounded_bytes(size) - 1).bit_length())
        found = min((s for s, offsets in self._free.items() if offsets and s >= wanted), default=0)
        if not found:
            return None
        offset = min(self._free[found])
        self._free[found].remove(offset)
        while found > wanted:
            found //= 2
            self._free.setdefault(found, set()).add(offset + found)
        self.used += wanted
        return self._base + offset, wanted

    def give(self, address: int, takes: int) -> None:
        """An allocation is over: it merges with its buddy, and so on."""
        offset, size = address - self._base, takes
        self.used -= size
        while self._tops.get(top := self._top(offset)) != size:
            buddy = top + ((offset - top) ^ size)
            if buddy not in self._free.get(size, ()):
                break
            self._free[size].remove(buddy)
            offset, size = min(offset, buddy), size * 2
        self._free.setdefault(size, set()).add(offset)

    def _top(self, offset: int) -> int:
        return max(top for top in self._tops if top <= offset)


Allocator = PageAllocator | BuddyAllocator

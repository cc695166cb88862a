"""Owns what happens before what: ticks of streams, what the host knows, who touched which bytes. Knows no calls.

The host is one observer: its threads' own order is not looked into (a queue between threads is invisible here), so
whatever the host did before a task was queued comes before that task. What a stream did is known to the host up to
``done``, after a synchronisation; a stream knows of others what it waited for (``seen``). Two accesses to one byte,
one of them a write, are a race unless one is known to come before the other: whatever time they happened to take.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

Site = tuple[str, int]  # file, line


class StreamClock:
    """One stream: ``tick`` tasks were queued, the host knows that ``done`` of them are over."""

    __slots__ = ("done", "seen", "snapshots", "tick")

    def __init__(self) -> None:
        self.tick = 0
        self.done = 0
        self.seen: dict[StreamClock, int] = {}
        self.snapshots: deque[Any] = deque()  # of sources of queued copies, by tick

    def point(self) -> Point:
        """All that is queued so far, and what it comes after."""
        seen = self.seen
        if len(seen) > 8:
            self.seen = seen = {s: t for s, t in seen.items() if t > s.done}
        return Point(self, self.tick, dict(seen))

    def wait_for(self, point: Point) -> None:
        """Tasks that are queued from now on come after this point."""
        for stream, tick in ((point.stream, point.tick), *point.seen.items()):
            if tick > stream.done and stream is not self and self.seen.get(stream, 0) < tick:
                self.seen[stream] = tick

    def after(self, stream: StreamClock, tick: int) -> bool:
        """Whether what is queued now comes after that task."""
        return stream is self or tick <= stream.done or self.seen.get(stream, 0) >= tick


class Point(NamedTuple):
    """A place in a stream, with the places in others that come before it."""

    stream: StreamClock
    tick: int
    seen: dict[StreamClock, int]

    def learnt(self) -> Iterator[StreamClock]:
        """The host knows now that all of this is over; the streams of which that is news."""
        for stream, tick in ((self.stream, self.tick), *self.seen.items()):
            if tick > stream.done:
                stream.done = tick
                yield stream


class Access(NamedTuple):
    """What a task of a stream did to some bytes."""

    stream: StreamClock
    tick: int
    site: Site
    write: bool
    call: str

    @property
    def pending(self) -> bool:
        """Whether the host does not know that it is over."""
        return self.tick > self.stream.done


class _Cell:
    __slots__ = ("reads", "write", "written")

    def __init__(self) -> None:
        self.write: Access | None = None
        self.reads: dict[StreamClock, Access] = {}
        self.written = False  # by anybody, ever

    def copy(self) -> _Cell:
        cell = _Cell()
        cell.write, cell.reads, cell.written = self.write, dict(self.reads), self.written
        return cell


_COMPACT_ABOVE = 256  # cells


class Ranges:
    """Who touched the bytes of one block: cells of neighbouring bytes with the same story."""

    __slots__ = ("_cells", "_compact_above", "_starts", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._compact_above = _COMPACT_ABOVE
        self._starts = [0]
        self._cells = [_Cell()]

    def __len__(self) -> int:
        return len(self._cells)

    def touch(self, start: int, end: int, access: Access) -> Access | None:
        """Note what a task does to [start, end); an access that it races with."""
        conflict: Access | None = None
        stream = access.stream
        after = stream.after
        for cell in self._cut(start, end):
            write = cell.write
            if write is not None:
                if write[1] <= write[0].done:
                    cell.write = None
                elif conflict is None and not after(write[0], write[1]):
                    conflict = write
            if access.write:
                if cell.reads:
                    if conflict is None:
                        conflict = next((r for r in cell.reads.values() if not after(r[0], r[1])), None)
                    cell.reads.clear()
                cell.write = access
                cell.written = True
            else:
                cell.reads[stream] = access
        return conflict

    def host(self, start: int, end: int, *, write: bool) -> Access | None:
        """The host touches [start, end) now; a pending access that it races with."""
        conflict: Access | None = None
        for cell in self._cut(start, end):
            if cell.write is not None:
                if cell.write.pending:
                    conflict = conflict or cell.write
                else:
                    cell.write = None
            if write:
                for read in cell.reads.values():
                    if read.pending:
                        conflict = conflict or read
                cell.written = True
        return conflict

    def pending(self) -> Access | None:
        """Any access that the host does not know to be over."""
        for cell in self._cells:
            if cell.write is not None and cell.write.pending:
                return cell.write
            for read in cell.reads.values():
                if read.pending:
                    return read
        return None

    def unwritten(self, start: int, end: int) -> int | None:
        """The first of these bytes that nobody ever wrote."""
        index = bisect_right(self._starts, start) - 1
        while index < len(self._cells) and self._starts[index] < end:
            if not self._cells[index].written:
                return max(start, self._starts[index])
            index += 1
        return None

    def mark_written(self, start: int, end: int) -> None:
        """Somebody wrote these bytes who is not followed."""
        for cell in self._cut(start, end):
            cell.written = True

    def _cut(self, start: int, end: int) -> list[_Cell]:
        if len(self._starts) > self._compact_above:
            self._compact()
            self._compact_above = 2 * len(self._starts) + _COMPACT_ABOVE
        starts = self._starts
        first = bisect_left(starts, start)
        if first == len(starts) or starts[first] != start:
            self._split(first, start)
        last = bisect_left(starts, end, first)
        if end < self.size and (last == len(starts) or starts[last] != end):
            self._split(last, end)
        return self._cells[first:last]

    def _split(self, index: int, at: int) -> None:
        self._starts.insert(index, at)
        self._cells.insert(index, self._cells[index - 1].copy())

    def _compact(self) -> None:
        """Join neighbours of which nothing is pending."""
        starts, cells = [0], [self._cells[0]]
        for start, cell in zip(self._starts[1:], self._cells[1:], strict=True):
            if self._settled(cells[-1]) and self._settled(cell) and cells[-1].written == cell.written:
                continue
            starts.append(start)
            cells.append(cell)
        self._starts, self._cells = starts, cells

    @staticmethod
    def _settled(cell: _Cell) -> bool:
        if cell.write is not None and not cell.write.pending:
            cell.write = None
        if cell.reads:
            cell.reads = {s: r for s, r in cell.reads.items() if r.pending}
        return cell.write is None and not cell.reads

"""Owns the rules of copies."""

from __future__ import annotations

import ctypes
from typing import Any

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.checker.memory_rules import ALIGN, MemoryRules, Range
from stages.accelerators.aclsim.checker.shadows import Snapshot, StreamShadow
from stages.accelerators.aclsim.checker.state import State, differs
from stages.accelerators.aclsim.checker.stream_rules import StreamRules
from stages.accelerators.aclsim.violations import (
    Misaligned,
    PageableCopy,
    ReadBeforeSync,
    SynchronousCopyInLoop,
    WrongDirection,
    WrongSize,
)

LOOP_TURNS = 16  # of a synchronous call at one line with queued work between
_SIDES = {0: (False, False), 1: (True, False), 2: (False, True), 3: (True, True)}  # kind: destination, source on device
_NAMES = {0: "host to host", 1: "host to device", 2: "device to host", 3: "device to device"}


class CopyRules:
    """Hooks are named ``before_`` and ``after_`` the call; those after get what the call returned first."""

    def __init__(self, state: State, streams: StreamRules, memory: MemoryRules) -> None:
        self._s = state
        self._streams = streams
        self._memory = memory

    def _copy_ranges(
        self, dst: int, most: int, src: int, count: int, kind: int
    ) -> tuple[Range | None, Range | None] | None:
        state = self._s
        to_device, from_device = self._sides(dst, src, kind)
        self._check_sides(dst, src, kind, to_device=to_device, from_device=from_device)
        if count > most:
            state.tell(
                WrongSize,
                f"{count} bytes are copied into a destination of {most}",
                None,
                "give the destination's real size, and copy no more than that",
            )
        if count == 0:
            return None
        whole = max(count, most)
        find = self._memory.device_range if to_device else self._memory.host_range
        destination = find(dst, whole, "destination")
        if destination is not None:
            destination = (destination[0], destination[1], destination[1] + count)
        source = (self._memory.device_range if from_device else self._memory.host_range)(src, count, "source")
        return destination, source

    def _sides(self, dst: int, src: int, kind: int) -> tuple[bool, bool]:
        sides = _SIDES.get(int(kind))
        if sides is not None:
            return sides
        found = [self._s.block_of(a) for a in (dst, src)]
        return found[0] is not None and found[0].on_device, found[1] is not None and found[1].on_device

    def _check_sides(self, dst: int, src: int, kind: int, *, to_device: bool, from_device: bool) -> None:
        for address, wanted, what in ((dst, to_device, "destination"), (src, from_device, "source")):
            block = self._s.block_of(address)
            held = self._s.objects.of(address) if block is None and wanted else None
            if (block is not None and block.on_device != wanted) or held is not None:
                known = f"{block}" if block is not None else "memory of a Python object"
                site = block.site if block is not None else held.site if held is not None else None
                self._s.tell(
                    WrongDirection,
                    f"kind {int(kind)} is {_NAMES.get(int(kind), 'unknown')}, but the {what} {address:#x} is {known}",
                    site,
                    "1 is host to device, 2 device to host, 3 device to device",
                )

    def before_memcpy(self, dst: int, most: int, src: int, count: int, kind: int) -> Any:
        """At once: nothing that is queued may touch these bytes."""
        self._s.check_callback()
        self._s.context()
        self.count_synchronous()
        if dst == 0 or src == 0:
            return None
        ranges = self._copy_ranges(dst, most, src, count, kind)
        if ranges is None:
            return None
        destination, source = ranges
        if source is not None:
            self._memory.host_touches(source, write=False)
            self._check_written(source)
        if destination is not None:
            self._memory.host_touches(destination, write=True)
        return None

    def _check_written(self, source: Range) -> None:
        block, start, end = source
        if block.on_device and (at := block.ranges.unwritten(start, end)) is not None:
            self._s.tell(
                ReadBeforeSync,
                f"byte {at} of {block} is read, and nothing ever wrote it",
                block.site,
                "read what a run or a copy has written",
            )
            block.ranges.mark_written(start, end)

    def count_synchronous(self) -> None:
        """A call that blocks everything; told when a line makes it a habit."""
        state = self._s
        if not state.submissions:
            return
        site = state.site
        counted = state.synchronous.setdefault(site, [0, 0])
        if counted[1] != state.submissions:
            counted[0] += 1
            counted[1] = state.submissions
            if counted[0] == LOOP_TURNS:
                state.tell(
                    SynchronousCopyInLoop,
                    f"this line has blocked all threads {LOOP_TURNS} times, with queued work between",
                    None,
                    "use rt.memcpy_async from pinned memory, mdl.execute_async and events",
                )

    def before_memcpy_async(  # noqa: PLR0917  the vendor's
        self, dst: int, most: int, src: int, count: int, kind: int, handle: int
    ) -> Any:
        """In stream order, between pinned and device memory."""
        state = self._s
        if state.stream(handle) is None or dst == 0 or src == 0 or kind == codes.MEMCPY_HOST_TO_HOST:
            return None
        sides = self._sides(dst, src, kind)
        for address, on_device, what in ((dst, sides[0], "destination"), (src, sides[1], "source")):
            if not on_device:
                self._check_pinned(address, count, what)
        ranges = self._copy_ranges(dst, most, src, count, kind)
        if ranges is None:
            return None
        for address, what in ((dst, "destination"), (src, "source")):
            if address % ALIGN:
                block = state.block_of(address)
                state.tell(
                    Misaligned,
                    f"the {what} {address:#x} is no multiple of {ALIGN}",
                    block.site if block is not None else None,
                    f"let pieces of a block begin at multiples of {ALIGN}",
                )
        destination, source = ranges
        queued = self._streams.queued(handle)
        if queued is None:
            return None
        if source is not None:
            self._memory.queued_touch(queued, source, write=False)
            if source[0].on_device:
                self._check_written(source)
            elif count <= state.options.compare_bytes:
                self._take_snapshot(queued, source)
        if destination is not None:
            self._memory.queued_touch(queued, destination, write=True)
        return queued

    def _check_pinned(self, address: int, count: int, what: str) -> None:
        state = self._s
        if state.block_of(address) is not None or state.tombs.block(address) is not None:
            return
        held = state.objects.of(address)
        state.tell(
            PageableCopy,
            f"the {what} {address:#x} is not pinned memory: the copy is unpredictable on older versions and blocks on "
            "newer ones",
            held.site if held is not None else None,
            "copy into memory of rt.malloc_host first, and from there",
        )

    def after_memcpy_async(self, code: int, *_: int) -> None:
        """It is queued, or not."""
        if code != codes.SUCCESS:
            self._streams.refused()

    def _take_snapshot(self, stream: StreamShadow, source: Range) -> None:
        block, start, end = source
        for known in block.snapshots:
            if known.start < end and start < known.end and differs(known):
                block.snapshots.remove(known)
                known.stream.snapshots.remove(known)
                self._s.tell_changed(known)
                break
        content = ctypes.string_at(block.handle + start, end - start)
        clock = stream.clock
        snapshot = Snapshot(clock, clock.tick, block, start, end, content, stream.thread_site)
        block.snapshots.append(snapshot)
        clock.snapshots.append(snapshot)

    def before_memset(self, address: int, most: int, value: int, count: int) -> None:
        """At once."""
        self._s.check_callback()
        self._s.context()
        touched = self._set_range(address, most, count)
        if touched is not None:
            self._memory.host_touches(touched, write=True)

    def before_memset_async(self, address: int, most: int, value: int, count: int, handle: int) -> Any:
        """In stream order."""
        if self._s.stream(handle) is None:
            return None
        touched = self._set_range(address, most, count)
        queued = self._streams.queued(handle) if touched is not None else None
        if touched is not None and queued is not None:
            self._memory.queued_touch(queued, touched, write=True)
        return queued

    after_memset_async = after_memcpy_async

    def _set_range(self, address: int, most: int, count: int) -> Range | None:
        if address == 0 or count == 0:
            return None
        if count > most:
            self._s.tell(WrongSize, f"{count} bytes are set in a destination of {most}", None, "give its real size")
        block = self._s.block_of(address)
        host = block is not None and not block.on_device
        held = self._s.objects.of(address) if block is None else None
        find = self._memory.host_range if host or held else self._memory.device_range
        touched = find(address, max(count, most), "destination")
        return None if touched is None else (touched[0], touched[1], touched[1] + count)

"""Owns the rules of memory, copies and pointer helpers."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.checker.order import Access
from stages.accelerators.aclsim.checker.shadows import BlockShadow, Snapshot, StreamShadow
from stages.accelerators.aclsim.checker.state import State, differs
from stages.accelerators.aclsim.checker.stream_rules import StreamRules
from stages.accelerators.aclsim.violations import (
    DoubleFree,
    FreedInUse,
    HostBufferGone,
    Misaligned,
    NotABaseAddress,
    NotPinned,
    OutOfBounds,
    PageableCopy,
    ReadBeforeSync,
    SynchronousCopyInLoop,
    UseAfterFree,
    WrongArguments,
    WrongDirection,
    WrongSize,
)

ALIGN = 64
LOOP_TURNS = 16  # of a synchronous call at one line with queued work between
_SIDES = {0: (False, False), 1: (True, False), 2: (False, True), 3: (True, True)}  # kind: destination, source on device
_NAMES = {0: "host to host", 1: "host to device", 2: "device to host", 3: "device to device"}
Range = tuple[BlockShadow, int, int]


class MemoryRules:
    """Hooks are named ``before_`` and ``after_`` the call; those after get what the call returned first."""

    def __init__(self, state: State, streams: StreamRules) -> None:
        self._s = state
        self._streams = streams

    # ---- allocation ------------------------------------------------------------------------------------------------

    def before_malloc(self, *_: int) -> None:
        """In a context, not in a callback."""
        self._s.check_callback()
        self._s.context()

    before_malloc_align32 = before_malloc
    before_malloc_cached = before_malloc
    before_malloc_host = before_malloc
    before_dvpp_malloc = before_malloc

    def after_malloc(self, result: tuple[int, int], size: int, *_: int) -> None:
        """A block lives."""
        self._made(result, size, "malloc")

    after_malloc_align32 = after_malloc
    after_malloc_cached = after_malloc

    def after_malloc_host(self, result: tuple[int, int], size: int) -> None:
        """A block lives."""
        self._made(result, size, "pinned")

    def after_dvpp_malloc(self, result: tuple[int, int], *sizes: int) -> None:
        """A block lives."""
        self._made(result, sizes[-1], "dvpp")

    def _made(self, result: tuple[int, int], size: int, kind: str) -> None:
        address, code = result
        context = self._s.me.context
        if code == codes.SUCCESS and address:
            device = context.device if context is not None and kind != "pinned" else None
            self._s.add(BlockShadow(address, self._s.site, kind, size, device))

    def before_free(self, address: int) -> None:
        """A base address of ``malloc``, not in use."""
        self._before_free(address, "malloc")

    def before_free_host(self, address: int) -> None:
        """A base address of ``malloc_host``, not in use."""
        self._before_free(address, "pinned")

    def before_dvpp_free(self, address: int) -> None:
        """A base address of ``dvpp_malloc``, not in use."""
        self._before_free(address, "dvpp")

    def _before_free(self, address: int, kind: str) -> None:
        state = self._s
        state.check_callback()
        block = state.blocks.get(address)
        if block is None or block.kind != kind:
            if address:
                self._tell_not_free(address, kind, block)
            return
        pending = block.ranges.pending()
        lost = block.device is not None and block.device.lost
        if pending is not None and not lost:
            state.tell(
                FreedInUse,
                f"{block} is freed while queued work ({pending.call}) uses it",
                pending.site,
                "synchronise the stream, or an event behind its last use, first",
            )
        elif block.models and not lost:
            state.tell(
                FreedInUse,
                f"{block} is freed while {block.models[-1]}, which was loaded into it, is loaded",
                block.models[-1].site,
                "unload the model first",
            )

    def _tell_not_free(self, address: int, kind: str, block: BlockShadow | None) -> None:
        state = self._s
        block = block or state.block_of(address)
        call = {"malloc": "malloc", "pinned": "malloc_host", "dvpp": "dvpp_malloc"}[kind]
        if block is not None:
            wrong = NotPinned if kind == "pinned" and block.on_device else NotABaseAddress
            inner = "" if address == block.handle else f"lies {address - block.handle} bytes inside of "
            state.tell(
                wrong,
                f"{address:#x} {inner or 'is '}{block}, and no address that {call} returned",
                block.site,
                "free base addresses only, by the call that belongs to the allocating one",
            )
            return
        gone = state.tombs.block(address, (kind,))
        if gone is not None:
            state.tell(
                DoubleFree, f"{address:#x} was freed before", gone[1], "free each block once; forget the address"
            )
        elif kind == "pinned":
            state.tell(NotPinned, f"{address:#x} did not come from malloc_host", None, "free only what it returned")
        else:
            state.tell(NotABaseAddress, f"{address:#x} did not come from {call}", None, "free only what it returned")

    def after_free(self, code: int, address: int) -> None:
        """It is gone."""
        block = self._s.blocks.get(address)
        if block is None:
            return
        if code == codes.SUCCESS:
            self._s.remove(block)
            for snapshot in block.snapshots:
                if snapshot in snapshot.stream.snapshots:
                    snapshot.stream.snapshots.remove(snapshot)
        else:
            block.refused = code

    after_free_host = after_free
    after_dvpp_free = after_free

    # ---- ranges ----------------------------------------------------------------------------------------------------

    def device_range(self, address: int, size: int, what: str) -> Range | None:
        """[address, address + size) of one block of a device; tells what is wrong with it."""
        state = self._s
        block = state.block_of(address)
        if block is None:
            self._tell_no_block(address, size, what)
            return None
        if not block.on_device:
            state.tell(
                WrongDirection,
                f"the {what} {address:#x} is host memory ({block}), and device memory is wanted",
                block.site,
                "give an address that rt.malloc returned",
            )
            return None
        return self._inside(block, address, size, what)

    def _tell_no_block(self, address: int, size: int, what: str) -> None:
        state = self._s
        gone = state.tombs.block(address)
        held = state.objects.of(address)
        if gone is not None:
            state.tell(
                UseAfterFree,
                f"the {what} {address:#x} lies in memory that was freed",
                gone[1],
                "free it after its last use",
            )
        elif held is not None:
            state.tell(
                WrongDirection,
                f"the {what} {address:#x} is memory of a Python object, and device memory is wanted",
                held.site,
                "give an address that rt.malloc returned",
            )
        elif address in state.handles:
            state.tell_wrong_handle(address, BlockShadow)
        else:
            state.tell(
                OutOfBounds,
                f"the {what} [{address:#x}, {address + size:#x}) lies in no block of the device",
                None,
                "give an address that rt.malloc returned, or one inside its block",
            )

    def _inside(self, block: BlockShadow, address: int, size: int, what: str) -> Range | None:
        start = address - block.handle
        if start + size > block.size:
            self._s.tell(
                OutOfBounds,
                f"the {what} takes {size} bytes from byte {start} on of {block}",
                block.site,
                "count bytes of the type that is really there; take as many as the block has",
            )
            return None
        return block, start, start + size

    def host_range(self, address: int, size: int, what: str) -> Range | None:
        """[address, address + size) of host memory: the pinned block it lies in, None for other memory."""
        state = self._s
        block = state.block_of(address)
        if block is not None:
            if block.on_device:
                state.tell(
                    WrongDirection,
                    f"the {what} {address:#x} is {block}, and host memory is wanted",
                    block.site,
                    "copy it to the host first (kind 2), and read there",
                )
                return None
            return self._inside(block, address, size, what)
        held = state.objects.of(address)
        if held is not None:
            if held.gone:
                state.tell(
                    HostBufferGone,
                    f"the {what} {address:#x} is memory of a Python object that was dropped",
                    held.site,
                    "keep the object in a variable until the copy is over",
                )
            elif address + size > held.address + held.size:
                state.tell(
                    OutOfBounds,
                    f"the {what} takes {size} bytes from {address:#x} on, of a Python object of {held.size} bytes",
                    held.site,
                    "copy as many bytes as the object has",
                )
            return None
        gone = state.tombs.block(address)
        if gone is not None:
            if gone[0] == "pinned":
                message = f"the {what} {address:#x} lies in pinned memory that was freed"
                state.tell(UseAfterFree, message, gone[1], "free it after its last use")
            else:
                message = f"the {what} {address:#x} lies in device memory that was freed"
                state.tell(UseAfterFree, message, gone[1], "free it after its last use, and read it on the host")
        return None

    # ---- copies ----------------------------------------------------------------------------------------------------

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
        destination = (self.device_range if to_device else self.host_range)(dst, max(count, most), "destination")
        if destination is not None:
            destination = (destination[0], destination[1], destination[1] + count)
        source = (self.device_range if from_device else self.host_range)(src, count, "source")
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
            self.host_touches(source, write=False)
            self._check_written(source)
        if destination is not None:
            self.host_touches(destination, write=True)
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

    def host_touches(self, touched: Range, *, write: bool, run: bool = False) -> None:
        """The host, or a run that it waits for, reads or writes these bytes now."""
        block, start, end = touched
        conflict = block.ranges.host(start, end, write=write)
        if conflict is not None:
            self._s.tell_race(conflict, block, write=write, host=not run)
        if write and block.snapshots:
            self.drop_snapshots(block, start, end)

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
            self.queued_touch(queued, source, write=False)
            if source[0].on_device:
                self._check_written(source)
            elif count <= state.options.compare_bytes:
                self._take_snapshot(queued, source)
        if destination is not None:
            self.queued_touch(queued, destination, write=True)
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

    def queued_touch(self, stream: StreamShadow, touched: Range, *, write: bool) -> None:
        """The task that was queued now reads or writes these bytes."""
        state = self._s
        block, start, end = touched
        clock = stream.clock
        access = Access(clock, clock.tick, stream.thread_site, write, state.me.call)
        conflict = block.ranges.touch(start, end, access)
        if conflict is not None:
            state.tell_race(conflict, block, write=write, host=False)
        if write and block.snapshots:
            self.drop_snapshots(block, start, end)

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

    def drop_snapshots(self, block: BlockShadow, start: int, end: int) -> None:
        """These bytes are written in order: what they held before says nothing any more."""
        for snapshot in [s for s in block.snapshots if s.start < end and start < s.end]:
            block.snapshots.remove(snapshot)
            if snapshot in snapshot.stream.snapshots:
                snapshot.stream.snapshots.remove(snapshot)

    def before_memset(self, address: int, most: int, value: int, count: int) -> None:
        """At once."""
        self._s.check_callback()
        self._s.context()
        touched = self._set_range(address, most, count)
        if touched is not None:
            self.host_touches(touched, write=True)

    def before_memset_async(self, address: int, most: int, value: int, count: int, handle: int) -> Any:
        """In stream order."""
        if self._s.stream(handle) is None:
            return None
        touched = self._set_range(address, most, count)
        queued = self._streams.queued(handle) if touched is not None else None
        if touched is not None and queued is not None:
            self.queued_touch(queued, touched, write=True)
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
        touched = (self.host_range if host or held else self.device_range)(address, max(count, most), "destination")
        return None if touched is None else (touched[0], touched[1], touched[1] + count)

    def piece(self, address: int, size: int) -> None:
        """See ``CheckedModule.piece``."""
        state = self._s
        touched = self.device_range(address, size, "piece")
        if touched is None:
            return
        block, start, end = touched
        if address % ALIGN:
            state.tell(Misaligned, f"the piece {address:#x} is no multiple of {ALIGN}", block.site, "align its start")
        room = -(-size // 32) * 32 + 32
        for known_start, known_end, site in block.pieces:
            if start < known_end and known_start < start + room:
                state.tell(
                    OutOfBounds,
                    f"the piece [{start}, {end}) of {block} overlaps the one of [{known_start}, {known_end}), or the 32 "
                    "bytes of room that belong behind each",
                    site,
                    "give each piece its size rounded up to 32, and 32 more",
                )
        if start + room > block.size + 32:
            state.tell(
                OutOfBounds,
                f"the piece has no room of 32 bytes behind it in {block}",
                block.site,
                "take a larger block",
            )
        block.pieces.append((start, start + room, state.site))

    # ---- pointer helpers -------------------------------------------------------------------------------------------

    def before_bytes_to_ptr(self, data: Any) -> None:
        """Exactly bytes."""
        if type(data) is not bytes:
            self._s.tell(
                WrongArguments,
                f"util.bytes_to_ptr takes bytes, not {type(data).__name__}",
                None,
                "use bytes(...), or util.numpy_to_ptr for an ndarray",
            )

    def after_bytes_to_ptr(self, address: int, data: bytes) -> None:
        """Its address is known."""
        if type(data) is bytes:
            self._s.objects.add(data, address, self._s.site)

    def before_numpy_to_ptr(self, array: Any) -> None:
        """A contiguous array."""
        self._check_array(array, contiguous=True)

    def before_numpy_contiguous_to_ptr(self, array: Any) -> None:
        """An array."""
        self._check_array(array, contiguous=False)

    def _check_array(self, array: Any, *, contiguous: bool) -> None:
        if not isinstance(array, np.ndarray):
            remedy = "use util.bytes_to_ptr for bytes" if isinstance(array, bytes) else "make it an ndarray first"
            self._s.tell(WrongArguments, f"an ndarray is wanted, not {type(array).__name__}", None, remedy)
        elif contiguous and not array.flags.c_contiguous:
            self._s.tell(
                WrongArguments,
                "the array is not C-contiguous",
                None,
                "use numpy.ascontiguousarray, and keep the result",
            )

    def after_numpy_to_ptr(self, address: int, array: Any) -> None:
        """Its address is known, unless it is a view of pinned memory."""
        if isinstance(array, np.ndarray) and self._s.block_of(address) is None:
            self._s.objects.add(array, address, self._s.site)

    def after_numpy_contiguous_to_ptr(self, result: tuple[int, Any], array: Any) -> None:
        """Its address is known."""
        self.after_numpy_to_ptr(result[0], result[1])

    def before_ptr_to_bytes(self, address: int, size: int) -> None:
        """Host memory, with nothing queued that writes it."""
        touched = self.host_range(address, size, "source")
        if touched is not None:
            self.host_touches(touched, write=False)
        elif self._unknown(address):
            self._tell_unknown(address, size)

    def before_ptr_to_numpy(self, address: int, shape: Any, npy_type: Any) -> None:
        """Host memory; a view is no read yet."""
        if not isinstance(shape, tuple):
            self._s.tell(WrongArguments, "the shape is no tuple", None, "give a tuple, as (n,)")
            return
        name = codes.NPY_TYPES.get(int(npy_type))
        if name is None:
            self._s.tell(
                WrongArguments, f"{npy_type} is no NumPy type number", None, "2 is uint8, 11 float32, 23 float16"
            )
            return
        size = math.prod(shape) * np.dtype(name).itemsize
        if self.host_range(address, size, "memory") is None and self._unknown(address):
            self._tell_unknown(address, size)

    def _unknown(self, address: int) -> bool:
        state = self._s
        known = state.block_of(address) or state.objects.of(address) or state.tombs.block(address)
        return known is None and (address in state.handles or address < 4096)

    def _tell_unknown(self, address: int, size: int) -> None:
        message = f"[{address:#x}, {address + size:#x}) is no memory of the host"
        self._s.tell(OutOfBounds, message, None, "give an address of host memory")

"""Owns the rules of memory, copies and pointer helpers."""

from __future__ import annotations

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.checker.order import Access
from stages.accelerators.aclsim.checker.shadows import BlockShadow, StreamShadow
from stages.accelerators.aclsim.checker.state import State
from stages.accelerators.aclsim.checker.stream_rules import StreamRules
from stages.accelerators.aclsim.violations import (
    DoubleFree,
    FreedInUse,
    HostBufferGone,
    Misaligned,
    NotABaseAddress,
    NotPinned,
    OutOfBounds,
    UseAfterFree,
    WrongDirection,
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

    def host_touches(self, touched: Range, *, write: bool, run: bool = False) -> None:
        """The host, or a run that it waits for, reads or writes these bytes now."""
        block, start, end = touched
        conflict = block.ranges.host(start, end, write=write)
        if conflict is not None:
            self._s.tell_race(conflict, block, write=write, host=not run)
        if write and block.snapshots:
            self.drop_snapshots(block, start, end)

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

    def drop_snapshots(self, block: BlockShadow, start: int, end: int) -> None:
        """These bytes are written in order: what they held before says nothing any more."""
        for snapshot in [s for s in block.snapshots if s.start < end and start < s.end]:
            block.snapshots.remove(snapshot)
            if snapshot in snapshot.stream.snapshots:
                snapshot.stream.snapshots.remove(snapshot)

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
                    f"the piece [{start}, {end}) of {block} overlaps the one of [{known_start}, {known_end}), or the "
                    "32 bytes of room that belong behind each",
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

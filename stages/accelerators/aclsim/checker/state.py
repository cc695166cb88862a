"""Owns everything the sanitizer remembers, and how it tells a violation. Does not own rules."""

from __future__ import annotations

import ctypes
import os
import threading
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any, TypeVar

from stages.accelerators.aclsim.checker import sites
from stages.accelerators.aclsim.checker.forks import ForkNotice
from stages.accelerators.aclsim.checker.host_objects import HostObjects
from stages.accelerators.aclsim.checker.order import Access, Point, Site
from stages.accelerators.aclsim.checker.shadows import (
    BlockShadow,
    ContextShadow,
    DeviceShadow,
    ModelShadow,
    Shadow,
    Snapshot,
    StreamShadow,
    Tombs,
)
from stages.accelerators.aclsim.options import CheckOptions
from stages.accelerators.aclsim.violations import (
    CallInCallback,
    DataRace,
    ErrorReturned,
    ForeignStream,
    HostBufferChanged,
    Leak,
    NoContext,
    ReadBeforeSync,
    Violation,
    WrongHandle,
)

S = TypeVar("S", bound=Shadow)
MANY = 1000  # handles alive from one line that make it a leak


class _Thread(threading.local):
    """What the sanitizer knows of the calling thread."""

    def __init__(self) -> None:
        self.context: ContextShadow | None = None
        self.in_callback = 0
        self.call = ""
        self.frame: FrameType | None = None
        self.token: Any = None  # what the hook before the call left for the one behind it
        self.thread = threading.current_thread()


class State:
    """See the module. All of it is used with ``lock`` held."""

    def __init__(self, options: CheckOptions, inspect: Any) -> None:
        self.options = options
        self.inspect = inspect  # the module that is asked for facts
        self.lock = threading.RLock()
        self.me = _Thread()
        self.violations: list[Violation] = []
        self.dropped = 0  # violations beyond ``options.most``
        self.raised = False
        self.handles: dict[int, Shadow] = {}
        self.blocks: dict[int, BlockShadow] = {}
        self._starts: list[int] = []
        self.models: dict[int, ModelShadow] = {}
        self.devices: dict[int, DeviceShadow] = {}
        self.tombs = Tombs()
        self.objects = HostObjects()
        self.stacks: dict[int, list[str]] = {}  # of creation, by id of the shadow
        self.made: Counter[tuple[str, Site]] = Counter()
        self.initialised: Site | None = None
        self.finalised: Site | None = None
        self.pid = os.getpid()
        self.forks = ForkNotice()
        self.submissions = 0
        self.synchronous: dict[Site, list[int]] = {}

    # ---- telling ---------------------------------------------------------------------------------------------------

    @property
    def site(self) -> Site:
        """Of the call that is under way in this thread."""
        return sites.site_of(self.me.frame, self.options.hidden)

    def tell(self, kind: type[Violation], message: str, other: Site | None = None, remedy: str = "") -> None:
        """A violation by the call that is under way; raised unless it is a warning or nothing is."""
        violation = kind(self.me.call, message, sites.text(self.site), sites.text(other), remedy)
        self.keep(violation)
        if not kind.warning and self.options.raise_:
            if kind is ErrorReturned and not self.options.raise_on_error:
                return
            self.raised = True
            raise violation

    def keep(self, violation: Violation) -> None:
        """Collect it."""
        if len(self.violations) < self.options.most:
            self.violations.append(violation)
        else:
            self.dropped += 1

    # ---- handles ---------------------------------------------------------------------------------------------------

    def add(self, shadow: Shadow) -> None:
        """A handle was made by the call that is under way."""
        self.tombs.forget(shadow.kind, shadow.handle)
        if isinstance(shadow, BlockShadow):
            self._add_block(shadow)
        elif isinstance(shadow, ModelShadow):
            self.models[shadow.handle] = shadow
        else:
            self.handles[shadow.handle] = shadow
        self.stacks[id(shadow)] = sites.stack_of(self.me.frame, self.options.hidden)
        key = (shadow.kind, shadow.site)
        self.made[key] += 1
        if self.made[key] == MANY:
            self.tell_leak_at(shadow)

    def tell_leak_at(self, shadow: Shadow) -> None:
        """A thousand of them live, all from one line."""
        self.keep(
            Leak(
                self.me.call,
                f"{MANY} of kind {shadow.kind} were made here and still live",
                sites.text(shadow.site),
                "",
                "release each, or make it once before the loop",
            )
        )

    def remove(self, shadow: Shadow) -> None:
        """The handle was released by the call that is under way."""
        self.tombs.add(shadow, self.site)
        self.forget(shadow)

    def forget(self, shadow: Shadow) -> None:
        """The handle is gone."""
        if isinstance(shadow, BlockShadow):
            if self.blocks.pop(shadow.handle, None) is not None:
                self._starts.remove(shadow.handle)
        elif isinstance(shadow, ModelShadow):
            self.models.pop(shadow.handle, None)
        else:
            self.handles.pop(shadow.handle, None)
        self.stacks.pop(id(shadow), None)
        key = (shadow.kind, shadow.site)
        self.made[key] -= 1
        if self.made[key] <= 0:
            del self.made[key]

    def want(self, handle: int, kind: type[S]) -> S | None:
        """The living shadow of this kind; tells WrongHandle otherwise. 0 is left to the module."""
        found = self.handles.get(handle)
        if isinstance(found, kind):
            return found
        if handle:
            self.tell_wrong_handle(handle, kind, found)
        return None

    def tell_wrong_handle(self, handle: int, kind: type[Shadow], found: Shadow | None = None) -> None:
        """This number is no living handle of the kind that is wanted."""
        gone = self.tombs.site(kind.kind, handle)
        if gone:
            message = f"{kind.kind} {handle:#x} was destroyed"
            self.tell(WrongHandle, message, gone, f"use a living {kind.kind}; destroy it after its last use")
            return
        what = "no handle that is known"
        site: Site | None = None
        other = found or self.block_of(handle) or self.models.get(handle)
        if other is not None:
            what, site = f"{other}", other.site
        message = f"a {kind.kind} is wanted, and {handle:#x} is {what}"
        self.tell(WrongHandle, message, site, f"give the {kind.kind}; mind the order of the arguments")

    def living(self) -> Iterator[Shadow]:
        """All that has a handle and lives, but default contexts."""
        everything: list[Shadow] = [*self.handles.values(), *self.blocks.values(), *self.models.values()]
        order = {key: n for n, key in enumerate(self.stacks)}
        for shadow in sorted(everything, key=lambda s: order.get(id(s), 0)):
            if not (isinstance(shadow, ContextShadow) and shadow.default):
                yield shadow

    def listed(self, shadows: list[Shadow], most: int = 12) -> str:
        """What lives and where it was made, in lines."""
        lines = []
        for shadow in shadows[:most]:
            stack = self.stacks.get(id(shadow)) or [sites.text(shadow.site)]
            refused = f" (its release was refused with {shadow.refused})" if shadow.refused else ""
            lines.append(f"\n    {shadow}{refused}, made at {' from '.join(stack)}")
        if len(shadows) > most:
            lines.append(f"\n    and {len(shadows) - most} more")
        return "".join(lines)

    # ---- memory ----------------------------------------------------------------------------------------------------

    def _add_block(self, block: BlockShadow) -> None:
        known = self.blocks.get(block.handle)
        if known is not None:  # the module gave the address again: what we knew of it is over
            self.forget(known)
        self.blocks[block.handle] = block
        insort(self._starts, block.handle)

    def block_of(self, address: int) -> BlockShadow | None:
        """The block that an address lies in."""
        block = self.blocks.get(address)
        if block is not None:
            return block
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        block = self.blocks[self._starts[index]]
        return block if address < block.handle + block.size else None

    def blocks_between(self, start: int, end: int) -> Iterator[BlockShadow]:
        """Blocks that a range of addresses touches."""
        first = self.block_of(start)
        if first is not None:
            yield first
        for index in range(bisect_left(self._starts, start + 1), len(self._starts)):
            if self._starts[index] >= end:
                break
            yield self.blocks[self._starts[index]]

    # ---- contexts and order ----------------------------------------------------------------------------------------

    def context(self) -> ContextShadow | None:
        """Of the calling thread; tells NoContext."""
        context = self.me.context
        if context is None:
            self.tell(NoContext, "this thread has no context", None, "call rt.set_device or rt.set_context in it first")
            return None
        if context.ended is not None:
            self.tell(
                NoContext,
                "this thread's context was destroyed, or its device was reset",
                context.ended,
                "end the threads that use a context before it is destroyed",
            )
            return None
        return context

    def learn(self, point: Point, *, compare: bool = True) -> None:
        """The host knows that all of this is over."""
        changed: Snapshot | None = None
        for stream in point.learnt():
            snapshots = stream.snapshots
            while snapshots and snapshots[0].tick <= stream.done:
                snapshot = snapshots.popleft()
                if snapshot in snapshot.block.snapshots:
                    snapshot.block.snapshots.remove(snapshot)
                    if compare and changed is None and differs(snapshot):
                        changed = snapshot
        if changed is not None:
            self.tell_changed(changed)

    def tell_changed(self, snapshot: Snapshot) -> None:
        """A source was written while its copy was queued."""
        self.tell(
            HostBufferChanged,
            f"bytes {snapshot.start} to {snapshot.end} of {snapshot.block} were written after their copy was queued "
            "and before it was known to be over",
            snapshot.site,
            "synchronise the copy's event or stream before the buffer is filled again, or use another buffer",
        )

    def tell_race(self, conflict: Access, block: BlockShadow, *, write: bool, host: bool) -> None:
        """An access by the call that is under way races with an earlier one."""
        verb, did = ("writes", "writes" if conflict.write else "reads")
        if not write:
            verb = "reads"
        where = f"{block}"
        if not host:
            self.tell(
                DataRace,
                f"the queued work {verb} {where}, which {conflict.call} in another stream {did}, "
                "with no event or synchronisation between them",
                conflict.site,
                "record an event behind the first and let the other stream wait for it",
            )
        elif not write or (block.kind == "pinned" and conflict.write):
            self.tell(
                ReadBeforeSync,
                f"the host {verb} {where}, which queued work ({conflict.call}) still writes",
                conflict.site,
                "synchronise its stream or an event recorded behind it first",
            )
        elif block.kind == "pinned":
            self.tell(
                HostBufferChanged,
                f"the host writes {where}, which queued work ({conflict.call}) still reads",
                conflict.site,
                "synchronise its stream or an event recorded behind it first",
            )
        else:
            self.tell(
                DataRace,
                f"the host {verb} {where} at once, which queued work ({conflict.call}) still {did}",
                conflict.site,
                "synchronise its stream or an event recorded behind it first",
            )

    def check_callback(self) -> None:
        """Tells CallInCallback when the thread is in one."""
        if self.me.in_callback:
            self.tell(
                CallInCallback,
                "a callback may not allocate, free, synchronise or queue: the device waits for it to return",
                None,
                "hand the item to another thread through a queue and return",
            )

    def stream(self, handle: int) -> StreamShadow | None:
        """A stream of the current context; tells ForeignStream and WrongHandle."""
        context = self.me.context
        if context is None or context.ended is not None:
            self.context()
            return None
        if handle == 0:
            return context.default_stream
        stream = self.handles.get(handle)
        if stream.__class__ is not StreamShadow:
            self.tell_wrong_handle(handle, StreamShadow, stream)
            return None
        if stream.context is not context:
            self.tell(
                ForeignStream,
                f"{stream} belongs to another context than the current one",
                stream.site,
                "make the stream's context current in this thread with rt.set_context",
            )
        return stream


def differs(snapshot: Snapshot) -> bool:
    """Whether the source no longer holds what it held."""
    return ctypes.string_at(snapshot.block.handle + snapshot.start, snapshot.end - snapshot.start) != snapshot.content

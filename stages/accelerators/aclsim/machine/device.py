"""Owns what a simulated device and its contexts hold. Does not own how calls change them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stages.accelerators.aclsim.machine.allocators import Allocator, BuddyAllocator, PageAllocator
from stages.accelerators.aclsim.machine.memory import DEVICE_BASE, DEVICE_SPAN
from stages.accelerators.aclsim.machine.timeline import Engine, Event, Stream
from stages.accelerators.aclsim.options import SimOptions

MOST_STREAMS = 1024  # per device; each context takes two
MOST_EVENTS = 1023  # made with the SYNC flag, per device


class Context:
    """A context: its streams, and whether it still takes work."""

    def __init__(self, device: Device, handle: int, *, default: bool) -> None:
        self.device = device
        self.handle = handle
        self.default = default
        self.alive = True
        self.default_stream = Stream(0, self)
        self.own_stream = Stream(0, self)  # of synchronous calls
        self.streams: dict[int, Stream] = {}
        self.stops_on_failure = False
        self.failed = 0  # the code after which it takes no work

    def all_streams(self) -> list[Stream]:
        """With the default one and that of synchronous calls."""
        return [self.default_stream, self.own_stream, *self.streams.values()]


class Device:
    """One chip. ``index``: as programs number it; ``physical``: as the machine does."""

    def __init__(self, index: int, physical: int, options: SimOptions) -> None:
        self.index = index
        self.physical = physical
        self.engines = {name: Engine(name) for name in ("upload", "download", "compute")}
        kind: type[Allocator] = BuddyAllocator if options.allocator == "buddy" else PageAllocator
        self.allocator = kind(DEVICE_BASE + physical * DEVICE_SPAN, options.memory_bytes, DEVICE_SPAN)
        self.lost_bytes = 0  # leaked by runs
        self.kept_bytes = 0  # of processes that are over
        self.set_count = 0
        self.default_context: Context | None = None
        self.contexts: dict[int, Context] = {}
        self.lost = 0  # the code with which it answers since it failed
        self.runs = 0

    @property
    def free_bytes(self) -> int:
        """Memory that could still be had."""
        return max(0, self.allocator.free_bytes - self.lost_bytes - self.kept_bytes)

    @property
    def total_bytes(self) -> int:
        """Memory of the device."""
        return self.allocator.total

    @property
    def used_bytes(self) -> int:
        """Memory that programs hold."""
        return self.allocator.used

    @property
    def stream_count(self) -> int:
        """Streams in use, with the two of each context."""
        return sum(2 + len(context.streams) for context in self.contexts.values())


@dataclass(slots=True)
class EventHandle:
    """An event as a program holds it. ``kind``: plain, flag or ex, by the function that made it."""

    handle: int
    kind: str
    flags: int
    device: Device
    state: Event = field(default_factory=Event)
    recorded_ever: bool = False

    @property
    def waitable(self) -> bool:
        """Whether streams may wait for it."""
        return self.kind == "plain" or bool(self.flags & 1)

    @property
    def timed(self) -> bool:
        """Whether it can tell elapsed times."""
        return self.kind == "plain" or bool(self.flags & 8)


@dataclass(slots=True)
class DataBuffer:
    """An address and a size."""

    handle: int
    address: int
    size: int


@dataclass(slots=True)
class Dataset:
    """Data buffers in order, and the gear that was set for them."""

    handle: int
    buffers: list[DataBuffer] = field(default_factory=list)
    gear: int | None = None


@dataclass(slots=True)
class Plain:
    """Anything else that has a handle: ``kind`` and what belongs to it."""

    handle: int
    kind: str
    value: Any = None

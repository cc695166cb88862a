"""Owns the shadows of handles: what the sanitizer remembers of each. Does not own rules."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from stages.accelerators.aclsim.checker.order import Point, Ranges, Site, StreamClock


class Shadow:
    """Anything with a handle. ``kind``: as messages call it; ``site``: where it was made."""

    kind = "handle"

    def __init__(self, handle: int, site: Site) -> None:
        self.handle = handle
        self.site = site
        self.refused = 0  # the code with which the module refused to release it
        self.uses: dict[StreamClock, tuple[int, Site]] = {}  # by stream: the last queued task that needs it

    def used_by(self, stream: StreamClock, site: Site) -> None:
        """The task that is queued now needs it."""
        self.uses[stream] = (stream.tick, site)

    def in_use(self) -> Site | None:
        """Where a task was queued that needs it and is not known to be over."""
        for stream, (tick, site) in self.uses.items():
            if tick > stream.done:
                return site
        return None

    def __str__(self) -> str:
        return f"{self.kind} {self.handle:#x}"


class DeviceShadow:
    """A device: where it was set, and whether it answers."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.set_at: list[Site] = []
        self.default: ContextShadow | None = None
        self.lost = 0


class ContextShadow(Shadow):
    """A context. ``ended``: where it was destroyed or its device reset."""

    kind = "context"

    def __init__(self, handle: int, site: Site, device: DeviceShadow, *, default: bool) -> None:
        super().__init__(handle, site)
        self.device = device
        self.default = default
        self.ended: Site | None = None
        self.default_stream = StreamShadow(0, site, self)


class StreamShadow(Shadow):
    """A stream and its clock."""

    kind = "stream"

    def __init__(self, handle: int, site: Site, context: ContextShadow) -> None:
        super().__init__(handle, site)
        self.context = context
        self.clock = StreamClock()
        self.thread: threading.Thread | None = None  # that queued last
        self.thread_site: Site = site
        self.locks: frozenset[int] | None = None  # held when it queued last; None: not looked at
        self.shared = False  # between threads


class EventShadow(Shadow):
    """An event. ``make``: plain, flag or ex, by the function that made it."""

    kind = "event"

    def __init__(self, handle: int, site: Site, make: str, flags: int) -> None:
        super().__init__(handle, site)
        self.context: ContextShadow | None = None
        self.make = make
        self.flags = flags
        self.record: Point | None = None
        self.record_site: Site = site
        self.raised = False  # a flag event that was recorded and not reset since
        self.waiters: dict[StreamClock, int] = {}  # since the last record: tick of the wait
        self.reset: tuple[StreamClock, int, Site] | None = None
        self.calls = 0  # synchronising calls that are under way


class BlockShadow(Shadow):
    """Memory. ``kind``: malloc, pinned or dvpp."""

    def __init__(self, handle: int, site: Site, kind: str, size: int, device: DeviceShadow | None) -> None:
        super().__init__(handle, site)
        self.kind = kind
        self.size = size
        self.device = device
        self.ranges = Ranges(size)
        self.models: list[ModelShadow] = []  # whose work or weight memory it is
        self.snapshots: list[Snapshot] = []
        self.pieces: list[tuple[int, int, Site]] = []

    @property
    def on_device(self) -> bool:
        """Whether a device holds it."""
        return self.kind != "pinned"

    def __str__(self) -> str:
        words = {"malloc": "device memory", "dvpp": "DVPP memory", "pinned": "pinned memory"}
        return f"{words[self.kind]} {self.handle:#x} of {self.size} bytes"


@dataclass(slots=True)
class Snapshot:
    """What the source of a queued copy held when it was queued."""

    stream: StreamClock
    tick: int
    block: BlockShadow
    start: int
    end: int
    content: bytes
    site: Site


@dataclass(slots=True)
class BufferSize:
    """What a model wants of an input or output. ``exact``: not one byte more either."""

    name: str
    size: int
    exact: bool = False


@dataclass(slots=True)
class ModelFacts:
    """What the module says of a loaded model; None where it does not."""

    inputs: list[BufferSize] | None = None
    outputs: list[BufferSize] | None = None
    gears: tuple[int, ...] = ()
    gear_index: int = -1


class ModelShadow(Shadow):
    """A loaded model."""

    kind = "model"

    def __init__(self, handle: int, site: Site, context: ContextShadow, path: str) -> None:
        super().__init__(handle, site)
        self.context = context
        self.path = path
        self.facts = ModelFacts()
        self.work: tuple[BlockShadow, int, int] | None = None
        self.weights: tuple[BlockShadow, int, int] | None = None
        self.executing = 0

    def __str__(self) -> str:
        return f"model {self.handle}"


class BufferShadow(Shadow):
    """A data buffer."""

    kind = "data buffer"

    def __init__(self, handle: int, site: Site, address: int, size: int) -> None:
        super().__init__(handle, site)
        self.address = address
        self.size = size


class DatasetShadow(Shadow):
    """A dataset."""

    kind = "dataset"

    def __init__(self, handle: int, site: Site) -> None:
        super().__init__(handle, site)
        self.buffers: list[BufferShadow] = []
        self.gear: int | None = None
        self.told = False  # that no gear is set


class DescShadow(Shadow):
    """A description."""

    kind = "description"


class ConfigShadow(Shadow):
    """A configuration of the profiler."""

    kind = "profiling configuration"


@dataclass(slots=True)
class Tombs:
    """Handles that were released, and where; the last few thousand."""

    most: int = 4096
    _sites: dict[tuple[str, int], tuple[Site, int]] = field(default_factory=dict)

    def add(self, shadow: Shadow, site: Site) -> None:
        """It was released here."""
        size = shadow.size if isinstance(shadow, BlockShadow) else 0
        self._sites[shadow.kind, shadow.handle] = (site, size)
        if len(self._sites) > self.most:
            del self._sites[next(iter(self._sites))]

    def site(self, kind: str, handle: int) -> Site | None:
        """Where that handle was released."""
        found = self._sites.get((kind, handle))
        return found[0] if found else None

    def block(self, address: int, kinds: tuple[str, ...] = ("malloc", "dvpp", "pinned")) -> tuple[str, Site] | None:
        """The freed memory that an address lies in: its kind, and where it was freed."""
        for kind in kinds:  # most often by its base
            found = self._sites.get((kind, address))
            if found:
                return kind, found[0]
        for (kind, start), (site, size) in reversed(self._sites.items()):
            if kind in kinds and start <= address < start + size:
                return kind, site
        return None

    def forget(self, kind: str, handle: int) -> None:
        """The handle was given out again."""
        self._sites.pop((kind, handle), None)

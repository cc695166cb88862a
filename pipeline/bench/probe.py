"""Owns what is noted of a run while it goes on, as cheaply as can be. Computes no figure (``outcome`` does).

A sink like any other, the last one, so that what it notes has been published. When its windows are over it asks for the
end of the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.bench.batches import BatchRun
from pipeline.bench.windows import Windows
from pipeline.observe.processes import Footprint, children, command, cpu_ns, family, footprint, private_bytes
from pipeline.observe.snapshot import EngineSnapshot
from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.outbound import Outgoing
from pipeline.runtime.timing import work_ns
from stages.messages import Detections, ExternalMessage, RawOutput, Trace

NO_FRAME_NS = 60_000_000_000  # without any frame: whatever the reason, there is nothing to measure
MEASURED = "measured"


def helpers(pid: int) -> dict[str, int]:
    """Processes of a run beside its workers: the one that they are forked from, and Python's own resource tracker."""
    names = {"forkserver": "multiprocessing.forkserver", "tracker": "multiprocessing.resource_tracker"}
    found = {child: command(child) for child in children(pid)}
    return {name: child for name, module in names.items() for child, words in found.items() if module in words}


@dataclass(frozen=True, slots=True)
class Edge:
    """The state of a run at the begin or end of what is measured; ``cpu_ns`` by worker, the engine among them."""

    at_ns: int
    cpu_ns: dict[str, int]
    dropped: dict[str, dict[str, int]]  # by camera and cause


class Published(NamedTuple):
    """A frame that was published. Ages then: since its stamp (``age_ns``), since its data had arrived or was due.

    ``work_ns``: for so long of it something worked on the frame, see ``runtime.timing``. 0: not known.
    """

    at_ns: int
    age_ns: int
    arrived_ago_ns: int
    trace: Trace | None
    work_ns: int = 0


@dataclass(slots=True)
class Notes:
    """What was noted, in order; ``published`` by camera."""

    published: dict[str, list[Published]] = field(default_factory=dict)
    batches: list[BatchRun] = field(default_factory=list)
    objects: int = 0
    frames: int = 0
    first_ns: int = 0
    edges: list[Edge] = field(default_factory=list)
    private_bytes: dict[str, int] = field(default_factory=dict)  # by worker, at the end
    start_cpu_ns: int = 0  # of all processes, until all cameras that are waited for were there
    footprints: dict[str, Footprint] = field(default_factory=dict)  # by worker, at the end; if cameras are waited for


class Probe:
    """See Sink. ``attach`` before the run begins; ``stop`` is called with ``MEASURED`` when it may end.

    ``all_of``: cameras that must have published a frame before the windows begin.
    """

    def __init__(self, windows: Windows, stop: Callable[[str], None], own_pid: int, all_of: Iterable[str] = ()) -> None:
        self.notes = Notes()
        self._windows = windows
        self._stop = stop
        self._pids = {"engine": own_pid}
        self._dispatcher: Dispatcher | None = None
        self._opened_ns = 0
        self._stopped = False
        self._known = False
        self._live: frozenset[str] = frozenset()
        self._missing = set(all_of)
        self._in_full = bool(self._missing)

    def attach(self, dispatcher: Dispatcher) -> None:
        """Note the batches of this run, too."""
        self._dispatcher = dispatcher
        self._live = frozenset(name for name, line in dispatcher.cameras.items() if line.spec.live)
        dispatcher.on_batch = self._on_batch

    def on_snapshot(self, snapshot: EngineSnapshot) -> None:
        """Who the workers are."""
        self._pids |= {worker.name: worker.pid for worker in snapshot.workers if worker.pid}
        self._known = bool(self.notes.first_ns)  # whoever made the first frame has told its number

    @property
    def name(self) -> str:
        """See Sink."""
        return "bench"

    def open(self) -> None:
        """See Sink."""
        self._opened_ns = time.monotonic_ns()

    def take(self, message: ExternalMessage) -> bool:
        """See Sink."""
        if not isinstance(message, Detections):
            return True
        now_ns = time.monotonic_ns()
        notes = self.notes
        if not notes.first_ns:
            self._missing.discard(message.camera)
            if not self._missing:
                notes.first_ns = now_ns
        notes.frames += 1
        notes.objects += len(message.objects)
        head = self._head(message)
        arrived_ago_ns = age_ns = now_ns - head.frame_ns if head is not None and head.frame_ns else 0
        if message.clock == "rtcp":  # the camera's own clock, where it tells it
            age_ns = time.time_ns() - message.captured_ns
        told = Published(
            now_ns, age_ns, arrived_ago_ns, message.trace, work_ns(head.frame) if head and head.frame else 0
        )
        notes.published.setdefault(message.camera, []).append(told)
        return True

    def _head(self, message: Detections) -> Outgoing | None:
        """What is known of a live camera's frame that is being published."""
        if self._dispatcher is None or message.camera not in self._live:
            return None
        return self._dispatcher.outbound.line(live=True)[0]

    def _on_batch(self, executor: str, frames: int, raw: RawOutput) -> None:
        self.notes.batches.append(
            BatchRun(executor, frames, raw.submitted_at_ns, raw.uploaded_at_ns, raw.executed_at_ns, raw.finished_at_ns)
        )

    def service(self) -> None:
        """See Sink. Takes the state at the edges, and ends the run."""
        now_ns = time.monotonic_ns()
        if self._stopped:
            return
        if not self.notes.first_ns:
            if now_ns > self._opened_ns + NO_FRAME_NS:
                self._end(f"no frame came of {len(self._missing)} cameras" if self._missing else "no frame came")
            return
        if self._in_full and not self.notes.start_cpu_ns:
            self._pids |= helpers(self._pids["engine"])
            self.notes.start_cpu_ns = sum(cpu_ns(pid) or 0 for pid in family(self._pids["engine"]))
        passed_ns = now_ns - self.notes.first_ns
        start_ns, end_ns = self._windows.kept_ns
        if self._known and passed_ns >= (end_ns if self.notes.edges else start_ns) and len(self.notes.edges) < 2:
            self.notes.edges.append(self._edge(now_ns))
        if passed_ns >= self._windows.total_ns and len(self.notes.edges) == 2:
            self.notes.private_bytes = {name: private_bytes(pid) for name, pid in self._pids.items()}
            if self._in_full:
                held = {name: footprint(pid) for name, pid in self._pids.items()}
                self.notes.footprints = {name: each for name, each in held.items() if each is not None}
            self._end(MEASURED)

    def _edge(self, now_ns: int) -> Edge:
        spent = {name: cpu_ns(pid) for name, pid in self._pids.items()}
        cameras = self._dispatcher.cameras if self._dispatcher is not None else {}
        return Edge(
            at_ns=now_ns,
            cpu_ns={name: spent_ns for name, spent_ns in spent.items() if spent_ns is not None},
            dropped={name: dict(line.ledger.entry().dropped) for name, line in cameras.items()},
        )

    def _end(self, reason: str) -> None:
        self._stopped = True
        self._stop(reason)

    def close(self, deadline_ns: int) -> str:
        """See Sink."""
        del deadline_ns
        return ""

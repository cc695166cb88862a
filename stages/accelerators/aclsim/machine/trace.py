"""Owns the record of what ran when. Does not own time."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from stages.accelerators.aclsim.machine.timeline import Stream, Task


class Interval(NamedTuple):
    """One copy or run: ``kind`` upload, execute, download, copy or memset; ``batch`` the number of the run, or 0."""

    stream: int
    kind: str
    start_ns: int
    end_ns: int
    device: int
    batch: int


class Label:
    """What a task is called in the trace. ``batch`` may become known after it was queued."""

    __slots__ = ("batch", "kind")

    def __init__(self, kind: str, batch: int = 0) -> None:
        self.kind = kind
        self.batch = batch


class Trace:
    """The last intervals of a simulation."""

    def __init__(self, most: int) -> None:
        self._kept: deque[tuple[Stream, Label, int, int]] = deque(maxlen=most)

    def add(self, task: Task) -> None:
        """A labelled task is over."""
        self._kept.append((task.stream, task.label, task.start_ns, task.end_ns))

    def intervals(self) -> list[Interval]:
        """In the order in which they ended."""
        return [
            Interval(stream.handle, label.kind, start_ns, end_ns, stream.owner.device.index, label.batch)
            for stream, label, start_ns, end_ns in list(self._kept)
        ]

    def clear(self) -> None:
        """Forget them."""
        self._kept.clear()

    def chrome(self) -> dict[str, Any]:
        """As JSON for chrome://tracing or Perfetto: a process per device, a track per stream."""
        intervals = self.intervals()
        tracks = {key: n for n, key in enumerate(sorted({(i.device, i.stream) for i in intervals}), 1)}
        events: list[dict[str, Any]] = []
        for (device, _), number in tracks.items():
            events.append(
                {"ph": "M", "name": "thread_name", "pid": device, "tid": number, "args": {"name": f"stream {number}"}}
            )
        events += [
            {"ph": "M", "name": "process_name", "pid": device, "args": {"name": f"device {device}"}}
            for device in sorted({device for device, _ in tracks})
        ]
        events += [
            {
                "ph": "X",
                "name": f"{i.kind} {i.batch}" if i.batch else i.kind,
                "cat": i.kind,
                "pid": i.device,
                "tid": tracks[i.device, i.stream],
                "ts": i.start_ns / 1000,
                "dur": (i.end_ns - i.start_ns) / 1000,
                "args": {"batch": i.batch},
            }
            for i in intervals
        ]
        return {"traceEvents": events, "displayTimeUnit": "ms"}

"""Owns what a run leaves as its result. Does not own how it is shown (``observe.summary``) or counted (ledger)."""

from __future__ import annotations

import dataclasses
import os
import platform
from dataclasses import dataclass, field
from typing import Any

import msgspec

from stages.messages import LedgerEntry

REPORT_SCHEMA = 1


@dataclass(slots=True)
class CameraReport:
    """One camera's result. ``exact``: the ledger's equation held when it was counted in two ways.

    ``skipped``: packets that were left out undecoded because decoding could not keep up; they are in no ledger.
    """

    ledger: LedgerEntry
    exact: bool
    model: str
    state: str
    cause: str
    detail: str
    epochs: int
    width: int
    height: int
    decode_errors: int
    corrupt: int
    objects: int
    frames_with_objects: int
    classes: dict[str, int]
    cut_before: int
    cut_after: int
    fps: float
    skipped: int = 0


@dataclass(slots=True)
class StageReport:
    """Cost of one kind of worker: CPU and busy seconds of all its processes, frames worked on.

    CPU of the engine is without its start; that of workers is all that their processes took.
    """

    workers: int
    cpu_s: float
    busy_s: float
    items: int
    restarts: int
    private_bytes: int  # largest of its processes, as last told


@dataclass(slots=True)
class RunReport:
    """The result of a run."""

    cameras: dict[str, CameraReport]
    stages: dict[str, StageReport]
    wall_s: float  # from the first frame asked for to the last message taken
    start_s: float  # from the call to everything ready
    shared_memory_bytes: int
    stopped_by: str = ""
    lost_messages: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def exit_status(self) -> int:
        """0 done, 1 failed while running."""
        failed = any(camera.state == "failed" or not camera.exact for camera in self.cameras.values())
        return 1 if self.problems or failed else 0

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "type": "report",
            "v": REPORT_SCHEMA,
            "exit_status": self.exit_status,
            "wall_s": round(self.wall_s, 3),
            "start_s": round(self.start_s, 3),
            "shared_memory_bytes": self.shared_memory_bytes,
            "stopped_by": self.stopped_by,
            "lost_messages": self.lost_messages,
            "problems": self.problems,
            "machine": {"system": platform.platform(), "python": platform.python_version(), "cpus": os.cpu_count()},
            "cameras": {name: _plain(camera) for name, camera in self.cameras.items()},
            "stages": {name: _plain(stage) for name, stage in self.stages.items()},
        }


def _plain(item: CameraReport | StageReport) -> dict[str, Any]:
    plain = {f.name: getattr(item, f.name) for f in dataclasses.fields(item)}
    for key, value in plain.items():
        if isinstance(value, float):
            plain[key] = round(value, 4)
        elif isinstance(value, LedgerEntry):
            plain[key] = msgspec.to_builtins(value)
    return plain

"""Owns the judgement on a running engine: green, yellow or red, and why. Pure: a snapshot in, sentences out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pipeline.observe.figures import causes, plural
from pipeline.observe.snapshot import CameraSnapshot, EngineSnapshot, SinkSnapshot, WorkerSnapshot

Colour: TypeAlias = Literal["green", "yellow", "red"]

SILENT_S: Final = 10.0  # the engine tells its figures each second
OVERDUE_S: Final = 5.0  # without a published frame that should be there: yellow, ...
LONG_OVERDUE_S: Final = 60.0  # ... red
AWAY: Final = frozenset({"connecting", "stalled", "reconnecting"})
MORE_THAN_DECODED: Final = (
    "sends more than is decoded, and pictures are left out unseen; lower its rate or size, set sampling.keyframes, or "
    "free the CPU"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be. ``subject``: a camera, a worker, a sink, or the engine."""

    colour: Colour
    subject: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Health:
    """The worst of all findings, and the findings, worst first."""

    colour: Colour
    findings: tuple[Finding, ...]


def judge(snapshot: EngineSnapshot | None, silent_s: float) -> Health:
    """What is to be thought of ``snapshot``, told ``silent_s`` seconds ago (None: nothing was told yet).

    Red is what does not mend itself: a failed camera or worker, a broken sink, an engine that is silent, a camera that
    streams and of which nothing was published for a minute. Yellow is what may: a camera that is being connected again,
    one of which nothing was published for seconds, a worker that is being replaced.
    """
    if snapshot is None:
        return _health([Finding("red", "engine", "has told nothing yet")])
    findings: list[Finding] = []
    if silent_s > SILENT_S:
        findings.append(Finding("red", "engine", f"has told nothing for {silent_s:.0f} s"))
    for camera in snapshot.cameras:
        findings += _of_camera(camera)
    for worker in snapshot.workers:
        findings += _of_worker(worker)
    for sink in snapshot.sinks:
        findings += _of_sink(sink)
    if snapshot.stopping:
        findings.append(Finding("yellow", "engine", "is stopping"))
    return _health(findings)


def _of_camera(camera: CameraSnapshot) -> list[Finding]:
    detail = f": {camera.detail}" if camera.detail else ""
    if camera.state == "failed":
        return [Finding("red", camera.name, f"has failed{detail}")]
    if camera.state in AWAY:
        return [Finding("yellow", camera.name, f"is {camera.state}{detail}")]
    if camera.state == "streaming" and camera.overdue_s > OVERDUE_S:
        colour: Colour = "red" if camera.overdue_s > LONG_OVERDUE_S else "yellow"
        silent_s = camera.overdue_s if camera.since_published_s is None else camera.since_published_s
        dropped = causes({cause: n for cause, n in camera.dropped.items() if cause != "sampling"})
        why = f" (dropped so far: {dropped})" if dropped else ""
        return [Finding(colour, camera.name, f"streams, but nothing of it was published for {silent_s:.0f} s{why}")]
    if camera.skips:
        return [Finding("yellow", camera.name, f"{MORE_THAN_DECODED} ({camera.skipped} pictures so far)")]
    return []


def _of_worker(worker: WorkerSnapshot) -> list[Finding]:
    if worker.state in {"failed", "refused"}:
        return [Finding("red", worker.name, f"has failed and is not started again (restarts: {worker.restarts})")]
    if worker.state == "restarting":
        return [Finding("yellow", worker.name, f"is being started again (restarts: {worker.restarts})")]
    return []


def _of_sink(sink: SinkSnapshot) -> list[Finding]:
    if sink.state != "broken":
        return []
    missed = f"; {plural(sink.missed, 'message')} missed so far" if sink.missed else ""
    return [Finding("red", sink.name, f"is closed: {sink.why}{missed}")]


def _health(findings: list[Finding]) -> Health:
    rank = {"red": 0, "yellow": 1, "green": 2}
    ordered = tuple(sorted(findings, key=lambda finding: rank[finding.colour]))
    return Health(ordered[0].colour if ordered else "green", ordered)

"""Owns making a RunReport from the state at the end of a run."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.report import CameraReport, RunReport, StageReport
from pipeline.runtime.camera_line import CameraLine
from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.worker_process import WorkerProcess


def make_report(
    dispatcher: Dispatcher,
    workers: Iterable[WorkerProcess],
    *,
    engine_cpu_s: float,
    wall_s: float,
    start_s: float,
    shared_memory_bytes: int,
    stopped_by: str,
    lost_messages: int,
    problems: list[str],
) -> RunReport:
    """The result of a run that is over."""
    stages: dict[str, StageReport] = {}
    for worker in workers:
        stage = stages.setdefault(worker.kind, StageReport(0, 0.0, 0.0, 0, 0, 0))
        stage.workers += worker.state != "departed"
        stage.cpu_s += worker.cpu_ns / 1e9
        stage.busy_s += worker.busy_ns / 1e9
        stage.items += worker.items
        stage.restarts += worker.deaths
        stage.private_bytes = max(stage.private_bytes, worker.largest_private_bytes)
    frames = sum(camera.ledger.published for camera in dispatcher.cameras.values())
    stages["engine"] = StageReport(1, engine_cpu_s, engine_cpu_s, frames, 0, 0)
    return RunReport(
        cameras={
            name: _camera(camera, wall_s) for name, camera in {**dispatcher.changes.past, **dispatcher.cameras}.items()
        },
        stages=stages,
        wall_s=wall_s,
        start_s=start_s,
        shared_memory_bytes=shared_memory_bytes,
        stopped_by=stopped_by,
        lost_messages=lost_messages,
        problems=problems,
    )


def _camera(camera: CameraLine, wall_s: float) -> CameraReport:
    started = camera.started
    return CameraReport(
        ledger=camera.ledger.entry(),
        exact=camera.ledger.exact,
        model=camera.model.name,
        state=camera.state,
        cause=camera.end.cause if camera.end else "",
        detail=camera.end.detail if camera.end else "",
        epochs=camera.epoch + 1,
        width=started.width if started else 0,
        height=started.height if started else 0,
        decode_errors=camera.decode_errors,
        corrupt=camera.corrupt,
        objects=camera.objects,
        frames_with_objects=camera.frames_with_objects,
        classes=camera.classes,
        cut_before=camera.cut_before,
        cut_after=camera.cut_after,
        fps=camera.ledger.published / wall_s if wall_s > 0 else 0.0,
        skipped=camera.skipped,
    )

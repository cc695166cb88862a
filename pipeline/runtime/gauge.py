"""Owns the figures of a moment: rates over the last seconds, from the counters of a run. Shows nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.observe.snapshot import CameraSnapshot, EngineSnapshot, LatencySnapshot, SinkSnapshot, WorkerSnapshot
from pipeline.runtime.camera_line import CameraLine
from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.worker_process import WorkerProcess

AWAY = frozenset({"starting", "restarting"})
OVER = frozenset({"paused", "ended", "failed"})
WINDOW_NS = 3_000_000_000
SILENT_NS = 60_000_000_000  # without any frame, and beyond what its sampling explains, before a camera is overdue
KEYFRAMES_NS = 20_000_000_000  # longest usual distance of keyframes
LATELY_NS = 30_000_000_000  # who catches up does it each few seconds, up to a keyframe


@dataclass(slots=True)
class _Watched:
    """When a camera published last, as far as the calls of ``Gauge.read`` tell."""

    published: int
    wanted: int  # frames that came by then, less those that sampling leaves out
    published_ns: int
    waiting_ns: int | None = None  # since when frames have come and none was published
    streaming_ns: int | None = None


class Gauge:
    """Keeps the counters of the last seconds, and when each camera published last."""

    def __init__(self, started_ns: int, shared_memory_bytes: int) -> None:
        self._started_ns = started_ns
        self._shared_memory_bytes = shared_memory_bytes
        self._watched: dict[str, _Watched] = {}
        self._skips: dict[str, tuple[int, int]] = {}  # camera -> packets left out, and when that was first seen
        self._history: deque[tuple[int, dict[str, tuple[int, int]], dict[str, int]]] = deque()

    def read(
        self,
        dispatcher: Dispatcher,
        workers: Iterable[WorkerProcess],
        now_ns: int,
        *,
        shared_memory_bytes: int | None = None,
        subscribers: int = 0,
        lost_messages: int = 0,
        stopping: bool = False,
        sinks: tuple[SinkSnapshot, ...] = (),
    ) -> EngineSnapshot:
        """The figures now."""
        workers = list(workers)
        frames = {name: (c.ledger.decoded, c.ledger.published) for name, c in dispatcher.cameras.items()}
        busy = {worker.name: worker.busy_ns for worker in workers}
        self._history.append((now_ns, frames, busy))
        while len(self._history) > 2 and now_ns - self._history[0][0] > WINDOW_NS:
            self._history.popleft()
        then_ns, old_frames, old_busy = self._history[0]
        span_ns = now_ns - then_ns
        away = {w.name.removeprefix("decode/") for w in workers if w.kind == "decode" and w.state in AWAY}
        self._note_skips(dispatcher, now_ns)
        states = {name: _state(camera, away=name in away) for name, camera in dispatcher.cameras.items()}
        published = {name: self._watch(camera, states[name], now_ns) for name, camera in dispatcher.cameras.items()}
        self._watched = {name: watched for name, watched in self._watched.items() if name in states}
        cameras = tuple(
            CameraSnapshot(
                name=name,
                state=states[name],
                model=camera.model.name,
                fps_in=_rate(frames[name][0], old_frames.get(name, (0, 0))[0], span_ns),
                fps_out=_rate(frames[name][1], old_frames.get(name, (0, 0))[1], span_ns),
                age_ms=camera.newest_age_ms,
                decoded=camera.ledger.decoded,
                published=camera.ledger.published,
                in_flight=camera.ledger.in_flight,
                dropped=camera.ledger.entry().dropped,
                frames_expected=camera.frames_expected,
                objects=camera.newest_objects,
                detail=_detail(camera),
                epoch=camera.epoch,
                decode_errors=camera.decode_errors,
                corrupt=camera.corrupt,
                skipped=camera.skipped,
                since_published_s=published[name][0],
                overdue_s=published[name][1],
                skips=camera.skipped > 0 and now_ns - self._skips[name][1] < LATELY_NS,
            )
            for name, camera in dispatcher.cameras.items()
        )
        told = tuple(
            WorkerSnapshot(
                name=worker.name,
                kind=worker.kind,
                pid=worker.pid,
                state=worker.state,
                busy_share=min(
                    1.0,
                    max(0, busy[worker.name] - old_busy.get(worker.name, 0))
                    / max(1, span_ns)
                    / max(1, len(worker.endpoints)),
                ),
                cpu_s=worker.cpu_ns / 1e9,
                private_bytes=worker.private_bytes,
                restarts=worker.deaths,
            )
            for worker in workers
        )
        return EngineSnapshot(
            uptime_s=(now_ns - self._started_ns) / 1e9,
            cameras=cameras,
            workers=told,
            queues=dispatcher.queues,
            shared_memory_bytes=self._shared_memory_bytes if shared_memory_bytes is None else shared_memory_bytes,
            subscribers=subscribers,
            lost_messages=lost_messages,
            stopping=stopping,
            latencies=tuple(
                LatencySnapshot(stage, tuple(histogram.cumulative()), histogram.sum_ns)
                for stage, histogram in dispatcher.latencies.items()
            ),
            sinks=sinks,
        )

    def _watch(self, camera: CameraLine, state: str, now_ns: int) -> tuple[float | None, float]:
        """``since_published_s`` and ``overdue_s`` of a camera."""
        entry = camera.ledger.entry()
        wanted = entry.decoded - entry.dropped.get("sampling", 0)
        watched = self._watched.get(camera.name)
        if watched is None or watched.published != entry.published:
            streaming_ns = watched.streaming_ns if watched is not None else None
            watched = self._watched[camera.name] = _Watched(entry.published, wanted, now_ns, None, streaming_ns)
        if state != "streaming":
            watched.wanted, watched.waiting_ns, watched.streaming_ns = wanted, None, None
            return None if state in OVER else (now_ns - watched.published_ns) / 1e9, 0.0
        if watched.streaming_ns is None:
            watched.streaming_ns = now_ns
        if watched.waiting_ns is None and wanted > watched.wanted:
            watched.waiting_ns = now_ns
        since_ns = watched.waiting_ns
        if since_ns is None:
            since_ns = max(watched.published_ns, watched.streaming_ns) + SILENT_NS + 3 * _between_ns(camera)
        return (now_ns - watched.published_ns) / 1e9, max(0, now_ns - since_ns) / 1e9

    def _note_skips(self, dispatcher: Dispatcher, now_ns: int) -> None:
        known = self._skips
        self._skips = {
            name: known[name] if name in known and known[name][0] == camera.skipped else (camera.skipped, now_ns)
            for name, camera in dispatcher.cameras.items()
        }


def _state(camera: CameraLine, *, away: bool) -> str:
    """As people see it: a camera has ended when its last frame was told, not when its source was read."""
    if camera.end is not None and not camera.told_end:
        return "streaming"
    return "restarting" if away and camera.state == "streaming" else camera.state


def _between_ns(camera: CameraLine) -> int:
    """How long its next frame may well take to come, because few are wanted."""
    spec, rate = camera.spec, camera.started.fps if camera.started is not None else 0.0
    between_ns = KEYFRAMES_NS if spec.keyframes else int(1e9 / rate) if rate > 0 else 0
    return max(between_ns * spec.sample_every, int(1e9 / spec.sample_fps) if spec.sample_fps else 0)


def _detail(camera: CameraLine) -> str:
    if camera.end is not None:
        return camera.end.detail
    return camera.link.detail if camera.link is not None else ""


def _rate(new: int, old: int, span_ns: int) -> float:
    return (new - old) * 1e9 / span_ns if span_ns > 0 else 0.0

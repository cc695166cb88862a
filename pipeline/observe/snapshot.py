"""Owns what a running engine tells of itself at one moment. Does not own how it is shown (``live``, ``logs``)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CameraSnapshot:
    """One camera now. Rates: frames per second over the last seconds; ``age_ms``: arrival to published, the newest.

    ``skipped``: packets left out undecoded because decoding could not keep up, in no ledger; ``skips``: so of late.
    ``since_published_s``: since its last frame was published, or since it is watched if there was none yet; None of one
    that is paused, has ended or failed. ``overdue_s``: for so long none was published though frames came, or though one
    should have come by its sampling.
    """

    name: str
    state: str  # starting | streaming | ended | failed | restarting, and of live cameras every LinkState
    model: str
    fps_in: float
    fps_out: float
    age_ms: float
    decoded: int
    published: int
    in_flight: int
    dropped: dict[str, int]
    frames_expected: int | None  # None: unknown or endless
    objects: int  # in the newest published frame
    detail: str = ""
    epoch: int = 0
    decode_errors: int = 0
    corrupt: int = 0
    skipped: int = 0
    skips: bool = False
    since_published_s: float | None = None
    overdue_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LatencySnapshot:
    """Durations of all frames in one stage: how many below each of ``latency.BOUNDS_S``, at last all; their sum."""

    stage: str
    cumulative: tuple[int, ...]
    sum_ns: int


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """One worker now; ``busy_share`` 0..1 of the last seconds, ``cpu_s`` since its start."""

    name: str  # decode/gate-1, executor/cpu, nms/0
    kind: str
    pid: int
    state: str  # starting | ready | restarting | failed | gone
    busy_share: float
    cpu_s: float
    private_bytes: int
    restarts: int


@dataclass(frozen=True, slots=True)
class SinkSnapshot:
    """One sink now. ``why`` it is broken; ``missed``: messages of this run that it could not take; never falls."""

    name: str  # publish tcp://127.0.0.1:5600, jsonl out.jsonl
    state: str  # open | broken
    why: str = ""
    missed: int = 0


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The whole engine now. ``queues``: name → (waiting, capacity)."""

    uptime_s: float
    cameras: tuple[CameraSnapshot, ...]
    workers: tuple[WorkerSnapshot, ...]
    queues: dict[str, tuple[int, int]] = field(default_factory=dict)
    shared_memory_bytes: int = 0
    subscribers: int = 0
    lost_messages: int = 0
    stopping: bool = False
    latencies: tuple[LatencySnapshot, ...] = ()
    sinks: tuple[SinkSnapshot, ...] = ()

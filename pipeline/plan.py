"""Owns the plan of a run: every count and size decided. Reads no YAML (``config``), starts nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from stages.camera import CameraSpec
from stages.model import ModelSpec

NMS_CAPACITY = 2  # tasks an NMS worker holds: the next is there when one is done
OUTBOUND_LIMIT = 512  # messages that wait for slow sinks before no further batch is started


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """One inference device: one process with ``executors`` threads, each with ``lanes`` sets of buffers."""

    device: str  # cpu, canned:0, ascend:0 …
    executors: int
    threads: int  # of the device's own runtime, per executor
    lanes: int
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How batches form: at most ``max_batch`` frames, at most ``max_wait_ms`` of waiting for a fuller one."""

    max_batch: int
    max_wait_ms: float


@dataclass(frozen=True, slots=True)
class PublishPlan:
    """Where detections are published; see ``config.site.PublishConfig`` for the meaning of each field."""

    bind: str
    hwm: int = 10_000
    trace: bool = False
    heartbeat_ms: int = 1000
    join_ms: int = 300  # first message not before this long after bind, so that waiting subscribers have joined
    stall_ms: int = 5000  # recorded input: how long a full subscriber may hold up the run before messages are lost
    linger_ms: int = 5000  # at the end: how long to wait for subscribers to take what is queued


@dataclass(frozen=True, slots=True)
class JsonlPlan:
    """A JSONL file; ``path`` may hold ``{camera}``; ``merged``: one file for all cameras in a reproducible order."""

    path: str
    rotate_bytes: int | None = None
    merged: bool = False
    status: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of a run."""

    shared_memory_bytes: int | None = None  # None: what the machine has free
    start_ms: int = 30_000
    stop_ms: int = 10_000
    hang_ms: int = 20_000
    restarts: int = 10  # of one worker within restart_window_ms
    restart_window_ms: int = 60_000
    quarantine: str | None = None  # folder


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything that a run needs, decided."""

    cameras: tuple[CameraSpec, ...]
    models: tuple[ModelSpec, ...]
    devices: tuple[DevicePlan, ...]
    batch: dict[str, BatchPlan]  # by model name
    nms_workers: int
    frame_slots: dict[str, int]  # by camera name
    output_slots: dict[str, int]  # by model name
    publish: PublishPlan | None
    jsonl: tuple[JsonlPlan, ...]
    limits: Limits
    observe: str | None = None  # HOST:PORT of /metrics and /healthz

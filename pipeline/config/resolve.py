"""Owns the step from a Site to what a planner needs: model files found and checked, classes as numbers, 'auto' as None.

Decides no count and no size: ``pipeline.planning`` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pipeline.config.camera import CameraConfig, SourceConfig
from pipeline.config.model import ModelConfig
from pipeline.config.problems import Problems
from pipeline.config.site import ControlConfig, JsonlConfig, PublishConfig, Site
from pipeline.config.sources import is_camera
from pipeline.plan import JsonlPlan, Limits, PublishPlan
from pipeline.yaml import Place
from stages.camera import CameraSpec, LinkSpec
from stages.errors import UserError
from stages.model import HeadOptions, ModelSpec, OmSpec, TensorSpec

MB = 1 << 20
START_MS = 30_000
START_MS_OF_CARDS = 180_000  # as long as `campipe check` gives one (DEVICE_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A device as the site asks for it; None: the planner decides."""

    device: str
    executors: int | None
    threads: int | None
    lanes: int | None
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """Batches as the site asks for them; None: the planner decides."""

    max_batch: int | None
    max_wait_ms: float


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """How the site wants to be changed while it runs."""

    watch: bool
    socket: str | None
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resolved:
    """A site with nothing left to find or to look up. None stands for what the planner decides."""

    cameras: tuple[CameraSpec, ...]
    models: tuple[ModelSpec, ...]  # those that a camera uses, in the order of first use
    devices: tuple[DeviceRequest, ...]
    batch: BatchRequest
    nms_workers: int | None
    publish: PublishPlan | None
    jsonl: tuple[JsonlPlan, ...]
    limits: Limits
    observe: str | None = None  # HOST:PORT
    control: ControlRequest | None = None  # None: not at all


def resolve(site: Site) -> Resolved:
    """Find and check the files of all models in use; UserError with all that is missing, damaged or not possible."""
    problems = Problems()
    ready = site.control.models if site.control is not None else ()
    used = dict.fromkeys([*(camera.model for camera in site.cameras), *ready]) or dict.fromkeys(site.models)
    models = [_model(name, site, problems) for name in used]
    problems.raise_if_any()
    return Resolved(
        cameras=tuple(_camera(camera, site.models[camera.model]) for camera in site.cameras),
        models=tuple(model for model in models if model is not None),
        devices=tuple(
            DeviceRequest(
                each.device, _count(each.executors), _count(each.threads), _count(each.lanes), dict(each.options)
            )
            for each in site.devices
        ),
        batch=BatchRequest(_count(site.batch.max_batch), site.batch.max_wait_ms),
        nms_workers=_count(site.nms.workers),
        publish=_publish(site.publish) if site.publish is not None else None,
        jsonl=tuple(_jsonl(sink.jsonl) for sink in site.sinks),
        limits=_limits(site),
        observe=site.observe.listen,
        control=_control(site.control) if site.control is not None else None,
    )


def class_ids(classes: Sequence[str | int], labels: Sequence[str]) -> tuple[int, ...]:
    """The numbers of ``classes`` (labels or numbers), sorted. A label that several classes have means all of them."""
    wanted = {each for each in classes if isinstance(each, int)}
    return tuple(sorted(wanted | {number for number, label in enumerate(labels) if label in classes}))


def _control(control: ControlConfig) -> ControlRequest:
    return ControlRequest(control.watch, control.socket, tuple(control.models))


def _count(value: int | str) -> int | None:
    return value if isinstance(value, int) else None


def _camera(camera: CameraConfig, model: ModelConfig) -> CameraSpec:
    source, live = camera.source, camera.live
    from_camera = is_camera(source.url)
    return CameraSpec(
        name=camera.name,
        url=source.url,
        model=camera.model,
        track=0 if source.track == "auto" else source.track,
        loop=source.loop,
        pace=source.pace,
        preload=source.preload and not from_camera,
        live=from_camera if live.policy == "auto" else live.policy == "newest",
        recorded_at_ns=_utc_ns(source.recorded_at) if source.recorded_at is not None else None,
        max_frames=source.max_frames,
        sample_every=camera.sampling.every or 1,
        sample_fps=camera.sampling.fps,
        roi=(camera.roi[0], camera.roi[1], camera.roi[2], camera.roi[3]) if camera.roi is not None else None,
        confidence=camera.confidence if camera.confidence is not None else model.confidence,
        iou=camera.iou if camera.iou is not None else model.iou,
        classes=class_ids(camera.classes, model.labels) if camera.classes is not None else None,
        class_agnostic=camera.class_agnostic,
        nms_groups=tuple(class_ids(group, model.labels) for group in camera.nms_groups),
        max_objects=camera.max_objects,
        max_age_ms=live.max_age_ms,
        user=source.user.get_secret_value() if source.user is not None else None,
        password=source.password.get_secret_value() if source.password is not None else None,
        keyframes=camera.sampling.keyframes,
        corrupt=camera.corrupt,
        network=from_camera,
        link=_link(source) if from_camera else LinkSpec(),
    )


def _link(source: SourceConfig) -> LinkSpec:
    return LinkSpec(
        transport=source.transport,
        open_timeout_ms=source.open_timeout_ms,
        read_timeout_ms=source.read_timeout_ms,
        stall_ms=source.stall_ms,
        retry_first_ms=source.reconnect.first_ms,
        retry_longest_ms=max(source.reconnect.first_ms, source.reconnect.longest_ms),
        attempts=source.reconnect.attempts,
        tls_verify=source.tls_verify,
        tls_ca=source.tls_ca,
    )


def _utc_ns(time: datetime) -> int:
    # in whole microseconds: a float of seconds would round
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000


def _model(name: str, site: Site, problems: Problems) -> ModelSpec | None:
    from pipeline.models import store

    model = site.models[name]
    try:
        path = store.find_file(model.file, model.folder)
        store.verify(path, model.sha256, model.size_bytes)
    except UserError as error:
        for problem in error.problems:
            problems.add(site.origin("models", name, "file") or Place(""), "file", problem)
        return None
    om = _om(name, site, problems)
    return ModelSpec(
        name=name,
        path=str(path),
        sha256=model.sha256,
        width=model.input.width,
        height=model.input.height,
        channels=model.input.channels,
        input_layout=model.input.layout,
        input_dtype=model.input.dtype,
        mean=model.input.mean,
        std=model.input.std,
        pad_value=model.input.pad_value,
        placement=model.input.placement,
        layout=model.layout,
        labels=model.labels,
        outputs=tuple(
            TensorSpec(each.name, each.shape, each.dtype, each.scale, each.zero_point) for each in model.outputs
        ),
        fixed_batch=None if model.batch == "dynamic" else model.batch,
        confidence=model.confidence,
        iou=model.iou,
        scale_up=model.input.scale_up,
        head=HeadOptions(
            scores=model.head.scores,
            anchors=model.head.anchors,
            strides=model.head.strides,
            cell_offset=model.head.cell_offset,
            keypoint_values=model.head.keypoint_values,
            top=model.head.top,
        ),
        om=om,
    )


def _om(name: str, site: Site, problems: Problems) -> OmSpec | None:
    """The model's OM. Its file must be there for ``ascend:N`` and their simulator; other devices do not look."""
    from pipeline.models import store

    model = site.models[name]
    if model.om is None:
        return None
    needed = any(each.device.startswith("ascend") for each in site.devices)
    path = ""
    try:
        path = str(store.find_file(model.om.file, model.folder))
        if needed:
            store.verify(Path(path), model.om.sha256)
    except UserError as error:
        if needed:
            hint = "" if path else ". Without `om`, `campipe check` prints the command (atc) that makes it"
            for problem in error.problems:
                problems.add(site.origin("models", name, "om", "file") or Place(""), "om.file", f"{problem}{hint}")
            return None
    return OmSpec(path, model.om.sha256, model.om.batch, model.om.aipp, model.om.soc)


def _publish(publish: PublishConfig) -> PublishPlan:
    return PublishPlan(
        bind=publish.bind,
        hwm=publish.hwm,
        trace=publish.trace,
        heartbeat_ms=publish.heartbeat_ms,
        join_ms=publish.join_ms,
        stall_ms=publish.stall_ms,
        linger_ms=publish.linger_ms,
    )


def _jsonl(jsonl: JsonlConfig) -> JsonlPlan:
    rotate_bytes = int(jsonl.rotate_mb * MB) if jsonl.rotate_mb is not None else None
    return JsonlPlan(path=jsonl.path, rotate_bytes=rotate_bytes, merged=jsonl.merged, status=jsonl.status)


def _limits(site: Site) -> Limits:
    limits = site.limits
    shared_memory_mb, start_ms = _count(limits.shared_memory_mb), _count(limits.start_ms)
    if start_ms is None:
        start_ms = START_MS_OF_CARDS if any(each.device.startswith("ascend:") for each in site.devices) else START_MS
    return Limits(
        shared_memory_bytes=shared_memory_mb * MB if shared_memory_mb is not None else None,
        start_ms=start_ms,
        stop_ms=limits.stop_ms,
        hang_ms=limits.hang_ms,
        restarts=limits.restarts,
        restart_window_ms=limits.restart_window_ms,
        quarantine=limits.quarantine,
    )

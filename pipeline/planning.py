"""Owns how a configuration becomes a plan: counts where it says ``auto``, slots, and whether memory is enough.

Starts nothing but, for a model whose description leaves outputs or their scales to its file, or whose claim to take any
batch is to be relied on, one short process that looks into that file.
"""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config import DeviceRequest, Resolved
from pipeline.plan import BatchPlan, DevicePlan, RunPlan
from pipeline.process_limits import limits_now, refused, refused_space
from pipeline.runtime.isolated import call_in_process
from pipeline.runtime.rings import shared_memory_bytes
from pipeline.transport.memory import usable_bytes
from stages.accelerators.cores import split_cores, usable_cores
from stages.errors import UserError
from stages.model import CODE_TYPES, ModelSpec

if TYPE_CHECKING:
    from stages.accelerators.probe import ModelFacts

log = logging.getLogger(__name__)

NPU_BATCH = 8  # where YOLO-sized models stop gaining on Atlas cards (5.2 ms for 1, 23.5 ms for 8: 192 -> 340 frames/s)
CPU_BATCH = 1  # a CPU gains nothing from batches: the same work, and latency on top
LANES = 2  # one is computed, the next is filled
LANES_SINGLE = 3  # in batches of 1 a copy in and a copy out may take longer than the device does between them
DECODE_AHEAD = 2  # slots per camera beside those under way: one being written, one waiting
PROBE_TIMEOUT_S = 60.0
# Measured with 1 to 60 cameras: sockets of ZeroMQ, files, subscribers; and per worker its sentinel, pidfd, pipe ends.
FIXED_DESCRIPTORS = 64
DESCRIPTORS_PER_WORKER = 5


@dataclass(frozen=True, slots=True)
class Need:
    """What one part of a run takes."""

    name: str  # frames/gate-1, outputs/coco-ssd
    slots: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class Needs:
    """What a whole run takes, and what there is."""

    rings: tuple[Need, ...]
    decode_processes: int
    executor_processes: int
    nms_processes: int
    shared_bytes: int
    usable_bytes: int
    descriptors: int  # that the engine keeps open
    usable_descriptors: int

    @property
    def processes(self) -> int:
        """All processes, the engine's own included."""
        return 1 + self.decode_processes + self.executor_processes + self.nms_processes

    @property
    def fits(self) -> bool:
        """Whether the shared memory is there."""
        return self.shared_bytes <= self.usable_bytes


def make_plan(resolved: Resolved, *, in_process: bool = False) -> RunPlan:
    """Decide everything. Raises UserError when a model can't be read or the machine is too small."""
    plan = draft_plan(resolved)
    need = needs(plan)
    if not in_process and (problems := over_limits(plan, need)):
        raise UserError.of(problems)
    if not need.fits and not in_process:
        limit = plan.limits.shared_memory_bytes
        of = (
            "limits.shared_memory_mb allows" if limit is not None and need.usable_bytes == limit else "this machine has"
        )
        largest = max(need.rings, key=lambda ring: ring.shared_bytes)
        raise UserError(
            f"too little shared memory: {len(plan.cameras)} cameras need {_mib(need.shared_bytes)} and {of} "
            f"{_mib(need.usable_bytes)} free; the largest part is {largest.name} with {_mib(largest.shared_bytes)}; "
            "use fewer cameras, a smaller batch.max_batch, a smaller model, or more memory"
        )
    return plan


def over_limits(plan: RunPlan, need: Needs, *, runs: bool = False) -> list[str]:
    """What the limits of this process keep from a run of the plan, with the remedies.

    ``runs``: a run of the same site has its processes and threads now, which would be free for this one.
    """
    limits = limits_now()
    problems = refused(plan, dataclasses.replace(limits, tasks=None) if runs else limits)
    if need.descriptors > need.usable_descriptors:
        problems.append(
            f"too few file descriptors: {len(plan.cameras)} cameras need {need.descriptors} and this process may open "
            f"{need.usable_descriptors}; raise the limit (ulimit -n {need.descriptors}, or LimitNOFILE= of systemd), "
            "or use fewer cameras"
        )
    return problems


def draft_plan(resolved: Resolved) -> RunPlan:
    """The plan, whether it fits or not. Raises UserError where not even a model could be looked into."""
    cores = usable_cores()
    devices = tuple(_device(config, cores) for config in resolved.devices)
    twice = sorted({d.device for d in devices if sum(other.device == d.device for other in devices) > 1})
    if twice:
        raise UserError.of(
            [f"devices: {name} is listed twice; list it once and raise its executors instead" for name in twice]
        )
    if problems := refused_space(devices, limits_now()):  # native libraries crash for want of it
        raise UserError.of(problems)
    models = _with_outputs(resolved.models, _wanted_batch(resolved.batch.max_batch, devices), devices)
    batch = {
        model.name: BatchPlan(_max_batch(model, resolved.batch.max_batch, devices), resolved.batch.max_wait_ms)
        for model in models
    }
    if all(each.max_batch == 1 for each in batch.values()):
        devices = tuple(map(_with_more_lanes, devices, resolved.devices))
    nms_workers = resolved.nms_workers or max(1, cores // 4)
    under_way = sum(device.executors * device.lanes for device in devices)
    cameras_of = {model.name: sum(camera.model == model.name for camera in resolved.cameras) for model in models}
    return RunPlan(
        cameras=tuple(resolved.cameras),
        models=models,
        devices=devices,
        batch=batch,
        nms_workers=nms_workers,
        frame_slots={
            camera.name: frame_slots(under_way * batch[camera.model].max_batch, cameras_of[camera.model])
            for camera in resolved.cameras
        },
        output_slots={model.name: under_way + nms_workers + 1 for model in models},
        publish=resolved.publish,
        jsonl=tuple(resolved.jsonl),
        limits=resolved.limits,
        observe=resolved.observe,
    )


def frame_slots(frames_under_way: int, cameras: int) -> int:
    """Slots of one camera's ring: its share of what executors hold at once, and two more to decode ahead into.

    A camera alone gets them all; with many cameras each keeps at least one under way.
    """
    return max(1, -(-frames_under_way // max(1, cameras))) + DECODE_AHEAD


def needs(plan: RunPlan, held_bytes: int = 0) -> Needs:
    """What the plan takes of this machine, and what is there. ``held_bytes``: taken now, and free again by then."""
    slots = {f"frames/{name}": count for name, count in plan.frame_slots.items()}
    slots |= {f"outputs/{name}": count for name, count in plan.output_slots.items()}
    rings = tuple(Need(name, slots[name], size) for name, size in shared_memory_bytes(plan).items())
    free = usable_bytes(held_bytes)
    if plan.limits.shared_memory_bytes is not None:
        free = min(free, plan.limits.shared_memory_bytes)
    workers = len(plan.cameras) + plan.nms_workers + len(plan.devices)
    endpoints = len(plan.cameras) + plan.nms_workers + sum(device.executors for device in plan.devices)
    return Needs(
        rings=rings,
        decode_processes=len(plan.cameras),
        executor_processes=len(plan.devices),
        nms_processes=plan.nms_workers,
        shared_bytes=sum(ring.shared_bytes for ring in rings),
        usable_bytes=free,
        descriptors=FIXED_DESCRIPTORS + len(rings) + DESCRIPTORS_PER_WORKER * workers + endpoints,
        usable_descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
    )


def _device(request: DeviceRequest, cores: int) -> DevicePlan:
    executors, threads = request.executors, request.threads
    if request.device == "cpu":
        executors, threads = split_cores(cores, executors, threads)
    return DevicePlan(request.device, executors or 1, threads or 1, request.lanes or LANES, dict(request.options))


def _with_more_lanes(device: DevicePlan, request: DeviceRequest) -> DevicePlan:
    """Of a CPU the copies are its own work: nothing would run beside it."""
    if request.lanes is not None or device.device == "cpu":
        return device
    return dataclasses.replace(device, lanes=LANES_SINGLE)


def _max_batch(model: ModelSpec, wanted: int | None, devices: Sequence[DevicePlan]) -> int:
    if model.om is not None and any(device.device.startswith("ascend") for device in devices):
        # the OM decides: another batch than the one built in would be padded, a larger one than its largest cut up
        largest = model.om.largest_batch
        return largest if isinstance(model.om.batch, int) or wanted is None else min(wanted, largest)
    return model.fixed_batch if model.fixed_batch is not None else _wanted_batch(wanted, devices)


def _wanted_batch(wanted: int | None, devices: Sequence[DevicePlan]) -> int:
    if wanted is not None:
        return wanted
    return CPU_BATCH if all(device.device == "cpu" for device in devices) else NPU_BATCH


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _with_outputs(
    models: Sequence[ModelSpec], wanted_batch: int, devices: Sequence[DevicePlan]
) -> tuple[ModelSpec, ...]:
    """The models with their outputs, and the batch of 1 of those that claim any but have it built in."""
    runs_files = any(device.device == "cpu" for device in devices)
    found: list[ModelSpec] = []
    problems: list[str] = []
    for model in models:
        doubted = model.fixed_batch is None and wanted_batch > 1 and runs_files
        if model.outputs and not doubted and all(t.scale or t.dtype not in CODE_TYPES for t in model.outputs):
            found.append(model)
            continue
        try:
            found.append(_probed(model))
        except UserError as error:
            problems += [f"model {model.name}: {problem}" for problem in error.problems]
    if problems:
        raise UserError.of(problems)
    return tuple(found)


def _probed(model: ModelSpec) -> ModelSpec:
    """The model with what its description leaves to its file: outputs, their scales, whether it takes any batch."""
    file = Path(model.path)
    facts = _facts(model.path, file.stat().st_mtime_ns if file.is_file() else 0, model.width, model.height)
    fixed = model.fixed_batch
    if fixed is None:
        fixed = facts.batch
        if facts.claims_any:
            log.warning(
                "model %s: its file claims any batch size but has 1 built in; it is run at batch 1 "
                "(`batch: 1` in its description says so)",
                model.name,
            )
    if not model.outputs:
        return dataclasses.replace(model, outputs=facts.output_specs(), fixed_batch=fixed)
    told = {t.name: t for t in facts.outputs}
    outputs = [
        dataclasses.replace(t, scale=told[t.name].scale, zero_point=told[t.name].zero_point)
        if t.scale is None and t.dtype in CODE_TYPES and t.name in told
        else t
        for t in model.outputs
    ]
    return dataclasses.replace(model, outputs=tuple(outputs), fixed_batch=fixed)


@lru_cache(maxsize=64)
def _facts(path: str, changed_ns: int, width: int, height: int) -> ModelFacts:
    """What a file takes and gives, looked up in a process of its own: no device opens in here. Once per content."""
    del changed_ns
    from stages.accelerators.probe import describe

    spawn = multiprocessing.get_context("spawn")
    return call_in_process(spawn, PROBE_TIMEOUT_S, describe, path, width=width, height=height)

"""Owns the text that tells what a run will take: its cameras, models, devices, memory, and why it does not fit.

Pure: tries and measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from pipeline.observe.figures import size
from pipeline.observe.logs import printable
from pipeline.observe.summary import align
from pipeline.plan import RunPlan
from pipeline.planning import Needs
from pipeline.preflight.memory_forecast import MemoryForecast
from pipeline.preflight.rehearsal import Opened
from stages.camera import CameraSpec
from stages.decode.source import SourceFacts

Rows: TypeAlias = list[tuple[str, ...]]


def render(
    plan: RunPlan,
    need: Needs,
    sources: Mapping[str, SourceFacts],
    opened: Mapping[str, Opened],
    expected: MemoryForecast,
    *,
    judged: bool = True,
) -> list[str]:
    """The tables: cameras, models, devices, totals. ``judged``: whether it fits is known."""
    processes = (
        f"1 engine + {need.decode_processes} decode + {need.executor_processes} executor + {need.nms_processes} nms"
    )
    verdict = f": {'fits' if need.fits else 'does not fit'}" if judged else ""
    parts = ", ".join(f"{kind} {size(held)}" for kind, held in expected.kinds.items())
    return [
        *align(_cameras(plan, need, sources), left=(0, 3, 5)),
        "",
        *align(_models(plan, need), left=(0, 3)),
        "",
        *align(_devices(plan, opened), left=(0, 4)),
        *(
            printable(fact)
            for device in plan.devices
            if device.device in opened
            for fact in opened[device.device].facts
        ),
        "",
        f"processes: {processes} = {need.processes}",
        f"memory of processes: about {size(expected.own_bytes)} ({parts})",
        f"shared memory: {size(need.shared_bytes)} needed, {size(need.usable_bytes)} available{verdict}",
    ]


def _cameras(plan: RunPlan, need: Needs, sources: Mapping[str, SourceFacts]) -> Rows:
    rings = {ring.name: ring for ring in need.rings}
    rows: Rows = [("camera", "picture", "fps", "codec", "frames", "model", "slots", "shared", "processes")]
    for camera in plan.cameras:
        ring = rings[f"frames/{camera.name}"]
        facts = sources.get(camera.name)
        rows.append(
            (
                printable(camera.name),
                f"{facts.width}x{facts.height}" if facts else "-",
                _fps(facts),
                printable(facts.codec) if facts else "can't be used",
                _frames(camera, facts),
                camera.model,
                str(ring.slots),
                size(ring.shared_bytes),
                "1",
            )
        )
    return rows


def _models(plan: RunPlan, need: Needs) -> Rows:
    rings = {ring.name: ring for ring in need.rings}
    rows: Rows = [("model", "input", "batch", "layout", "classes", "slots", "shared")]
    for model in plan.models:
        ring = rings[f"outputs/{model.name}"]
        batch = plan.batch[model.name].max_batch
        rows.append(
            (
                printable(model.name),
                f"{model.width}x{model.height}",
                f"{batch}" if model.fixed_batch else f"up to {batch}",
                model.layout,
                str(len(model.labels)),
                str(ring.slots),
                size(ring.shared_bytes),
            )
        )
    return rows


def _devices(plan: RunPlan, opened: Mapping[str, Opened]) -> Rows:
    rows: Rows = [("device", "executors", "lanes", "threads", "models loaded in")]
    for device in plan.devices:
        found = opened.get(device.device)
        loaded = f"{found.took_s:.1f} s" if found is not None and found.took_s else "not tried"
        state = loaded if found is not None else "can't be used"
        rows.append((device.device, str(device.executors), str(device.lanes), str(device.threads), state))
    return rows


def _fps(facts: SourceFacts | None) -> str:
    if facts is None:
        return "-"
    return f"{facts.fps:.2f}".rstrip("0").rstrip(".") if facts.fps else "?"


def _frames(camera: CameraSpec, facts: SourceFacts | None) -> str:
    if facts is None:
        return "-"
    if camera.network:
        return "live"
    return "?" if facts.frames is None else str(facts.frames)


def too_little(need: Needs) -> str:
    """The refusal of a site that does not fit."""
    largest = max(need.rings, key=lambda ring: ring.shared_bytes)
    return (
        f"too little shared memory: {size(need.shared_bytes)} needed, {size(need.usable_bytes)} available; the largest "
        f"part is {largest.name} with {size(largest.shared_bytes)}; use fewer cameras, a smaller batch.max_batch, a "
        "smaller model, or more memory"
    )


def too_little_memory(expected: MemoryForecast, available_bytes: int) -> str:
    """The refusal of a site whose processes do not fit beside its shared memory."""
    largest = max(expected.kinds, key=lambda kind: expected.kinds[kind])
    return (
        f"too little memory: about {size(expected.own_bytes)} of processes and {size(expected.shared_bytes)} of shared "
        f"memory are needed, {size(available_bytes)} available; the largest part is {largest} with "
        f"{size(expected.kinds[largest])}; use fewer cameras, smaller pictures, or more memory"
    )

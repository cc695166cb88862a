"""Owns which worker processes a plan asks for. Starts nothing (``supervisor`` does)."""

from __future__ import annotations

from pipeline.graph import build
from pipeline.plan import RunPlan
from pipeline.runtime.policy import RestartPolicy
from pipeline.runtime.rings import Rings
from pipeline.runtime.work import DecodeWork, ExecutorWork, ExporterWork, NmsWork, Work
from pipeline.runtime.worker_process import WorkerProcess
from pipeline.transport.arena import SharedRing
from stages.camera import CameraSpec
from stages.model import ModelSpec
from stages.sinks.address import parse_address


def crew(plan: RunPlan, rings: Rings[SharedRing]) -> list[WorkerProcess]:
    """The workers in the order of their start: sinks' side first, sources last."""
    graph = build(plan)
    models = {model.name: model for model in plan.models}
    max_batch = {name: batch.max_batch for name, batch in plan.batch.items()}
    devices = {f"executor/{device.device}": device for device in plan.devices}

    def work(kind: str, name: str) -> tuple[Work, tuple[str, ...]]:
        if kind == "executor":
            device = devices[name]
            endpoints = tuple(f"{name}/{index}" for index in range(device.executors))
            return ExecutorWork(device, models, rings.frames, rings.outputs, max_batch), endpoints
        if kind == "observe":
            address = parse_address(f"tcp://{plan.observe}", bind=True)
            return ExporterWork("0.0.0.0" if address.host == "*" else address.host.strip("[]"), address.port), (name,)  # noqa: S104
        cameras = tuple((0, camera.without_secrets()) for camera in plan.cameras)
        return NmsWork(plan.models, cameras, rings.outputs, max_batch), (name,)

    workers: list[WorkerProcess] = []
    for kind in ("executor", "nms", "observe"):  # the slowest to be ready first
        node = next((node for node in graph.nodes if node.name == kind), None)
        if node is None:
            continue
        for name in node.workers:
            given, endpoints = work(kind, name)
            workers.append(WorkerProcess(name, kind, endpoints, given, _policy(plan), spawned=node.start == "spawn"))
    workers += [decoder(plan, camera, models[camera.model], rings.frames[camera.name]) for camera in plan.cameras]
    return workers


def decoder(plan: RunPlan, camera: CameraSpec, model: ModelSpec, ring: SharedRing) -> WorkerProcess:
    """The worker that decodes one camera."""
    name = f"decode/{camera.name}"
    work = DecodeWork(camera, model, ring)
    return WorkerProcess(name, "decode", (name,), work, _policy(plan), spawned=False)


def _policy(plan: RunPlan) -> RestartPolicy:
    return RestartPolicy(plan.limits.restarts, plan.limits.restart_window_ms * 1_000_000)

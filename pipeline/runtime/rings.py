"""Owns the rings of a run: how many slots of what size each camera and model gets, and their making."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from pipeline.plan import RunPlan
from pipeline.transport.arena import SharedRing, ring_bytes
from stages.frames import HeapRing
from stages.model import output_slot_bytes


def shared_memory_bytes(plan: RunPlan) -> dict[str, int]:
    """Bytes of each ring of a plan, by ring name (``frames/gate-1``, ``outputs/coco-ssd``)."""
    return {name: ring_bytes(slots, size) for name, slots, size in _wanted(plan)}


def _wanted(plan: RunPlan) -> list[tuple[str, int, int]]:
    models = {model.name: model for model in plan.models}
    frames = [
        (f"frames/{camera.name}", plan.frame_slots[camera.name], models[camera.model].frame_bytes)
        for camera in plan.cameras
    ]
    outputs = [
        (f"outputs/{name}", plan.output_slots[name], output_slot_bytes(model, plan.batch[name].max_batch))
        for name, model in models.items()
    ]
    return frames + outputs


R = TypeVar("R", SharedRing, HeapRing)


class Rings(Generic[R]):
    """All rings of a run; a context manager. ``frames`` by camera, ``outputs`` by model."""

    def __init__(self, plan: RunPlan, make: Callable[[str, int, int], R]) -> None:
        self.frames: dict[str, R] = {}
        self.outputs: dict[str, R] = {}
        self._plan = plan
        self._make: Callable[[str, int, int], R] = make
        self._made = 0

    def __enter__(self) -> Rings[R]:
        try:
            for name, slots, size in _wanted(self._plan):
                kind, _, owner = name.partition("/")
                (self.frames if kind == "frames" else self.outputs)[owner] = self._make(name, slots, size)
        except BaseException:
            self.close()
            raise
        return self

    def make(self, camera: str, slots: int, slot_bytes: int) -> R:
        """A ring for a camera that joins later; its name is its own. Raises UserError when memory is missing."""
        self._made += 1
        return self._make(f"frames/{camera}+{self._made}", slots, slot_bytes)

    def put(self, camera: str, ring: R) -> None:
        """``ring`` is the camera's from now on; the one that it had is released."""
        before = self.frames.get(camera)
        self.frames[camera] = ring
        if before is not None:
            before.close()

    def remove(self, camera: str) -> None:
        """Release the ring of a camera that has left."""
        ring = self.frames.pop(camera, None)
        if ring is not None:
            ring.close()

    @property
    def shared_bytes(self) -> int:
        """What all rings take now."""
        return sum(ring_bytes(ring.slots, ring.slot_bytes) for ring in (*self.frames.values(), *self.outputs.values()))

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release every ring; may be called twice."""
        for ring in [*self.frames.values(), *self.outputs.values()]:
            ring.close()

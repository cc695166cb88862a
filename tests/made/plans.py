"""Plans of runs for tests that need one and care for a few of its fields."""

from __future__ import annotations

from typing import Any

from made.specs import model_spec

from pipeline.plan import BatchPlan, DevicePlan, Limits, RunPlan
from stages.camera import CameraSpec


def run_plan(*cameras: CameraSpec | str, slots: int = 3, **changes: Any) -> RunPlan:
    """A plan of these cameras (a name alone is one of model ``m``) on the CPU; any field of the plan can be given."""
    specs = tuple(each if isinstance(each, CameraSpec) else CameraSpec(each, f"/{each}", "m") for each in cameras)
    fields: dict[str, Any] = {
        "cameras": specs,
        "models": (model_spec(width=8, height=8),),
        "devices": (DevicePlan("cpu", 1, 1, 2),),
        "batch": {"m": BatchPlan(1, 0.0)},
        "nms_workers": 1,
        "frame_slots": {spec.name: slots for spec in specs},
        "output_slots": {"m": 3},
        "publish": None,
        "jsonl": (),
        "limits": Limits(),
    }
    return RunPlan(**fields | changes)

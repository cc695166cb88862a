"""Messages to subscribers for tests that need some and care for a few of their fields."""

from __future__ import annotations

from typing import Any

from stages.messages import Detections

FRAME_NS = 40_000_000


def detections(seq: int, camera: str = "a", **changes: Any) -> Detections:
    """Of frame ``seq`` of a recording of 25 frames/s, in which nothing was found; any field can be given."""
    fields: dict[str, Any] = {
        "camera": camera,
        "epoch": 0,
        "seq": seq,
        "pts_ns": seq * FRAME_NS,
        "captured_ns": 0,
        "clock": "file",
        "width": 8,
        "height": 6,
        "model": "m",
        "objects": [],
    }
    return Detections(**fields | changes)

"""Owns what stages need to know of one camera. Reads no YAML; holds no password in its repr."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class CameraSpec:
    """One camera, resolved: paths absolute, secrets filled in, defaults taken from its model."""

    name: str
    url: str = field(repr=False)  # absolute path of a file; later rtsp://…, which may hold credentials
    model: str
    track: int = 0  # among the video tracks that are no cover picture
    loop: bool = False
    pace: Literal["fast", "realtime"] = "fast"
    live: bool = False  # may drop frames by age; a recording may not
    recorded_at_ns: int | None = None  # UTC of the first frame, when the user knows it
    max_frames: int | None = None
    sample_every: int = 1
    sample_fps: float | None = None
    roi: tuple[float, float, float, float] | None = None  # x1 y1 x2 y2 as parts (0..1) of the upright picture
    confidence: float = 0.4
    iou: float = 0.45
    classes: tuple[int, ...] | None = None  # None: all
    class_agnostic: bool = False
    nms_groups: tuple[tuple[int, ...], ...] = ()  # class ids; classes of one group suppress each other
    max_objects: int = 100
    max_age_ms: int = 1000
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    options: dict[str, str] = field(default_factory=dict)

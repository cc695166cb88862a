"""Owns what stages need to know of one camera. Reads no YAML; holds no password in its repr."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """How a live source is connected, watched and connected again. Nothing of it concerns recordings."""

    transport: Literal["auto", "tcp", "udp"] = "auto"
    open_timeout_ms: int = 10_000
    read_timeout_ms: int = 5_000
    stall_ms: int = 10_000
    retry_first_ms: int = 250  # before the first new try; doubles with each further one
    retry_longest_ms: int = 2_000  # a camera that is back is found within this
    attempts: int | None = None  # tries in a row without a picture before the camera has failed; None: for ever
    tls_verify: bool = True
    tls_ca: str | None = None  # file of certificates to trust, absolute


@dataclass(frozen=True, slots=True)
class CameraSpec:
    """One camera, resolved: paths absolute, secrets filled in, defaults taken from its model."""

    name: str
    url: str = field(repr=False)  # absolute path of a file or device, or rtsp://…; without user and password
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
    keyframes: bool = False  # decode nothing but keyframes
    corrupt: Literal["flag", "drop"] = "flag"  # what becomes of frames with damage
    network: bool = False  # a live source: connected, watched, connected again; else a recording
    link: LinkSpec = LinkSpec()
    preload: bool = False  # a recording: decode its beginning once, play that from memory; for measuring

    def without_secrets(self) -> CameraSpec:
        """What workers get that don't connect to anything."""
        return dataclasses.replace(self, url="", user=None, password=None)

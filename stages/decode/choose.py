"""Owns which kind of source, and which stage around it, a camera's url asks for. Opens nothing."""

from __future__ import annotations

from collections.abc import Callable

from stages.camera import CameraSpec
from stages.decode.address import is_live
from stages.decode.file import FileSource
from stages.decode.live import LiveDecode
from stages.decode.source import Source
from stages.decode.stage import Decode, ResumePoint
from stages.errors import SourceRefused
from stages.frames import SlotRing
from stages.model import ModelSpec
from stages.stage import MonotonicClock


def source_of(camera: CameraSpec) -> Source:
    """The recording at ``camera.url``, not opened yet. Raises SourceRefused for what is no recording."""
    if is_live(camera.url):
        # the address itself isn't repeated: it may hold a password
        raise SourceRefused(
            "unsupported", f"camera {camera.name} is a live source, not a recording; give the path of a recorded file"
        )
    return FileSource(camera)


def stage_of(
    camera: CameraSpec,
    model: ModelSpec,
    ring: SlotRing,
    clock_ns: MonotonicClock,
    resume: ResumePoint | None,
    *,
    wall_ns: Callable[[], int],
    draw: Callable[[], float],
    delay_ms: int = 0,
) -> Decode | LiveDecode:
    """The decode stage for ``camera``: a live source is connected, watched and connected again, a recording is played.

    ``wall_ns``, ``draw`` and ``delay_ms`` are for live sources only: see ``LiveDecode``.
    """
    if camera.network:
        return LiveDecode(camera, model, ring, clock_ns, resume, wall_ns=wall_ns, draw=draw, delay_ms=delay_ms)
    return Decode(camera, model, ring, clock_ns, resume)

"""Owns looking at a source without playing it, for checks before a run. Keeps nothing open."""

from __future__ import annotations

import time

from stages.camera import CameraSpec
from stages.decode.choose import source_of
from stages.decode.network import look
from stages.decode.source import SourceFacts
from stages.errors import LinkFault, SourceRefused


def probe(camera: CameraSpec) -> SourceFacts:
    """Open the camera's source, decode one frame, close it. Raises SourceRefused."""
    if camera.network:
        try:
            return look(camera, time.monotonic_ns, time.time_ns)
        except LinkFault as fault:
            raise SourceRefused(fault.cause, fault.detail) from None
    source = source_of(camera)
    try:
        return source.open()
    finally:
        source.close()

"""Owns looking at a source without playing it, for checks before a run. Keeps nothing open."""

from __future__ import annotations

from stages.camera import CameraSpec
from stages.decode.choose import source_of
from stages.decode.source import SourceFacts


def probe(camera: CameraSpec) -> SourceFacts:
    """Open the camera's source, decode one frame, close it. Raises SourceRefused."""
    source = source_of(camera)
    try:
        return source.open()
    finally:
        source.close()

"""Owns which kind of source a camera's url asks for. Opens nothing."""

from __future__ import annotations

from stages.camera import CameraSpec
from stages.decode.file import FileSource
from stages.decode.source import Source
from stages.errors import SourceRefused


def source_of(camera: CameraSpec) -> Source:
    """The source for ``camera.url``, not opened yet. Raises SourceRefused for addresses that nothing here can play."""
    scheme, separator, _ = camera.url.partition("://")
    if separator and "/" not in scheme:
        # the address itself isn't repeated: it may hold a password
        raise SourceRefused(
            "unsupported", f"camera {camera.name}: {scheme}:// can't be played yet; give the path of a recorded file"
        )
    return FileSource(camera)

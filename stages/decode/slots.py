"""Owns the way of one decoded picture into a slot of its camera's ring: upright, letterboxed. Grants none."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from av.video.frame import VideoFrame

from stages.decode.planes import PlaneShrinker
from stages.decode.upright import PictureConverter, check_size, upright_size
from stages.frames import SlotRing
from stages.letterbox import Geometry, Placed, fill_border, geometry, place_in, resize
from stages.model import ModelSpec

Roi = tuple[float, float, float, float]


class SlotWriter:
    """The slots that were granted, and what is kept from picture to picture."""

    def __init__(self, model: ModelSpec, ring: SlotRing, roi: Roi | None) -> None:
        self._model = model
        self._ring = ring
        self._roi = roi
        self._free: deque[int] = deque()
        self._converter = PictureConverter(model.channels)
        self._shrinker = PlaneShrinker(model.channels)
        self._geometry: Geometry | None = None
        self._size = (0, 0)  # that _geometry is for
        # By slot: where pictures of this geometry go, the border around it filled. A slot's bytes lie where they lay.
        self._places: dict[int, Placed] = {}

    @property
    def free(self) -> int:
        """Slots that may be written."""
        return len(self._free)

    def grant(self, slots: Sequence[int]) -> None:
        """These may be written."""
        self._free.extend(slots)

    def look_at(self, roi: Roi | None) -> None:
        """Another part of the picture from now on."""
        if roi != self._roi:
            self._roi, self._geometry = roi, None
            self._places.clear()

    def write(self, frame: VideoFrame) -> tuple[int, int]:
        """Convert and letterbox ``frame`` into a free slot: the slot and its new generation.

        Raises BadItem("bad_frame") for pictures that can't be used, which costs no slot; IndexError without a free one.
        """
        check_size(frame)
        lies = self._lies(upright_size(frame))
        lines = self._shrinker.lines(frame, lies)
        picture = self._converter.convert(frame) if lines is None else None
        slot = self._free.popleft()
        memory = self._ring.begin_write(slot)
        active = self._places.get(slot)
        if active is None:
            active = self._places[slot] = self._prepare(memory, lies)
        if lines is not None:
            self._shrinker.write(lines, lies, active)
        elif picture is not None:
            resize(picture, lies, active)
        return slot, self._ring.end_write(slot)

    def close(self) -> None:
        """Let go of the ring's memory; may be called twice."""
        self._places.clear()

    def _prepare(self, memory: memoryview, lies: Geometry) -> Placed:
        """Fill the border of a slot, which stays until the geometry changes; where the picture goes."""
        model = self._model
        out = np.frombuffer(memory, np.uint8, model.frame_bytes).reshape(model.height, model.width, 3)
        fill_border(lies, model.pad_value, out)
        return place_in(lies, out)

    def _lies(self, size: tuple[int, int]) -> Geometry:
        """Where an upright picture of this size goes; a stream may change its size."""
        if self._geometry is None or size != self._size:
            model = self._model
            self._geometry = geometry(
                *size, model.width, model.height, model.placement, self._roi, scale_up=model.scale_up
            )
            self._size = size
            self._places.clear()
        return self._geometry

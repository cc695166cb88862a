"""Owns the pictures that quantising calibrates and compares with: frames spread over clips, as a run would see them.

They come out of the product's own decode stage (rotation, resize, padding), so that nothing is calibrated with pictures
that the model will never get. Every second one is for calibration, the ones between them are for the comparison.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stages.camera import CameraSpec
from stages.decode.choose import source_of
from stages.decode.probe import probe
from stages.decode.stage import Decode
from stages.errors import UserError
from stages.frames import HeapRing
from stages.messages import FrameReady
from stages.model import ModelSpec

Progress = Callable[[int, int], None]
"""Called with how many are done and how many there are."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One frame: uint8 (height, width, 3) as it lies in a slot, and the size of the picture that it was made of."""

    camera: str
    width: int
    height: int
    pixels: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Pictures:
    """Frames to calibrate with, and others to compare with."""

    calibration: tuple[Picture, ...]
    comparison: tuple[Picture, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of what is calibrated with."""
        total = hashlib.sha256()
        for picture in self.calibration:
            total.update(picture.pixels.tobytes())
        return total.hexdigest()


def read_pictures(cameras: Sequence[CameraSpec], model: ModelSpec, wanted: int, progress: Progress) -> Pictures:
    """``wanted`` frames for each purpose, as many from each clip, evenly spread; fewer when the clips are short.

    Raises SourceRefused for a clip that can't be played, UserError when there are too few frames.
    """
    if wanted < len(cameras):
        raise UserError(
            f"{wanted} frame(s) can't be taken from {len(cameras)} clips; give at least one a clip (--frames)"
        )
    for camera in cameras:
        probe(camera)  # what can't be read is told before minutes are spent on what can
    shares = [wanted // len(cameras) + (i < wanted % len(cameras)) for i in range(len(cameras))]
    calibration: list[Picture] = []
    comparison: list[Picture] = []
    for camera, share in zip(cameras, shares, strict=True):

        def read(count: int, before: int = len(calibration) + len(comparison)) -> None:
            progress(min(before + count, 2 * wanted), 2 * wanted)

        found = _spread(camera, model, 2 * share, read)
        calibration += found[0::2]
        comparison += found[1::2]
    if not comparison:
        raise UserError(
            f"the clips have {len(calibration)} frame(s) that can be used; give at least two: one to calibrate with, "
            "one to compare with (some fifty each, with many objects, make a good model)"
        )
    progress(2 * wanted, 2 * wanted)
    return Pictures(tuple(calibration), tuple(comparison))


def _spread(camera: CameraSpec, model: ModelSpec, wanted: int, progress: Callable[[int], None]) -> list[Picture]:
    """At most ``wanted`` frames at equal distances."""
    every = max(_frames_in(camera) // wanted, 1)
    plain = dataclasses.replace(
        camera, loop=False, pace="fast", live=False, max_frames=None, sample_every=every, sample_fps=None
    )
    ring = HeapRing("quantize", 1, model.frame_bytes)
    decode = Decode(plain, model, ring, time.monotonic_ns)
    found: list[Picture] = []
    decode.open()
    try:
        decode.grant([0])
        while not decode.done and len(found) < wanted:
            for message in decode.step():
                if isinstance(message, FrameReady):
                    memory = ring.read(message.slot, message.generation)
                    pixels = np.frombuffer(memory, np.uint8).reshape(model.height, model.width, 3).copy()
                    found.append(Picture(camera.name, message.width, message.height, pixels))
                    decode.grant([message.slot])
                    progress(len(found))
    finally:
        decode.close()
    return found


def _frames_in(camera: CameraSpec) -> int:
    """Frames of the clip: what its index says, or else counted."""
    source = source_of(camera)
    try:
        facts = source.open()
        if facts.frames:
            return facts.frames
        count = 0
        while source.read() is not None:
            count += 1
        return count
    finally:
        source.close()

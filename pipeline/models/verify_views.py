"""Owns the pictures that a model is tried on: read as a camera's frames are, and the views made of each. Runs nothing.

Views come in pairs, a view and its mirror image: what a model really sees it sees in both, what it makes up it seldom
does. The strips are wide and tall, so that a picture that is stretched shows in them.

The colour chart is drawn, not photographed: oranges on plain grounds. A photograph of a street holds little that a
detector knows by its colour; an orange with red and blue exchanged is a blue ball.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from stages.camera import CameraSpec
from stages.decode.choose import source_of
from stages.decode.upright import PictureConverter
from stages.errors import UserError

Picture = NDArray[np.uint8]  # (height, width, 3), red green blue

STRIP: Final = 2.2  # long side to short side of the strips
SHAPES: Final = (1.5, STRIP, 3.2, 1 / 1.5, 1 / STRIP, 1 / 3.2)  # width to height of the parts of a picture
SMALLEST: Final = 32  # pixels of a view's side
LONGEST: Final = 1500  # frames of a clip that are looked at
CHART_LABEL: Final = "orange"
CHART: Final = (  # ground, table, oranges as x, y, radius in a picture of 640x480
    ((200, 200, 195), (140, 110, 80), ((250, 290, 60), (380, 300, 66))),
    ((235, 235, 235), (225, 225, 225), ((320, 280, 90),)),
    ((60, 90, 50), (50, 80, 40), ((150, 300, 50), (250, 310, 55), (350, 300, 52), (450, 315, 56))),
    ((40, 40, 45), (70, 60, 55), ((320, 280, 90),)),
)


@dataclass(frozen=True, slots=True)
class View:
    """A part of a picture. ``strip``: of an unusual shape, to show stretching."""

    name: str
    pixels: Picture
    strip: bool = False

    @property
    def mirrored(self) -> Picture:
        """The mirror image."""
        return np.ascontiguousarray(self.pixels[:, ::-1])


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a picture. ``source``: the photograph or clip it is from; parts of one show the same objects."""

    source: str
    pixels: Picture


def read_picture(path: str) -> Picture:
    """The first frame of a picture or clip, upright, red green blue. Raises SourceRefused for what can't be read."""
    return read_pictures(path, 1)[0]


def read_pictures(path: str, most: int) -> list[Picture]:
    """The first frame of a picture or clip, and others of a clip, evenly spaced; see ``read_picture``."""
    source = source_of(CameraSpec("picture", path, ""))
    converter = PictureConverter("rgb")
    found: list[Picture] = []
    step = 1
    try:
        source.open()
        for number in range(LONGEST if most > 1 else 1):
            frame = source.read()
            if frame is None:
                break
            if number % step == 0:
                found.append(np.array(converter.convert(frame.frame)))
            if len(found) > 2 * most:  # its length isn't known: half of what was kept makes room for as much again
                found, step = found[::2], step * 2
    finally:
        source.close()
    if not found:
        raise UserError(f"{path}: no picture could be read; give a JPEG, a PNG or a clip")
    return [found[i] for i in np.linspace(0, len(found) - 1, min(most, len(found))).astype(int)]


def views_of(name: str, picture: Picture) -> list[View]:
    """The whole picture, and a wide and a tall strip through its middle, where the picture has room for them."""
    height, width = picture.shape[:2]
    views = [View(name, picture)]
    wide = min(height, int(width / STRIP))
    tall = min(width, int(height / STRIP))
    middle_y, middle_x = int(height * 0.55), width // 2  # what stands on the ground is below the middle
    top = min(max(middle_y - wide // 2, 0), height - wide)
    left = min(max(middle_x - tall // 2, 0), width - tall)
    if wide >= SMALLEST:
        views.append(View(f"{name}, wide strip", np.ascontiguousarray(picture[top : top + wide]), strip=True))
    if tall >= SMALLEST:
        views.append(View(f"{name}, tall strip", np.ascontiguousarray(picture[:, left : left + tall]), strip=True))
    return views


def shapes_of(picture: Picture, places: int = 3) -> list[Picture]:
    """The picture and parts of it, wide and tall, each at its start, middle and end (``places`` 1: in the middle)."""
    height, width = picture.shape[:2]
    found = [picture]
    for aspect in SHAPES:
        wide, tall = min(width, int(height * aspect)), min(height, int(width / aspect))
        if min(wide, tall) < SMALLEST:
            continue
        for share in np.linspace(0, 1, places) if places > 1 else (0.5,):
            left, top = int((width - wide) * share), int((height - tall) * share)
            found.append(np.ascontiguousarray(picture[top : top + tall, left : left + wide]))
    return found


def colour_chart() -> list[Picture]:
    """Pictures of oranges, 640x480, the same each time."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[:480, :640].astype(np.float64)
    grain = 1 + 0.15 * cv2.GaussianBlur(random.normal(0, 1, x.shape), (0, 0), 1.5)
    pictures = []
    for ground, table, oranges in CHART:
        picture = np.empty((480, 640, 3), np.float64)
        picture[:300], picture[300:] = ground, table
        for at_x, at_y, radius in oranges:
            right, down = (x - at_x) / radius, (y - at_y) / radius
            inside = np.hypot(right, down) < 1
            shadow = (right - 0.3) ** 2 / 1.2 + ((down - 0.95) / 0.25) ** 2 < 1
            picture[shadow & ~inside] *= 0.6
            light = np.clip(1.15 - 0.5 * np.hypot(right + 0.3, down + 0.4), 0.3, 1) * grain
            picture[inside] = np.clip(np.array((240, 140, 20)) * light[inside][:, None], 0, 255)
        pictures.append(np.asarray(cv2.GaussianBlur(picture.astype(np.uint8), (3, 3), 0), np.uint8))
    return pictures

"""Owns the way from a decoded frame to an upright 8-bit picture in the model's channel order. Not sizes, not slots."""

from __future__ import annotations

from typing import Any, Literal

import av
import cv2
import numpy as np
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from stages.errors import BadItem

MAX_PIXELS = 8192 * 8192  # 201 MB as RGB: beyond that it is a broken header, not a picture

# One camera, one thread: swscale would start a thread per core. Versions before 17 have no such choice and use one.
_ONE_THREAD: dict[str, Any] = {"threads": 1} if int(av.__version__.partition(".")[0]) >= 17 else {}

_TURNS = {1: cv2.ROTATE_90_COUNTERCLOCKWISE, 2: cv2.ROTATE_180, 3: cv2.ROTATE_90_CLOCKWISE}


def quarter_turns(frame: VideoFrame) -> int:
    """Counterclockwise quarter turns (0..3) that make this frame upright, from its display matrix."""
    return round(frame.rotation / 90) % 4


def upright_size(frame: VideoFrame) -> tuple[int, int]:
    """Width and height in pixels of the upright picture."""
    return (frame.height, frame.width) if quarter_turns(frame) % 2 else (frame.width, frame.height)


def check_size(frame: VideoFrame) -> tuple[int, int]:
    """Width and height of the frame as it is stored. Raises BadItem("bad_frame") for sizes that can't be used."""
    width, height = frame.width, frame.height
    if width < 1 or height < 1 or width * height > MAX_PIXELS:
        raise BadItem("bad_frame", f"{width}x{height} pixels")
    return width, height


class PictureConverter:
    """One per stream: swscale's context and the memory of turned pictures are kept from frame to frame."""

    def __init__(self, channels: Literal["rgb", "bgr"]) -> None:
        self._format = f"{channels}24"
        self._reformatter = VideoReformatter()
        self._turned: NDArray[np.uint8] | None = None

    def convert(self, frame: VideoFrame) -> NDArray[np.uint8]:
        """The upright picture, uint8 (H, W, 3), rows possibly padded; valid until the next call.

        Without a turn it is a view of the converted frame's own memory. Raises BadItem("bad_frame") for sizes and pixel
        formats that can't be used.
        """
        width, height = check_size(frame)
        try:
            converted = self._reformatter.reformat(frame, format=self._format, **_ONE_THREAD)
            plane = converted.planes[0]
        except (FFmpegError, ValueError, IndexError, MemoryError) as error:
            raise BadItem("bad_frame", f"{width}x{height} {_format_name(frame)}: {type(error).__name__}") from error
        stride = plane.line_size
        if converted.width != width or converted.height != height or stride < width * 3:
            raise BadItem(
                "bad_frame", f"{width}x{height} became {converted.width}x{converted.height}, rows of {stride}"
            )
        picture: NDArray[np.uint8] = np.ndarray((height, width, 3), np.uint8, memoryview(plane), 0, (stride, 3, 1))
        turns = quarter_turns(frame)
        return picture if turns == 0 else self._turn(picture, turns)

    def _turn(self, picture: NDArray[np.uint8], turns: int) -> NDArray[np.uint8]:
        height, width = picture.shape[:2]
        shape = (width, height, 3) if turns % 2 else (height, width, 3)
        if self._turned is None or self._turned.shape != shape:
            self._turned = np.empty(shape, np.uint8)
        turned = cv2.rotate(picture, _TURNS[turns], dst=self._turned)
        return turned.view(np.uint8)  # for the types: cv2's stubs know no dtypes


def _format_name(frame: VideoFrame) -> str:
    pixel_format = frame.format
    return "unknown format" if pixel_format is None else pixel_format.name

"""Planes shrunk before colours are converted: the same picture as the long way gives, but for rounding."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from av.video.frame import VideoFrame

from stages.decode.planes import PlaneShrinker, colour_matrix
from stages.decode.slots import SlotWriter
from stages.decode.upright import PictureConverter
from stages.frames import HeapRing
from stages.letterbox import geometry, place
from stages.model import ModelSpec, TensorSpec

ROUNDING = 4  # swscale works with fewer bits, and rounds down


def frame_of(width: int, height: int, pixel_format: str = "yuv420p", space: int = 2, span: int = 0) -> VideoFrame:
    """Noise in cells of some pixels, pale: at the edges of strong colours the long way cuts what RGB has not."""
    rng = np.random.default_rng(width * height)
    cells = rng.integers(90, 166, (-(-height // 7), -(-width // 7), 3), dtype=np.uint8)
    picture = cv2.resize(cells, (width, height), interpolation=cv2.INTER_NEAREST)
    frame = VideoFrame.from_ndarray(picture, "rgb24").reformat(
        format=pixel_format, dst_colorspace=space if space != 2 else None
    )
    frame.colorspace, frame.color_range = space, span
    return frame


def both_ways(frame: VideoFrame, model: tuple[int, int], roi=None, channels="rgb"):
    g = geometry(frame.width, frame.height, *model, "center", roi)
    long = np.zeros((model[1], model[0], 3), np.uint8)
    place(PictureConverter(channels).convert(frame), g, 0, long)
    shrinker = PlaneShrinker(channels)
    lines = shrinker.lines(frame, g)
    assert lines is not None
    short = np.zeros_like(long)
    shrinker.write(lines, g, short[g.top : g.top + g.height, g.left : g.left + g.width])
    return long.astype(int), short.astype(int)


@pytest.mark.parametrize(
    ("source", "model"),
    [
        ((1280, 720), (640, 640)),
        ((1920, 1080), (640, 640)),
        ((1920, 1080), (640, 360)),
        ((1280, 960), (320, 320)),
        ((640, 480), (128, 96)),
        ((960, 540), (160, 160)),
    ],
)
def test_the_same_picture_as_the_long_way(source, model) -> None:
    long, short = both_ways(frame_of(*source), model)
    assert np.abs(long - short).max() <= ROUNDING
    assert np.abs(long - short).mean() < 2


@pytest.mark.parametrize("channels", ["rgb", "bgr"])
@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuvj420p"])
@pytest.mark.parametrize("span", [0, 1, 2])
@pytest.mark.parametrize("space", [1, 2, 5, 6, 9])
def test_the_same_colours_as_swscale(channels, pixel_format, span, space) -> None:
    long, short = both_ways(frame_of(128, 64, pixel_format, space, span), (64, 32), channels=channels)
    assert np.abs(long - short).max() <= ROUNDING


def test_a_part_of_the_picture() -> None:
    long, short = both_ways(frame_of(1280, 720), (320, 320), roi=(0.25, 0, 0.75, 8 / 9))
    assert np.abs(long - short).max() <= ROUNDING


@pytest.mark.parametrize(
    ("source", "model", "roi", "pixel_format", "space"),
    [
        ((768, 576), (640, 640), None, "yuv420p", 2),  # no multiple
        ((640, 360), (640, 640), None, "yuv420p", 2),  # as it is
        ((320, 180), (640, 640), None, "yuv420p", 2),  # enlarged
        ((1280, 720), (640, 640), None, "yuv422p", 2),
        ((1280, 720), (640, 640), None, "yuv420p", 7),  # a space that isn't known here
        ((1282, 720), (640, 640), (1 / 1282, 0, 1281 / 1282, 1), "yuv420p", 2),  # begins within a chroma sample
    ],
)
def test_everything_else_takes_the_long_way(source, model, roi, pixel_format, space) -> None:
    frame = frame_of(*source, pixel_format)
    frame.colorspace = space
    assert PlaneShrinker("rgb").lines(frame, geometry(*source, *model, "center", roi)) is None


def test_an_unknown_space_has_no_matrix() -> None:
    assert colour_matrix(8, full=False, channels="rgb") is None


def test_black_white_and_red_are_what_they_are() -> None:
    for full, low, high in ((False, 16, 235), (True, 0, 255)):
        matrix = colour_matrix(1, full=full, channels="rgb")
        assert matrix is not None
        assert matrix @ (low, 128, 128, 1) == pytest.approx((0, 0, 0))
        assert matrix @ (high, 128, 128, 1) == pytest.approx((255, 255, 255))
    red = colour_matrix(6, full=True, channels="bgr")
    assert red is not None
    assert red @ (0.299 * 255, 128 - 0.168736 * 255, 255.5, 1) == pytest.approx((0, 0, 255), abs=0.01)


def writer(width: int, height: int, slots: int):
    model = ModelSpec(
        "m", "", "", width, height, "rgb", "nchw", "uint8", (0.0,) * 3, (1.0,) * 3, 114, "center", "yolov5", ("a",),
        (TensorSpec("o", (1, 6), "float32"),), None, 0.5, 0.5,
    )  # fmt: skip
    ring = HeapRing("frames/x", slots, model.frame_bytes)
    return SlotWriter(model, ring, None), ring, model


def test_borders_are_whole_after_the_picture_changed_its_size_and_back() -> None:
    made, ring, model = writer(64, 64, 2)
    for size in ((128, 64), (128, 64), (64, 128), (64, 128), (128, 64), (96, 96), (128, 64), (128, 64)):
        made.grant([0])
        frame = frame_of(*size)
        slot, generation = made.write(frame)
        found = np.frombuffer(ring.read(slot, generation), np.uint8, model.frame_bytes).reshape(64, 64, 3)
        expected = np.zeros_like(found)
        g = geometry(*size, 64, 64, "center")
        place(PictureConverter("rgb").convert(frame), g, 114, expected)
        assert np.abs(found.astype(int) - expected).max() <= ROUNDING
        border = np.ones((64, 64), bool)
        border[g.top : g.top + g.height, g.left : g.left + g.width] = False
        assert (found[border] == 114).all()

"""Where a picture goes in a model's input, pixel by pixel; in place in memory of a slot."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from stages.letterbox import Geometry, geometry, place

PAD = 114


def noise(width: int, height: int, seed: int = 0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def placed(g: Geometry):
    return (g.left, g.top, g.width, g.height)


def cropped(g: Geometry):
    return (g.crop_x, g.crop_y, g.crop_width, g.crop_height)


@pytest.mark.parametrize(
    ("source", "model", "placement", "expected"),
    [
        ((768, 576), (300, 300), "stretch", (0, 0, 300, 300)),
        ((768, 576), (640, 640), "center", (0, 80, 640, 480)),
        ((768, 576), (416, 416), "top_left", (0, 0, 416, 312)),
        ((576, 768), (640, 640), "center", (80, 0, 480, 640)),
        ((576, 768), (416, 416), "top_left", (0, 0, 312, 416)),
        ((640, 640), (640, 640), "center", (0, 0, 640, 640)),
        ((1920, 1080), (640, 384), "center", (0, 12, 640, 360)),
        ((1280, 720), (640, 384), "top_left", (0, 0, 640, 360)),
        # 640 * 241/321 = 480.498, 640 * 241/322 = 479.006, 640 * 242/321 = 482.49
        ((321, 241), (640, 640), "center", (0, 80, 640, 480)),
        ((321, 242), (640, 640), "center", (0, 79, 640, 482)),
        # 416 * 272/640 = 176.8: to nearest as YOLOv5 does, down as YOLOX does
        ((640, 272), (416, 416), "center", (0, 119, 416, 177)),
        ((640, 272), (416, 416), "top_left", (0, 0, 416, 176)),
        # floating point would make 639 of the side that fills: int(49 * (640 / 49))
        ((49, 7), (640, 640), "top_left", (0, 0, 640, 91)),
        ((1, 4100), (640, 640), "center", (319, 0, 1, 640)),
        ((4100, 1), (640, 640), "top_left", (0, 0, 640, 1)),
        ((1, 1), (640, 384), "center", (128, 0, 384, 384)),
    ],
)
def test_where_the_picture_lies(source, model, placement, expected) -> None:
    g = geometry(*source, *model, placement)
    assert placed(g) == expected
    assert cropped(g) == (0, 0, *source)


@pytest.mark.parametrize(
    ("roi", "expected"),
    [
        ((0.0, 0.0, 1.0, 1.0), (0, 0, 100, 50)),
        ((0.25, 0.5, 0.75, 1.0), (25, 25, 50, 25)),
        ((0.1, 0.1, 0.9, 0.9), (10, 5, 80, 40)),
        ((0.5, 0.5, 0.5001, 0.5001), (50, 25, 1, 1)),
        ((0.999, 0.999, 1.0, 1.0), (99, 49, 1, 1)),
        ((-0.5, 0.0, 1.5, 2.0), (0, 0, 100, 50)),
    ],
)
def test_roi_in_source_pixels_is_at_least_one_pixel_and_inside(roi, expected) -> None:
    assert cropped(geometry(100, 50, 640, 640, "center", roi)) == expected


@pytest.mark.parametrize("bad", [(0, 10, 10, 10), (10, 0, 10, 10), (10, 10, 0, 10), (10, 10, 10, -1)])
def test_sizes_below_one_are_refused(bad) -> None:
    with pytest.raises(ValueError, match="no geometry"):
        geometry(*bad, "center")


def test_unknown_placement_is_refused() -> None:
    with pytest.raises(ValueError, match="bottom_right"):
        geometry(10, 10, 10, 10, "bottom_right")  # type: ignore[arg-type]


@pytest.mark.parametrize("placement", ["stretch", "center", "top_left"])
@pytest.mark.parametrize("size", [(768, 576), (576, 768), (321, 241), (1, 1), (1, 700), (700, 1), (300, 300)])
@pytest.mark.parametrize("roi", [None, (0.2, 0.3, 0.7, 0.95)])
def test_place_equals_crop_resize_paste(placement, size, roi) -> None:
    image = noise(*size)
    g = geometry(*size, 300, 200, placement, roi)
    out = np.full((200, 300, 3), 7, np.uint8)  # what an older frame left in the slot
    place(image, g, PAD, out)
    expected = np.full((200, 300, 3), PAD, np.uint8)
    crop = image[g.crop_y : g.crop_y + g.crop_height, g.crop_x : g.crop_x + g.crop_width].copy()
    expected[g.top : g.top + g.height, g.left : g.left + g.width] = cv2.resize(
        crop, (g.width, g.height), interpolation=cv2.INTER_LINEAR
    ).reshape(g.height, g.width, 3)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    "window",
    [np.s_[:, :], np.s_[50:150, :], np.s_[:, 50:250], np.s_[20:60, 30:31], np.s_[7:8, 3:250], np.s_[7:8, 3:4]],
    ids=str,
)
def test_opencv_writes_into_a_view_without_a_copy(window) -> None:
    out = np.zeros((200, 300, 3), np.uint8)
    view = out[window]
    written = cv2.resize(noise(768, 576), (view.shape[1], view.shape[0]), dst=view, interpolation=cv2.INTER_LINEAR)
    assert written is view
    assert out[window].any()


def test_place_writes_only_the_slot() -> None:
    memory = bytearray(b"\xa5" * (300 * 200 * 3 + 200))
    out = np.frombuffer(memoryview(memory), np.uint8, 300 * 200 * 3, 100).reshape(200, 300, 3)
    place(noise(768, 576), geometry(768, 576, 300, 200, "center"), PAD, out)
    assert memory[:100] == memory[-100:] == b"\xa5" * 100


def test_rows_with_padding_behind_them_are_read_right() -> None:
    """Converted frames have rows longer than the picture."""
    wide = noise(400, 240)
    view = wide[:, :321]
    out, expected = (np.zeros((300, 300, 3), np.uint8) for _ in range(2))
    g = geometry(321, 240, 300, 300, "center")
    place(view, g, PAD, out)
    place(np.ascontiguousarray(view), g, PAD, expected)
    np.testing.assert_array_equal(out, expected)


def test_a_bright_square_lands_where_forward_says() -> None:
    image = np.zeros((576, 768, 3), np.uint8)
    image[100:300, 200:500] = 255
    g = geometry(768, 576, 640, 640, "center", (0.1, 0.1, 0.9, 0.8))
    out = np.zeros((640, 640, 3), np.uint8)
    place(image, g, 0, out)
    rows, columns = np.nonzero(out[..., 0] > 127)
    found = [[columns.min(), rows.min()], [columns.max() + 1, rows.max() + 1]]
    np.testing.assert_allclose(found, g.forward(np.array([[200, 100], [500, 300]])), atol=1)


@pytest.mark.parametrize(
    ("image", "out"),
    [
        (noise(768, 576), np.zeros((300, 301, 3), np.uint8)),
        (noise(768, 576), np.zeros((300, 300, 3), np.float32)),
        (noise(767, 576), np.zeros((300, 300, 3), np.uint8)),
        (noise(768, 576)[..., 0], np.zeros((300, 300, 3), np.uint8)),
        (noise(768, 576).astype(np.float32), np.zeros((300, 300, 3), np.uint8)),
    ],
)
def test_shapes_are_checked_before_native_code(image, out) -> None:
    with pytest.raises(ValueError, match=r"slot|picture"):
        place(image, geometry(768, 576, 300, 300, "stretch"), PAD, out)


def test_inverse_clips_to_the_crop_and_takes_no_boxes() -> None:
    g = geometry(100, 50, 300, 300, "center", (0.25, 0.0, 0.75, 1.0))
    boxes = g.inverse(np.array([[-500, -500, 9000, 9000], [0, 0, 300, 300]], np.float32))
    assert boxes.dtype == np.float32
    np.testing.assert_array_equal(boxes, [[25, 0, 75, 50]] * 2)
    assert g.inverse(np.empty((0, 4), np.float32)).shape == (0, 4)


def test_inverse_uses_the_scales_of_each_axis() -> None:
    """640 * 242/321 is 482.49: x is scaled by 640/321, y by 482/242, and the box comes back exactly."""
    g = geometry(321, 242, 640, 640, "center")
    box = np.array([[g.left, g.top, g.left + g.width, g.top + g.height]], np.float32)
    np.testing.assert_array_equal(g.inverse(box), [[0, 0, 321, 242]])


@pytest.mark.parametrize(
    ("source", "placement", "expected"),
    [
        ((20, 10), "center", (140, 145, 20, 10)),
        ((20, 10), "top_left", (0, 0, 20, 10)),
        ((20, 10), "stretch", (0, 0, 300, 300)),
        ((300, 300), "center", (0, 0, 300, 300)),
        ((301, 10), "center", (0, 145, 300, 10)),  # one side too long: shrunk as ever
        ((600, 300), "center", (0, 75, 300, 150)),
    ],
)
def test_without_scale_up_a_picture_that_fits_keeps_its_size(source, placement, expected) -> None:
    assert placed(geometry(*source, 300, 300, placement, scale_up=False)) == expected


def test_points_come_back_like_boxes() -> None:
    g = geometry(810, 1080, 640, 640, "center", (0.1, 0.2, 0.9, 1))
    points = np.random.default_rng(1).random((5, 17, 2)) * 640
    boxes = np.concatenate((points, points), axis=2).reshape(-1, 4)
    np.testing.assert_array_equal(g.inverse_points(points, clip=True).reshape(-1, 2), g.inverse(boxes)[:, :2])
    free = g.inverse_points(points, clip=False)
    np.testing.assert_allclose(g.forward(free.reshape(-1, 2)).reshape(points.shape), points, atol=1e-3)

"""Source pixels to the model's input and back, for any sizes, placements and regions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from searching import examples

from stages.letterbox import Geometry, geometry, place

PLACEMENTS = ("stretch", "center", "top_left")
parts = st.floats(0, 1, width=32)


@st.composite
def geometries(draw: st.DrawFn, largest: int = 4100, model: int = 1400) -> Geometry:
    sizes = [draw(st.integers(1, limit)) for limit in (largest, largest, model, model)]
    roi = draw(st.none() | st.tuples(parts, parts, parts, parts))
    if roi is not None:
        x, y = sorted((roi[0], roi[2])), sorted((roi[1], roi[3]))
        roi = (x[0], y[0], x[1], y[1])
    return geometry(*sizes, draw(st.sampled_from(PLACEMENTS)), roi)


@settings(max_examples=examples(400))
@given(geometries(), st.lists(st.tuples(parts, parts, parts, parts), min_size=1, max_size=8))
def test_there_and_back_within_a_thousandth_of_a_pixel(g: Geometry, boxes: list[tuple[float, ...]]) -> None:
    low, size = np.array((g.crop_x, g.crop_y)), np.array((g.crop_width, g.crop_height))
    points = np.array(boxes, np.float64).reshape(-1, 2) * size + low
    back = g.inverse(g.forward(points).reshape(-1, 4))
    np.testing.assert_allclose(back.reshape(-1, 2), points, rtol=0, atol=1e-3)


@settings(max_examples=examples(400))
@given(geometries())
def test_corners_are_exact(g: Geometry) -> None:
    source = [g.crop_x, g.crop_y, g.crop_x + g.crop_width, g.crop_y + g.crop_height]
    model = [g.left, g.top, g.left + g.width, g.top + g.height]
    assert g.forward(np.array(source).reshape(2, 2)).ravel().tolist() == model
    assert g.inverse(np.array([model], np.float32))[0].tolist() == source


@settings(max_examples=examples(400))
@given(
    st.integers(1, 4100), st.integers(1, 4100), st.integers(1, 1400), st.integers(1, 1400), st.sampled_from(PLACEMENTS)
)
def test_against_the_textbook_formula(sw: int, sh: int, mw: int, mh: int, placement: str) -> None:
    g = geometry(sw, sh, mw, mh, placement)  # type: ignore[arg-type]
    assert 0 <= g.left <= g.left + g.width <= mw
    assert 0 <= g.top <= g.top + g.height <= mh
    if placement == "stretch":
        assert (g.left, g.top, g.width, g.height) == (0, 0, mw, mh)
        return
    scale = min(Fraction(mw, sw), Fraction(mh, sh))
    for ideal, found, limit in ((sw * scale, g.width, mw), (sh * scale, g.height, mh)):
        if placement == "center":
            assert abs(found - ideal) <= Fraction(1, 2) or found == 1
        else:
            assert found == max(int(ideal), 1)
        assert found <= limit
    assert g.width == mw or g.height == mh
    if placement == "center":
        assert 0 <= (mw - g.width) - 2 * g.left <= 1
        assert 0 <= (mh - g.height) - 2 * g.top <= 1
    else:
        assert (g.left, g.top) == (0, 0)


@settings(max_examples=examples(120))
@given(geometries(largest=90, model=70), st.integers(0, 255))
def test_every_pixel_of_a_slot_is_written(g: Geometry, pad: int) -> None:
    image = np.full((g.crop_y + g.crop_height, g.crop_x + g.crop_width, 3), 200, np.uint8)
    out = np.full((g.model_height, g.model_width, 3), 3, np.uint8)
    place(image, g, pad, out)
    expected = np.full_like(out, pad)
    expected[g.top : g.top + g.height, g.left : g.left + g.width] = 200
    np.testing.assert_array_equal(out, expected)

"""Frames into model inputs, against numpy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made.specs import model_spec
from searching import examples

from stages.accelerators.pixels import PixelWriter, check_scaling
from stages.errors import BadItem, UserError
from stages.model import ModelSpec

IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
PLAIN = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def spec(
    layout: str,
    dtype: str,
    scaling: tuple[tuple[float, ...], tuple[float, ...]] = PLAIN,
    width: int = 5,
    height: int = 4,
) -> ModelSpec:
    return model_spec(
        path="",
        width=width,
        height=height,
        input_layout=layout,
        input_dtype=dtype,
        mean=scaling[0],
        std=scaling[1],
        pad_value=0,
        placement="stretch",
        labels=(),
        outputs=(),
        iou=0.4,
    )


def expected(model: ModelSpec, frame: np.ndarray) -> np.ndarray:
    values = (frame.astype(np.float64) - model.mean) / model.std
    order = (2, 0, 1) if model.input_layout == "nchw" else (0, 1, 2)
    return np.asarray(values.astype(model.input_dtype).transpose(order))


def written(model: ModelSpec, frame: np.ndarray) -> np.ndarray:
    writer = PixelWriter(model)
    destination: np.ndarray[Any, Any] = np.full((2, *writer.input_shape), 77, writer.dtype)
    writer.write(frame, destination[1])
    assert (destination[0] == 77).all(), "the neighbour in the batch was touched"
    return np.asarray(destination[1])


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("dtype", "scaling"),
    [
        ("float32", PLAIN),
        ("float32", ((0.0,) * 3, (255.0,) * 3)),
        ("float32", IMAGENET),
        ("float32", ((127.5,) * 3, (127.5,) * 3)),
        ("float32", ((0.0, 1.0, 0.0), (1.0, 1.0, 1.0))),
        ("float16", PLAIN),
        ("float16", ((0.0,) * 3, (255.0,) * 3)),
        ("float16", IMAGENET),
        ("uint8", PLAIN),
    ],
)
@pytest.mark.parametrize("size", [(1, 1), (5, 4), (64, 48), (300, 300), (641, 33)])
def test_every_bit_is_that_of_numpy(
    layout: str, dtype: str, scaling: tuple[tuple[float, ...], tuple[float, ...]], size: tuple[int, int]
) -> None:
    model = spec(layout, dtype, scaling, *size)
    frame = np.random.default_rng(3).integers(0, 256, (size[1], size[0], 3), np.uint8)
    assert written(model, frame).tobytes() == expected(model, frame).tobytes()


@settings(max_examples=examples(60))
@given(
    layout=st.sampled_from(["nchw", "nhwc"]),
    dtype=st.sampled_from(["float32", "float16"]),
    mean=st.tuples(*[st.floats(-300, 300)] * 3),
    std=st.tuples(*[st.floats(0.5, 300)] * 3),
    width=st.integers(1, 40),
    height=st.integers(1, 40),
    seed=st.integers(0, 999),
)
def test_any_mean_and_std(
    layout: str, dtype: str, mean: tuple[float, ...], std: tuple[float, ...], width: int, height: int, seed: int
) -> None:
    model = spec(layout, dtype, (mean, std), width, height)
    frame = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    assert written(model, frame).tobytes() == expected(model, frame).tobytes()


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_frames_need_not_be_contiguous_or_writable(layout: str, dtype: str) -> None:
    model = spec(layout, dtype)
    large = np.random.default_rng(0).integers(0, 256, (8, 10, 3), np.uint8)
    large.flags.writeable = False
    for frame in (large[::2, ::2], large[:4, :5], large[3::-1, 4::-1]):
        assert written(model, frame).tobytes() == expected(model, frame).tobytes()


def test_pixels_over_255_are_what_training_code_makes_of_them() -> None:
    model = spec("nhwc", "float32", ((0.0,) * 3, (255.0,) * 3), 16, 16)
    frame = np.repeat(np.arange(256, dtype=np.uint8), 3).reshape(16, 16, 3)
    assert (written(model, frame) == frame.astype(np.float32) / 255).all()


@pytest.mark.parametrize(
    "frame",
    [
        np.zeros((5, 4, 3), np.uint8),
        np.zeros((4, 5, 4), np.uint8),
        np.zeros((4, 5), np.uint8),
        np.zeros((4, 5, 3), np.int8),
        np.zeros(60, np.uint8),
    ],
)
def test_other_frames_are_refused_by_name(frame: np.ndarray) -> None:
    with pytest.raises(BadItem, match="not 4x5x3 uint8") as caught:
        written(spec("nchw", "float32"), frame)
    assert caught.value.cause == "bad_frame"


@pytest.mark.parametrize(
    ("dtype", "mean", "std"),
    [
        ("float32", (0.0, 0.0, 0.0), (1.0, 0.0, 1.0)),
        ("float32", (float("nan"), 0.0, 0.0), (1.0, 1.0, 1.0)),
        ("float16", (0.0, 0.0, 0.0), (1.0, 1.0, float("inf"))),
        ("uint8", (1.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        ("uint8", (0.0, 0.0, 0.0), (255.0, 255.0, 255.0)),
    ],
)
def test_scalings_that_make_no_sense_are_the_users_to_mend(
    dtype: str, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    with pytest.raises(UserError, match=r"model m: .*std"):
        check_scaling(spec("nchw", dtype, (mean, std)))

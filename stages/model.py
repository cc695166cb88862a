"""Owns the description of a model as stages see it, and where its raw outputs lie in an output slot. Reads no YAML."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

ALIGN_BYTES = 64  # of each tensor in an output slot: one cache line, and what Ascend copies ask for

Placement = Literal["stretch", "center", "top_left"]

CODE_TYPES = ("uint8", "int8")  # of outputs whose numbers may stand for floats


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One output of a model, for one frame: ``shape`` without the batch dimension, ``dtype`` a numpy name.

    With a ``scale`` its uint8 or int8 numbers are codes of floats: ``(code - zero_point) * scale``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: float | None = None  # None: numbers as they are
    zero_point: int = 0

    @property
    def frame_bytes(self) -> int:
        """Bytes of this tensor for one frame."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class HeadOptions:
    """What a layout can't see in the outputs' shapes; each layout says which of these it reads."""

    scores: Literal["auto", "probabilities", "logits"] = "auto"  # auto: what the layout's exporter usually writes
    anchors: tuple[tuple[float, ...], ...] | None = None  # per head, smallest stride first: width, height, width, …
    strides: tuple[int, ...] | None = None  # None: from the shapes
    cell_offset: float | None = None  # where in its cell an anchor point lies, 0 the corner, 0.5 the middle
    keypoint_values: int = 3  # numbers of a keypoint: x y, or x y score
    top: int = 5  # classes of a frame that a classifier names at most


@dataclass(frozen=True, slots=True)
class OmSpec:
    """The same model converted for an Ascend chip: an offline model (OM), and what was fixed when it was made.

    ``aipp``: the picture that it takes when pre-processing is built into it; none: it takes what the ONNX file takes.
    """

    path: str  # OM file, absolute; empty: none is looked for, because no device here takes one
    sha256: str  # empty: not checked
    batch: int | tuple[int, ...]  # built in, or the batch sizes to choose from (gears), ascending
    aipp: Literal["none", "rgb", "bgr", "nv12"] = "none"
    soc: str = ""  # chip that it was made for, such as Ascend310P3; empty: not told

    @property
    def largest_batch(self) -> int:
        """Frames of the largest run."""
        return self.batch if isinstance(self.batch, int) else self.batch[-1]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a model wants and gives. Frozen and picklable: it is handed to every worker at its start.

    The value fed to the model is ``(pixel - mean) / std`` per channel, in ``channels`` order, pixels being 0..255.
    """

    name: str
    path: str  # ONNX file, absolute
    sha256: str  # empty: not checked
    width: int  # of the input, pixels
    height: int
    channels: Literal["rgb", "bgr"]
    input_layout: Literal["nchw", "nhwc"]
    input_dtype: Literal["float32", "float16", "uint8"]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    pad_value: int
    placement: Placement
    layout: str  # of the outputs: a name in stages.postprocess.registry
    labels: tuple[str, ...]
    outputs: tuple[TensorSpec, ...]
    fixed_batch: int | None  # None: any batch size; n: the file bakes n in, smaller batches are padded
    confidence: float  # defaults for cameras that say nothing
    iou: float
    scale_up: bool = True  # False: a picture smaller than the input keeps its size and gets a border
    head: HeadOptions = HeadOptions()
    om: OmSpec | None = None  # for Ascend devices

    @property
    def frame_bytes(self) -> int:
        """Bytes of one letterboxed frame in a slot: uint8 height x width x 3."""
        return self.width * self.height * 3


def _padded(size: int) -> int:
    return -(-size // ALIGN_BYTES) * ALIGN_BYTES


def output_slot_bytes(model: ModelSpec, max_batch: int) -> int:
    """Bytes of an output slot that takes the raw outputs of ``max_batch`` frames."""
    return sum(_padded(t.frame_bytes * max_batch) for t in model.outputs)


def output_views(model: ModelSpec, buffer: memoryview, max_batch: int, batch: int) -> list[NDArray[Any]]:
    """The output tensors of ``batch`` frames in an output slot laid out for ``max_batch``.

    Each view has shape (batch, *tensor.shape), is contiguous, starts at a multiple of 64 bytes from the slot's start,
    and is writable if ``buffer`` is.
    """
    views: list[NDArray[Any]] = []
    offset = 0
    for tensor in model.outputs:
        dtype = np.dtype(tensor.dtype)
        count = math.prod(tensor.shape) * batch
        flat = np.frombuffer(buffer, dtype, count, offset)
        views.append(flat.reshape(batch, *tensor.shape))
        offset += _padded(tensor.frame_bytes * max_batch)
    return views

"""Owns what the description of a model may say: keys, defaults, bounds. Finds no file and runs no model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from pipeline.config.fields import AlsoAccepts, Described, Many, Name, Section

Layout: TypeAlias = Literal[
    "ssd",
    "yolox",
    "yolov5",
    "yolov5_raw",
    "yolov6",
    "yolov8",
    "yolov8_rows",
    "yolov8_seg",
    "yolov8_pose",
    "yolov8_obb",
    "yolonas",
    "rtdetr",
    "nanodet",
    "picodet",
    "end2end",
    "classify",
]


def _per_channel(*, zero: bool) -> Any:
    def check(value: Any) -> tuple[float, float, float]:
        values = [value] * 3 if type(value) in (int, float) else value
        if isinstance(values, (list, tuple)) and len(values) == 3:
            numbers = [float(each) for each in values if type(each) in (int, float)]
            if len(numbers) == 3 and all(abs(each) <= 1_000_000 and (zero or each > 1e-6) for each in numbers):
                return numbers[0], numbers[1], numbers[2]
        text = "should be a number or a list of three, one per channel" + ("" if zero else ", each above 0")
        raise ValueError(
            f"{text}; write e.g. {'127.5 or [123.7, 116.3, 103.5]' if zero else '255 or [58.4, 57.1, 57.4]'}"
        )

    number: dict[str, Any] = {"type": "number"} if zero else {"type": "number", "exclusiveMinimum": 0}
    return Described(check, {"anyOf": [number, {"type": "array", "items": number, "minItems": 3, "maxItems": 3}]})


Triple: TypeAlias = tuple[float, float, float]


class InputConfig(Section):
    """The picture that the model wants. Fed is (pixel - mean) / std per channel, pixels being 0 to 255."""

    width: int = Field(ge=16, le=8192, description="Pixels.")
    height: int = Field(ge=16, le=8192, description="Pixels.")
    channels: Literal["rgb", "bgr"] = Field(default="rgb", description="Order of the colour channels.")
    layout: Literal["nchw", "nhwc"] = Field(
        default="nchw", description="Order of the axes: batch, channel, height, width."
    )
    dtype: Literal["float32", "float16", "uint8"] = Field(default="float32", description="Type of the values fed.")
    mean: Annotated[Triple, _per_channel(zero=True)] = Field(
        default=(0.0, 0.0, 0.0),
        description="Subtracted from pixels of 0 to 255, one number or one per channel in `channels` order.",
    )
    std: Annotated[Triple, _per_channel(zero=False)] = Field(
        default=(1.0, 1.0, 1.0),
        description="Divides what is left, one number or one per channel. 255 makes pixels 0 to 1.",
    )
    pad_value: int = Field(
        default=114, ge=0, le=255, description="Colour of the bars beside a picture of another shape."
    )
    placement: Literal["stretch", "center", "top_left"] = Field(
        default="center",
        description="How a picture of another shape fills the input: stretched, or kept in shape and placed.",
    )
    scale_up: bool = Field(
        default=True,
        description="Enlarge pictures smaller than the input. false: they keep their size and get a wider border.",
    )


class OutputConfig(Section):
    """One output tensor."""

    name: str = Field(min_length=1, max_length=200, description="Name in the file.")
    shape: Many[Annotated[int, Field(ge=1, le=100_000_000)]] = Field(
        min_length=1, max_length=8, description="Shape for one frame: without the batch axis."
    )
    dtype: Literal["float32", "float16", "uint8", "int8", "int32", "int64"] = Field(
        default="float32", description="numpy's name."
    )
    scale: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        default=None,
        description="Of uint8 and int8 that stand for floats, (number - zero_point) * scale. Default: read from the "
        "file.",
    )
    zero_point: int = Field(default=0, ge=-128, le=255, description="The number that stands for 0, see scale.")

    @model_validator(mode="after")
    def _only_codes_have_a_scale(self) -> Self:
        if self.scale is None:
            if self.zero_point:
                raise ValueError("zero_point without scale; add `scale`, or leave both out to read them from the file")
            return self
        if self.dtype not in ("uint8", "int8"):
            raise ValueError(f"scale is for uint8 and int8, not {self.dtype}; leave it out, or correct dtype")
        low, high = (0, 255) if self.dtype == "uint8" else (-128, 127)
        if not low <= self.zero_point <= high:
            raise ValueError(f"zero_point of {self.dtype} is a number from {low} to {high}, not {self.zero_point}")
        return self


ANCHORS: dict[str, tuple[tuple[float, ...], ...]] = {
    "yolov5": ((10, 13, 16, 30, 33, 23), (30, 61, 62, 45, 59, 119), (116, 90, 156, 198, 373, 326)),
    "yolov7": ((12, 16, 19, 36, 40, 28), (36, 75, 76, 55, 72, 146), (142, 110, 192, 243, 459, 401)),
}


def _named_anchors(value: Any) -> Any:
    return ANCHORS.get(value, value) if isinstance(value, str) else value


def _pairs(anchors: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
    if any(len(head) % 2 or len(head) != len(anchors[0]) for head in anchors):
        raise ValueError(
            "should give each head the same number of pairs; write width, height, width, height, … of one head's "
            "anchors in a list, and one list per head"
        )
    return anchors


def _side(value: Any) -> float:
    if type(value) in (int, float) and 0 < value <= 100_000:
        return float(value)
    raise ValueError("is not a side of an anchor; write pixels, a number above 0")


Side: TypeAlias = Annotated[float, Described(_side, {"type": "number", "exclusiveMinimum": 0, "maximum": 100_000})]


class HeadConfig(Section):
    """What can't be seen in the shapes of the outputs; each key matters to the layouts that it names."""

    scores: Literal["auto", "probabilities", "logits"] = Field(
        default="auto",
        description="Whether scores are probabilities (0 to 1) or logits, of which the sigmoid (classify: softmax) is "
        "still to be taken. auto: logits for yolov5_raw and for outputs of rtdetr named so, else probabilities.",
    )
    anchors: (
        Annotated[
            Many[Annotated[Many[Side], Field(min_length=2, max_length=32)]],
            Field(min_length=1, max_length=8),
            BeforeValidator(_named_anchors),
            AfterValidator(_pairs),
            AlsoAccepts(({"enum": ["yolov5", "yolov7"]},)),
        ]
        | None
    ) = Field(
        default=None,
        description="yolov5_raw: pixels, one list per head from the smallest stride on: width, height, width, height, "
        "…; or `yolov5`, `yolov7` for theirs. Default: those of YOLOv5 for three and for four heads.",
    )
    strides: Annotated[Many[Annotated[int, Field(ge=1, le=1024)]], Field(min_length=1, max_length=8)] | None = Field(
        default=None,
        description="nanodet, picodet: pixels of the input from cell to cell, ascending. Default: from the shapes.",
    )
    cell_offset: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="nanodet, picodet: where in its cell a point lies, 0 the corner (NanoDet-Plus, the default of "
        "nanodet), 0.5 the middle (the first NanoDet; the default of picodet).",
    )
    keypoint_values: int = Field(
        default=3, ge=2, le=3, description="yolov8_pose: numbers of a keypoint, 3 with a score, 2 without."
    )
    top: int = Field(default=5, ge=1, le=100, description="classify: at most so many classes of a frame, the best.")


def _batch(value: Any) -> Any:
    if value == "dynamic" or (type(value) is int and 1 <= value <= 64):
        return value
    raise ValueError


Batch: TypeAlias = Annotated[
    int | Literal["dynamic"],
    Described(_batch, {"anyOf": [{"const": "dynamic"}, {"type": "integer", "minimum": 1, "maximum": 64}]}),
]


def _digest(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"([0-9a-fA-F]{64})?", value):
        return value.lower()
    raise ValueError("is not a SHA-256 sum; write its 64 hex digits, as sha256sum prints them, in quotes")


def _gears(value: Any) -> Any:
    if type(value) is int and 1 <= value <= 64:
        return value
    if isinstance(value, (list, tuple)) and 2 <= len(value) <= 100:
        numbers = [each for each in value if type(each) is int and 1 <= each <= 64]
        if len(numbers) == len(value) and numbers == sorted(set(numbers)):
            return tuple(numbers)
    raise ValueError("is not a batch; write the number that is built in, or the list of batches, ascending: [1, 2, 4]")


_GEAR: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 64}
OmBatch: TypeAlias = Annotated[
    int | tuple[int, ...],
    Described(_gears, {"anyOf": [_GEAR, {"type": "array", "items": _GEAR, "minItems": 2, "maxItems": 100}]}),
]


class OmConfig(Section):
    """The model converted for an Ascend chip with atc. Used by devices `ascend:N` alone, and by their simulator."""

    file: str = Field(min_length=1, max_length=4096, description="OM file, found as the ONNX file is.")
    sha256: Annotated[str, Described(_digest, {"type": "string", "pattern": "^([0-9a-fA-F]{64})?$"})] = Field(
        default="", description="SHA-256 of the OM file, 64 hex digits. Default: not checked."
    )
    batch: OmBatch = Field(description="The batch of --input_shape, or the list given as --dynamic_batch_size.")
    aipp: Literal["none", "rgb", "bgr", "nv12"] = Field(
        default="none",
        description="The picture that AIPP takes (--insert_op_conf): uint8 RGB, BGR or NV12 (BT.601). none: there is "
        "no AIPP, the host makes what the ONNX file takes.",
    )
    soc: str = Field(
        default="", max_length=64, description="Chip of --soc_version, such as Ascend310P3. Default: not checked."
    )


class ModelConfig(Section):
    """A detector: its file, what it wants, what it gives."""

    name: Name = Field(default="", description="Name for people. Cameras use the name that the site's `models` gives.")
    file: str = Field(
        min_length=1,
        max_length=4096,
        description="ONNX file: beside this description, in the folder CAMPIPE_MODELS, in the user's cache, or a path.",
    )
    sha256: Annotated[str, Described(_digest, {"type": "string", "pattern": "^([0-9a-fA-F]{64})?$"})] = Field(
        default="", description="SHA-256 of the file, 64 hex digits. Default: not checked."
    )
    size_bytes: int | None = Field(
        default=None, ge=1, le=1 << 40, description="Size of the file. Default: not checked."
    )
    licence: str = Field(default="", max_length=200, description="Licence of the weights, by its SPDX name.")
    origin: str = Field(default="", max_length=4096, description="Where the file came from, for people.")
    input: InputConfig = Field(description="The picture that the model wants.")
    layout: Layout = Field(description="What the outputs hold, which decides how objects are read from them.")
    head: HeadConfig = Field(
        default_factory=HeadConfig,
        description="What the shapes of the outputs don't say, for the layouts that need it.",
    )
    labels: Annotated[
        Many[Annotated[str, Field(min_length=1, max_length=100)]],
        Field(min_length=1, max_length=100_000),
        AlsoAccepts(({"type": "string", "minLength": 1},)),
    ] = Field(
        description="Names of the classes in the order of their numbers: a list, `coco` for its 80 classes, or a text "
        "file with one name a line."
    )
    outputs: Many[OutputConfig] = Field(
        default=(), max_length=16, description="Output tensors in their order. Default: read from the file."
    )
    batch: Batch = Field(
        default="dynamic", description="dynamic: any number of frames per run; n: the file takes exactly n."
    )
    confidence: float = Field(
        default=0.4, ge=0, le=1, description="Least score of an object, for cameras that say nothing."
    )
    iou: float = Field(
        default=0.45, ge=0, le=1, description="Overlap at which boxes suppress each other, for such cameras."
    )
    om: OmConfig | None = Field(default=None, description="The same model for Ascend devices.")

    @model_validator(mode="after")
    def _even_for_nv12(self) -> ModelConfig:
        if self.om is not None and self.om.aipp == "nv12" and (self.input.width % 2 or self.input.height % 2):
            raise ValueError("has om.aipp nv12 and an odd width or height; NV12 needs even ones")
        return self

    _folder: Path | None = PrivateAttr(None)

    @property
    def folder(self) -> Path:
        """The folder that ``file`` is relative to."""
        return self._folder if self._folder is not None else Path.cwd()

    def in_folder(self, folder: Path) -> ModelConfig:
        """A copy that knows where its description lies."""
        copy = self.model_copy()
        copy._folder = folder
        return copy


__all__ = ["HeadConfig", "InputConfig", "Layout", "ModelConfig", "OmConfig", "OutputConfig"]

"""Owns what is known of a model file before its layout is: shapes, values of a trial run, metadata. Guesses nothing.

Metadata is what exporters write into a file for people and programs: text by key. Ultralytics writes ``names`` as a
Python dict in text, ``task``, ``stride``, ``imgsz``, ``end2end``, ``args``; it is read as literals, within bounds, and
what can't be read counts as not there.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stages.model import HeadOptions, ModelSpec, TensorSpec

MOST_TEXT: Final = 1_000_000  # characters of one value that are looked at: 20,000 labels
MOST_LABELS: Final = 100_000
LONGEST_LABEL: Final = 100  # as a description takes
LONGEST_AXIS: Final = 4096  # that values are kept of: no channel axis is longer

STRIDES: Final = (8, 16, 32)
STRIDES_P6: Final = (8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class AxisValues:
    """What an output held along one axis in a trial run: least, greatest, and whether all were whole numbers."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    whole: tuple[bool, ...]

    def within(self, low: float, high: float, first: int = 0, last: int | None = None) -> bool:
        """Whether entries ``first`` to ``last`` lie in these bounds."""
        return min(self.low[first:last], default=low) >= low and max(self.high[first:last], default=high) <= high

    def flat(self, first: int = 0, last: int | None = None) -> bool:
        """Whether nothing in these entries varies: such values say nothing."""
        return all(a == b for a, b in zip(self.low[first:last], self.high[first:last], strict=True))


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """One output for one frame: ``shape`` without the batch axis; ``values`` by axis, empty when there was no run.

    ``scale``, ``zero_point``: of codes, whose ``values`` are the floats that they stand for.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    values: Mapping[int, AxisValues] = field(default_factory=dict)
    scale: float | None = None
    zero_point: int = 0

    @property
    def floats(self) -> bool:
        """Whether heads can read it."""
        return self.scale is not None or self.dtype in ("float32", "float16")

    @classmethod
    def of(cls, tensor: TensorSpec, runs: Sequence[NDArray[Any]]) -> OutputFacts:
        """Of a tensor and what it held in several runs on one frame, as floats."""
        found = cls(tensor.name, tensor.shape, tensor.dtype, scale=tensor.scale, zero_point=tensor.zero_point)
        return replace(found, values=values_of(runs)) if runs and found.floats else found


@dataclass(frozen=True)
class FileFacts:
    """All that a guess rests on. ``width`` and ``height`` are of the input, in pixels."""

    width: int
    height: int
    input_dtype: str
    outputs: tuple[OutputFacts, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)
    producer: str = ""

    def cells(self, strides: Sequence[int] = STRIDES) -> int:
        """Grid cells of all levels together; a level that does not fit the input counts its started cells too."""
        return sum(-(-self.width // stride) * -(-self.height // stride) for stride in strides)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes from the metadata; empty when there are none that can be read."""
        return names_of(self.metadata.get("names", ""))

    @cached_property
    def task(self) -> str:
        """detect, segment, pose, obb, classify; empty when the file does not say."""
        return self.metadata.get("task", "").strip().lower()[:40]

    @cached_property
    def suppressed(self) -> bool | None:
        """Whether the file says that it gives each object once (end to end, or with NMS inside); None: says nothing."""
        arguments = literal(self.metadata.get("args", ""))
        nms = arguments.get("nms") if isinstance(arguments, dict) else None
        said = [literal(self.metadata.get(key, "").strip().capitalize()) for key in ("end2end", "nms")] + [nms]
        known = [each for each in said if isinstance(each, bool)]
        return any(known) if known else None

    @property
    def ultralytics(self) -> bool:
        """Whether the exporter signed the file."""
        return "ultralytics" in (self.metadata.get("author", "") + self.metadata.get("description", "")).lower()

    def spec(self, layout: str, labels: int, head: HeadOptions | None = None) -> ModelSpec:
        """A description with these facts, for heads to check; what only matters for running is left at a default."""
        return ModelSpec(
            name="this file",
            path="",
            sha256="",
            width=self.width,
            height=self.height,
            channels="rgb",
            input_layout="nchw",
            input_dtype="float32",
            mean=(0.0, 0.0, 0.0),
            std=(1.0, 1.0, 1.0),
            pad_value=114,
            placement="center",
            layout=layout,
            labels=tuple(f"class {number}" for number in range(labels)),
            outputs=tuple(TensorSpec(t.name, t.shape, t.dtype, t.scale, t.zero_point) for t in self.outputs),
            fixed_batch=None,
            confidence=0.4,
            iou=0.45,
            head=head or HeadOptions(),
        )


def literal(text: str) -> Any:
    """What a Python literal says; None when it is none, too long or nested too deep. Executes nothing."""
    if not text or len(text) > MOST_TEXT:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def names_of(text: str) -> tuple[str, ...]:
    """Labels from a dict {number: name} or a list of names; empty unless the numbers are 0 to n - 1.

    >>> names_of("{0: 'person', 1: 'bicycle'}")
    ('person', 'bicycle')
    """
    found = literal(text)
    if isinstance(found, dict):
        if not all(type(key) is int for key in found) or sorted(found) != list(range(len(found))):
            return ()
        found = [found[number] for number in range(len(found))]
    if not isinstance(found, (list, tuple)) or not 0 < len(found) <= MOST_LABELS:
        return ()
    labels = tuple(" ".join(str(each).split())[:LONGEST_LABEL] for each in found if isinstance(each, (str, int)))
    return labels if len(labels) == len(found) and all(labels) else ()


def values_of(arrays: Sequence[NDArray[Any]]) -> dict[int, AxisValues]:
    """By axis, over several runs' arrays of one output (without the batch axis). What isn't finite is left out."""
    stacked = np.stack([np.asarray(each, np.float64) for each in arrays])
    finite = np.isfinite(stacked)
    lows, highs = np.where(finite, stacked, np.inf), np.where(finite, stacked, -np.inf)
    fractional = finite & (np.where(finite, stacked, 0) != np.floor(np.where(finite, stacked, 0)))
    found = {}
    for axis in range(stacked.ndim - 1):
        if stacked.shape[axis + 1] > LONGEST_AXIS or not finite.any():
            continue
        others = tuple(each for each in range(stacked.ndim) if each != axis + 1)
        low, high = lows.min(axis=others), highs.max(axis=others)
        empty = low > high  # nothing finite
        low[empty], high[empty] = 0, 0
        whole = ~fractional.any(axis=others)
        found[axis] = AxisValues(tuple(map(float, low)), tuple(map(float, high)), tuple(map(bool, whole)))
    return found

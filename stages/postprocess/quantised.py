"""Owns raw outputs that are codes: uint8 or int8 with a scale and a zero point, as heads read them. Owns no layout.

Source: ONNX ``DequantizeLinear``: ``value = (code - zero_point) * scale``, in float32, with one scale for the tensor.

A code is worth one of 256 values, which rise with the code. So codes are compared and maximised as the bytes they are,
against the first code whose value passes, and only what was chosen becomes floats, by a table. What a head finds is, to
the bit, what it would find in a tensor of those floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from stages.errors import UserError
from stages.letterbox import Geometry
from stages.model import CODE_TYPES, ModelSpec, TensorSpec
from stages.postprocess.batched import BatchedHead, Found, Wanted, one_by_one
from stages.postprocess.candidates import TOP_K, Candidates, Classes
from stages.postprocess.codes import Codes
from stages.postprocess.head import DetailedHead, Details, Head

LARGEST_SCALE: Final = 1e9  # as a description takes


@lru_cache(maxsize=64)
def values_of_codes(dtype: str, scale: float, zero_point: int) -> NDArray[np.float32]:
    """What each code is worth, float32 (256,), from the lowest code to the highest; not writable."""
    limits = np.iinfo(dtype)
    codes = np.arange(int(limits.min), int(limits.max) + 1)
    table: NDArray[np.float32] = (codes - zero_point).astype(np.float32) * np.float32(scale)
    table.flags.writeable = False
    return table


def check_scale(model: str, tensor: TensorSpec) -> None:
    """Raise UserError when scale and zero point can't be those of this tensor."""
    if tensor.scale is None:
        return
    where = f"model {model}: output {tensor.name}"
    if tensor.dtype not in CODE_TYPES:
        raise UserError(f"{where} is {tensor.dtype} and has a scale, which only uint8 and int8 have; leave it out")
    if not 0 < tensor.scale <= LARGEST_SCALE or not np.float32(tensor.scale) > 0:
        raise UserError(f"{where} has scale {tensor.scale:g}; give the positive number that its file was exported with")
    limits = np.iinfo(tensor.dtype)
    if not limits.min <= tensor.zero_point <= limits.max:
        raise UserError(
            f"{where} has zero_point {tensor.zero_point}; for {tensor.dtype} it is {limits.min} to {limits.max}"
        )


def with_floats(model: ModelSpec) -> ModelSpec:
    """The description that heads check: outputs of codes count as float32. Raises UserError for an odd scale."""
    if all(tensor.scale is None for tensor in model.outputs):
        return model
    for tensor in model.outputs:
        check_scale(model.name, tensor)
    outputs = [t if t.scale is None else TensorSpec(t.name, t.shape, "float32") for t in model.outputs]
    return replace(model, outputs=tuple(outputs))


def floats_of(tensor: TensorSpec, raw: NDArray[Any]) -> NDArray[Any]:
    """All of a raw output as floats; as it is when it holds no codes."""
    if tensor.scale is None:
        return raw
    table = values_of_codes(tensor.dtype, tensor.scale, tensor.zero_point)
    return Codes(raw, table).astype(np.float32)


def codes_of(tensor: TensorSpec, floats: NDArray[Any]) -> NDArray[Any]:
    """The nearest codes, as ONNX ``QuantizeLinear`` gives them; as they are, cast, when the tensor holds none."""
    if tensor.scale is None:
        return floats.astype(tensor.dtype)
    limits = np.iinfo(tensor.dtype)
    codes: NDArray[Any] = np.clip(np.rint(floats / tensor.scale) + tensor.zero_point, limits.min, limits.max)
    return codes.astype(tensor.dtype)


class CodedHead:
    """A head whose model gives codes. See Head."""

    def __init__(self, head: Head, outputs: Sequence[TensorSpec]) -> None:
        self._head = head
        self._tables = [None if t.scale is None else values_of_codes(t.dtype, t.scale, t.zero_point) for t in outputs]

    @property
    def suppresses(self) -> bool:
        """See Head."""
        return self._head.suppresses

    def check(self, model: ModelSpec) -> None:
        """See Head."""
        self._head.check(with_floats(model))

    def candidates(
        self,
        outputs: Sequence[NDArray[Any]],
        confidence: float,
        classes: Classes = None,
        top_k: int = TOP_K,
    ) -> tuple[Candidates, int]:
        """See Head. ``outputs`` have the types of the model, uint8 and int8 among them."""
        return self._head.candidates(self._readable(outputs), confidence, classes, top_k)

    def candidates_of_frames(
        self, outputs: Sequence[NDArray[Any]], wanted: Sequence[Wanted], top_k: int = TOP_K
    ) -> Found:
        """See BatchedHead."""
        readable = self._readable(outputs)
        if isinstance(self._head, BatchedHead):
            return self._head.candidates_of_frames(readable, wanted, top_k)
        return one_by_one(self._head, readable, wanted, top_k)

    def _readable(self, outputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        # a stand-in for an array: it has what heads use of one
        return [
            raw if table is None else cast("NDArray[Any]", Codes(raw, table))
            for raw, table in zip(outputs, self._tables, strict=True)
        ]


class CodedDetailedHead(CodedHead):
    """The same for a head that tells more than boxes. See DetailedHead."""

    def __init__(self, head: DetailedHead, outputs: Sequence[TensorSpec]) -> None:
        super().__init__(head, outputs)
        self._detailed = head

    def details(
        self,
        outputs: Sequence[NDArray[Any]],
        found: Candidates,
        kept: NDArray[np.intp],
        boxes: NDArray[np.float32],
        geometry: Geometry,
    ) -> Details:
        """See DetailedHead."""
        return self._detailed.details(self._readable(outputs), found, kept, boxes, geometry)


def reading_codes(head: Head, model: ModelSpec) -> Head:
    """The head, able to read the model's codes if it gives any."""
    if all(tensor.scale is None for tensor in model.outputs):
        return head
    return CodedDetailedHead(head, model.outputs) if isinstance(head, DetailedHead) else CodedHead(head, model.outputs)

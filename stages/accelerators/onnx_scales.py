"""Owns what an ONNX file says of outputs that are codes: their scale and zero point. Does not own what reads them.

An output of type uint8 or int8 is what a ``QuantizeLinear`` wrote, or one of the operators that quantise by themselves;
nodes that only move numbers (Reshape, Transpose …) may stand between. Operators: ONNX's own and ONNX Runtime's
(docs/ContribOperators.md); field numbers are those of onnx.proto3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stages.accelerators.onnx_session import TensorFacts
from stages.accelerators.wire import fields, first_bytes
from stages.errors import UserError
from stages.model import CODE_TYPES, ModelSpec, TensorSpec

LARGEST_BYTES: Final = 1 << 30  # of a file that is read for this
MOST_STEPS: Final = 32  # nodes between an output and what quantised it

# inputs of an operator that hold scale and zero point of its output
_SCALE_AT: Final = {
    "QuantizeLinear": (1, 2),
    "QLinearConv": (6, 7),
    "QLinearMatMul": (6, 7),
    "QLinearAdd": (6, 7),
    "QLinearMul": (6, 7),
    "QLinearSigmoid": (3, 4),
    "QLinearSoftmax": (3, 4),
    "QLinearConcat": (0, 1),
}
_MOVING: Final = frozenset(
    ("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Gather")
)
_NUMPY: Final = {1: "<f4", 10: "<f2", 11: "<f8", 2: "u1", 3: "i1"}  # TensorProto.DataType


@dataclass(frozen=True, slots=True)
class _Node:
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[bytes, ...]


def with_scales(outputs: Sequence[TensorFacts], path: str) -> tuple[TensorFacts, ...]:
    """The outputs with scale and zero point of those that are codes and whose file tells; the others as they are.

    Raises UserError for an output with several scales, whose codes mean another thing in each channel.
    """
    if not any(t.dtype in CODE_TYPES for t in outputs):
        return tuple(outputs)
    try:
        file = Path(path)
        content = file.read_bytes() if file.stat().st_size <= LARGEST_BYTES else b""
        graph = first_bytes(content, 7)
        found = _scales(graph, [t.name for t in outputs if t.dtype in CODE_TYPES]) if graph is not None else {}
    except UserError as error:
        raise UserError.of([f"{path}: {problem}" for problem in error.problems]) from None
    except (OSError, ValueError):  # ONNX Runtime has read it: then it is written in some other way
        found = {}
    return tuple(
        replace(t, scale=found[t.name][0], zero_point=found[t.name][1]) if t.name in found else t for t in outputs
    )


def scale_problems(model: ModelSpec, outputs: Sequence[TensorFacts]) -> list[str]:
    """Where a file's scales contradict the description; ``outputs`` as ``with_scales`` gives them."""
    by_name = {t.name: t for t in outputs}
    return [
        f"model {model.name}: the file says that output {wanted.name} has scale {found.scale:.9g} and zero point "
        f"{found.zero_point}, but its description {wanted.scale:.9g} and {wanted.zero_point}; set "
        f"`scale: {found.scale:.9g}` and `zero_point: {found.zero_point}`, or leave them out"
        for wanted in model.outputs
        if wanted.scale is not None
        and (found := by_name.get(wanted.name)) is not None
        and found.scale is not None
        and not _same(wanted, found)
    ]


def _same(wanted: TensorSpec, found: TensorFacts) -> bool:
    assert wanted.scale is not None
    assert found.scale is not None
    return abs(wanted.scale - found.scale) <= 1e-6 * found.scale and wanted.zero_point == found.zero_point


def _scales(graph: bytes, wanted: Sequence[str]) -> dict[str, tuple[float, int]]:
    nodes = [_node(value) for number, value, _ in fields(graph) if number == 1 and isinstance(value, bytes)]
    makers = {name: node for node in nodes for name in node.outputs if name}
    names = {name for node in nodes for name in node.inputs if node.kind in _SCALE_AT}
    constants = dict(_constants(graph, nodes, names))
    return {name: pair for name in wanted if (pair := _scale_of(name, makers, constants)) is not None}


def _scale_of(
    name: str, makers: dict[str, _Node], constants: dict[str, NDArray[np.generic]]
) -> tuple[float, int] | None:
    node = makers.get(name)
    for _ in range(MOST_STEPS):
        if node is None or node.kind not in _MOVING or not node.inputs:
            break
        node = makers.get(node.inputs[0])
    if node is None or node.kind not in _SCALE_AT:
        return None
    places = _SCALE_AT[node.kind]
    scale, zero = (constants.get(node.inputs[place]) if place < len(node.inputs) else None for place in places)
    if scale is None:
        return None
    if not _one(scale) or (zero is not None and not _one(zero)):
        count = max(scale.size, zero.size if zero is not None else 0)
        raise UserError(
            f"output {name} has {count} scales, one per channel or block, which campipe does not read; quantise it "
            "with one scale, or leave it in float (end the file before its QuantizeLinear)"
        )
    return float(scale.reshape(-1)[0]), int(zero.reshape(-1)[0]) if zero is not None else 0


def _one(numbers: NDArray[np.generic]) -> bool:
    """Whether there is one number, or the same for each channel."""
    return numbers.size > 0 and bool((numbers == numbers.reshape(-1)[0]).all())


def _node(message: bytes) -> _Node:
    texts: dict[int, list[str]] = {1: [], 2: [], 4: []}
    attributes: list[bytes] = []
    for number, value, _ in fields(message):
        if isinstance(value, bytes) and number in texts:
            texts[number].append(value.decode("utf-8", "replace"))
        elif isinstance(value, bytes) and number == 5:
            attributes.append(value)
    return _Node("".join(texts[4][:1]), tuple(texts[1]), tuple(texts[2]), tuple(attributes))


def _constants(graph: bytes, nodes: Sequence[_Node], names: set[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
    for number, value, _ in fields(graph):
        if number == 5 and isinstance(value, bytes):
            name = (first_bytes(value, 8) or b"").decode("utf-8", "replace")
            if name in names and (array := _tensor(value)) is not None:
                yield name, array
    for node in nodes:
        if node.kind == "Constant" and node.outputs and node.outputs[0] in names:
            for attribute in node.attributes:
                tensor = first_bytes(attribute, 5)
                if tensor is not None and (array := _tensor(tensor)) is not None:
                    yield node.outputs[0], array


def _tensor(message: bytes) -> NDArray[np.generic] | None:
    """A TensorProto's numbers, flat; None for types that no scale has, and for data kept in other files."""
    kind, raw, packed, floats = 0, None, [], b""
    for number, value, encoded in fields(message):
        if number == 2 and isinstance(value, int):
            kind = value
        elif number == 9 and isinstance(value, bytes):
            raw = value
        elif number == 4:  # packed, or one number at a time
            floats += value if isinstance(value, bytes) else encoded[-4:]
        elif number == 5:
            packed += _varints(value) if isinstance(value, bytes) else [value] if isinstance(value, int) else []
    if kind not in _NUMPY:
        return None
    dtype = np.dtype(_NUMPY[kind])
    if raw is not None:
        return np.frombuffer(raw, dtype)
    if kind == 1:
        return np.frombuffer(floats, dtype)
    if kind == 10:  # float16 stands as its bits
        return np.array(packed, np.uint16).view(dtype)
    return np.array(packed, np.uint64).astype(np.int64).astype(dtype) if kind in (2, 3) else None


def _varints(content: bytes) -> list[int]:
    values, value, shift = [], 0, 0
    for byte in content:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append(value & (1 << 64) - 1)
            value = shift = 0
    return values

"""Owns the few edits of an ONNX file that folding needs, on protobuf's wire format. Does not know what is folded.

The package ``onnx`` is no dependency of a running campipe, and all that is to be done is to exchange one graph input
and to put nodes and constants in front. Everything else is copied byte for byte, unread. Field numbers are those of
onnx.proto3 (ONNX 1.16), which never change; the wire format is protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stages.accelerators.wire import fields, first_bytes, message_field, number_field

ELEMENT_TYPES = {"float32": 1, "uint8": 2, "float16": 10, "float64": 11}  # TensorProto.DataType

_INT, _INTS = 2, 7  # AttributeProto.AttributeType


@dataclass(frozen=True, slots=True)
class Node:
    """One node with one output. Attributes: an int, or several."""

    kind: str  # as ONNX calls it: Cast, Transpose …
    inputs: Sequence[str]
    output: str
    attributes: dict[str, int | Sequence[int]]


def with_front(  # noqa: PLR0917 - what is replaced, by what, made how: the order is the obvious one
    model: bytes, old_input: str, new_input: str, frame: Sequence[int], nodes: Sequence[Node], constants: dict[str, Any]
) -> bytes:
    """``model`` with a uint8 input ``new_input`` (batch, *frame) in place of ``old_input``, which ``nodes`` make of it.

    The batch axis stays what it was, a number or a name. Raises ValueError when ``model`` is no ONNX model that has
    such an input, or is cut short.
    """
    graphs = [value for number, value, _ in fields(model) if number == 7 and isinstance(value, bytes)]
    if len(graphs) != 1:
        raise ValueError("it holds no graph")
    graph = _graph_with_front(graphs[0], old_input, new_input, frame, nodes, constants)
    return b"".join(message_field(7, graph) if number == 7 else raw for number, _, raw in fields(model))


def _graph_with_front(  # noqa: PLR0917 - as with_front
    graph: bytes, old_input: str, new_input: str, frame: Sequence[int], nodes: Sequence[Node], constants: dict[str, Any]
) -> bytes:
    front = [message_field(1, _node(node)) for node in nodes]
    front += [message_field(5, _tensor(name, array)) for name, array in constants.items()]
    rest: list[bytes] = []
    found = False
    for number, value, raw in fields(graph):
        if number == 11 and isinstance(value, bytes) and first_bytes(value, 1) == old_input.encode():
            rest.append(message_field(11, _value_info(new_input, _batch_axis(value), frame)))
            found = True
        else:
            rest.append(raw)
    if not found:
        raise ValueError(f"its graph has no input {old_input}")
    return b"".join(front + rest)  # nodes must be in the order of use; other fields may stand anywhere


def _batch_axis(value_info: bytes) -> bytes:
    """The first Dimension of a tensor's ValueInfoProto, encoded."""
    part: bytes = value_info
    for number in (2, 1, 2, 1):  # type, tensor_type, shape, dim
        inner = first_bytes(part, number)
        if inner is None:
            raise ValueError("its input has no shape")
        part = inner
    return part


def _value_info(name: str, batch_axis: bytes, frame: Sequence[int]) -> bytes:
    axes = [message_field(1, batch_axis), *(message_field(1, number_field(1, size)) for size in frame)]
    tensor = number_field(1, ELEMENT_TYPES["uint8"]) + message_field(2, b"".join(axes))
    return message_field(1, name.encode()) + message_field(2, message_field(1, tensor))


def _node(node: Node) -> bytes:
    parts = [message_field(1, name.encode()) for name in node.inputs]
    parts += [
        message_field(2, node.output.encode()),
        message_field(3, node.output.encode()),
        message_field(4, node.kind.encode()),
    ]
    for name, value in node.attributes.items():
        if isinstance(value, int):
            attribute = number_field(3, value) + number_field(20, _INT)
        else:
            attribute = b"".join(number_field(8, each) for each in value) + number_field(20, _INTS)
        parts.append(message_field(5, message_field(1, name.encode()) + attribute))
    return b"".join(parts)


def _tensor(name: str, array: NDArray[Any]) -> bytes:
    dims = b"".join(number_field(1, size) for size in array.shape)
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    kind = ELEMENT_TYPES[array.dtype.name]
    return dims + number_field(2, kind) + message_field(8, name.encode()) + message_field(9, little.tobytes())

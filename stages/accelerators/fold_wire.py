"""Owns the few edits of an ONNX file that folding needs, on protobuf's wire format. Does not know what is folded.

The package ``onnx`` is no dependency of a running campipe, and all that is to be done is to exchange one graph input
and to put nodes and constants in front. Everything else is copied byte for byte, unread. Field numbers are those of
onnx.proto3 (ONNX 1.16), which never change; the wire format is protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ELEMENT_TYPES = {"float32": 1, "uint8": 2, "float16": 10, "float64": 11}  # TensorProto.DataType

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
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
    graphs = [value for number, value, _ in _fields(model) if number == 7 and isinstance(value, bytes)]
    if len(graphs) != 1:
        raise ValueError("it holds no graph")
    graph = _graph_with_front(graphs[0], old_input, new_input, frame, nodes, constants)
    return b"".join(_message(7, graph) if number == 7 else raw for number, _, raw in _fields(model))


def _graph_with_front(  # noqa: PLR0917 - as with_front
    graph: bytes, old_input: str, new_input: str, frame: Sequence[int], nodes: Sequence[Node], constants: dict[str, Any]
) -> bytes:
    front = [_message(1, _node(node)) for node in nodes]
    front += [_message(5, _tensor(name, array)) for name, array in constants.items()]
    rest: list[bytes] = []
    found = False
    for number, value, raw in _fields(graph):
        if number == 11 and isinstance(value, bytes) and _first(value, 1) == old_input.encode():
            rest.append(_message(11, _value_info(new_input, _batch_axis(value), frame)))
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
        inner = _first(part, number)
        if inner is None:
            raise ValueError("its input has no shape")
        part = inner
    return part


def _value_info(name: str, batch_axis: bytes, frame: Sequence[int]) -> bytes:
    axes = [_message(1, batch_axis), *(_message(1, _number(1, size)) for size in frame)]
    tensor = _number(1, ELEMENT_TYPES["uint8"]) + _message(2, b"".join(axes))
    return _message(1, name.encode()) + _message(2, _message(1, tensor))


def _node(node: Node) -> bytes:
    parts = [_message(1, name.encode()) for name in node.inputs]
    parts += [_message(2, node.output.encode()), _message(3, node.output.encode()), _message(4, node.kind.encode())]
    for name, value in node.attributes.items():
        if isinstance(value, int):
            attribute = _number(3, value) + _number(20, _INT)
        else:
            attribute = b"".join(_number(8, each) for each in value) + _number(20, _INTS)
        parts.append(_message(5, _message(1, name.encode()) + attribute))
    return b"".join(parts)


def _tensor(name: str, array: NDArray[Any]) -> bytes:
    dims = b"".join(_number(1, size) for size in array.shape)
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    kind = ELEMENT_TYPES[array.dtype.name]
    return dims + _number(2, kind) + _message(8, name.encode()) + _message(9, little.tobytes())


# --- wire format ------------------------------------------------------------------------------------------------------


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int | None, bytes]]:
    """Number, value (bytes of a length-delimited field, number of a varint) and encoding of each field, in order."""
    position = 0
    while position < len(message):
        start = position
        tag, position = _read_varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        value: bytes | int | None = None
        if wire_type == _VARINT:
            value, position = _read_varint(message, position)
        elif wire_type == _BYTES:
            size, position = _read_varint(message, position)
            value = message[position : position + size]
            position += size
        elif wire_type in (_FIXED32, _FIXED64):
            position += 4 if wire_type == _FIXED32 else 8
        else:
            raise ValueError(f"it is no protobuf message: wire type {wire_type}")
        if position > len(message) or number == 0:
            raise ValueError("it is no protobuf message, or cut short")
        yield number, value, message[start:position]


def _first(message: bytes, wanted: int) -> bytes | None:
    return next((value for number, value, _ in _fields(message) if number == wanted and isinstance(value, bytes)), None)


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(message) or shift > 63:
            raise ValueError("it is no protobuf message, or cut short")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(content)) + content

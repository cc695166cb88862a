"""Owns protobuf's wire format, as far as ONNX files need it. Does not know what any field means.

The package ``onnx`` is no dependency of a running campipe. The format: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def fields(message: bytes) -> Iterator[tuple[int, bytes | int | None, bytes]]:
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


def first_bytes(message: bytes, wanted: int) -> bytes | None:
    """The first length-delimited field of that number."""
    return next((value for number, value, _ in fields(message) if number == wanted and isinstance(value, bytes)), None)


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


def varint(value: int) -> bytes:
    """A number, encoded without a field."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number_field(field: int, value: int) -> bytes:
    """A field that holds a number."""
    return varint(field << 3 | _VARINT) + varint(value)


def message_field(field: int, content: bytes) -> bytes:
    """A field that holds bytes: a text, or a message."""
    return varint(field << 3 | _BYTES) + varint(len(content)) + content

"""Owns bytes ↔ internal messages: one msgpack array per message, validated when read. Never pickle."""

from __future__ import annotations

import msgspec

from stages.messages import InternalMessage

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[InternalMessage] = msgspec.msgpack.Decoder(InternalMessage)


def encode(message: InternalMessage) -> bytes:
    """The message as msgpack."""
    return _encoder.encode(message)


def decode(data: bytes) -> InternalMessage:
    """The message in ``data``. Raises msgspec.DecodeError (ValidationError for a wrong type, with its path)."""
    return _decoder.decode(data)

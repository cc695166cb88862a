"""Owns what is said on the control socket: one request, one answer, msgpack maps behind their length. Not the socket.

A message is four bytes of length, most significant first, and so many bytes of msgpack. A client sends one request and
gets one answer, then the connection is closed.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Literal

import msgspec

VERSION = 1
MAX_REQUEST_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 64 << 20  # what a client takes
SOCKET_NAME = "control"  # in the run's folder
SITE_NAME = "site"  # beside it: a file with the path of the site that runs
_LENGTH = struct.Struct(">I")

Text = Annotated[str, msgspec.Meta(max_length=8192)]


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is asked; ``camera`` for remove, pause and resume, ``file`` (an absolute path) for add."""

    do: Literal["status", "add", "remove", "pause", "resume", "reload"]
    camera: Text = ""
    file: Text = ""
    v: int = VERSION


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``text``: sentences for people; when not ``ok``, what was wrong. ``status``: of the engine, when asked for."""

    ok: bool
    text: list[str] = []
    status: dict[str, Any] | None = None
    v: int = VERSION


class Malformed(ValueError):
    """What came is no request."""


_requests = msgspec.msgpack.Decoder(Request)
_answers = msgspec.msgpack.Decoder(Answer)


def framed(message: Request | Answer) -> bytes:
    """The message as it goes over the socket."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def body_length(head: bytes | bytearray, most: int) -> int | None:
    """How many bytes follow the length in ``head``; None when it is not whole yet. Raises Malformed beyond ``most``."""
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(head)
    if length > most:
        raise Malformed(f"a message of {length} bytes is too long; {most} are allowed")
    return int(length)


def request_in(data: bytes | bytearray) -> Request | None:
    """The request in ``data`` as far as it has come; None when it is not whole. Raises Malformed."""
    length = body_length(data, MAX_REQUEST_BYTES)
    if length is None or len(data) < _LENGTH.size + length:
        return None
    try:
        request = _requests.decode(bytes(data[_LENGTH.size : _LENGTH.size + length]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"not a request: {str(error)[:200]}") from None
    if request.v != VERSION:
        raise Malformed(f"version {request.v} of the control protocol is not spoken here, {VERSION} is")
    return request


def answer_in(data: bytes) -> Answer:
    """The answer whose bytes, without the length, these are. Raises Malformed."""
    try:
        return _answers.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"not an answer: {str(error)[:200]}") from None

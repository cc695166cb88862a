"""Owns how messages to the outside look as bytes: topic and msgpack map, or a JSON line. Does not own where they go."""

from __future__ import annotations

import msgspec

from stages.messages import Detections, ExternalMessage, Heartbeat

HEARTBEAT_TOPIC = b"heartbeat"
DETECTIONS_PREFIX = "detections/"
STATUS_PREFIX = "status/"

_TRACE_AT_END = b',"trace":null}'  # the last field of Detections; a test holds it there


def topic_of(message: ExternalMessage) -> bytes:
    """The topic: ``detections/<camera>``, ``status/<camera>`` or ``heartbeat``."""
    if isinstance(message, Heartbeat):
        return HEARTBEAT_TOPIC
    prefix = DETECTIONS_PREFIX if isinstance(message, Detections) else STATUS_PREFIX
    return f"{prefix}{message.camera}".encode()


def topics_of(camera: str) -> tuple[bytes, bytes]:
    """Those of its detections and statuses."""
    return f"{DETECTIONS_PREFIX}{camera}".encode(), f"{STATUS_PREFIX}{camera}".encode()


class Packer:
    """Encodes messages; one per thread."""

    def __init__(self) -> None:
        self._msgpack = msgspec.msgpack.Encoder()
        self._json = msgspec.json.Encoder()

    def packed(self, message: ExternalMessage, *, trace: bool = True) -> tuple[bytes, bytes]:
        """Topic and msgpack map. Without ``trace`` the field is there and nil."""
        if not trace and isinstance(message, Detections) and message.trace is not None:
            message = msgspec.structs.replace(message, trace=None)
        return topic_of(message), self._msgpack.encode(message)

    def line(self, message: ExternalMessage) -> bytes:
        """One line of JSON with its line end. Without ``trace``, which holds times and so differs from run to run."""
        if not isinstance(message, Detections):
            return self._json.encode(message) + b"\n"
        if message.trace is not None:
            message = msgspec.structs.replace(message, trace=None)
        return self._json.encode(message).removesuffix(_TRACE_AT_END) + b"}\n"

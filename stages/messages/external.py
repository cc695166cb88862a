"""Owns the messages to subscribers, and their schema number. Does not own topics, sockets or files.

They are msgpack maps with plain keys that any msgpack reader can read; ``v`` is the schema number, raised when a field
changes meaning. A change of a field changes ``configs/schema`` too (``tools/export_schemas``).

Units are in the names: ``_ns`` nanoseconds, ``_ms`` milliseconds. ``captured_ns`` and ``time_ns`` are UTC since 1970.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

SCHEMA = 1


class External(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of messages to subscribers."""


class Mask(msgspec.Struct, frozen=True, kw_only=True):
    """Which pixels of the source picture belong to an object, as runs over a rectangle of it.

    The rectangle's corner is ``x``, ``y``, its size ``width`` x ``height``, in whole source pixels; it holds the
    object's box. ``counts`` are lengths of runs, column by column, each from top to bottom, first of pixels outside the
    object (0 when the first one is inside), then inside, and so on; they add up to width x height. That is COCO's
    uncompressed RLE of the rectangle: ``{"size": [height, width], "counts": counts}``.
    """

    x: int
    y: int
    width: int
    height: int
    counts: list[int]


class DetectedObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One object: ``box`` is [x1, y1, x2, y2] in pixels of the upright source picture, ``score`` 0..1.

    Only of models that find them, otherwise left out: ``keypoints``, each [x, y, score 0..1]; ``corners`` of an
    oriented box, four [x, y] in its order around, which may lie outside the picture (``box`` is what encloses them,
    clipped to it); ``mask``, the object's pixels.
    """

    box: list[float]
    score: float
    class_id: int
    label: str
    keypoints: list[list[float]] | None = None
    corners: list[list[float]] | None = None
    mask: Mask | None = None


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds that a frame spent in each stage, and from the arrival of its data to published."""

    decode_ms: float
    queue_ms: float
    upload_ms: float
    execute_ms: float
    download_ms: float
    post_ms: float
    reorder_ms: float
    total_ms: float


class Detections(External, tag="detections", frozen=True, kw_only=True):
    """What was found in one frame; topic ``detections/<camera>``.

    ``seq`` counts up by one within an ``epoch``: a hole means that frames were dropped or messages lost. ``epoch``
    counts (re)starts of the stream, ``seq`` and ``pts_ns`` begin anew with it. ``captured_ns`` is UTC according to
    ``clock`` (``file``: the recording's own start time, or 1970, plus pts).
    """

    v: int = SCHEMA
    camera: str
    epoch: int
    seq: int
    pts_ns: int
    captured_ns: int
    clock: str
    width: int
    height: int
    model: str
    objects: list[DetectedObject]
    corrupt: bool = False
    trace: Trace | None = None


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """``decoded == published + sum(dropped.values()) + in_flight``, always."""

    decoded: int
    published: int
    dropped: dict[str, int]
    in_flight: int


class Status(External, tag="status", frozen=True, kw_only=True):
    """A camera changed its state, or frames are missing (``gap``: seq ``from_seq`` to ``to_seq`` of ``epoch``); topic
    ``status/<camera>``. ``started``: pictures come. ``cause`` is a LinkCause, EndCause or DropCause, ``detail`` is for
    people. ``repeated``: it was told before, and is told again because a subscriber has joined."""

    v: int = SCHEMA
    camera: str
    epoch: int
    state: Literal["connecting", "started", "stalled", "reconnecting", "paused", "ended", "failed", "gap"]
    cause: str
    detail: str
    time_ns: int
    from_seq: int | None = None
    to_seq: int | None = None
    ledger: LedgerEntry | None = None
    repeated: bool = False


class Heartbeat(External, tag="heartbeat", frozen=True, kw_only=True):
    """The engine lives; topic ``heartbeat``, once a second."""

    v: int = SCHEMA
    time_ns: int
    uptime_ns: int
    cameras: dict[str, str]
    lost_messages: int


ExternalMessage: TypeAlias = Detections | Status | Heartbeat

"""What goes over the wire can be read by any msgpack reader, and by our own types; JSON lines hold no clock reading."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.messages import DetectedObject, Detections, Heartbeat, LedgerEntry, Status, Trace
from stages.sinks.encode import Packer, topic_of

NAMES = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", fullmatch=True)
COUNTS = st.integers(0, 2**63 - 1)
TIMES = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
OBJECTS = st.builds(
    DetectedObject,
    box=st.lists(FLOATS, min_size=4, max_size=4),
    score=FLOATS,
    class_id=st.integers(0, 2**31 - 1),
    label=TEXTS,
)
TRACES = st.builds(Trace, **dict.fromkeys(Trace.__struct_fields__, FLOATS))
DETECTIONS = st.builds(
    Detections,
    camera=NAMES,
    epoch=COUNTS,
    seq=COUNTS,
    pts_ns=TIMES,
    captured_ns=TIMES,
    clock=st.sampled_from(["file", "arrival", "rtcp"]),
    width=COUNTS,
    height=COUNTS,
    model=TEXTS,
    objects=st.lists(OBJECTS, max_size=4),
    corrupt=st.booleans(),
    trace=st.none() | TRACES,
)
LEDGERS = st.builds(
    LedgerEntry, decoded=COUNTS, published=COUNTS, dropped=st.dictionaries(TEXTS, COUNTS, max_size=3), in_flight=COUNTS
)
STATUSES = st.builds(
    Status,
    camera=NAMES,
    epoch=COUNTS,
    state=st.sampled_from(["started", "ended", "failed", "gap"]),
    cause=TEXTS,
    detail=TEXTS,
    time_ns=TIMES,
    from_seq=st.none() | COUNTS,
    to_seq=st.none() | COUNTS,
    ledger=st.none() | LEDGERS,
)
HEARTBEATS = st.builds(
    Heartbeat,
    time_ns=TIMES,
    uptime_ns=COUNTS,
    cameras=st.dictionaries(NAMES, TEXTS, max_size=4),
    lost_messages=COUNTS,
)


@given(DETECTIONS | STATUSES | HEARTBEATS)
def test_every_message_survives_the_msgpack_package_and_our_own_types(message: Any) -> None:
    topic, body = Packer().packed(message)
    plain = msgpack.unpackb(body)
    assert plain == msgspec.to_builtins(message)
    assert plain["v"] == 1
    assert topic.decode() in {f"{plain['type']}/{plain.get('camera')}", "heartbeat"}
    assert (topic == b"heartbeat") == (plain["type"] == "heartbeat")
    again = msgpack.packb(plain)
    assert msgspec.msgpack.decode(again, type=Detections | Status | Heartbeat) == message


@given(DETECTIONS | STATUSES)
def test_a_line_is_the_message_without_its_trace(message: Any) -> None:
    line = Packer().line(message)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    expected = msgspec.to_builtins(message)
    expected.pop("trace", None)
    assert json.loads(line) == expected


def test_trace_is_the_last_field_or_lines_would_be_cut_wrongly() -> None:
    assert Detections.__struct_fields__[-1] == "trace"


def test_trace_is_left_out_of_what_is_published_unless_asked_for() -> None:
    trace = Trace(**dict.fromkeys(Trace.__struct_fields__, 1.5))
    message = Detections(
        camera="a",
        epoch=0,
        seq=0,
        pts_ns=0,
        captured_ns=0,
        clock="file",
        width=1,
        height=1,
        model="m",
        objects=[],
        trace=trace,
    )
    assert msgpack.unpackb(Packer().packed(message, trace=False)[1])["trace"] is None
    assert msgpack.unpackb(Packer().packed(message, trace=True)[1])["trace"]["total_ms"] == 1.5


@pytest.mark.parametrize(
    ("message", "topic"),
    [
        (Heartbeat(time_ns=0, uptime_ns=0, cameras={}, lost_messages=0), b"heartbeat"),
        (Status(camera="gate-1", epoch=0, state="ended", cause="ended", detail="", time_ns=0), b"status/gate-1"),
    ],
)
def test_topics(message: Status | Heartbeat, topic: bytes) -> None:
    assert topic_of(message) == topic

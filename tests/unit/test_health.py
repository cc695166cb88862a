"""What is thought of a running engine, by table."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.observe.health import judge
from pipeline.observe.snapshot import CameraSnapshot, EngineSnapshot, SinkSnapshot, WorkerSnapshot


def camera(state: str, detail: str = "") -> CameraSnapshot:
    return CameraSnapshot("gate", state, "m", 0, 0, 0, 0, 0, 0, {}, None, 0, detail)


def worker(state: str) -> WorkerSnapshot:
    return WorkerSnapshot("nms/0", "nms", 1, state, 0, 0, 0, 2)


@pytest.mark.parametrize(
    ("camera_state", "worker_state", "stopping", "silent_s", "colour", "subjects"),
    [
        ("streaming", "ready", False, 0.5, "green", []),
        ("ended", "gone", False, 0.5, "green", []),
        ("paused", "ready", False, 0.5, "green", []),
        ("connecting", "ready", False, 0.5, "yellow", ["gate"]),
        ("stalled", "ready", False, 0.5, "yellow", ["gate"]),
        ("reconnecting", "restarting", False, 0.5, "yellow", ["gate", "nms/0"]),
        ("failed", "ready", False, 0.5, "red", ["gate"]),
        ("streaming", "failed", False, 0.5, "red", ["nms/0"]),
        ("reconnecting", "failed", False, 0.5, "red", ["nms/0", "gate"]),  # the worst first
        ("streaming", "ready", True, 0.5, "yellow", ["engine"]),
        ("streaming", "ready", False, 11.0, "red", ["engine"]),
    ],
)
def test_colour(
    camera_state: str, worker_state: str, stopping: bool, silent_s: float, colour: str, subjects: list[str]
) -> None:
    health = judge(EngineSnapshot(1.0, (camera(camera_state),), (worker(worker_state),), stopping=stopping), silent_s)
    assert (health.colour, [finding.subject for finding in health.findings]) == (colour, subjects)


@pytest.mark.parametrize(
    ("state", "overdue_s", "colour"),
    [
        ("streaming", 0, "green"),
        ("streaming", 4, "green"),
        ("streaming", 7, "yellow"),
        ("streaming", 61, "red"),
        ("paused", 61, "green"),
        ("ended", 61, "green"),
        ("stalled", 61, "yellow"),
    ],
)
def test_a_camera_of_which_nothing_is_published_is_not_green(state: str, overdue_s: float, colour: str) -> None:
    found = dataclasses.replace(
        camera(state), overdue_s=overdue_s, since_published_s=99.0, dropped={"sampling": 3, "too_old": 70}
    )
    health = judge(EngineSnapshot(1.0, (found,), ()), 0)
    assert health.colour == colour
    if state == "streaming" and colour != "green":
        assert health.findings[0].sentence == (
            "streams, but nothing of it was published for 99 s (dropped so far: too_old 70)"
        )


def test_a_broken_sink_is_red_at_once_and_says_why() -> None:
    sinks = (SinkSnapshot("publish tcp://x", "open"), SinkSnapshot("jsonl out", "broken", "the disk is full", 7))
    health = judge(EngineSnapshot(1.0, (), (), sinks=sinks), 0)
    assert [(f.colour, f.subject, f.sentence) for f in health.findings] == [
        ("red", "jsonl out", "is closed: the disk is full; 7 messages missed so far")
    ]


def test_an_engine_that_has_told_nothing_is_red() -> None:
    assert judge(None, 0).colour == "red"


def test_the_reason_of_a_camera_is_in_the_sentence() -> None:
    health = judge(EngineSnapshot(1.0, (camera("reconnecting", "wrong password"),), ()), 0)
    assert "wrong password" in health.findings[0].sentence

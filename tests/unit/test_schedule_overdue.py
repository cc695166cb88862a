"""Which executor gets the next batch while one hangs: what each holds in, its name out."""

from __future__ import annotations

from typing import Any

import pytest
from oracles.virtual_run import MS, Camera, VirtualRun

from pipeline.runtime.inflight import Batch, OutputHold, WorkerLine
from pipeline.runtime.schedule import Schedule
from stages.batch import Batcher
from stages.messages import RawOutput


class Rig:
    """Two executors that have learnt that a batch takes 10 ms, and a clock."""

    def __init__(self) -> None:
        self.lines = {name: WorkerLine(name, "executor", 4) for name in ("hung", "good")}
        self.batcher: Any = Batcher()
        self.batcher.add_model("m", 4, 5 * MS)
        self.batcher.add_camera("c", "m", live=False, max_age_ns=10**12)
        cameras: Any = type("Cameras", (), {"can_add": lambda *_: True, "more_can_come": lambda *_: True})()
        self.schedule = Schedule(["m"], self.batcher, cameras, self.lines, {"m": [0]})
        self.now_ns = 10**12
        self._count = 0
        for name in self.lines:
            for _ in range(8):
                self.end(name, self.give(name), self.now_ns + 11 * MS)
                self.now_ns += 20 * MS

    def give(self, name: str, frames: int = 4) -> Batch:
        self._count += 1
        batch = Batch(self._count, "m", [None] * frames, OutputHold("m", 0), self.now_ns)  # type: ignore[list-item]
        self.lines[name].batches[batch.batch_id] = batch
        self.schedule.started(name, batch)
        return batch

    def end(self, name: str, batch: Batch, at_ns: int) -> None:
        del self.lines[name].batches[batch.batch_id]
        uploaded_ns = batch.given_ns + MS
        self.schedule.ended(name, batch, RawOutput(batch.batch_id, 2, [], uploaded_ns, uploaded_ns, at_ns, at_ns))

    def wait_frames(self, count: int) -> None:
        for _ in range(count):
            frame = type("Frame", (), {"camera": "c", "arrived_ns": self.now_ns - 10 * MS, "alone": False})
            self.batcher.put(frame())

    def chosen(self) -> list[str]:
        return [worker.name for _, worker in self.schedule.startable(self.now_ns, live_only=False)]


@pytest.mark.parametrize("frames", [2, 4])
def test_an_executor_that_hangs_attracts_no_batches(frames: int) -> None:
    rig = Rig()
    rig.give("hung")
    rig.now_ns += 40 * MS
    rig.give("good")
    rig.give("good")
    rig.wait_frames(frames)
    first = rig.chosen()
    assert first == (["good"] if frames == 4 else []), "one that is not full waits for the healthy one"
    rig.now_ns += 21 * MS
    assert rig.chosen() == ["good"]


def test_what_it_was_given_meanwhile_makes_it_no_less_overdue() -> None:
    rig = Rig()
    rig.give("hung")
    rig.now_ns += 40 * MS
    rig.give("hung")
    rig.give("good")
    rig.give("good")
    rig.wait_frames(4)
    assert rig.chosen() == ["good"]


def test_it_gets_batches_when_no_other_has_room_and_once_it_answers() -> None:
    rig = Rig()
    batch = rig.give("hung")
    rig.now_ns += 40 * MS
    held = [rig.give("good") for _ in range(4)]
    rig.wait_frames(4)
    assert rig.chosen() == ["hung"]
    rig.end("good", held[0], rig.now_ns)
    assert rig.chosen() == ["good"]
    rig.end("hung", batch, rig.now_ns)
    assert rig.chosen() == ["hung"]


def test_one_that_is_late_by_less_than_a_batch_is_no_laggard() -> None:
    rig = Rig()
    rig.give("hung")
    rig.give("good")
    rig.now_ns += 19 * MS
    rig.give("good")
    rig.wait_frames(4)
    assert rig.chosen() == ["hung"]


def test_a_device_that_became_slow_does_not_hold_up_the_frames_of_a_healthy_one() -> None:
    """All of a run: of two executors one takes a hundred times as long from 700 ms on."""
    cameras = [Camera(f"c{i}", "m", True, 40 * MS, i * 5 * MS, 50) for i in range(8)]
    run = VirtualRun(cameras, lambda *_: 0, {"executor/0": 4, "executor/1": 4})
    run.service_ns = lambda executor, _model, _frames: (
        1000 * MS if executor == "executor/0" and run.now_ns > 700 * MS else 10 * MS
    )
    run.run()
    slow = [one for one in run.runs if one.executor == "executor/0" and one.executed_ns - one.started_ns > 500 * MS]
    assert sum(one.frames for one in slow) <= 6

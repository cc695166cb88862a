"""The executor over a device that does as it is told, and over the canned one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from made.specs import model_spec

from stages.accelerators.accelerator import RunTimes
from stages.accelerators.registry import open_device
from stages.errors import BadItem, DeviceFailed, StageDead
from stages.frames import HeapRing
from stages.infer import Executor
from stages.messages import BatchItem, BatchReady, ItemFailed, RawOutput
from stages.model import ModelSpec, TensorSpec, output_slot_bytes, output_views

WIDTH, HEIGHT, MAX_BATCH, LANES = 6, 4, 4, 2


def spec(name: str = "m", width: int = WIDTH) -> ModelSpec:
    return model_spec(
        name=name,
        path="",
        width=width,
        height=HEIGHT,
        pad_value=0,
        placement="stretch",
        outputs=(TensorSpec("sum", (1,), "int64"), TensorSpec("rows", (50, 7), "float32")),
        iou=0.4,
    )


@dataclass
class ToldDevice:
    """Computes the sum of each frame; runs end when the test says so."""

    wake_fd: int | None = None
    refuse: Exception | None = None  # raised by submit
    fail: dict[int, Exception] = field(default_factory=dict)  # by number of the run
    on_copied: Callable[[], None] = lambda: None
    waiting: list[tuple[int, int]] = field(default_factory=list)
    ended: list[tuple[int, RunTimes | Exception]] = field(default_factory=list)
    seen: list[list[np.ndarray]] = field(default_factory=list)
    runs: int = 0
    closed: int = 0

    def open(self) -> None: ...

    def load(self, model: ModelSpec, max_batch: int) -> None: ...

    def lanes(self, count: int) -> ToldDevice:
        return self

    def submit(self, lane: int, model: str, frames: Sequence[Any], outputs: Sequence[Any]) -> None:
        if self.refuse is not None:
            raise self.refuse
        assert lane not in [lane for lane, _ in self.waiting]
        self.seen.append([frame.copy() for frame in frames])
        self.on_copied()
        for row, frame in enumerate(frames):
            outputs[0][row] = frame.sum(dtype=np.int64)
            outputs[1][row] = 1
        self.waiting.append((lane, self.runs))
        self.runs += 1

    def end(self, count: int = 1) -> None:
        for _ in range(count):
            lane, number = self.waiting.pop(0)
            self.ended.append((lane, self.fail.get(number, RunTimes(11, 12, 13))))

    def finished(self) -> list[tuple[int, RunTimes | Exception]]:
        ended, self.ended = self.ended, []
        return ended

    def close(self) -> None:
        self.closed += 1


class Bench:
    """An executor with rings: two cameras of four slots, one model."""

    def __init__(self, device: Any) -> None:
        self.model = spec()
        self.frames = {n: HeapRing(f"frames/{n}", 4, self.model.frame_bytes) for n in ("gate", "yard")}
        self.output = HeapRing("outputs/m", 4, output_slot_bytes(self.model, MAX_BATCH))
        self.now = 0
        self.executor = Executor(
            device,
            {"m": self.model},
            self.frames,
            {"m": self.output},
            {"m": MAX_BATCH},
            LANES,
            self.clock,
        )
        self.executor.open()
        self.batches = 0

    def clock(self) -> int:
        self.now += 1
        return self.now

    def frame(self, camera: str = "gate", slot: int = 0, value: int = 1) -> BatchItem:
        ring = self.frames[camera]
        view = ring.begin_write(slot)
        view[:] = bytes([value]) * len(view)
        return BatchItem(camera, slot, ring.end_write(slot))

    def batch(self, *items: BatchItem, slot: int = 0, model: str = "m") -> BatchReady:
        self.batches += 1
        return BatchReady(self.batches, model, slot, list(items))

    def rows(self, raw: RawOutput, size: int, slot: int = 0) -> list[int]:
        sums, rows = output_views(self.model, self.output.read(slot, raw.generation), MAX_BATCH, size)
        assert [bool(r.any()) for r in rows] == [bool(s.any()) for s in sums]
        return [int(s) for s in sums[:, 0]]


PIXELS = WIDTH * HEIGHT * 3


@pytest.fixture
def device() -> ToldDevice:
    return ToldDevice()


@pytest.fixture
def bench(device: ToldDevice) -> Iterator[Bench]:
    bench = Bench(device)
    yield bench
    bench.executor.close()
    bench.executor.close()
    assert device.closed == 1


def test_a_batch_comes_back_with_its_rows_and_times(bench: Bench, device: ToldDevice) -> None:
    items = [bench.frame("gate", 0, 1), bench.frame("yard", 2, 2), bench.frame("gate", 3, 3)]
    assert bench.executor.free_lanes == 2
    assert bench.executor.submit(bench.batch(*items, slot=1)) == []
    assert bench.executor.free_lanes == 1
    assert bench.executor.finished() == []
    device.end()
    (raw,) = bench.executor.finished()
    assert raw == RawOutput(1, 2, [], 1, 11, 12, 13)
    assert bench.rows(raw, 3, slot=1) == [PIXELS, 2 * PIXELS, 3 * PIXELS]
    assert bench.executor.free_lanes == 2


def test_batches_end_in_the_order_of_submission_and_lanes_are_used_again(bench: Bench, device: ToldDevice) -> None:
    told = []
    for number in range(20):
        bench.executor.submit(bench.batch(bench.frame(value=number + 1), slot=number % 4))
        if bench.executor.free_lanes == 0:
            device.end(1 + number % 2)
            told += [(raw.batch_id, bench.rows(raw, 1, (raw.batch_id - 1) % 4)) for raw in bench.executor.finished()]
    device.end(len(device.waiting))
    told += [(raw.batch_id, bench.rows(raw, 1, (raw.batch_id - 1) % 4)) for raw in bench.executor.finished()]
    assert told == [(number + 1, [(number + 1) * PIXELS]) for number in range(20)]


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_stale_frame_fails_alone_and_its_row_is_zeroed(bench: Bench, device: ToldDevice, bad: int) -> None:
    items = [bench.frame("gate", slot, 5) for slot in range(3)]
    bench.frame("gate", bad, 9)  # rewritten since
    assert bench.executor.submit(bench.batch(*items)) == []
    assert [int(f.sum()) for f in device.seen[0]] == [0 if i == bad else 5 * PIXELS for i in range(3)]
    device.end()
    (raw,) = bench.executor.finished()
    assert [(f.index, f.cause) for f in raw.failed] == [(bad, "stale")]
    assert "generation" in raw.failed[0].detail
    assert bench.rows(raw, 3) == [0 if i == bad else 5 * PIXELS for i in range(3)]


def test_a_frame_that_is_rewritten_while_it_is_copied_is_stale(bench: Bench, device: ToldDevice) -> None:
    items = [bench.frame("gate", 0, 5), bench.frame("gate", 1, 6)]

    def rewrite() -> None:
        bench.frames["gate"].begin_write(0)

    device.on_copied = rewrite
    bench.executor.submit(bench.batch(*items))
    device.end()
    (raw,) = bench.executor.finished()
    assert [(f.index, f.cause) for f in raw.failed] == [(0, "stale")]
    assert bench.rows(raw, 2) == [0, 6 * PIXELS]


def test_a_slot_too_small_for_the_model_fails_alone(bench: Bench, device: ToldDevice) -> None:
    bench.frames["tiny"] = HeapRing("frames/tiny", 1, 10)
    bench.executor.add_frames("tiny", bench.frames["tiny"])
    bench.executor.submit(bench.batch(bench.frame("tiny"), bench.frame("yard", 0, 4)))
    device.end()
    (raw,) = bench.executor.finished()
    assert raw.failed == [
        ItemFailed(0, "bad_frame", "a slot of frames/tiny has 10 bytes, model m takes frames of 72"),
    ]
    assert bench.rows(raw, 2) == [0, 4 * PIXELS]


def test_nothing_left_to_run_is_told_at_once(bench: Bench, device: ToldDevice) -> None:
    items = [bench.frame("gate", 0), bench.frame("gate", 1)]
    for item in items:
        bench.frame("gate", item.slot)
    (raw,) = bench.executor.submit(bench.batch(*items))
    assert [(f.index, f.cause) for f in raw.failed] == [(0, "stale"), (1, "stale")]
    assert bench.rows(raw, 2) == [0, 0]
    assert (raw.submitted_at_ns, raw.uploaded_at_ns, raw.executed_at_ns, raw.finished_at_ns) == (1, 2, 2, 2)
    assert device.seen == []
    assert bench.executor.free_lanes == 2


def test_cameras_come_and_go(bench: Bench, device: ToldDevice) -> None:
    ring = HeapRing("frames/new", 1, bench.model.frame_bytes)
    bench.frames["new"] = ring
    item = bench.frame("new", 0, 3)
    (raw,) = bench.executor.submit(bench.batch(item))
    assert raw.failed == [ItemFailed(0, "stale", "camera new has no frames here any more")]
    bench.executor.add_frames("new", ring)
    assert bench.executor.submit(bench.batch(item)) == []
    bench.executor.remove_frames("new")
    bench.executor.remove_frames("new")
    device.end()
    (raw,) = bench.executor.finished()
    assert bench.rows(raw, 1) == [3 * PIXELS]
    (raw,) = bench.executor.submit(bench.batch(item))
    assert raw.failed[0].cause == "stale"


def test_a_run_that_the_model_refuses_fails_its_frames_and_nothing_else(bench: Bench, device: ToldDevice) -> None:
    device.fail[0] = BadItem("infer_failed", "index 255 out of bounds " + "x" * 1000)
    bench.executor.submit(bench.batch(bench.frame(), bench.frame("yard"), slot=0))
    bench.executor.submit(bench.batch(bench.frame("gate", 1, 2), slot=1))
    device.end(2)
    first, second = bench.executor.finished()
    assert [(f.index, f.cause, f.detail[:18], len(f.detail)) for f in first.failed] == [
        (0, "infer_failed", "index 255 out of b", 300),
        (1, "infer_failed", "index 255 out of b", 300),
    ]
    assert bench.rows(first, 2, 0) == [0, 0]
    assert (second.failed, bench.rows(second, 1, 1)) == ([], [2 * PIXELS])


def test_a_stale_frame_stays_stale_when_its_run_fails_too(bench: Bench, device: ToldDevice) -> None:
    device.fail[0] = BadItem("infer_failed", "no")
    items = [bench.frame("gate", 0), bench.frame("gate", 1)]
    bench.frame("gate", 1)
    bench.executor.submit(bench.batch(*items))
    device.end()
    (raw,) = bench.executor.finished()
    assert [f.cause for f in raw.failed] == ["infer_failed", "stale"]


def test_frames_refused_at_once_fail_at_once(bench: Bench, device: ToldDevice) -> None:
    device.refuse = BadItem("bad_frame", "is 1x1x3 uint8")
    (raw,) = bench.executor.submit(bench.batch(bench.frame(), bench.frame("yard")))
    assert [(f.index, f.cause, f.detail) for f in raw.failed] == [
        (0, "infer_failed", "is 1x1x3 uint8"),
        (1, "infer_failed", "is 1x1x3 uint8"),
    ]
    assert bench.executor.free_lanes == 2


@pytest.mark.parametrize("error", [DeviceFailed("gone"), RuntimeError("what?")])
def test_a_device_that_fails_ends_the_executor_after_what_ended_before(
    bench: Bench, device: ToldDevice, error: Exception
) -> None:
    device.fail[1] = error
    bench.executor.submit(bench.batch(bench.frame(value=4), slot=0))
    bench.executor.submit(bench.batch(bench.frame("yard"), slot=1))
    device.end(2)
    (raw,) = bench.executor.finished()
    assert bench.rows(raw, 1, 0) == [4 * PIXELS]
    for _ in range(2):
        with pytest.raises(StageDead, match=r"gone|what"):
            bench.executor.finished()
    with pytest.raises(StageDead, match=r"gone|what"):
        bench.executor.submit(bench.batch(bench.frame(), slot=2))
    with pytest.raises(StageDead, match=r"gone|what"):
        bench.executor.flush(bench.now + 1000)


@pytest.mark.parametrize("error", [DeviceFailed("gone"), RuntimeError("what?"), ValueError("lane 0 is not free")])
def test_a_submission_that_fails_ends_the_executor(bench: Bench, device: ToldDevice, error: Exception) -> None:
    device.refuse = error
    with pytest.raises(StageDead, match=str(error)[:4]):
        bench.executor.submit(bench.batch(bench.frame()))


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (lambda b: b.batch(b.frame(), model="other"), "model other"),
        (lambda b: b.batch(), "0 frames"),
        (lambda b: b.batch(*[b.frame("gate", 0)] * 5), "5 frames"),
    ],
)
def test_a_batch_that_must_never_be_sent_ends_the_executor(
    bench: Bench, batch: Callable[[Bench], BatchReady], says: str
) -> None:
    with pytest.raises(StageDead, match=says):
        bench.executor.submit(batch(bench))


def test_more_batches_than_lanes_end_the_executor(bench: Bench) -> None:
    for slot in range(LANES):
        bench.executor.submit(bench.batch(bench.frame(), slot=slot))
    with pytest.raises(StageDead, match="no lane is free"):
        bench.executor.submit(bench.batch(bench.frame(), slot=3))


def test_flush_gives_up_at_its_deadline(bench: Bench, device: ToldDevice) -> None:
    bench.executor.submit(bench.batch(bench.frame(), slot=0))
    bench.executor.submit(bench.batch(bench.frame("yard"), slot=1))
    device.end()
    assert [raw.batch_id for raw in bench.executor.flush(bench.now + 20)] == [1]
    device.end()
    assert [raw.batch_id for raw in bench.executor.flush(bench.now)] == [2], "what has ended is told after the deadline"
    assert bench.executor.flush(0) == []


def test_nothing_works_before_open_and_after_close(device: ToldDevice) -> None:
    bench = Bench(device)
    fresh = Executor(device, {"m": bench.model}, {}, {"m": bench.output}, {"m": 4}, 1, time.monotonic_ns)
    fresh.close()
    assert (fresh.free_lanes, fresh.wake_fd, fresh.finished()) == (0, None, [])
    bench.executor.submit(bench.batch(bench.frame()))
    bench.executor.close()
    assert (bench.executor.free_lanes, bench.executor.finished(), bench.executor.flush(10**18)) == (0, [], [])
    with pytest.raises(StageDead, match="no lane"):
        bench.executor.submit(bench.batch(bench.frame()))


def test_flush_waits_on_the_descriptor_of_a_real_device() -> None:
    model = replace(spec(), outputs=spec().outputs[1:])
    device = open_device("canned:0", 1, {"service_ms": "100", "objects": "2"})
    device.open()
    device.load(model, MAX_BATCH)
    ring = HeapRing("frames/gate", 1, model.frame_bytes)
    ring.begin_write(0)
    item = BatchItem("gate", 0, ring.end_write(0))
    output = HeapRing("outputs/m", LANES, output_slot_bytes(model, MAX_BATCH))
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  a count, no paths
    executor = Executor(device, {"m": model}, {"gate": ring}, {"m": output}, {"m": MAX_BATCH}, LANES, time.monotonic_ns)
    executor.open()
    for number in range(LANES):
        assert executor.submit(BatchReady(number, "m", number, [item] * 3)) == []
    before = time.process_time()
    told = executor.flush(time.monotonic_ns() + 30_000_000_000)
    assert time.process_time() - before < 0.15  # of 0.2 s; a collection of garbage may fall into it
    assert [raw.batch_id for raw in told] == [0, 1]
    for raw in told:
        assert raw.submitted_at_ns <= raw.uploaded_at_ns < raw.executed_at_ns <= raw.finished_at_ns
        (rows,) = output_views(model, output.read(raw.batch_id, raw.generation), MAX_BATCH, 3)
        assert (rows == rows[0]).all()
        assert rows[0].max() > 0.4
    executor.close()
    device.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208  a count, no paths

"""What every inference device must do, run over each of them: the door is ``stages/accelerators/accelerator.py``."""

from __future__ import annotations

import gc
import itertools
import os
import select
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from made.specs import model_spec
from onnx import TensorProto, helper, numpy_helper

from stages.accelerators.accelerator import Device, LaneSet, RunTimes
from stages.accelerators.ascend.device import AscendDevice
from stages.accelerators.onnx_session import runtime
from stages.accelerators.registry import open_device
from stages.errors import BadItem, DeviceFailed
from stages.frames import HeapRing
from stages.model import ModelSpec, TensorSpec, output_slot_bytes, output_views

MAX_BATCH = 8
DESCRIPTORS = Path("/proc/self/fd")
DEVICES = {
    "cpu": ("cpu", 1, {}),
    "cpu-2-threads": ("cpu", 2, {}),
    "canned": ("canned:0", 1, {"objects": "2"}),
    "canned-slow": ("canned:0", 1, {"objects": "2", "service_ms": "2", "copies": "both"}),
    "ascend-sim": ("ascend-sim:0", 1, {}),
    "ascend-sim-variant-a": ("ascend-sim:0", 1, {"variant": "A"}),
    "ascend-sim-virtual": (
        "ascend-sim:0",
        1,
        {"clock": "virtual", "service_ms": "1=5.2,4=12.8,8=23.5", "copy_ms": "3"},
    ),
}


def tiny_detector(path: Path, batch: int | str = "n") -> bytes:
    """A convolution whose cells are 96 rows of 4 numbers of a box and 3 scores: (n, 3, 16, 24) -> (n, 96, 7)."""
    rng = np.random.default_rng(7)
    weights: dict[str, np.ndarray] = {
        "w": rng.normal(0, 0.01, (7, 3, 3, 3)).astype(np.float32),
        "b": rng.normal(0, 1, 7).astype(np.float32),
        "flat": np.array([0, 7, 96], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["images", "w", "b"], ["cells"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Reshape", ["cells", "flat"], ["columns"]),
        helper.make_node("Transpose", ["columns"], ["rows"], perm=[0, 2, 1]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [batch, 3, 16, 24])],
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, [batch, 96, 7])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return path.read_bytes()


def tiny_spec(name: str, path: Path, fixed_batch: int | None = None) -> ModelSpec:
    return model_spec(
        name=name,
        path=str(path),
        width=24,
        height=16,
        placement="stretch",
        labels=("person", "car", "bus"),
        outputs=(TensorSpec("rows", (96, 7), "float32"),),
        fixed_batch=fixed_batch,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_detector(folder / "any.onnx")
    tiny_detector(folder / "three.onnx", 3)
    return folder


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    name, threads, options = DEVICES[request.param]
    device = open_device(name, threads, options)
    device.open()
    yield device
    device.close()
    device.close()


@pytest.fixture
def spec(folder: Path) -> ModelSpec:
    return tiny_spec("tiny", folder / "any.onnx")


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    descriptors, threads = len(list(DESCRIPTORS.iterdir())), threading.active_count()
    yield
    assert threading.active_count() == threads
    assert len(list(DESCRIPTORS.iterdir())) == descriptors


@contextmanager
def lanes_of(device: Device, count: int, *specs: ModelSpec, max_batch: int = MAX_BATCH) -> Iterator[LaneSet]:
    for spec in specs:
        device.load(spec, max_batch)
    lanes = device.lanes(count)
    try:
        yield lanes
    finally:
        lanes.close()


def pictures(count: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(0, 256, (count, 16, 24, 3), np.uint8))


def room(spec: ModelSpec, rows: int) -> list[np.ndarray]:
    return [np.full((rows, *t.shape), np.nan, t.dtype) for t in spec.outputs]


def wait_for(lanes: LaneSet, count: int, timeout_s: float = 60) -> list[tuple[int, RunTimes | Exception]]:
    """The next ``count`` runs that end, by the descriptor as an executor waits."""
    ended: list[tuple[int, RunTimes | Exception]] = []
    deadline = time.monotonic() + timeout_s
    poll = select.poll()
    if lanes.wake_fd is not None:
        poll.register(lanes.wake_fd, select.POLLIN)
    while len(ended) < count:
        assert time.monotonic() < deadline, f"{len(ended)} of {count} runs have ended"
        if lanes.wake_fd is None:
            time.sleep(0.001)
        else:
            poll.poll(1000)
        ended += lanes.finished()
    return ended


def run(lanes: LaneSet, spec: ModelSpec, frames: list[np.ndarray], lane: int = 0) -> list[np.ndarray]:
    outputs = room(spec, len(frames))
    lanes.submit(lane, spec.name, frames, outputs)
    ((told, times),) = wait_for(lanes, 1)
    assert told == lane
    assert isinstance(times, RunTimes), times
    return outputs


def test_runs_end_in_the_order_of_submission_whatever_their_size(device: Device, spec: ModelSpec) -> None:
    with lanes_of(device, 4, spec) as lanes:
        for sizes, order in (((8, 1, 5, 1), (2, 0, 3, 1)), ((1, 8, 1, 8), (3, 2, 1, 0))):
            for size, lane in zip(sizes, order, strict=True):
                lanes.submit(lane, spec.name, pictures(size), room(spec, size))
            ended = wait_for(lanes, 4)
            assert [lane for lane, _ in ended] == list(order)
            for _, times in ended:
                assert isinstance(times, RunTimes)
                assert times.uploaded_at_ns <= times.executed_at_ns <= times.finished_at_ns <= time.monotonic_ns()
            assert lanes.finished() == []


def test_a_batch_gives_each_frame_the_bits_that_it_gets_alone(device: Device, spec: ModelSpec) -> None:
    frames = pictures(MAX_BATCH)
    with lanes_of(device, 1, spec) as lanes:
        alone = [run(lanes, spec, [frame])[0][0].tobytes() for frame in frames]
        for size in range(1, MAX_BATCH + 1):
            (rows,) = run(lanes, spec, frames[:size])
            assert [row.tobytes() for row in rows] == alone[:size]


def test_lanes_do_not_disturb_one_another(device: Device, spec: ModelSpec) -> None:
    first, second = pictures(4, seed=1), pictures(4, seed=2)
    with lanes_of(device, 2, spec) as lanes:
        expected = [run(lanes, spec, frames)[0].tobytes() for frames in (first, second)]
        for _ in range(50):
            outputs = [room(spec, 4), room(spec, 4)]
            lanes.submit(0, spec.name, first, outputs[0])
            lanes.submit(1, spec.name, second, outputs[1])
            wait_for(lanes, 2)
            assert [o[0].tobytes() for o in outputs] == expected


def test_frames_may_be_overwritten_as_soon_as_submit_returns(device: Device, spec: ModelSpec) -> None:
    with lanes_of(device, 1, spec) as lanes:
        frames = pictures(MAX_BATCH)
        expected = run(lanes, spec, frames)[0].tobytes()
        outputs = room(spec, MAX_BATCH)
        lanes.submit(0, spec.name, frames, outputs)
        for frame in frames:
            frame[:] = 255
        wait_for(lanes, 1)
        assert outputs[0].tobytes() == expected


def test_outputs_are_written_in_place_and_nowhere_else(device: Device, spec: ModelSpec) -> None:
    ring = HeapRing("outputs/tiny", 2, output_slot_bytes(spec, MAX_BATCH))
    frames = pictures(MAX_BATCH)
    with lanes_of(device, 1, spec) as lanes:
        expected = run(lanes, spec, frames[:5])[0]
        for slot in range(2):
            memory = ring.begin_write(slot)
            memory[:] = b"\xee" * ring.slot_bytes
            lanes.submit(0, spec.name, frames[:5], output_views(spec, memory, MAX_BATCH, 5))
            wait_for(lanes, 1)
            generation = ring.end_write(slot)
            whole = ring.read(slot, generation)
            (rows,) = output_views(spec, whole, MAX_BATCH, 5)
            assert rows.tobytes() == expected.tobytes()
            used = 5 * spec.outputs[0].frame_bytes
            assert whole[used:].tobytes() == b"\xee" * (ring.slot_bytes - used)


def test_a_slot_that_was_changed_since_is_written_whole_again(device: Device, spec: ModelSpec) -> None:
    frames = pictures(4)
    with lanes_of(device, 1, spec) as lanes:
        outputs = room(spec, 4)
        expected = run(lanes, spec, frames)[0].tobytes()
        for change in (slice(0, 4), slice(2, 3), slice(3, 4)):
            lanes.submit(0, spec.name, frames, outputs)
            wait_for(lanes, 1)
            outputs[0][change] = 0
            lanes.submit(0, spec.name, frames, outputs)
            wait_for(lanes, 1)
            assert outputs[0].tobytes() == expected


def test_two_models_share_lanes(device: Device, spec: ModelSpec, folder: Path) -> None:
    other = tiny_spec("three-at-a-time", folder / "three.onnx", fixed_batch=3)
    frames = pictures(MAX_BATCH)
    with lanes_of(device, 2, spec, other) as lanes:
        for _ in range(3):
            outputs = [room(spec, 8), room(other, 8)]
            lanes.submit(0, spec.name, frames, outputs[0])
            lanes.submit(1, other.name, frames, outputs[1])
            wait_for(lanes, 2)
            assert np.isfinite(outputs[0][0]).all()
            assert outputs[0][0].tobytes() == outputs[1][0].tobytes()


@pytest.mark.parametrize("size", range(1, MAX_BATCH + 1))
def test_a_model_with_a_fixed_batch_takes_any_size(device: Device, spec: ModelSpec, folder: Path, size: int) -> None:
    fixed = tiny_spec("three-at-a-time", folder / "three.onnx", fixed_batch=3)
    frames = pictures(size)
    with lanes_of(device, 1, spec, fixed) as lanes:
        assert run(lanes, fixed, frames)[0].tobytes() == run(lanes, spec, frames)[0].tobytes()


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([], id="none"),
        pytest.param(pictures(MAX_BATCH + 1), id="too many"),
        pytest.param([np.zeros((16, 25, 3), np.uint8)], id="too wide"),
        pytest.param([np.zeros((24, 16, 3), np.uint8)], id="on its side"),
        pytest.param([np.zeros((16, 24), np.uint8)], id="grey"),
        pytest.param([np.zeros((16, 24, 3), np.float32)], id="float"),
        pytest.param([*pictures(1), np.zeros((3, 16, 24), np.uint8)], id="second one planar"),
    ],
)
def test_frames_that_do_not_fit_are_refused_and_the_lane_stays_free(
    device: Device, spec: ModelSpec, frames: list[np.ndarray]
) -> None:
    with lanes_of(device, 1, spec) as lanes:
        with pytest.raises(BadItem):
            lanes.submit(0, spec.name, frames, room(spec, len(frames)))
        assert lanes.finished() == []
        run(lanes, spec, pictures(2))


def test_an_unknown_model_is_refused(device: Device, spec: ModelSpec) -> None:
    with lanes_of(device, 1, spec) as lanes, pytest.raises(BadItem, match="other"):
        lanes.submit(0, "other", pictures(1), room(spec, 1))


@pytest.mark.parametrize("lane", [-1, 2, 0])
def test_a_lane_that_is_not_free_is_an_error(device: Device, spec: ModelSpec, lane: int) -> None:
    with lanes_of(device, 2, spec) as lanes:
        lanes.submit(0, spec.name, pictures(1), room(spec, 1))
        with pytest.raises(ValueError, match="not free"):
            lanes.submit(lane, spec.name, pictures(1), room(spec, 1))
        wait_for(lanes, 1)


def _read_only(spec: ModelSpec) -> list[np.ndarray]:
    outputs = room(spec, 2)
    outputs[0].flags.writeable = False
    return outputs


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda spec: [], id="none"),
        pytest.param(lambda spec: room(spec, 1), id="too few rows"),
        pytest.param(lambda spec: [np.zeros((2, 96, 7))], id="other type"),
        pytest.param(lambda spec: [np.zeros((2, 7, 96), np.float32).transpose(0, 2, 1)], id="not contiguous"),
        pytest.param(_read_only, id="read only"),
    ],
)
def test_a_device_never_writes_to_memory_of_another_shape(device: Device, spec: ModelSpec, make: Any) -> None:
    with lanes_of(device, 1, spec) as lanes:
        with pytest.raises(ValueError):
            lanes.submit(0, spec.name, pictures(2), make(spec))
        run(lanes, spec, pictures(2))


def test_loading_again_costs_nothing_and_a_larger_batch_is_taken(device: Device, spec: ModelSpec) -> None:
    device.load(spec, 2)
    before_ns = time.thread_time_ns()
    for _ in range(100):
        device.load(spec, 2)
        device.load(spec, 1)
    assert time.thread_time_ns() - before_ns < 50_000_000
    with lanes_of(device, 1, spec, max_batch=3) as lanes:
        run(lanes, spec, pictures(3))


def test_lanes_without_a_model_are_refused(device: Device) -> None:
    with pytest.raises(DeviceFailed, match="no model"):
        device.lanes(1)


def test_close_twice_and_with_runs_in_flight(device: Device, spec: ModelSpec) -> None:
    device.load(spec, MAX_BATCH)
    for _ in range(20):
        lanes = device.lanes(4)
        outputs = [room(spec, 8) for _ in range(4)]
        for lane in range(4):
            lanes.submit(lane, spec.name, pictures(8), outputs[lane])
        lanes.close()
        written = [o[0].tobytes() for o in outputs]
        time.sleep(0.002)
        assert [o[0].tobytes() for o in outputs] == written, "something was written after close"
        lanes.close()
        assert lanes.finished() == []
        with pytest.raises(ValueError, match="not free"):
            lanes.submit(0, spec.name, pictures(1), room(spec, 1))


def test_lane_sets_of_several_threads_run_at_once(device: Device, spec: ModelSpec) -> None:
    device.load(spec, MAX_BATCH)
    frames = pictures(4)
    with lanes_of(device, 1, spec) as lanes:
        expected = run(lanes, spec, frames)[0].tobytes()
    wrong: list[object] = []

    def work() -> None:
        lanes = device.lanes(2)
        try:
            for _ in range(50):
                outputs = [room(spec, 4), room(spec, 4)]
                for lane in range(2):
                    lanes.submit(lane, spec.name, frames, outputs[lane])
                wait_for(lanes, 2)
                wrong.extend(o for o in outputs if o[0].tobytes() != expected)
        except BaseException as error:
            wrong.append(error)
        finally:
            lanes.close()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


PARTS = 4


def test_memory_is_flat_over_2000_runs(device: Device, spec: ModelSpec) -> None:
    runs = 2000 if not isinstance(device, AscendDevice) else 200  # a simulated one is slow under tracemalloc
    frames = pictures(4)
    outputs = [room(spec, 4), room(spec, 4)]

    def some(runs: int) -> None:
        for _ in range(runs // 2):
            for lane in range(2):
                lanes.submit(lane, spec.name, frames, outputs[lane])
            wait_for(lanes, 2)

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with lanes_of(device, 2, spec) as lanes:
        some(200)
        tracemalloc.start()
        try:
            some(20)
            traced, resident = [], []
            for part in range(PARTS + 1):
                if part:
                    some(runs // PARTS)
                gc.collect()  # what is traced includes free lists, which a collection empties
                traced.append(tracemalloc.get_traced_memory()[0])
                resident.append(resident_bytes())
            # A leak grows in each part; what threads that other tests left in this process take once, in one of them.
            assert min(b - a for a, b in itertools.pairwise(traced)) < 20_000 // PARTS, traced
            assert min(b - a for a, b in itertools.pairwise(resident)) < 4_000_000 // PARTS, resident
        finally:
            tracemalloc.stop()


def test_the_cpu_gives_the_bits_of_a_direct_run(spec: ModelSpec) -> None:
    session = runtime().InferenceSession(spec.path, providers=["CPUExecutionProvider"])
    cpu = open_device("cpu", 1, {})
    cpu.open()
    for scaled in (
        spec,
        replace(spec, mean=(123.7, 116.3, 103.5), std=(58.4, 57.1, 57.4)),
        replace(spec, std=(255.0,) * 3),
    ):
        named = replace(scaled, name=f"tiny-{scaled.std[0]}")
        with lanes_of(cpu, 1, named) as lanes:
            for size in range(1, MAX_BATCH + 1):
                frames = pictures(size, seed=size)
                pixels = (np.stack(frames).astype(np.float64) - scaled.mean) / scaled.std
                (expected,) = session.run(None, {"images": pixels.astype(np.float32).transpose(0, 3, 1, 2).copy()})
                assert run(lanes, named, frames)[0].tobytes() == expected.tobytes()
    cpu.close()


def test_a_slow_device_takes_its_time_for_runs_in_a_row_and_no_cpu(spec: ModelSpec) -> None:
    slow = open_device("canned:0", 1, {"service_ms_by_batch": "1:50,4:100"})
    slow.open()
    with lanes_of(slow, 3, spec, max_batch=4) as lanes:
        cpu = time.process_time()
        for lane, size in enumerate((1, 2, 4)):  # a batch of 2 takes the time of 4
            lanes.submit(lane, spec.name, pictures(size), room(spec, size))
        times = [t for _, t in wait_for(lanes, 3) if isinstance(t, RunTimes)]
        assert [t.executed_at_ns - times[0].uploaded_at_ns for t in times] == [50_000_000, 150_000_000, 250_000_000]
        assert all(t.finished_at_ns >= t.executed_at_ns for t in times)
        assert time.process_time() - cpu < 0.2  # a collection of garbage may fall into it
    slow.close()


def test_close_does_not_wait_for_time_that_nobody_needs(spec: ModelSpec) -> None:
    slow = open_device("canned:0", 1, {"service_ms": "60000"})
    slow.open()
    with lanes_of(slow, 2, spec) as lanes:
        lanes.submit(0, spec.name, pictures(1), room(spec, 1))
        lanes.submit(1, spec.name, pictures(1), room(spec, 1))
        started = time.monotonic()
    assert time.monotonic() - started < 30
    slow.close()

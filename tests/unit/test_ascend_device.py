"""An Ascend device on the simulator: what it holds and shares, what it refuses, what is left when it is gone."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from made.specs import model_spec
from onnx import TensorProto, helper

from stages.accelerators import aclsim
from stages.accelerators.accelerator import RunTimes
from stages.accelerators.aclsim import Simulation, Violation
from stages.accelerators.ascend.device import AscendDevice
from stages.accelerators.ascend.options import ascend_options
from stages.accelerators.registry import open_device
from stages.errors import BadItem, DeviceFailed, UserError
from stages.model import ModelSpec, OmSpec, TensorSpec

ROOT = Path(__file__).resolve().parents[2]
SIZE = 8
MIB = 1 << 20


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    """A model that gives the mean of each channel, four times in a row: (n, 3, 8, 8) -> (n, 1, 6)."""
    path = tmp_path_factory.mktemp("mean") / "mean.onnx"
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("Concat", ["means", "means"], ["twice"], axis=1),
        helper.make_node("Unsqueeze", ["twice", "at"], ["rows"]),
    ]
    graph = helper.make_graph(
        nodes,
        "mean",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", 1, 6])],
        [helper.make_tensor("at", TensorProto.INT64, [1], [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return model_spec(
        name="mean",
        path=str(path),
        width=SIZE,
        height=SIZE,
        std=(255.0, 255.0, 255.0),
        placement="stretch",
        labels=("a", "b"),
        outputs=(TensorSpec("rows", (1, 6), "float32"),),
    )


@contextmanager
def simulations() -> Iterator[list[Simulation]]:
    """The simulations that devices opened inside are on."""
    made: list[Simulation] = []

    def simulate(options: Any = None) -> Simulation:
        made.append(_simulate(options))
        return made[-1]

    with mock.patch.object(aclsim, "simulate", simulate):
        yield made


_simulate = aclsim.simulate


def device_of(executors: int = 1, lanes: int = 2, index: int = 0, **options: str) -> AscendDevice:
    read = ascend_options("ascend-sim:0", options, simulated=True)
    return AscendDevice(f"ascend-sim:{index}", read, executors, lanes, time.monotonic_ns)


def pictures(count: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(0, 256, (count, SIZE, SIZE, 3), np.uint8))


def run(lanes: Any, spec: ModelSpec, frames: list[np.ndarray], lane: int = 0) -> np.ndarray:
    (output,) = [np.full((len(frames), *t.shape), np.nan, t.dtype) for t in spec.outputs]
    lanes.submit(lane, spec.name, frames, [output])
    deadline = time.monotonic() + 20
    while not (ended := lanes.finished()):
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    ((_, times),) = ended
    assert isinstance(times, RunTimes), times
    return output[:, 0, :3]


def means(frames: list[np.ndarray]) -> np.ndarray:
    return np.stack(frames).reshape(len(frames), -1, 3).mean(1) / 255


def held(device: AscendDevice) -> dict[str, int]:
    counts: dict[str, int] = {}
    for each in device.runtime.register.held():
        counts[each.kind] = counts.get(each.kind, 0) + 1
    return counts


@pytest.mark.parametrize(
    ("batch", "variant", "executors", "models"),
    [(4, "B", 1, 1), (4, "B", 3, 3), (4, "A", 2, 4), ((1, 4), "B", 2, 4), ((1, 4), "A", 1, 2)],
)
def test_weights_are_on_the_device_once_whatever_runs(
    spec: ModelSpec, batch: Any, variant: str, executors: int, models: int
) -> None:
    spec = replace(spec, om=OmSpec("", "", batch))
    device = device_of(executors, variant=variant)
    device.open()
    try:
        device.load(spec, 4)
        things = device.runtime.register.held()
        assert sum(each.kind == "model" for each in things) == models
        assert sum("weights" in each.name for each in things) == 1
        assert sum(each.kind == "context" for each in things) == 1 + executors, "the weights' and one for each"
        device.load(spec, 4)
        assert device.runtime.register.held() == things
        frames = pictures(4)
        lanes = [device.lanes(2) for _ in range(executors)]
        for each in lanes:
            assert run(each, spec, frames) == pytest.approx(means(frames), abs=1e-6)
        for each in lanes:
            each.close()
    finally:
        device.close()
    assert device.runtime.register.held() == ()


def test_nothing_is_allocated_while_batches_run(spec: ModelSpec) -> None:
    device = device_of()
    device.open()
    device.load(spec, 8)
    lanes = device.lanes(2)
    run(lanes, spec, pictures(8))
    before = device.runtime.register.held()
    for size in (1, 8, 3, 5):
        run(lanes, spec, pictures(size))
    assert device.runtime.register.held() == before
    lanes.close()
    device.close()


@pytest.mark.parametrize("aipp", ["rgb", "bgr", "nv12"])
@pytest.mark.parametrize("channels", ["rgb", "bgr"])
def test_with_aipp_the_device_gets_bytes_and_gives_the_same(spec: ModelSpec, aipp: Any, channels: Any) -> None:
    spec = replace(spec, om=OmSpec("", "", (1, 2, 4), aipp), channels=channels)
    frames = [np.full((SIZE, SIZE, 3), colour, np.uint8) for colour in ((200, 60, 60), (60, 120, 180), (90, 90, 90))]
    with simulations() as made:
        device = device_of()
        device.open()
        device.load(spec, 4)
        lanes = device.lanes(2)
        for size in (1, 3):
            found = run(lanes, spec, frames[:size])
            assert found == pytest.approx(means(frames[:size]), abs=0.02 if aipp == "nv12" else 2e-3)
        lanes.close()
        assert any(f"AIPP takes {aipp}" in line for line in device.facts())
        device.close()
        assert made[0].checker is not None
        assert [v for v in made[0].checker.violations if not v.warning] == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"width": 16}, "1x3x8x8"),
        ({"outputs": (TensorSpec("rows", (1, 7), "float32"),)}, "1x6 float32"),
        ({"outputs": (TensorSpec("rows", (1, 6), "int32"),)}, "float32"),
        ({"input_dtype": "float16"}, "is float32"),
    ],
)
def test_a_file_that_contradicts_its_description_is_refused_and_leaves_nothing(
    spec: ModelSpec, change: dict[str, Any], says: str
) -> None:
    device = device_of()
    device.open()
    before = device.runtime.register.held()
    with pytest.raises(UserError, match="model mean: om: ") as caught:
        device.load(replace(spec, om=OmSpec("", "", 1), **change), 1)
    assert says in str(caught.value)
    assert device.runtime.register.held() == before
    device.load(spec, 2)
    device.close()


def test_too_little_device_memory_is_told_as_the_users_to_mend(spec: ModelSpec) -> None:
    device = device_of(memory_mb="4")
    device.open()
    with pytest.raises(UserError, match=r"207001 MEMORY_ALLOCATION.*fewer executors or lanes"):
        device.load(spec, 4096)
    assert set(held(device)) == {"context"}
    device.load(spec, 1)
    device.close()


def test_a_device_that_is_not_there_is_refused() -> None:
    device = device_of(index=9)
    with pytest.raises(UserError, match="numbered from 0 to 7; use ascend-sim:7 or less"):
        device.open()
    options = ascend_options("ascend-sim:1", {}, simulated=True)
    hidden = AscendDevice("ascend-sim:1", options, 1, 2, time.monotonic_ns, {"ASCEND_RT_VISIBLE_DEVICES": "3"})
    with pytest.raises(UserError, match="leaves 1 visible"):
        hidden.open()


def test_without_cann_a_card_is_refused_with_what_to_do() -> None:
    with mock.patch.dict(sys.modules, {"acl": None}), pytest.raises(UserError, match=r"set_env\.sh.*ascend-sim:0"):
        open_device("ascend:0", 1, {}).open()


def test_a_variable_names_the_module_to_use(spec: ModelSpec) -> None:
    with pytest.raises(UserError, match="CAMPIPE_ACL is 'simulate'; set it to vendor, vendor"):
        AscendDevice("ascend:0", ascend_options("ascend:0", {}, simulated=False), 1, 2, time.monotonic_ns,
                     {"CAMPIPE_ACL": "simulate"}).open()  # fmt: skip
    with mock.patch.dict("os.environ", {"CAMPIPE_ACL": "simulated"}):
        device = open_device("ascend:0", 1, {})
        device.open()
        device.load(spec, 2)
        device.close()


def test_the_runtime_of_another_library_is_left_to_it(spec: ModelSpec) -> None:
    with simulations() as made:
        first = device_of(check="off")
        first.open()
        acl = made[0].acl
        assert acl.init() == 100002, "it is initialised"
        first.close()
        assert acl.finalize() == 100037, "and was finalised"
    simulation = _simulate(aclsim.SimOptions(devices=8, clock="real", check=False))
    assert simulation.acl.init() == 0
    with mock.patch.object(aclsim, "simulate", return_value=simulation), mock.patch.object(simulation, "close"):
        device = device_of(check="off")
        device.open()
        device.load(spec, 2)
        device.close()
        assert simulation.acl.finalize() == 0, "it was theirs"
    simulation.close()


def test_a_batch_that_fails_alone_twice_is_told_and_the_others_end(
    spec: ModelSpec, caplog: pytest.LogCaptureFixture
) -> None:
    device = device_of(faults="fail every execute_async with 507011 after 3", hang_ms="3000")
    device.open()
    device.load(spec, 2)
    lanes = device.lanes(2)
    for _ in range(3):
        run(lanes, spec, pictures(2))
    outputs = [np.zeros((2, 1, 6), np.float32)]
    lanes.submit(0, spec.name, pictures(2), outputs)
    deadline = time.monotonic() + 20
    while not (ended := lanes.finished()):
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    ((lane, told),) = ended
    assert lane == 0
    assert isinstance(told, BadItem)
    assert "507011 MODEL_EXECUTE" in told.detail
    assert "its lanes are rebuilt" in caplog.text
    lanes.close()
    device.close()
    assert device.runtime.register.held() == ()


def test_a_device_that_hangs_is_told_in_time_and_what_it_may_use_is_not_released(
    spec: ModelSpec, caplog: pytest.LogCaptureFixture
) -> None:
    device = device_of(faults="hang the 2nd execute_async", hang_ms="600")
    device.open()
    device.load(spec, 2)
    lanes = device.lanes(2)
    run(lanes, spec, pictures(1))
    started = time.monotonic()
    with pytest.raises(AssertionError, match="507047 EVENT_SYNC_TIMEOUT"):
        run(lanes, spec, pictures(1))
    assert 0.6 < time.monotonic() - started < 30
    with pytest.raises(DeviceFailed):
        lanes.submit(1, spec.name, pictures(1), [np.zeros((1, 1, 6), np.float32)])
    lanes.close()
    device.close()
    assert "left to the end of the process" in caplog.text
    assert held(device)["device memory"] > 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize("variant", ["A", "B"])
@pytest.mark.parametrize("executors", [1, 2])
def test_an_upload_that_hangs_is_told_in_time_though_the_next_batch_has_another_size(
    spec: ModelSpec, variant: str, executors: int
) -> None:
    """The choice of a batch size copies to the device and blocks: behind a hanging upload it would never come back."""
    device = device_of(executors, variant=variant, faults="hang the 3rd memcpy_async", hang_ms="600")
    device.open()
    device.load(replace(spec, om=OmSpec("", "", (1, 2, 4))), 4)
    all_lanes = [device.lanes(2) for _ in range(executors)]
    first, last = all_lanes[0], all_lanes[-1]
    run(first, spec, pictures(1))  # two copies, in and out
    for lanes, lane, frames in ((first, 0, 1), (last, 1, 2)):  # the first hangs
        lanes.submit(lane, spec.name, pictures(frames), [np.zeros((frames, 1, 6), np.float32)])
    deadline = time.monotonic() + 20
    while not (ended := first.finished()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert isinstance(ended[0][1], DeviceFailed)
    for lanes in all_lanes:
        lanes.close()
    device.close()


def test_memory_that_leaks_is_told_with_the_owners(spec: ModelSpec, caplog: pytest.LogCaptureFixture) -> None:
    device = device_of(leak_bytes_per_run=str(4 * MIB), sample_every="2", compute="canned", clock="virtual")
    device.open()
    device.load(spec, 2)
    lanes = device.lanes(2)
    for _ in range(40):
        run(lanes, spec, pictures(1))
    lanes.close()
    device.close()
    (record,) = [r for r in caplog.records if "were lost" in r.getMessage()][:1]
    assert record.levelno == logging.WARNING
    assert "mean: weights" in record.getMessage()
    assert "ascend-sim:0/0: buffers" in record.getMessage()


def test_a_misuse_is_told_at_its_place_and_not_where_codes_are_checked() -> None:
    device = device_of()
    device.open()
    with pytest.raises(Violation) as caught:
        device.runtime.acl.rt.free(12345)
    assert Path(__file__).name in caught.value.where
    device.close()


def test_lanes_of_threads_are_handed_contexts_of_their_own(spec: ModelSpec) -> None:
    wrong: list[object] = []
    with simulations() as made:
        devices = [device_of(2, index=index) for index in range(2)]
        for device in devices:
            device.open()
            device.load(spec, 4)
        frames = pictures(4)

        def work(device: AscendDevice) -> None:
            try:
                lanes = device.lanes(2)
                found = [run(lanes, spec, frames) for _ in range(10)]
                wrong.extend(each for each in found if not np.allclose(each, means(frames), atol=1e-6))
                lanes.close()
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(device,)) for device in devices * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for device in devices:
            device.close()
        assert wrong == []
        assert len(made) == 1, "devices of one process are on one machine"
        assert made[0].checker is not None
        assert made[0].checker.violations == []


BESIDE = """
thread = threading.Thread(target=threading.Event().wait, daemon=True)
device._lane_sets[None] = None, thread
thread.start()
"""
END = """
import logging, sys, threading
logging.basicConfig(level=logging.WARNING)
from stages.accelerators.registry import open_device
device = open_device("ascend-sim:0", 1, {"compute": "canned"})
device.open()
%s
"""


@pytest.mark.parametrize(
    ("rest", "status", "says", "released"),
    [
        ("", 0, "was not closed", True),
        ("device.close()", 0, "", True),
        ("raise RuntimeError('on the way')", 1, "on the way", True),
        ("sys.exit(3)", 3, "was not closed", True),
        (BESIDE, 0, "was not closed", False),
    ],
)
def test_the_last_net_releases_in_order_unless_a_thread_still_runs_lanes(
    rest: str, status: int, says: str, released: bool
) -> None:
    spy = "import stages.accelerators.ascend.runtime as r\nrelease = r.Runtime.release\n"
    spy += "r.Runtime.release = lambda self: (release(self), print('finalised', flush=True))\n"
    done = subprocess.run(
        [sys.executable, "-c", spy + END % rest], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == status, done.stderr
    assert says in done.stderr
    assert ("finalised" in done.stdout) is released
    assert "Exception ignored" not in done.stderr

"""The device ``cpu``: what it refuses at load, and what of its runs the contract suite can't ask of every device."""

from __future__ import annotations

import hashlib
import logging
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made.specs import model_spec
from onnx import TensorProto, helper, numpy_helper

from stages.accelerators.accelerator import RunTimes
from stages.accelerators.onnx import OnnxDevice
from stages.accelerators.onnx_session import out_of_memory, reason, runtime
from stages.accelerators.probe import describe
from stages.errors import BadItem, DeviceFailed, UserError
from stages.model import ModelSpec, TensorSpec

ROOT = Path(__file__).resolve().parents[2]
SHAPE = (3, 4, 6)  # of a picture, nchw


def save(
    path: Path,
    nodes: Sequence[Any],
    *,
    batch: int | str = "n",
    shape: Sequence[int | str] = SHAPE,
    output: Sequence[int | str] = (72,),
    weights: dict[str, np.ndarray] | None = None,
    dtype: int = TensorProto.FLOAT,
    more_inputs: Sequence[str] = (),
) -> Path:
    """A model ``images`` (batch, *shape) -> ``rows`` (batch, *output)."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, dtype, [batch, *shape]) for n in ("images", *more_inputs)],
        [helper.make_tensor_value_info("rows", dtype, [batch, *output])],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def flat(to: Sequence[int] = (0, 72)) -> dict[str, Any]:
    """The picture as one row; ``to`` is the Reshape's target."""
    return {
        "nodes": [helper.make_node("Reshape", ["images", "to"], ["rows"])],
        "weights": {"to": np.array(to, np.int64)},
    }


def spec(path: Path, **changes: Any) -> ModelSpec:
    model = model_spec(
        path=str(path),
        width=6,
        height=4,
        pad_value=0,
        placement="stretch",
        labels=(),
        outputs=(TensorSpec("rows", (72,), "float32"),),
        iou=0.4,
    )
    return replace(model, **changes)


def pictures(count: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(0, 256, (count, 4, 6, 3), np.uint8))


@pytest.fixture
def device() -> Iterator[OnnxDevice]:
    device = OnnxDevice(threads=1)
    device.open()
    yield device
    device.close()


def run(device: OnnxDevice, model: ModelSpec, frames: list[np.ndarray]) -> list[np.ndarray] | Exception:
    lanes = device.lanes(1)
    try:
        outputs = [np.full((len(frames), *t.shape), 9, t.dtype) for t in model.outputs]
        lanes.submit(0, model.name, frames, outputs)
        poll = select.poll()
        poll.register(lanes.wake_fd or 0, select.POLLIN)
        assert poll.poll(10_000)
        ((_, result),) = lanes.finished()
        return outputs if isinstance(result, RunTimes) else result
    finally:
        lanes.close()


def problems_of(device: OnnxDevice, model: ModelSpec, max_batch: int = 4) -> str:
    with pytest.raises(UserError) as caught:
        device.load(model, max_batch)
    for problem in caught.value.problems:
        assert problem.startswith("model m: ")
        assert "\n" not in problem
        assert len(problem) < 600
    return "\n".join(caught.value.problems)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(None, "can't be read (No such file or directory)", id="missing"),
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b"\n", "can't be loaded", id="one byte"),
        pytest.param(b"name: yolo\nfile: x.onnx\n" * 20, "can't be loaded", id="a text file"),
        pytest.param(bytes(range(256)) * 100, "can't be loaded", id="noise"),
    ],
)
def test_what_is_no_model_is_refused(
    device: OnnxDevice, tmp_path: Path, content: bytes | None, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    assert says in problems_of(device, spec(path))
    with pytest.raises(UserError, match=r"m\.onnx"):
        describe(str(path))
    assert capfd.readouterr() == ("", ""), "ONNX Runtime printed beside the message"


def test_a_folder_is_no_model(device: OnnxDevice, tmp_path: Path) -> None:
    assert "is a folder" in problems_of(device, spec(tmp_path))


def test_a_file_cut_short_is_refused(device: OnnxDevice, tmp_path: Path) -> None:
    path = tmp_path / "cut.onnx"
    path.write_bytes((ROOT / "configs/models/coco-ssd.onnx").read_bytes()[:500_000])
    assert "can't be loaded" in problems_of(device, spec(path))


def test_the_digest_is_that_of_the_file_or_nothing_is_loaded(device: OnnxDevice, tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", **flat())
    assert "has sha256" in problems_of(device, spec(path, sha256="0" * 64))
    device.load(spec(path, sha256=hashlib.sha256(path.read_bytes()).hexdigest().upper()), 1)


# --- what the file declares -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "model", "says"),
    [
        pytest.param({}, {"width": 8}, ["input images is ?x3x4x6", "?x3x4x8 (nchw)", "correct width"], id="width"),
        pytest.param({}, {"input_layout": "nhwc"}, ["set `layout: nchw`"], id="layout nchw"),
        pytest.param(
            {"shape": (4, 6, 3)}, {"input_layout": "nchw"}, ["input images is ?x4x6x3", "set `layout: nhwc`"], id="nhwc"
        ),
        pytest.param({"shape": (4, 6)}, {}, ["input images is ?x4x6", "correct width, height"], id="grey"),
        pytest.param({}, {"input_dtype": "float16"}, ["input images is float32", "set `dtype: float32`"], id="float16"),
        pytest.param({"more_inputs": ["anchors"]}, {}, ["has 2 inputs (images, anchors)"], id="two inputs"),
        pytest.param({"batch": 2}, {}, ["takes 2 frame(s)", "any number", "set `batch: 2`"], id="fixed, said any"),
        pytest.param({"batch": 2}, {"fixed_batch": 4}, ["takes 2 frame(s)", "says 4", "set `batch: 2`"], id="2 not 4"),
        pytest.param({}, {"outputs": ()}, ["no outputs are described"], id="no outputs"),
        pytest.param(
            {}, {"outputs": (TensorSpec("boxes", (72,), "float32"),)}, ["no output 'boxes'; it has 'rows'"], id="name"
        ),
        pytest.param(
            {},
            {"outputs": (TensorSpec("rows", (12, 6), "float32"),)},
            ["output rows is ?x72", "makes ?x12x6", "correct its shape"],
            id="shape",
        ),
        pytest.param(
            {},
            {"outputs": (TensorSpec("rows", (72,), "float16"),)},
            ["output rows is float32", "set `dtype: float32` of that output"],
            id="output type",
        ),
        pytest.param(
            {},
            {"width": 8, "outputs": (TensorSpec("boxes", (72,), "float32"),)},
            ["input images is", "no output 'boxes'"],
            id="all at once",
        ),
        pytest.param({}, {"std": (0.0, 1.0, 1.0)}, ["std (0.0, 1.0, 1.0)"], id="std 0"),
    ],
)
def test_where_file_and_description_differ_is_said_with_the_remedy(
    device: OnnxDevice, tmp_path: Path, file: dict[str, Any], model: dict[str, Any], says: list[str]
) -> None:
    text = problems_of(device, spec(save(tmp_path / "m.onnx", **flat((-1, 72)), **file), **model))
    for words in says:
        assert words in text


@pytest.mark.parametrize("max_batch", [0, -1])
def test_a_batch_of_nothing_is_refused(device: OnnxDevice, tmp_path: Path, max_batch: int) -> None:
    assert f"max_batch is {max_batch}" in problems_of(device, spec(save(tmp_path / "m.onnx", **flat())), max_batch)


# --- what only a run shows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "to",
    [pytest.param((1, 72), id="the run fails"), pytest.param((1, -1), id="rows of two frames become one")],
)
def test_a_file_that_claims_any_batch_but_has_1_built_in(
    device: OnnxDevice,
    tmp_path: Path,
    to: tuple[int, int],
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = save(tmp_path / "m.onnx", **flat(to), output=("k",))
    with caplog.at_level(logging.WARNING):
        device.load(spec(path), 2)
    assert "a batch of 2" in caplog.text
    assert "set `batch: 1`; it is run frame by frame" in caplog.text
    two = pictures(2)
    rows = run(device, spec(path), two)
    assert isinstance(rows, list)
    assert (rows[0] == np.stack(two).transpose(0, 3, 1, 2).reshape(2, 72)).all()
    facts = describe(str(path))
    assert (facts.batch, facts.claims_any) == (1, True)
    assert capfd.readouterr() == ("", "")
    device.load(replace(spec(path), name="alone"), 1)  # batches of 1 were never a problem
    said = spec(path, fixed_batch=1)
    device.load(said, 4)
    frames = pictures(4)
    rows = run(device, said, frames)
    assert isinstance(rows, list)
    assert (rows[0] == np.stack(frames).transpose(0, 3, 1, 2).reshape(4, 72)).all()


def test_an_output_of_another_size_than_described_is_found_by_the_first_run(device: OnnxDevice, tmp_path: Path) -> None:
    nodes = [  # the size comes out of the pixels: no look at the graph can tell
        helper.make_node("ReduceMin", ["images"], ["least"], keepdims=0),
        helper.make_node("Mul", ["least", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "size"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["to"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["images", "to"], ["rows"]),
    ]
    weights = {"zero": np.zeros(1, np.float32), "size": np.array([0, 72], np.float32)}
    path = save(tmp_path / "m.onnx", nodes, output=("k",), weights=weights)
    text = problems_of(device, spec(path, outputs=(TensorSpec("rows", (71,), "float32"),)))
    assert "gives output rows as 1x72 float32, not 1x71 float32" in text
    assert "correct the output's shape" in text


def test_a_run_that_always_fails_is_found_at_load(device: OnnxDevice, tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", **flat((0, 71)), output=("k",))
    text = problems_of(device, spec(path, outputs=(TensorSpec("rows", (71,), "float32"),)))
    assert "a batch of 1 fails" in text
    assert "batch: 1" not in text


def test_a_frame_gets_the_same_whatever_company_it_is_in(
    device: OnnxDevice, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As with dynamic quantisation: one scale for the whole batch."""
    nodes = [
        helper.make_node("ReduceMax", ["images"], ["scale"], keepdims=1),
        helper.make_node("Div", ["images", "scale"], ["scaled"]),
        helper.make_node("Reshape", ["scaled", "to"], ["rows"]),
    ]
    model = spec(save(tmp_path / "m.onnx", nodes, weights={"to": np.array([0, 72], np.int64)}))
    with caplog.at_level(logging.WARNING):
        device.load(model, 4)
    assert "frame by frame" in caplog.text
    frames = [picture // (row + 1) for row, picture in enumerate(pictures(4))]
    together = run(device, model, frames)
    assert isinstance(together, list)
    for row, frame in enumerate(frames):
        alone = run(device, model, [frame])
        assert isinstance(alone, list)
        assert together[0][row].tobytes() == alone[0][0].tobytes()


def picky(path: Path) -> Path:
    """A model that fails when the first pixel is over 200: it looks that row up in a table of 201."""
    nodes = [
        helper.make_node("Slice", ["images", "starts", "ends"], ["first"]),
        helper.make_node("Cast", ["first"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "index"], ["found"]),
        helper.make_node("Reshape", ["found", "to"], ["rows"]),
    ]
    weights: dict[str, np.ndarray] = {
        "starts": np.zeros(4, np.int64),
        "ends": np.array([2**31, 1, 1, 1], np.int64),
        "table": np.arange(201, dtype=np.float32),
        "to": np.array([0, 1], np.int64),
    }
    return save(path, nodes, output=(1,), weights=weights)


def test_a_run_that_fails_tells_why_and_the_next_one_works(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = OnnxDevice(threads=1)
    device.open()
    model = spec(picky(tmp_path / "m.onnx"), outputs=(TensorSpec("rows", (1,), "float32"),))
    noise = np.full((2, 4, 6, 3), 100, np.uint8)
    monkeypatch.setattr(
        "stages.accelerators.onnx_check.np.random.default_rng",
        lambda seed: type("Rng", (), {"integers": lambda *_: noise.copy()}),
    )
    device.load(model, 2)
    good, bad = np.full((4, 6, 3), 7, np.uint8), np.full((4, 6, 3), 255, np.uint8)
    for _ in range(3):
        failed = run(device, model, [good, bad])
        assert isinstance(failed, BadItem)
        assert failed.cause == "infer_failed"
        assert "255" in failed.detail
        assert "\n" not in failed.detail
        rows = run(device, model, [good])
        assert isinstance(rows, list)
        assert rows[0].tolist() == [[7]]
    assert capfd.readouterr() == ("", "")
    device.close()


# --- errors and settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("std::bad_alloc", True),
        ("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer of size 9", True),
        ("bad allocation", True),
        ("[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Gather node", False),
    ],
)
def test_want_of_memory_is_not_the_frames_fault(text: str, memory: bool) -> None:
    assert out_of_memory(RuntimeError(text)) is memory
    assert out_of_memory(MemoryError())
    assert not reason(RuntimeError(text)).startswith("[ONNXRuntimeError]")


def test_want_of_memory_kills_the_executor(device: OnnxDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = spec(save(tmp_path / "m.onnx", **flat()))
    device.load(model, 2)

    def refuse(*_: object) -> None:
        raise RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory")

    monkeypatch.setattr("stages.accelerators.onnx_lanes._Bound._run_once", refuse)
    failed = run(device, model, pictures(2))
    assert isinstance(failed, DeviceFailed)


def test_reasons_are_short() -> None:
    assert len(reason(RuntimeError("x" * 5000))) == 300
    assert reason(RuntimeError("")) == "RuntimeError"


@pytest.mark.parametrize(("threads", "executors", "pool"), [(1, 1, 1), (1, 8, 1), (2, 1, 2), (2, 3, 4), (4, 2, 7)])
def test_the_pool_has_the_threads_that_all_executors_may_use(
    tmp_path: Path, threads: int, executors: int, pool: int
) -> None:
    device = OnnxDevice(threads, executors)
    device.open()
    before = len(list(Path("/proc/self/task").iterdir()))
    device.load(spec(save(tmp_path / "m.onnx", **flat())), 1)
    assert len(list(Path("/proc/self/task").iterdir())) - before == pool - 1
    device.close()


def test_nothing_is_sent_or_kept_by_onnx_runtime(tmp_path: Path) -> None:
    """Its packages from 1.29 on keep a device id and a queue of usage data in the user's cache, unless told not to."""
    code = f"from stages.accelerators.probe import describe; describe({str(ROOT / 'configs/models/coco-ssd.onnx')!r})"
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    keep = {k: v for k, v in os.environ.items() if k not in ("ORT_DISABLE_TELEMETRY", "CI", "GITHUB_ACTIONS")}
    subprocess.run([sys.executable, "-c", code], env=keep | home, check=True, timeout=60)
    assert list(tmp_path.rglob("*")) == []


def test_only_one_module_imports_onnx_runtime() -> None:
    """Any other import might come first, and then it is too late to tell it to send nothing."""
    importers = [
        path.relative_to(ROOT).as_posix()
        for folder in ("stages", "pipeline")
        for path in (ROOT / folder).rglob("*.py")
        if "import onnxruntime" in path.read_text() or "from onnxruntime" in path.read_text()
    ]
    assert importers == ["stages/accelerators/onnx_session.py"]


def test_real_models_give_the_bits_of_a_direct_run(shared_dir: Path) -> None:
    device = OnnxDevice(threads=1)
    device.open()
    frames = {n: np.random.default_rng(n).integers(0, 256, (3, n, n, 3), np.uint8) for n in (300, 416)}
    for path, size, output, fixed in (
        (ROOT / "configs/models/coco-ssd.onnx", 300, TensorSpec("output0", (1917, 84), "float32"), None),
        (shared_dir / "models/yolox_nano.onnx", 416, TensorSpec("output", (3549, 85), "float32"), 1),
    ):
        labels = tuple(f"class {number}" for number in range(80))  # as many as the file names
        model = spec(path, name=path.stem, width=size, height=size, outputs=(output,), fixed_batch=fixed, labels=labels)
        device.load(model, 3)
        rows = run(device, model, list(frames[size]))
        assert isinstance(rows, list)
        session = runtime().InferenceSession(str(path), providers=["CPUExecutionProvider"])
        for row, frame in zip(rows[0], frames[size], strict=True):
            (direct,) = session.run(None, {"images": frame.transpose(2, 0, 1)[None].astype(np.float32)})
            assert row.tobytes() == direct[0].tobytes()
    device.close()

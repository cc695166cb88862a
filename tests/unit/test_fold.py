"""Pre-processing folded into the model: the same bits as the plain way, or the plain way."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made.specs import model_spec
from onnx import TensorProto, helper, numpy_helper
from searching import examples

from pipeline.config.labels import COCO
from stages.accelerators import fold
from stages.accelerators.fold import Arithmetic, NotFolded, arithmetic, folded_bytes, folded_input
from stages.accelerators.fold_wire import Node, with_front
from stages.accelerators.onnx import OnnxDevice
from stages.accelerators.onnx_session import open_session
from stages.accelerators.pixels import pixel_table
from stages.accelerators.registry import open_device
from stages.errors import UserError
from stages.model import ModelSpec, TensorSpec

ROOT = Path(__file__).resolve().parents[2]
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "uint8": TensorProto.UINT8}
IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
UNIT = ((0.0,) * 3, (255.0,) * 3)
PLAIN = ((0.0,) * 3, (1.0,) * 3)
WIDTH, HEIGHT = 24, 20


def conv_model(path: Path, dtype: str, layout: str, batch: int | str) -> Path:
    """A model whose every output value depends on many pixels: a convolution, then rows."""
    kind = TYPES[dtype]
    planes = layout == "nchw"
    weights = (
        np.random.default_rng(5).normal(0, 0.05, (4, 3, 3, 3)).astype("float16" if dtype == "float16" else "float32")
    )
    nodes = []
    last = "images"
    if dtype == "uint8":
        nodes.append(helper.make_node("Cast", [last], ["f"], to=TensorProto.FLOAT))
        last = "f"
    if not planes:
        nodes.append(helper.make_node("Transpose", [last], ["t"], perm=[0, 3, 1, 2]))
        last = "t"
    nodes += [
        helper.make_node("Conv", [last, "weights"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Reshape", ["c", "to"], ["rows"]),
    ]
    shape = [3, HEIGHT, WIDTH] if planes else [HEIGHT, WIDTH, 3]
    out = TensorProto.FLOAT16 if dtype == "float16" else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("images", kind, [batch, *shape])],
        [helper.make_tensor_value_info("rows", out, [batch, 4 * HEIGHT * WIDTH])],
        [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(np.array([0, -1], np.int64), "to")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def spec(path: Path, dtype: str = "float32", layout: str = "nchw", scaling: Any = PLAIN, **changes: Any) -> ModelSpec:
    model = model_spec(
        path=str(path),
        width=WIDTH,
        height=HEIGHT,
        input_layout=layout,
        input_dtype=dtype,
        mean=scaling[0],
        std=scaling[1],
        pad_value=0,
        placement="stretch",
        labels=(),
        outputs=(TensorSpec("rows", (4 * HEIGHT * WIDTH,), "float16" if dtype == "float16" else "float32"),),
        iou=0.4,
    )
    return replace(model, **changes)


def outputs(device: OnnxDevice, model: ModelSpec, frames: Sequence[np.ndarray]) -> bytes:
    lanes = device.lanes(1)
    rows = [np.zeros((len(frames), *t.shape), t.dtype) for t in model.outputs]
    lanes.submit(0, model.name, frames, rows)
    while not (done := lanes.finished()):
        pass
    lanes.close()
    assert not isinstance(done[0][1], Exception)
    return b"".join(r.tobytes() for r in rows)


def loaded(mode: Any, model: ModelSpec, max_batch: int) -> OnnxDevice:
    device = OnnxDevice(threads=1, fold=mode)
    device.open()
    device.load(model, max_batch)
    return device


def is_folded(device: OnnxDevice) -> bool:
    (loaded,) = device._models.values()
    facts = loaded.session.get_inputs()[0]
    return facts.type == "tensor(uint8)" and facts.name.startswith("campipe_pixels")


@pytest.mark.parametrize(
    ("dtype", "layout", "scaling"),
    [
        ("float32", "nchw", PLAIN),
        ("float32", "nhwc", PLAIN),
        ("float32", "nchw", UNIT),
        ("float32", "nhwc", UNIT),
        ("float32", "nchw", IMAGENET),
        ("float32", "nhwc", IMAGENET),
        ("float32", "nchw", ((127.5,) * 3, (127.5,) * 3)),
        ("float32", "nchw", ((0.0,) * 3, IMAGENET[1])),
        ("float16", "nchw", PLAIN),
        ("float16", "nchw", UNIT),
        ("float16", "nhwc", UNIT),
        ("float16", "nchw", IMAGENET),
        ("uint8", "nchw", PLAIN),
    ],
)
@pytest.mark.parametrize("batch", ["n", 1, 3])
def test_a_folded_model_gives_the_bits_of_the_plain_way(
    tmp_path: Path, dtype: str, layout: str, scaling: Any, batch: int | str
) -> None:
    fixed = batch if isinstance(batch, int) else None
    model = spec(conv_model(tmp_path / "m.onnx", dtype, layout, batch), dtype, layout, scaling, fixed_batch=fixed)
    plain, folded = loaded("off", model, 4), loaded("on", model, 4)
    assert is_folded(folded)
    assert not is_folded(plain)
    frames = list(np.random.default_rng(0).integers(0, 256, (4, HEIGHT, WIDTH, 3), np.uint8))
    for count in (1, 2, 4):
        assert outputs(folded, model, frames[:count]) == outputs(plain, model, frames[:count])


def test_auto_folds_nothing_for_it_was_measured_to_cost_more(tmp_path: Path) -> None:
    model = spec(conv_model(tmp_path / "m.onnx", "float32", "nchw", "n"))
    assert not is_folded(loaded("auto", model, 2))


def test_the_default_model_folds_and_keeps_its_batch_open() -> None:
    path = ROOT / "configs/models/coco-ssd.onnx"
    outputs = (TensorSpec("output0", (1917, 84), "float32"),)
    model = spec(path, outputs=outputs, labels=COCO, width=300, height=300)
    device = loaded("on", model, 3)
    assert is_folded(device)
    assert device._models["m"].frames_per_run is None
    assert [d if isinstance(d, int) else None for d in device._models["m"].session.get_inputs()[0].shape] == [
        None, 300, 300, 3,
    ]  # fmt: skip


@pytest.mark.parametrize("file", ["yolox_nano.onnx", "yolov5n_concat_fp16.onnx", "yolov8n_int8.onnx"])
def test_files_of_other_exporters_can_be_edited(shared_dir: Path, file: str) -> None:
    path = shared_dir / "models" / file
    session = open_session("m", str(path), 1)
    tensor = session.get_inputs()[0]
    dtype = "float16" if "16" in tensor.type else "float32"
    height = width = 416 if "yolox" in file else 640
    model = spec(path, dtype, scaling=UNIT, width=width, height=height)
    content, name = folded_bytes(model, path.read_bytes(), tensor.name)
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    assert [i.name for i in open_session("m", str(path), 1, content).get_inputs()] == [name]


# --- what must not be folded ------------------------------------------------------------------------------------------


def test_a_fold_with_other_bits_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As if an operator of ONNX Runtime's rounded otherwise than thought."""
    model = spec(conv_model(tmp_path / "m.onnx", "float32", "nchw", "n"), scaling=UNIT)
    off_by_a_bit = Arithmetic("float32", (("Div", np.full(3, np.nextafter(np.float32(255), np.float32(256)))),))
    monkeypatch.setattr(fold, "arithmetic", lambda _: off_by_a_bit)
    with caplog.at_level(logging.WARNING):
        device = loaded("on", model, 2)
    assert not is_folded(device)
    assert "model m: its pre-processing is not folded into it: output rows differs in" in caplog.text
    frames = list(np.random.default_rng(0).integers(0, 256, (2, HEIGHT, WIDTH, 3), np.uint8))
    assert outputs(device, model, frames) == outputs(loaded("off", model, 2), model, frames)


@pytest.mark.parametrize("wrong", ["channels swapped", "planes mixed up"])
def test_a_fold_that_moves_pixels_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    model = spec(conv_model(tmp_path / "m.onnx", "float32", "nchw", "n"), height=WIDTH, width=HEIGHT)
    model = replace(model, width=WIDTH, height=HEIGHT)

    def worse(content: bytes, old: str, new: str, frame: Sequence[int], nodes: Any, constants: Any) -> bytes:
        nodes = list(nodes)
        if wrong == "channels swapped":
            constants = {**constants, "swap": np.array([2.0, 1.0, 0.0], np.float32).reshape(3, 1, 1)}
            nodes[-1] = replace(nodes[-1], output="straight")
            nodes.append(Node("Mul", ("straight", "swap"), old, {}))
        else:
            nodes[0] = Node("Reshape", (nodes[0].inputs[0], "to"), nodes[0].output, {})
            nodes.insert(0, Node("Cast", ("sizes",), "to", {"to": TensorProto.INT64}))
            constants = {**constants, "sizes": np.array([-1, 3, HEIGHT, WIDTH], np.float32)}
        return with_front(content, old, new, frame, nodes, constants)

    monkeypatch.setattr(fold, "with_front", worse)
    assert not is_folded(loaded("on", model, 2))


def test_nothing_to_fold_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = spec(conv_model(tmp_path / "m.onnx", "uint8", "nhwc", "n"), "uint8", "nhwc")
    with caplog.at_level(logging.WARNING):
        assert loaded("on", model, 1)._models["m"].fed == model
    assert "nothing to fold" in caplog.text


def test_a_scaling_that_no_operators_give_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arithmetic, "table", lambda self, dtype: np.zeros((3, 256), dtype))
    with pytest.raises(NotFolded, match="exactly"):
        arithmetic(spec(Path("m.onnx"), scaling=UNIT))


@settings(max_examples=examples(80))
@given(
    dtype=st.sampled_from(["float32", "float16"]),
    mean=st.tuples(*[st.floats(-300, 300)] * 3),
    std=st.tuples(*[st.floats(0.01, 300)] * 3),
)
def test_operators_are_found_for_any_scaling(dtype: str, mean: Any, std: Any) -> None:
    model = spec(Path("m.onnx"), dtype, scaling=(mean, std))
    assert arithmetic(model).table(dtype).tobytes() == pixel_table(model).tobytes()


# --- the editor -------------------------------------------------------------------------------------------------------


def test_what_is_not_edited_stays_as_it_was(tmp_path: Path) -> None:
    path = conv_model(tmp_path / "m.onnx", "float32", "nchw", "frames")
    content, name = folded_bytes(spec(path, scaling=IMAGENET), path.read_bytes(), "images")
    was, now = onnx.load(path), onnx.load_from_string(content)
    onnx.checker.check_model(now, full_check=True)
    added = len(now.graph.node) - len(was.graph.node)
    assert [n.op_type for n in now.graph.node[:added]] == ["Transpose", "Cast", "Sub", "Div", "Cast"]
    assert list(now.graph.node)[added:] == list(was.graph.node)
    assert list(now.graph.output) == list(was.graph.output)
    assert list(was.graph.initializer) == [i for i in now.graph.initializer if not i.name.startswith(name)]
    assert now.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "frames"
    assert (now.ir_version, now.opset_import) == (was.ir_version, was.opset_import)


def test_names_of_the_file_are_not_taken_twice(tmp_path: Path) -> None:
    path = conv_model(tmp_path / "m.onnx", "float32", "nchw", "n")
    model = onnx.load(path)
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "campipe_pixels.0"
    path.write_bytes(model.SerializeToString())
    assert is_folded(loaded("on", spec(path), 1))


@pytest.mark.parametrize("content", [b"", b"\x00", b"\xff" * 30, b"name: yolo\n" * 9, bytes(range(256)) * 20])
def test_noise_is_no_model(content: bytes) -> None:
    with pytest.raises(NotFolded, match="can't be edited"):
        folded_bytes(spec(Path("m.onnx")), content, "images")


@settings(max_examples=examples(150))
@given(data=st.data())
def test_cut_or_flipped_files_are_refused_or_edited_but_never_crash(data: st.DataObject) -> None:
    weights = numpy_helper.from_array(np.zeros(3, np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Add", ["images", "w"], ["rows"])],
        "g",
        [helper.make_tensor_value_info("images", 1, ["n", 3, HEIGHT, WIDTH])],
        [helper.make_tensor_value_info("rows", 1, ["n", 3, HEIGHT, WIDTH])],
        [weights],
    )
    content = bytearray(helper.make_model(graph).SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(content[: data.draw(st.integers(0, len(content)))])
    with contextlib.suppress(NotFolded):
        folded_bytes(spec(Path("m.onnx")), cut, "images")


@pytest.mark.parametrize("value", ["yes", "", "ON", "x" * 500])
def test_the_option_is_checked(value: str) -> None:
    with pytest.raises(UserError, match="give one of auto, on, off"):
        open_device("cpu", 1, {"fold": value})
    assert isinstance(open_device("cpu", 1, {"fold": "on"}), OnnxDevice)


def test_what_a_folded_session_is_fed_is_described() -> None:
    fed = folded_input(spec(Path("m.onnx"), "float16", scaling=IMAGENET))
    assert (fed.input_dtype, fed.input_layout, fed.mean, fed.std) == ("uint8", "nhwc", *PLAIN)

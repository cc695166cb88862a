"""Scales of quantised outputs: found in files of all kinds, proposed, and held against the description."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from made.files import constants, described
from onnx import TensorProto, helper, numpy_helper

from pipeline.cli import main
from pipeline.config import replay_site, resolve
from pipeline.planning import draft_plan
from pipeline.testing import replay
from stages.accelerators.onnx_scales import with_scales
from stages.accelerators.onnx_session import TensorFacts
from stages.errors import UserError

OUT = TensorFacts("out", "uint8", (None, 4))


def file_of(path: Path, nodes: list[Any], constants_of: dict[str, Any], **typed: Any) -> str:
    """Not to be run: the scale is read from the graph alone."""
    initializers = [
        each if isinstance(each, onnx.TensorProto) else numpy_helper.from_array(each, name)
        for name, each in constants_of.items()
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("out", TensorProto.UINT8, ["n", 4])],
        initializers,
    )
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    return str(path)


def found(path: str) -> tuple[float | None, int]:
    (facts,) = with_scales([OUT], path)
    return facts.scale, facts.zero_point


QUANTISE = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["out"])


@pytest.mark.parametrize(
    ("scale", "zero"),
    [
        (np.float32(0.25), np.uint8(7)),
        (np.array([0.25], np.float32), np.array([7], np.uint8)),
        (np.float16(0.25), np.uint8(7)),
        (helper.make_tensor("s", TensorProto.FLOAT, [], [0.25]), helper.make_tensor("z", TensorProto.UINT8, [], [7])),
        (helper.make_tensor("s", TensorProto.FLOAT16, [], [0.25]), np.uint8(7)),
    ],
)
def test_a_scale_is_read_however_it_is_stored(scale: Any, zero: Any, tmp_path: Path) -> None:
    assert found(file_of(tmp_path / "m.onnx", [QUANTISE], {"s": scale, "z": zero})) == (0.25, 7)


def test_negative_zero_points_are_read(tmp_path: Path) -> None:
    for zero in (np.int8(-5), helper.make_tensor("z", TensorProto.INT8, [], [-5])):
        assert found(file_of(tmp_path / "m.onnx", [QUANTISE], {"s": np.float32(2), "z": zero})) == (2, -5)


def test_without_a_zero_point_it_is_0(tmp_path: Path) -> None:
    node = helper.make_node("QuantizeLinear", ["x", "s"], ["out"])
    assert found(file_of(tmp_path / "m.onnx", [node], {"s": np.float32(2)})) == (2, 0)


def test_nodes_that_only_move_numbers_may_stand_between(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("Transpose", ["q"], ["t"], perm=[1, 0]),
        helper.make_node("Identity", ["t"], ["out"]),
    ]
    assert found(file_of(tmp_path / "m.onnx", nodes, {"s": np.float32(2), "z": np.uint8(1)})) == (2, 1)


def test_a_constant_node_will_do(tmp_path: Path) -> None:
    nodes = [helper.make_node("Constant", [], ["s"], value=numpy_helper.from_array(np.float32(2))), QUANTISE]
    assert found(file_of(tmp_path / "m.onnx", nodes, {"z": np.uint8(1)})) == (2, 1)


def test_operators_that_quantise_by_themselves(tmp_path: Path) -> None:
    node = helper.make_node("QLinearSigmoid", ["x", "a", "b", "s", "z"], ["out"], domain="com.microsoft")
    constants_of = {"a": np.float32(9), "b": np.uint8(9), "s": np.float32(2), "z": np.uint8(1)}
    assert found(file_of(tmp_path / "m.onnx", [node], constants_of)) == (2, 1)


def test_other_operators_tell_nothing(tmp_path: Path) -> None:
    node = helper.make_node("Cast", ["x"], ["out"], to=TensorProto.UINT8)
    assert found(file_of(tmp_path / "m.onnx", [node], {})) == (None, 0)
    ring = [helper.make_node("Identity", ["out"], ["out"])]
    assert found(file_of(tmp_path / "m.onnx", ring, {})) == (None, 0)
    (tmp_path / "m.onnx").write_bytes(b"\xff" * 50)
    assert found(str(tmp_path / "m.onnx")) == (None, 0)


@pytest.mark.parametrize(
    ("scale", "zero"),
    [
        ([1, 2, 3, 4], [0, 0, 0, 0]),
        ([1, 1, 1, 1], [0, 0, 0, 9]),
        ([1, 2, 3, 4], [7]),
        ([1], [0, 1, 0, 0]),
    ],
)
def test_a_scale_per_channel_is_refused_with_the_file_and_the_remedy(
    scale: list[int], zero: list[int], tmp_path: Path
) -> None:
    constants_of = {"s": np.array(scale, np.float32), "z": np.array(zero, np.uint8)}
    path = file_of(tmp_path / "m.onnx", [QUANTISE], constants_of)
    with pytest.raises(UserError, match=r"m\.onnx: output out has 4 scales, one per channel.*leave it in float"):
        found(path)


def test_the_same_scale_for_every_channel_is_one_scale(tmp_path: Path) -> None:
    constants_of = {"s": np.full(4, 0.25, np.float32), "z": np.full(4, 7, np.uint8)}
    assert found(file_of(tmp_path / "m.onnx", [QUANTISE], constants_of)) == (0.25, 7)


@pytest.mark.parametrize("command", ["inspect", "replay"])
def test_a_model_with_scales_per_channel_is_refused_by_the_command_line(
    command: str, tmp_path: Path, media_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = constants(tmp_path / "coded.onnx", {"output0": rows()}, 64, scales={"output0": (0.25, 2, "uint8")})
    model = onnx.load(path)
    (node,) = [each for each in model.graph.node if each.op_type == "QuantizeLinear"]
    for number in (1, 2):
        (old,) = [each for each in model.graph.initializer if each.name == node.input[number]]
        several = np.repeat(numpy_helper.to_array(old).reshape(1), 7)
        if number == 1:
            several[3] *= 2
        old.CopyFrom(numpy_helper.from_array(several, old.name))
    node.attribute.append(helper.make_attribute("axis", 1))
    onnx.save(model, path)
    outputs = "outputs: [{name: output0, shape: [7, 84], dtype: uint8}]"
    text = described(tmp_path, path, "yolov8", 64, "[a, b, c]", outputs)
    arguments = ["models", "inspect", str(path)] if command == "inspect" else [
        "replay", str(media_dir / "street.mp4"), "--max-frames", "1", "--in-process", "--model", str(text)]  # fmt: skip
    assert main(arguments) == 2
    assert "coded.onnx: output output0 has 7 scales, one per channel" in capsys.readouterr().err


BOX = (16.0, 8, 48, 40)


def rows() -> np.ndarray:
    """Channels first, 84 anchors of 64x64, one object of class b."""
    raw = np.zeros((7, 84))
    raw[:, 5] = 32, 24, 32, 32, 0, 0.75, 0
    return raw


@pytest.fixture
def coded(tmp_path: Path) -> Path:
    return constants(tmp_path / "coded.onnx", {"output0": rows()}, 64, scales={"output0": (0.25, 2, "uint8")})


def site_model(described_at: Path, clip: Path) -> Any:
    (model,) = draft_plan(resolve(replay_site([clip], str(described_at)))).models
    return model


@pytest.mark.parametrize(
    "outputs",
    [
        "",
        "outputs: [{name: output0, shape: [7, 84], dtype: uint8}]",
        "outputs: [{name: output0, shape: [7, 84], dtype: uint8, scale: 0.25, zero_point: 2}]",
    ],
)
def test_a_scale_is_taken_from_the_description_or_the_file(
    outputs: str, coded: Path, tmp_path: Path, media_dir: Path
) -> None:
    path = described(tmp_path, coded, "yolov8", 64, "[a, b, c]", outputs)
    (tensor,) = site_model(path, media_dir / "street.mp4").outputs
    assert (tensor.dtype, tensor.scale, tensor.zero_point) == ("uint8", 0.25, 2)
    (camera,) = replay(media_dir / "street.mp4", model=str(path), max_frames=1).detections.values()
    ((found_object,),) = [frame.objects for frame in camera]
    assert (found_object.label, found_object.score) == ("b", 0.75)
    assert found_object.box == pytest.approx([192, 72, 576, 360], abs=0.1)


def test_a_scale_that_the_file_contradicts_is_refused(coded: Path, tmp_path: Path, media_dir: Path) -> None:
    for scale, zero_point in ((0.5, 2), (0.25, 0)):
        outputs = (
            f"outputs: [{{name: output0, shape: [7, 84], dtype: uint8, scale: {scale}, zero_point: {zero_point}}}]"
        )
        path = described(tmp_path, coded, "yolov8", 64, "[a, b, c]", outputs)
        with pytest.raises(UserError, match=r"output output0 has scale 0\.25 and zero point 2.*set `scale: 0\.25`"):
            replay(media_dir / "street.mp4", model=str(path), max_frames=1)


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ("scale: 0.5", "scale is for uint8 and int8, not float32"),
        ("dtype: uint8, scale: 0", "write a number above 0"),
        ("dtype: int8, scale: 1, zero_point: 200", "from -128 to 127"),
        ("dtype: int8, zero_point: 3", "zero_point without scale"),
    ],
)
def test_a_description_with_an_impossible_scale_is_refused(
    extra: str, says: str, coded: Path, tmp_path: Path, media_dir: Path
) -> None:
    outputs = f"outputs: [{{name: output0, shape: [7, 84], {extra}}}]"
    path = described(tmp_path, coded, "yolov8", 64, "[a, b, c]", outputs)
    with pytest.raises(UserError, match=says):
        replay_site([media_dir / "street.mp4"], str(path))


def test_inspect_tells_the_scale_and_proposes_it(
    coded: Path, tmp_path: Path, media_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "inspect", str(coded), "--layout", "yolov8", "--labels", "3"]) == 0
    text = capsys.readouterr().out
    assert "output0 ?x7x84 uint8 (stands for (number - 2) * 0.25)" in text
    path = tmp_path / "told.yaml"
    path.write_text(text)
    (tensor,) = site_model(path, media_dir / "street.mp4").outputs
    assert (tensor.dtype, tensor.scale, tensor.zero_point) == ("uint8", 0.25, 2)


def test_inspect_says_that_numbers_without_a_scale_mean_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coded = constants(tmp_path / "m.onnx", {"output0": rows()}, 64, scales={"output0": (0.25, 2, "uint8")})
    model = onnx.load(str(coded))
    model.graph.node[-1].CopyFrom(
        helper.make_node("Cast", [model.graph.node[-1].input[0]], ["output0"], to=TensorProto.UINT8)
    )
    onnx.save(model, str(coded))
    assert main(["models", "inspect", str(coded)]) == 2
    assert "output output0 is uint8 and the file tells no scale" in capsys.readouterr().err

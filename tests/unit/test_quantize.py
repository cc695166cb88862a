"""INT8 models: what stays in float, what is refused and why, what is written. Whole runs are in test_quantize_runs."""

from __future__ import annotations

import resource
import sys
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

from pipeline.cli import main
from pipeline.models import quantize
from pipeline.models.quantize_compare import Agreement, Speed, agree, refusals
from pipeline.models.quantize_frames import read_pictures
from pipeline.models.quantize_graph import check_float, quantised, regions
from stages.camera import CameraSpec
from stages.errors import SourceRefused, UserError
from stages.messages import DetectedObject
from stages.model import ModelSpec, TensorSpec

ROOT = Path(__file__).resolve().parents[2]
CLIP = ROOT / "tests/media/street.mp4"
N = helper.make_node


def network(
    path: Path, nodes: Sequence[Any], weights: dict[str, np.ndarray], *, kind: int = TensorProto.FLOAT, opset: int = 13
) -> Path:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("images", kind, ["n", 3, 32, 32])],
        [helper.make_tensor_value_info("rows", kind, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    note = model.metadata_props.add()
    note.key, note.value = "names", "{0: 'person'}"
    path.write_bytes(model.SerializeToString())
    return path


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(0, 0.2, shape).astype(np.float32)


def two_convolutions(path: Path, **how: Any) -> Path:
    nodes = [
        N("Mul", ["images", "scale"], ["scaled"], name="scale"),
        N("Conv", ["scaled", "w1"], ["c1"], name="first"),
        N("Relu", ["c1"], ["r1"], name="relu"),
        N("Conv", ["r1", "w2"], ["c2"], name="head"),
        N("Sigmoid", ["c2"], ["rows"], name="score"),
    ]
    constants = {"scale": np.array(1 / 255, np.float32), "w1": weights(8, 3, 3, 3), "w2": weights(4, 8, 1, 1)}
    return network(path, nodes, constants, **how)


def spec(path: Path, **changes: Any) -> ModelSpec:
    model = model_spec(
        path=str(path),
        width=32,
        height=32,
        pad_value=0,
        placement="stretch",
        labels=("person",),
        outputs=(TensorSpec("rows", (4, 30, 30), "float32"),),
        iou=0.4,
    )
    return replace(model, **changes)


def noise(count: int) -> list[np.ndarray]:
    return list(np.random.default_rng(2).integers(0, 256, (count, 32, 32, 3), np.uint8))


def ignore(*_: object) -> None:
    pass


# --- the graph --------------------------------------------------------------------------------------------------------


def test_pixels_and_what_follows_the_heads_stay_in_float(tmp_path: Path) -> None:
    found = regions(onnx.load(two_convolutions(tmp_path / "m.onnx")))
    assert found.front == {"scale"}
    assert found.tail == {"score"}


def test_the_regions_of_the_default_model() -> None:
    model = onnx.load(ROOT / "configs/models/coco-ssd.onnx")
    for index, node in enumerate(model.graph.node):
        node.name = node.name or str(index)
    found = regions(model)
    assert found.front == {"scaled", "centred"}
    tail = [node.op_type for node in model.graph.node if node.name in found.tail]
    assert "Conv" not in tail
    assert tail.count("Transpose") == 12  # two heads on six levels
    assert {"Sigmoid", "Exp", "Split", "Concat"} <= set(tail)


def test_the_expectation_over_distances_of_yolov8_is_decoding_not_a_head(tmp_path: Path) -> None:
    nodes = [
        N("Conv", ["images", "w"], ["c"], name="head"),
        N("Softmax", ["c"], ["s"], axis=1, name="softmax"),
        N("Conv", ["s", "distances"], ["rows"], name="dfl"),
    ]
    distances = np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1)
    path = network(tmp_path / "m.onnx", nodes, {"w": weights(16, 3, 1, 1), "distances": distances})
    assert regions(onnx.load(path)).tail == {"softmax", "dfl"}
    learnt = network(tmp_path / "l.onnx", nodes, {"w": weights(16, 3, 1, 1), "distances": weights(1, 16, 1, 1)})
    assert regions(onnx.load(learnt)).tail == frozenset()


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_an_int8_file_is_made_and_keeps_notes_and_batch(tmp_path: Path, opset: int) -> None:
    path = two_convolutions(tmp_path / "m.onnx", opset=opset)
    content = quantised(spec(path), noise(4), ignore)
    assert content == quantised(spec(path), noise(4), ignore), "the same made twice differs"
    made = onnx.load_from_string(content)
    onnx.checker.check_model(made)
    assert [(p.key, p.value) for p in made.metadata_props] == [("names", "{0: 'person'}")]
    types = {t.name: t.data_type for t in made.graph.initializer}
    convolutions = [n for n in made.graph.node if n.op_type == "Conv"]
    assert len(convolutions) == 2
    assert TensorProto.INT8 in types.values()
    assert made.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    consumers = [n.op_type for n in made.graph.node if "images" in n.input]
    assert consumers == ["Mul"], "pixels are quantised before they are scaled"
    last = next(n for n in made.graph.node if "rows" in n.output)
    assert last.op_type == "Sigmoid", "scores are quantised"
    bits = [numpy_helper.to_array(t) for t in made.graph.initializer if t.data_type == TensorProto.INT8]
    assert max(int(np.abs(b.astype(int)).max()) for b in bits) <= 64, "products of 8 bits saturate without VNNI"


def test_progress_counts_frames_and_a_fixed_batch_is_filled(tmp_path: Path) -> None:
    path = two_convolutions(tmp_path / "m.onnx")
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    path.write_bytes(model.SerializeToString())
    told: list[tuple[int, int]] = []
    quantised(spec(path, fixed_batch=2), noise(3), lambda done, total: told.append((done, total)))
    assert told == [(2, 3), (3, 3)]


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["half weights", "half input", "quantised", "dynamic", "nothing", "noise"])
def test_what_can_not_be_quantised_is_told_apart(tmp_path: Path, kind: str) -> None:
    path, changes, says = tmp_path / "m.onnx", {}, ""
    if kind == "half weights":
        nodes = [
            N("Cast", ["images"], ["h"], to=TensorProto.FLOAT16),
            N("Conv", ["h", "w"], ["c"]),
            N("Cast", ["c"], ["rows"], to=TensorProto.FLOAT),
        ]
        network(path, nodes, {"w": weights(8, 3, 3, 3).astype(np.float16)})
        says = "computes in float16"
    elif kind == "half input":
        network(path, [N("Conv", ["images", "w"], ["rows"])], {"w": weights(8, 3, 3, 3)})
        changes, says = {"input_dtype": "float16"}, "computes in float16"
    elif kind == "quantised":
        two_convolutions(path)
        path.write_bytes(quantised(spec(path), noise(2), ignore))
        says = "quantised already (it has DequantizeLinear, QuantizeLinear)"
    elif kind == "dynamic":
        network(path, [N("DynamicQuantizeLinear", ["images"], ["rows", "s", "z"])], {})
        says = "quantised already (it has DynamicQuantizeLinear)"
    elif kind == "nothing":
        network(path, [N("Relu", ["images"], ["rows"])], {})
        says = "nothing to quantise"
    else:
        path.write_bytes(b"name: yolo\n" * 20)
        says = "can't be read as ONNX"
    with pytest.raises(UserError) as caught:
        check_float(spec(path, **changes))
    (problem,) = caught.value.problems
    assert says in problem
    assert "model m" in problem
    assert "\n" not in problem


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["models", "quantize", *arguments]) == 2
    err = capsys.readouterr().err
    return [line for line in err.splitlines() if line.startswith("campipe: ")]


def test_without_the_package_onnx_one_sentence_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    (line,) = refused(capsys, "coco-ssd", "--clip", str(CLIP), "--out", str(tmp_path / "out"))
    assert "pip install 'campipe[quantize]'" in line
    assert "'.[quantize]'" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("model", "clip", "says"),
    [
        ("coco-ssd", "missing.mp4", "no such file"),
        ("coco-ssd", str(ROOT / "README.md"), "not a video file"),
        ("coco-sd", str(CLIP), "did you mean"),
        ("missing.onnx", str(CLIP), "no such file"),
        ("alone.onnx", str(CLIP), "has no description beside it (alone.yaml)"),
    ],
)
def test_what_can_not_be_used_is_refused_and_leaves_no_folder(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    clip: str,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    two_convolutions(tmp_path / "alone.onnx")
    (line,) = refused(capsys, model, "--clip", clip, "--out", str(tmp_path / "new" / "deep"))
    assert says in line
    assert not (tmp_path / "new").exists()


def test_files_that_are_there_are_not_overwritten(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("coco-ssd-int8.onnx", "coco-ssd-int8.yaml"):
        (tmp_path / name).write_text("mine")
    lines = refused(capsys, "coco-ssd", "--clip", str(CLIP), "--out", str(tmp_path))
    assert len(lines) == 2
    assert all("exists; move it away" in line for line in lines)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"mine"}


def test_a_folder_that_can_not_be_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nothing")):
        (line,) = refused(capsys, "coco-ssd", "--clip", str(CLIP), "--out", str(out))
        assert "can't be written to" in line
        assert "--out" in line


def test_a_full_disk_leaves_no_half_file(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(UserError, match="make room"):
            quantize.write(tmp_path / "m.onnx", bytes(1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_came_in_between_is_kept(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_text("mine")
    with pytest.raises(UserError, match="exists"):
        quantize.write(tmp_path / "m.onnx", b"ours")
    assert (tmp_path / "m.onnx").read_text() == "mine"
    (tmp_path / "l.onnx").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="exists"):
        quantize.write(tmp_path / "l.onnx", b"ours")


# --- frames -----------------------------------------------------------------------------------------------------------


def test_frames_are_spread_and_none_is_used_twice() -> None:
    cameras = [CameraSpec("a", str(CLIP), "m"), CameraSpec("b", str(CLIP), "m", loop=True, pace="realtime")]
    told: list[tuple[int, int]] = []
    found = read_pictures(cameras, spec(Path("m.onnx")), 5, lambda done, total: told.append((done, total)))
    assert [p.camera for p in found.calibration] == ["a"] * 3 + ["b"] * 2
    assert [p.camera for p in found.comparison] == ["a"] * 3 + ["b"] * 2
    of_a = [p.pixels.tobytes() for p in (*found.calibration[:3], *found.comparison[:3])]
    assert len(set(of_a)) == 6
    assert {(p.width, p.height, p.pixels.shape) for p in found.comparison} == {(768, 576, (32, 32, 3))}
    assert told[-1] == (10, 10)
    assert told == sorted(told)
    assert found.digest == read_pictures(cameras, spec(Path("m.onnx")), 5, ignore).digest


def test_more_frames_than_there_are_gives_all_of_them() -> None:
    found = read_pictures([CameraSpec("a", str(CLIP), "m")], spec(Path("m.onnx")), 500, ignore)
    assert (len(found.calibration), len(found.comparison)) == (50, 50)


def test_too_few_frames_are_told(tmp_path: Path) -> None:
    import av

    with av.open(str(tmp_path / "one.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        container.mux(stream.encode(av.VideoFrame(64, 48, "yuv420p")))
        container.mux(stream.encode())
    with pytest.raises(UserError, match=r"the clips have 1 frame\(s\)"):
        read_pictures([CameraSpec("a", str(tmp_path / "one.mp4"), "m")], spec(Path("m.onnx")), 5, ignore)
    two = [CameraSpec("a", str(CLIP), "m"), CameraSpec("b", str(CLIP), "m")]
    with pytest.raises(UserError, match=r"1 frame.*from 2 clips"):
        read_pictures(two, spec(Path("m.onnx")), 1, ignore)


def test_a_clip_that_can_not_be_read_is_told_before_others_are_decoded() -> None:
    cameras = [CameraSpec("a", str(CLIP), "m"), CameraSpec("b", str(ROOT / "README.md"), "m")]

    def never(*_: object) -> None:
        pytest.fail("decoded first")

    with pytest.raises(SourceRefused, match="README"):
        read_pictures(cameras, spec(Path("m.onnx")), 5, never)


# --- the judgement ----------------------------------------------------------------------------------------------------


def thing(x: float, score: float, class_id: int = 0) -> DetectedObject:
    return DetectedObject(box=[x, 0.0, x + 10, 10.0], score=score, class_id=class_id, label=f"class{class_id}")


def test_what_is_lost_new_and_shifted() -> None:
    was = [
        [thing(0, 0.9), thing(20, 0.8), thing(40, 0.45), thing(60, 0.7, 1), thing(80, 0.6)],
        [],
    ]
    now = [
        [thing(0, 0.8), thing(21, 0.85), thing(60, 0.7, 2), thing(100, 0.45), thing(80, 0.41)],
        [thing(0, 0.9)],
    ]
    found = agree(was, now, 0.4)
    assert (found.frames, found.confident, found.matched) == (2, 4, 3)
    assert found.lost == {"class1": 1}
    assert found.new == {"class2": 1, "class0": 1}  # under the bar 0.5 neither is lost or new: 0.45 on either side
    assert found.mean_shift == pytest.approx((-0.1 + 0.05 - 0.19) / 3)
    assert found.mean_absolute_shift == pytest.approx((0.1 + 0.05 + 0.19) / 3)
    assert found.largest_shift == pytest.approx(-0.19)
    assert found.share == 0.75
    assert found.mean_iou == pytest.approx((1 + 9 / 11 + 1) / 3)


things = st.lists(
    st.builds(thing, st.sampled_from([0.0, 30.0, 60.0, 90.0]), st.floats(0.4, 1), st.integers(0, 2)), max_size=6
)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(things, things), max_size=4))
def test_counts_add_up_and_a_model_agrees_with_itself(frames: list[tuple[list[Any], list[Any]]]) -> None:
    was, now = [a for a, _ in frames], [b for _, b in frames]
    found = agree(was, now, 0.4)
    assert found.confident == sum(o.score >= 0.5 for objects in was for o in objects)
    assert found.matched + sum(found.lost.values()) == found.confident
    itself = agree(was, was, 0.4)
    assert itself.matched == itself.confident
    assert not itself.lost
    assert not itself.new
    assert itself.largest_shift == 0


GOOD = Agreement(50, 0.5, 100, 98, {"person": 2}, {}, -0.02, 0.03, -0.1, 0.95)
FAST = Speed(20.0, 14.0, (1.3, 1.4, 1.5))


@pytest.mark.parametrize(
    ("agreement", "speed", "says"),
    [
        (GOOD, FAST, []),
        (replace(GOOD, matched=95), FAST, []),
        (replace(GOOD, matched=94), FAST, ["94.0% of the confident objects are found again, 95% are asked"]),
        (replace(GOOD, new={"car": 10}), FAST, []),
        (replace(GOOD, new={"car": 10, "bus": 1}), FAST, ["11 confident objects are new beside 100"]),
        (replace(GOOD, mean_absolute_shift=0.06), FAST, ["scores move by 0.060"]),
        (GOOD, Speed(20, 20, (0.9, 1.0, 1.1)), ["no faster (1.00 times"]),
        (replace(GOOD, matched=0), Speed(1, 2, (0.5,)), ["0.0% of", "no faster"]),
        (replace(GOOD, confident=0, matched=0), FAST, ["finds nothing for certain"]),
    ],
)
def test_the_bars(agreement: Agreement, speed: Speed, says: list[str]) -> None:
    found = refusals(agreement, speed)
    assert len(found) == len(says)
    for problem, words in zip(found, says, strict=True):
        assert words in problem

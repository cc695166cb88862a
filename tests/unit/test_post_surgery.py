"""Files of other layouts, made from the default model's graph or of constants, run through the whole product."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from made.files import constants, described
from onnx import TensorProto, helper, numpy_helper
from oracles.naive_layouts import ANCHORS, decode_runs

from pipeline.testing import replay

ROOT = Path(__file__).resolve().parents[2]
SSD = ROOT / "configs" / "models" / "coco-ssd.onnx"
ANCHOR_COUNT = 1917


class Surgery:
    """The default model with nodes put behind its output (N, 1917, 84)."""

    def __init__(self) -> None:
        self.model = onnx.load(str(SSD))
        self.last = self.model.graph.output[0].name
        del self.model.graph.output[:]

    def constant(self, name: str, values: Any, dtype: Any = np.float32) -> str:
        self.model.graph.initializer.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.model.graph.node.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def columns(self, start: int, end: int, name: str) -> str:
        ends = [self.constant(f"{name}.{i}", [v], np.int64) for i, v in enumerate((start, end, 2))]
        return self.node("Slice", [self.last, *ends], name)

    def output(self, name: str, *shape: int) -> None:
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *shape])
        self.model.graph.output.append(value)


def channels_first(s: Surgery) -> None:
    s.output(s.node("Transpose", [s.last], "out", perm=[0, 2, 1]), 84, ANCHOR_COUNT)


def rows(s: Surgery) -> None:
    s.output(s.node("Identity", [s.last], "out"), ANCHOR_COUNT, 84)


def with_objectness(s: Surgery) -> None:
    box, scores, first = s.columns(0, 4, "cut.box"), s.columns(4, 84, "cut.scores"), s.columns(4, 5, "cut.first")
    zeros = s.node("Mul", [first, s.constant("cut.zero", 0)], "cut.zeros")
    ones = s.node("Add", [zeros, s.constant("cut.one", 1)], "cut.ones")
    s.output(s.node("Concat", [box, ones, scores], "out", axis=2), ANCHOR_COUNT, 85)


def apart(s: Surgery) -> None:
    centre, size = s.columns(0, 2, "cut.centre"), s.columns(2, 4, "cut.size")
    half = s.node("Mul", [size, s.constant("cut.half", 0.5)], "cut.halved")
    low, high = s.node("Sub", [centre, half], "cut.low"), s.node("Add", [centre, half], "cut.high")
    s.output(s.columns(4, 84, "pred_scores"), ANCHOR_COUNT, 80)
    s.output(s.node("Concat", [low, high], "pred_boxes", axis=2), ANCHOR_COUNT, 4)


def logits(s: Surgery) -> None:
    scores = s.columns(4, 84, "cut.scores")
    odds = s.node("Div", [scores, s.node("Sub", [s.constant("cut.one", 1), scores], "cut.rest")], "cut.odds")
    s.output(s.node("Log", [odds], "pred_logits"), ANCHOR_COUNT, 80)
    part = s.node("Div", [s.columns(0, 4, "cut.box"), s.constant("cut.side", 300)], "pred_boxes")
    s.output(part, ANCHOR_COUNT, 4)


def objects_in(detections: Any) -> list[Any]:
    (camera,) = detections.detections.values()
    return [found.objects for found in camera]


@pytest.mark.parametrize(
    ("layout", "cut"),
    [
        ("yolov8", channels_first),
        ("yolov8", rows),
        ("yolov8_rows", rows),
        ("yolov5", with_objectness),
        ("yolov6", with_objectness),
        ("yolonas", apart),
    ],
)
def test_the_default_model_in_another_layout_finds_the_same(
    layout: str, cut: Callable[[Surgery], None], tmp_path: Path, media_dir: Path
) -> None:
    surgery = Surgery()
    cut(surgery)
    onnx.save(surgery.model, str(tmp_path / "cut.onnx"))
    clip = media_dir / "street.mp4"
    options: dict[str, Any] = {"confidence": 0.3, "iou": 0.45, "max_frames": 3}
    expected = objects_in(replay(clip, model="coco-ssd", **options))
    found = objects_in(replay(clip, model=str(described(tmp_path, tmp_path / "cut.onnx", layout, 300)), **options))
    assert sum(map(len, expected)) > 3
    assert found == expected


def test_logits_of_the_default_model_are_read_as_rtdetr(tmp_path: Path, media_dir: Path) -> None:
    """No NMS there: its candidates are what the default model has with a suppression that lets all through."""
    surgery = Surgery()
    logits(surgery)
    onnx.save(surgery.model, str(tmp_path / "cut.onnx"))
    options: dict[str, Any] = {"confidence": 0.3, "max_frames": 2}
    expected = objects_in(replay(media_dir / "street.mp4", model="coco-ssd", iou=1.0, **options))
    model = described(tmp_path, tmp_path / "cut.onnx", "rtdetr", 300)
    found = objects_in(replay(media_dir / "street.mp4", model=str(model), **options))
    for got, wanted in zip(found, expected, strict=True):
        assert len(got) == len(wanted) > 3

        def by_place(objects: Any) -> Any:
            return sorted((o.class_id, *o.box, o.score) for o in objects)

        np.testing.assert_allclose(by_place(got), by_place(wanted), atol=0.02)


SIZE = 64
LABELS = "[a, b, c]"
BOX = (16.0, 8, 48, 40)  # in the input; class b, score 0.75; its centre lies in a cell of stride 16 and of 8
NO_OBJECT = 0.01


def logit(p: float) -> float:
    return math.log(p / (1 - p))


def centred(box: tuple[float, ...]) -> list[float]:
    x1, y1, x2, y2 = box
    return [(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1]


def class_rows(anchors: int, *extra: float) -> np.ndarray:
    raw = np.full((anchors, 7 + len(extra)), NO_OBJECT)
    raw[5] = [*centred(BOX), NO_OBJECT, 0.75, NO_OBJECT, *extra]
    return raw


def raw_heads() -> dict[str, np.ndarray]:
    """The box in the head of stride 16, second anchor, cell (2, 1): centre 32, 24 is its corner."""
    outputs = {}
    for stride in (8, 16, 32):
        grid = np.full((3, 8, SIZE // stride, SIZE // stride), logit(NO_OBJECT))
        if stride == 16:
            cx, cy, w, h = centred(BOX)
            xy = [logit((v / 16 - cell + 0.5) / 2) for v, cell in ((cx, 2), (cy, 1))]
            wh = [logit(math.sqrt(v / a) / 2) for v, a in zip((w, h), ANCHORS[16][1], strict=True)]
            grid[1, :, 1, 2] = [*xy, *wh, logit(0.9999999), logit(NO_OBJECT), logit(0.75), logit(NO_OBJECT)]
        outputs[f"head{stride}"] = grid.reshape(24, SIZE // stride, SIZE // stride)
    return outputs


def distributions(offset: float) -> dict[str, np.ndarray]:
    """The box seen from the point of cell (1, 1) of stride 16: each side at a whole number of bins, or between two."""
    strides = (8, 16, 32, 64)
    anchors = sum((SIZE // s) ** 2 for s in strides)
    scores, bins = np.full((anchors, 3), NO_OBJECT), np.zeros((anchors, 4, 8))
    index = (SIZE // 8) ** 2 + 1 * 4 + 1
    point = (1 + offset) * 16
    scores[index, 1] = 0.75
    for side, distance in enumerate((point - BOX[0], point - BOX[1], BOX[2] - point, BOX[3] - point)):
        whole, part = divmod(distance / 16, 1)
        bins[index, side] = -40
        bins[index, side, int(whole)] = math.log(max(1 - part, 1e-9))
        bins[index, side, int(whole) + 1] = math.log(max(part, 1e-9))
    bins = bins.reshape(anchors, 32)
    if not offset:
        return {"output": np.concatenate((scores, bins), axis=1)}
    ends = np.cumsum([(SIZE // s) ** 2 for s in strides])[:-1]
    parts = [*np.split(scores, ends), *np.split(bins, ends)]
    return {f"out{i}": part for i, part in enumerate(parts)}


def disc_prototypes() -> np.ndarray:
    """Two prototypes: above 0 within 8 px of the box's centre (the input's pixels), and nothing."""
    middles = (np.arange(SIZE // 4) + 0.5) * 4
    far = np.hypot(middles[None, :] - 32, middles[:, None] - 24)
    return np.stack((8 - far, np.zeros_like(far)))


CASES: dict[str, tuple[Callable[[], dict[str, np.ndarray]], str]] = {
    "yolov5_raw": (raw_heads, ""),
    "yolov6": (lambda: {"outputs": np.insert(class_rows(30), 4, 1, axis=1)}, ""),
    "yolov8": (lambda: {"output0": class_rows(30).T}, ""),
    "yolov8_rows": (lambda: {"output0": class_rows(30)}, ""),
    "yolonas": (
        lambda: {"pred_boxes": np.tile(BOX, (30, 1)), "pred_scores": class_rows(30)[:, 4:]},
        "",
    ),
    "rtdetr": (
        lambda: {"output0": class_rows(30) / ([64.0] * 4 + [1.0] * 3)},
        "",
    ),
    "nanodet": (lambda: distributions(0), ""),
    "picodet": (lambda: distributions(0.5), ""),
    "yolov8_seg": (lambda: {"output0": class_rows(30, 1, 1).T, "output1": disc_prototypes()}, ""),
    "yolov8_pose": (lambda: {"output0": class_rows(30, 20, 10, 0.5, 40, 30, 1).T}, ""),
    "yolov8_obb": (lambda: {"output0": class_rows(30, math.pi / 2).T}, ""),
}


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """128 x 192: twice the input's width, three times its height."""
    path = tmp_path / "grey.png"
    assert cv2.imwrite(str(path), np.full((192, 128, 3), 90, np.uint8))
    return path


@pytest.mark.parametrize("layout", CASES)
def test_a_file_of_this_layout_gives_its_object_in_pixels_of_the_picture(
    layout: str, tmp_path: Path, picture: Path
) -> None:
    make, extra = CASES[layout]
    constants(tmp_path / "made.onnx", make(), SIZE)
    model = described(tmp_path, tmp_path / "made.onnx", layout, SIZE, LABELS, extra)
    ((objects,),) = [objects_in(replay(picture, model=str(model), confidence=0.5))]
    (found,) = objects
    assert (found.label, found.class_id) == ("b", 1)
    assert found.score == pytest.approx(0.75, abs=1e-4)
    assert found.box == pytest.approx([32, 24, 96, 120], abs=0.02)
    optional = (found.keypoints, found.corners, found.mask)
    if layout == "yolov8_pose":
        assert optional == ([[40, 30, 0.5], [80, 90, 1]], None, None)
    elif layout == "yolov8_obb":  # turned by a quarter: 32 x 32 again, which is 64 x 96 of the picture
        assert sorted(found.corners) == [[32, 24], [32, 120], [96, 24], [96, 120]]
        assert (found.keypoints, found.mask) == (None, None)
    elif layout == "yolov8_seg":
        assert optional[:2] == (None, None)
        mask = found.mask
        inside = decode_runs(mask.counts, mask.width, mask.height)
        assert (mask.x, mask.y, inside.shape) == (32, 24, (96, 64))
        y, x = np.mgrid[0:96, 0:64] + 0.5
        radius = np.hypot((x - 32) / 2, (y - 48) / 3)  # of the input's pixels
        assert inside[radius < 7].all()
        assert not inside[radius > 9].any()
    else:
        assert optional == (None, None, None)


def test_a_classifier_names_what_the_frame_shows(tmp_path: Path, picture: Path) -> None:
    constants(tmp_path / "made.onnx", {"output0": np.log([0.2, 0.7, 0.1])}, SIZE)
    model = described(tmp_path, tmp_path / "made.onnx", "classify", SIZE, LABELS, "head: {scores: logits, top: 2}")
    (objects,) = objects_in(replay(picture, model=str(model), confidence=0.05))
    assert [(o.label, o.score, o.box) for o in objects] == [
        ("b", 0.7, [0, 0, 128, 192]),
        ("a", 0.2, [0, 0, 128, 192]),
    ]


@pytest.mark.parametrize("layout", ["yolov5", "yolov5_raw"])
def test_three_raw_heads_of_a_real_model_find_what_the_joined_file_finds(
    layout: str, tmp_path: Path, shared_dir: Path
) -> None:
    """float16 has steps of half a pixel at 640, of which the joined file's boxes are made."""
    bus = shared_dir / "images" / "bus.jpg"
    name = {"yolov5": "yolov5n_concat_fp16", "yolov5_raw": "yolov5n_three_heads_fp16"}[layout]
    file = shared_dir / "models" / f"{name}.onnx"
    if not (bus.is_file() and file.is_file()):
        pytest.skip(f"needs images/{bus.name} and models/{file.name} in the data folder")
    path = tmp_path / "model.yaml"
    path.write_text(
        f"file: {file}\nlayout: {layout}\nlabels: coco\nbatch: 1\n"
        "input: {width: 640, height: 640, std: 255, dtype: float16}\n"
    )
    (objects,) = objects_in(replay(bus, model=str(path), confidence=0.25))
    assert [o.label for o in objects] == ["person", "person", "person", "bus"]
    np.testing.assert_allclose([o.score for o in objects], [0.817, 0.792, 0.603, 0.517], atol=2e-3)
    expected = [[50, 399, 206, 898], [220, 407, 349, 864], [680, 378, 810, 873], [51, 233, 810, 781]]
    np.testing.assert_allclose([o.box for o in objects], expected, atol=1.0)


def test_classes_of_one_group_suppress_each_other(tmp_path: Path, picture: Path) -> None:
    rows_of = np.zeros((30, 7))
    for anchor, (class_id, score) in enumerate([(0, 0.9), (1, 0.8), (2, 0.7)]):
        rows_of[anchor] = [*centred(BOX), 0, 0, 0]
        rows_of[anchor, 4 + class_id] = score
    constants(tmp_path / "made.onnx", {"output0": rows_of.T}, SIZE)
    model = described(tmp_path, tmp_path / "made.onnx", "yolov8", SIZE, LABELS)

    def labels(**settings: Any) -> list[str]:
        (objects,) = objects_in(replay(picture, model=str(model), confidence=0.5, **settings))
        return [o.label for o in objects]

    assert labels() == ["a", "b", "c"]
    assert labels(nms_groups=[["b", "c"]]) == ["a", "b"]
    assert labels(nms_groups=[["a", 2]]) == ["a", "b"]
    assert labels(nms_groups=[["a", "b", "c"]]) == labels(class_agnostic=True) == ["a"]

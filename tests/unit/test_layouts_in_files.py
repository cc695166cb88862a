"""A model file of each layout through the whole product, against the naive reading of the numbers that it gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from made.files import constants, described
from made.specs import model_spec
from oracles import naive_heads, naive_layouts
from oracles.naive_nms import naive_suppress

from pipeline.testing import replay
from stages.accelerators.canned_rows import canned_rows
from stages.model import HeadOptions, TensorSpec
from stages.postprocess.registry import LAYOUTS

SIZE, CLASSES, OBJECTS = 64, 5, 4
ANCHORS, P6 = 84, 85  # cells of strides 8, 16, 32; and 64
WIDTH, HEIGHT = 128, 192  # of the picture, which is stretched
CONFIDENCE, IOU = 0.3, 0.45
STRIDES = {8: 8, 16: 4, 32: 2}  # stride to cells per side

Outputs = dict[str, np.ndarray]
Found = list[tuple[Any, ...]]


def maps_as(*axes: int) -> Callable[[Outputs], Found]:
    """Of raw heads; ``axes`` bring one to (anchors, rows, columns, numbers)."""

    def read(outputs: Outputs) -> Found:
        levels = {}
        for raw in outputs.values():
            grid = raw.reshape(3, 5 + CLASSES, *raw.shape[-2:]) if raw.ndim == 3 else raw
            grid = grid.transpose(axes)
            levels[SIZE // grid.shape[1]] = grid
        return naive_layouts.yolov5_raw(levels, CONFIDENCE)

    return read


def only(outputs: Outputs) -> np.ndarray:
    (raw,) = outputs.values()
    return raw


def of_picodet(outputs: Outputs) -> Found:
    ordered = sorted(outputs.values(), key=lambda raw: -len(raw))
    scores = np.concatenate([raw for raw in ordered if raw.shape[1] == CLASSES])
    bins = np.concatenate([raw for raw in ordered if raw.shape[1] != CLASSES])
    return naive_layouts.distribution_head(scores, bins, SIZE, SIZE, (8, 16, 32, 64), 0.5, CONFIDENCE)


def of_nanodet(outputs: Outputs) -> Found:
    raw = only(outputs)
    return naive_layouts.distribution_head(
        raw[:, :CLASSES], raw[:, CLASSES:], SIZE, SIZE, (8, 16, 32, 64), 0, CONFIDENCE, clips=True
    )


def of_classes(logits: bool) -> Callable[[Outputs], Found]:
    def read(outputs: Outputs) -> Found:
        scores = [float(v) for v in only(outputs)]
        if logits:
            parts = [math.exp(v) for v in scores]
            scores = [part / sum(parts) for part in parts]
        return [(0, 0, SIZE, SIZE, score, i) for i, score in enumerate(scores) if score > CONFIDENCE]

    return read


def with_extra(rows: Callable[[Outputs], np.ndarray]) -> Callable[[Outputs], Found]:
    def read(outputs: Outputs) -> Found:
        return [(*c, extra) for c, extra in naive_layouts.with_extra(rows(outputs), CLASSES, CONFIDENCE)]

    return read


@dataclass(frozen=True)
class Case:
    layout: str
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[Outputs], Found]  # candidates x1 y1 x2 y2 score class, and what else a row has
    suppresses: bool = True
    dtype: str = "float32"
    head: Mapping[str, Any] = field(default_factory=dict)
    scale: tuple[float, int, str] | None = None


def raw_shapes(shape: Callable[[int], tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {f"head{stride}": shape(cells) for stride, cells in STRIDES.items()}


ROW, ROW_OBJECTNESS = 4 + CLASSES, 5 + CLASSES
CASES = {
    "ssd": Case("ssd", {"o": (50, ROW)}, lambda o: naive_heads.ssd(only(o), CONFIDENCE)[0]),
    "v5, v7": Case("yolov5", {"o": (252, ROW_OBJECTNESS)}, lambda o: naive_heads.yolov5(only(o), CONFIDENCE)[0]),
    "v5, v7 in float16": Case(
        "yolov5",
        {"o": (252, ROW_OBJECTNESS)},
        lambda o: naive_heads.yolov5(only(o), CONFIDENCE)[0],
        dtype="float16",
    ),
    "three raw heads 1x255x80x80": Case(
        "yolov5_raw", raw_shapes(lambda n: (3 * ROW_OBJECTNESS, n, n)), maps_as(0, 2, 3, 1)
    ),
    "three raw heads 1x3x85x80x80": Case(
        "yolov5_raw", raw_shapes(lambda n: (3, ROW_OBJECTNESS, n, n)), maps_as(0, 2, 3, 1)
    ),
    "three raw heads 1x3x80x80x85": Case(
        "yolov5_raw", raw_shapes(lambda n: (3, n, n, ROW_OBJECTNESS)), maps_as(0, 1, 2, 3)
    ),
    "three raw heads 1x3x80x80x85 in float16": Case(
        "yolov5_raw", raw_shapes(lambda n: (3, n, n, ROW_OBJECTNESS)), maps_as(0, 1, 2, 3), dtype="float16"
    ),
    "three raw heads in int8": Case(
        "yolov5_raw",
        raw_shapes(lambda n: (3 * ROW_OBJECTNESS, n, n)),
        maps_as(0, 2, 3, 1),
        scale=(0.0625, 3, "int8"),
    ),
    "v6": Case("yolov6", {"o": (ANCHORS, ROW_OBJECTNESS)}, lambda o: naive_layouts.yolov6(only(o), CONFIDENCE)),
    "v8 to v12": Case("yolov8", {"o": (ROW, ANCHORS)}, lambda o: naive_heads.yolov8(only(o), CONFIDENCE)[0]),
    "v8 transposed": Case("yolov8", {"o": (ANCHORS, ROW)}, lambda o: naive_heads.ssd(only(o), CONFIDENCE)[0]),
    "v8 rows": Case("yolov8_rows", {"o": (ANCHORS, ROW)}, lambda o: naive_heads.ssd(only(o), CONFIDENCE)[0]),
    "v8 in uint8": Case(
        "yolov8",
        {"o": (ROW, ANCHORS)},
        lambda o: naive_heads.yolov8(only(o), CONFIDENCE)[0],
        scale=(0.25, 0, "uint8"),
    ),
    "v8 segments": Case(
        "yolov8_seg",
        {"o": (ROW + 4, ANCHORS), "p": (4, 16, 16)},
        with_extra(lambda o: o["o"].T),
    ),
    "v8 pose": Case("yolov8_pose", {"o": (ROW + 15, ANCHORS)}, with_extra(lambda o: only(o).T)),
    "v8 pose, transposed": Case("yolov8_pose", {"o": (ANCHORS, ROW + 15)}, with_extra(only)),
    "v8 oriented": Case("yolov8_obb", {"o": (ROW + 1, ANCHORS)}, with_extra(lambda o: only(o).T)),
    "yolox": Case(
        "yolox", {"o": (ANCHORS, ROW_OBJECTNESS)}, lambda o: naive_heads.yolox(only(o), SIZE, SIZE, CONFIDENCE)[0]
    ),
    "yolo-nas": Case(
        "yolonas",
        {"pred_boxes": (ANCHORS, 4), "pred_scores": (ANCHORS, CLASSES)},
        lambda o: naive_layouts.separate(o["pred_boxes"], o["pred_scores"], CONFIDENCE),
    ),
    "yolo-nas, scores first, in uint8": Case(
        "yolonas",
        {"pred_scores": (ANCHORS, CLASSES), "pred_boxes": (ANCHORS, 4)},
        lambda o: naive_layouts.separate(o["pred_boxes"], o["pred_scores"], CONFIDENCE),
        scale=(0.25, 7, "uint8"),
    ),
    "v10, v26": Case(
        "end2end", {"o": (30, 6)}, lambda o: naive_heads.end2end(only(o), CONFIDENCE)[0], suppresses=False
    ),
    "rt-detr": Case(
        "rtdetr",
        {"o": (30, ROW)},
        lambda o: naive_layouts.rtdetr(only(o)[:, :4], only(o)[:, 4:], SIZE, SIZE, CONFIDENCE),
        suppresses=False,
    ),
    "rt-detr, logits": Case(
        "rtdetr",
        {"pred_logits": (30, CLASSES), "pred_boxes": (30, 4)},
        lambda o: naive_layouts.rtdetr(o["pred_boxes"], o["pred_logits"], SIZE, SIZE, CONFIDENCE, logits=True),
        suppresses=False,
    ),
    "nanodet": Case("nanodet", {"o": (P6, CLASSES + 32)}, of_nanodet),
    "picodet": Case(
        "picodet",
        {f"s{n}": (n * n, CLASSES) for n in (8, 4, 2, 1)} | {f"b{n}": (n * n, 32) for n in (8, 4, 2, 1)},
        of_picodet,
    ),
    "classifier": Case("classify", {"o": (CLASSES,)}, of_classes(logits=False), suppresses=False),
    "classifier, logits": Case(
        "classify", {"o": (CLASSES,)}, of_classes(logits=True), suppresses=False, head={"scores": "logits"}
    ),
}


def outputs_of(case: Case, seed: int) -> Outputs:
    """Made-up outputs as floats of the case's type: what a quantised file's codes stand for."""
    scale = case.scale or (None, 0, case.dtype)
    tensors = tuple(TensorSpec(n, s, scale[2], scale[0], scale[1]) for n, s in case.shapes.items())
    model = model_spec(
        layout=case.layout,
        placement="stretch",
        labels=tuple("abcde"),
        outputs=tensors,
        confidence=CONFIDENCE,
        head=HeadOptions(**case.head),
    )
    made = canned_rows(model, seed, OBJECTS)
    if case.scale is not None:
        step, zero_point, _ = case.scale
        made = [((raw.astype(np.float64) - zero_point) * step).astype(np.float32) for raw in made]
    return dict(zip(case.shapes, made, strict=True))


def kept(case: Case, found: Found) -> Found:
    """Best first, as one file says: each object once, or several times and to be suppressed."""
    if not case.suppresses:
        return sorted(found, key=lambda c: -c[4])
    scores, ids = [c[4] for c in found], [c[5] for c in found]
    if case.layout == "yolov8_obb":
        rotated = [((c[0] + c[2]) / 2, (c[1] + c[3]) / 2, c[2] - c[0], c[3] - c[1], c[6][0]) for c in found]
        return [found[i] for i in naive_layouts.suppress_rotated(rotated, scores, ids, IOU)]
    return [found[i] for i in naive_suppress([c[:4] for c in found], scores, ids, IOU, False)]


def in_picture(x: float, y: float) -> tuple[float, float]:
    return x * WIDTH / SIZE, y * HEIGHT / SIZE


def box_of(case: Case, c: tuple[Any, ...]) -> list[float]:
    points = [(c[0], c[1]), (c[2], c[3])]
    if case.layout == "yolov8_obb":
        points = corners_of(c)
    xs, ys = zip(*(in_picture(*p) for p in points), strict=True)
    bounded = (np.clip((min(xs), max(xs)), 0, WIDTH), np.clip((min(ys), max(ys)), 0, HEIGHT))
    return [bounded[0][0], bounded[1][0], bounded[0][1], bounded[1][1]]


def corners_of(c: tuple[Any, ...]) -> list[tuple[float, float]]:
    return naive_layouts.rotated_corners((c[0] + c[2]) / 2, (c[1] + c[3]) / 2, c[2] - c[0], c[3] - c[1], c[6][0])


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "grey.png"
    assert cv2.imwrite(str(path), np.full((HEIGHT, WIDTH, 3), 90, np.uint8))
    return path


def test_every_layout_has_a_case() -> None:
    assert {case.layout for case in CASES.values()} == set(LAYOUTS)


@pytest.mark.parametrize("name", CASES)
def test_a_file_gives_the_boxes_of_the_naive_reading(name: str, tmp_path: Path, picture: Path) -> None:
    case = CASES[name]
    outputs = outputs_of(case, 1)
    file = constants(
        tmp_path / "made.onnx", outputs, SIZE, scales=dict.fromkeys(outputs, case.scale) if case.scale else None
    )
    extra = f"head: {{{', '.join(f'{k}: {v}' for k, v in case.head.items())}}}" if case.head else ""
    model = described(tmp_path, file, case.layout, SIZE, "[a, b, c, d, e]", extra)
    (frames,) = replay(picture, model=str(model), confidence=CONFIDENCE, iou=IOU).detections.values()
    (frame,) = frames
    expected = kept(case, case.read(outputs))
    assert len(expected) >= (1 if case.layout == "classify" else 2)
    assert [o.class_id for o in frame.objects] == [c[5] for c in expected]
    np.testing.assert_allclose([o.score for o in frame.objects], [c[4] for c in expected], atol=1e-4)
    np.testing.assert_allclose([o.box for o in frame.objects], [box_of(case, c) for c in expected], atol=0.02)
    for found, c in zip(frame.objects, expected, strict=True):
        if case.layout == "yolov8_pose":
            points = np.reshape(c[6], (-1, 3))
            wanted = [(*in_picture(x, y), score) for x, y, score in points]
            np.testing.assert_allclose(found.keypoints, wanted, atol=0.02)
        elif case.layout == "yolov8_obb":
            np.testing.assert_allclose(found.corners, [in_picture(*p) for p in corners_of(c)], atol=0.02)
        elif case.layout == "yolov8_seg":
            box = box_of(case, c)
            left, top, values = naive_layouts.mask_values(
                c[6], outputs["p"], box, lambda x, y: (x * SIZE / WIDTH, y * SIZE / HEIGHT), (SIZE, SIZE)
            )
            assert (found.mask.x, found.mask.y) == (left, top)
            inside = naive_layouts.decode_runs(found.mask.counts, found.mask.width, found.mask.height)
            clear = np.abs(values) > 1e-4
            assert inside.any()
            assert (inside == (values > 0))[clear].all()

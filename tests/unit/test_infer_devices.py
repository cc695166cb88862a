"""Names and options of devices, and what the canned one makes up."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made.specs import model_spec

from stages.accelerators.canned import CannedOptions, canned_options
from stages.accelerators.canned_rows import canned_rows
from stages.accelerators.onnx import OnnxDevice
from stages.accelerators.registry import check_name, open_device
from stages.errors import UserError
from stages.model import ModelSpec, TensorSpec
from stages.postprocess.registry import LAYOUTS, head_for

ROOT = Path(__file__).resolve().parents[2]
LABELS = tuple(f"class-{n}" for n in range(80))


def spec(layout: str, shape: tuple[int, ...], size: int = 640, dtype: str = "float32", **changes: Any) -> ModelSpec:
    model = model_spec(
        path="",
        width=size,
        height=size,
        pad_value=0,
        placement="stretch",
        layout=layout,
        labels=LABELS,
        outputs=(TensorSpec("rows", shape, dtype),),
    )
    return replace(model, **changes)


def several(layout: str, *shapes: tuple[int, ...], size: int = 640) -> ModelSpec:
    return spec(layout, (), size, outputs=tuple(TensorSpec(f"o{i}", each, "float32") for i, each in enumerate(shapes)))


MODELS = {
    "ssd": spec("ssd", (1917, 84), 300),
    "yolov8": spec("yolov8", (84, 8400)),
    "yolov8_rows": spec("yolov8_rows", (8400, 84)),
    "yolov8_seg": several("yolov8_seg", (116, 8400), (32, 160, 160)),
    "yolov8_pose": spec("yolov8_pose", (56, 8400), labels=("person",)),
    "yolov8_obb": spec("yolov8_obb", (85, 8400)),
    "yolov5": spec("yolov5", (25200, 85), dtype="float16"),
    "yolov5_raw": several("yolov5_raw", (255, 80, 80), (255, 40, 40), (255, 20, 20)),
    "yolov6": spec("yolov6", (8400, 85)),
    "yolox": spec("yolox", (3549, 85), 416),
    "yolonas": several("yolonas", (8400, 4), (8400, 80)),
    "rtdetr": spec("rtdetr", (300, 84)),
    "nanodet": spec("nanodet", (3598, 112), 416),
    "picodet": several(
        "picodet", *((n * n, 80) for n in (52, 26, 13, 7)), *((n * n, 32) for n in (52, 26, 13, 7)), size=416
    ),
    "end2end": spec("end2end", (300, 6)),
    "classify": spec("classify", (80,)),
}


@pytest.mark.parametrize("name", ["cpu", "canned:0", "canned:12", "ascend-sim:0"])
def test_devices_that_exist(name: str) -> None:
    check_name(name)
    device = open_device(name, 1, {})
    device.open()
    device.close()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cpuu", "did you mean `cpu`?"),
        ("CPU", "did you mean `cpu`?"),
        ("cpu:0", "did you mean `cpu`?"),
        ("canned", "did you mean `canned:0`?"),
        ("caned:0", "did you mean `canned:0`?"),
        ("canned:x", "did you mean `canned:0`?"),
        ("cuda:0", "devices are `cpu`, `ascend:0`, `ascend-sim:0`, `canned:0`"),
        ("", "devices are `cpu`, `ascend:0`, `ascend-sim:0`, `canned:0`"),
        ("x" * 5000, "devices are `cpu`, `ascend:0`, `ascend-sim:0`, `canned:0`"),
        ("ascend", "did you mean `ascend:0`?"),
        ("ascent:0", "did you mean `ascend:0`?"),
        ("ascend_sim:0", "did you mean `ascend-sim:0`?"),
        ("ascend-sim", "did you mean `ascend-sim:0`?"),
    ],
)
def test_devices_that_do_not(name: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        open_device(name, 1, {})
    (problem,) = caught.value.problems
    assert says in problem
    assert len(problem) < 300


def test_counts_and_options_of_the_cpu_are_checked() -> None:
    with pytest.raises(UserError, match="threads is 0"):
        open_device("cpu", 0, {})
    with pytest.raises(UserError, match="executors is 0"):
        open_device("cpu", 1, {}, executors=0)
    with pytest.raises(UserError, match="no option seed, speed"):
        open_device("cpu", 1, {"speed": "9", "seed": "1"})
    assert isinstance(open_device("cpu", 2, {}, executors=3), OnnxDevice)


def test_the_registry_imports_no_vendor() -> None:
    code = (
        "import sys; from stages.accelerators.registry import open_device, check_name; check_name('cpu'); "
        "d = open_device('canned:0', 1, {}); d.open(); d.close(); "
        "sys.exit('onnxruntime' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_options_are_read() -> None:
    options = {"seed": "7", "objects": " 12 ", "service_ms": "2.5", "copies": "both"}
    assert canned_options("canned:0", options) == CannedOptions(7, 12, 2.5, (), "both")
    table = canned_options("canned:0", {"service_ms_by_batch": "1:5.2, 4:12.8,8:23.5"})
    assert [table.service_ns(n) for n in (1, 2, 4, 5, 8, 9)] == [
        5_200_000,
        12_800_000,
        12_800_000,
        23_500_000,
        23_500_000,
        23_500_000,
    ]
    assert CannedOptions().service_ns(8) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sed": "1"}, "no option sed; did you mean seed?"),
        ({"zzz": "1"}, "it has seed, objects"),
        ({"seed": "x"}, "seed is 'x'; give a number"),
        ({"seed": "1.5"}, "seed is '1.5'; give a whole number"),
        ({"objects": "-1"}, "objects is '-1'"),
        ({"service_ms": "nan"}, "service_ms is 'nan'"),
        ({"service_ms": "inf"}, "service_ms is 'inf'"),
        ({"copies": "all"}, "give none, in or both"),
        ({"service_ms_by_batch": "4:1,2:3"}, "ascending pairs"),
        ({"service_ms_by_batch": "1"}, "ascending pairs"),
        ({"service_ms_by_batch": ""}, "ascending pairs"),
        ({"service_ms_by_batch": "1:-2"}, "ascending pairs"),
        ({"service_ms": "1", "service_ms_by_batch": "1:1"}, "exclude one another"),
    ],
)
def test_options_that_are_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match="canned:0") as caught:
        open_device("canned:0", 1, options)
    assert says in str(caught.value)


def test_all_wrong_options_are_told_at_once() -> None:
    with pytest.raises(UserError) as caught:
        canned_options("canned:0", {"seed": "x", "objekts": "1", "copies": "no"})
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("layout", MODELS)
def test_made_up_outputs_are_the_same_each_time_and_of_the_right_shape(layout: str) -> None:
    model = MODELS[layout]
    made = canned_rows(model, 3, 5)
    assert [(rows.shape, rows.dtype) for rows in made] == [(t.shape, np.dtype(t.dtype)) for t in model.outputs]
    assert all(np.isfinite(rows).all() for rows in made)
    assert [rows.tobytes() for rows in made] == [rows.tobytes() for rows in canned_rows(model, 3, 5)]
    assert made[0].tobytes() != canned_rows(model, 4, 5)[0].tobytes()


@pytest.mark.parametrize("layout", MODELS)
@pytest.mark.parametrize("objects", [0, 1, 7])
def test_made_up_outputs_hold_the_objects_that_were_asked_for(layout: str, objects: int) -> None:
    """Read as the project reads them: every object is there, with more candidates than objects where NMS follows."""
    model = MODELS[layout]
    head = head_for(model)
    for seed in range(5):
        found, cut = head.candidates(canned_rows(model, seed, objects), model.confidence)
        assert cut == 0
        boxes = np.asarray(found.boxes)
        if layout in ("yolov5_raw", "classify"):  # where two would stand in the same place, the first stays
            assert min(objects, 1) <= len(boxes) <= objects * 6
        else:
            assert len(boxes) == (objects if layout in ("end2end", "rtdetr") else objects * 6)
        assert boxes.min(initial=0) >= -0.25 * model.width
        assert boxes.max(initial=0) <= 1.25 * model.width


def test_every_layout_can_be_made_up() -> None:
    assert set(MODELS) == set(LAYOUTS)


def test_made_up_codes_are_those_of_the_made_up_floats() -> None:
    floats = MODELS["yolonas"]
    coded = replace(floats, outputs=tuple(replace(t, dtype="uint8", scale=1 / 256) for t in floats.outputs))
    scores, codes = canned_rows(floats, 3, 5)[1], canned_rows(coded, 3, 5)[1]
    np.testing.assert_allclose(codes * np.float32(1 / 256), scores, atol=1 / 500)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (spec("yolov5-raw", (255, 80)), "yolox, not yolov5-raw"),
        (spec("ssd", (1917,)), "layout ssd has 2 dimensions"),
        (spec("ssd", (10, 84)), "can't hold 5 objects in layout ssd"),
        (spec("ssd", (1917, 5)), "1 classes"),
        (spec("yolox", (3548, 85), 416), "layout yolox has 3549 anchors"),
        (spec("end2end", (300, 7)), "layout end2end has rows of 6"),
        (spec("end2end", (4, 6)), "can't hold 5 objects in layout end2end"),
    ],
)
def test_outputs_that_cannot_be_made_up(model: ModelSpec, says: str) -> None:
    device = open_device("canned:0", 1, {"objects": "5"})
    with pytest.raises(UserError, match="model m: ") as caught:
        device.load(model, 1)
    assert says in str(caught.value)


def test_scores_stay_above_the_models_confidence() -> None:
    for confidence in (0.05, 0.4, 0.6, 0.8):
        model = replace(MODELS["ssd"], confidence=confidence)
        best = np.sort(canned_rows(model, 0, 20)[0][:, 4:].max(axis=1))[::-1]
        assert best[0] <= 1
        assert (best[:20] > confidence).sum() >= 1
        assert not math.isnan(best[0])

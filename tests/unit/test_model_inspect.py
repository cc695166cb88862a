"""``campipe models inspect``: real files are named without help, odd ones are refused, its YAML can be used."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pipeline import assets
from pipeline.cli import main
from pipeline.config import replay_site, resolve
from pipeline.models.inspect import inspect, labels_given
from pipeline.models.inspect_file import look_into
from pipeline.models.store import find_file
from pipeline.planning import draft_plan
from stages.accelerators.onnx import OnnxDevice
from stages.errors import UserError
from stages.postprocess.detect import Guess, detect
from stages.postprocess.registry import LAYOUTS

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "yolox_nano": "yolox",
    "yolov5n_concat_fp16": "yolov5",
    "yolov5n_three_heads_fp16": "yolov5_raw",
    "yolov8n_int8": "yolov8",
    "yolo26n_end2end_int8": "end2end",
}


def constant_model(path, shape, *, size=640, metadata=None, dtype=np.float32):
    """A file that gives zeros of this shape whatever it is fed."""
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMax", ["images"], ["top"], keepdims=0),
            helper.make_node("Mul", ["top", "zero"], ["nothing"]),
            helper.make_node("Add", ["nothing", "rows"], ["output0"]),
        ],
        "constant",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, size, size])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, list(shape))],
        [
            numpy_helper.from_array(np.zeros((), dtype), "zero"),
            numpy_helper.from_array(np.zeros(shape, dtype), "rows"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    helper.set_model_props(model, metadata or {})
    onnx.save(model, path)
    return str(path)


@pytest.mark.parametrize("name", FILES)
def test_the_layout_of_each_real_file_is_named_without_help(name, shared_dir):
    path = shared_dir / "models" / f"{name}.onnx"
    if not path.is_file():
        pytest.skip(f"needs models/{path.name} in the data folder")
    if FILES[name] not in LAYOUTS:
        pytest.skip(f"layout {FILES[name]} is not part of this version")
    looked = look_into(str(path), None)
    found = detect(looked.facts)
    assert isinstance(found, Guess), found
    assert (found.layout, found.classes) == (FILES[name], 80)


def test_the_layout_of_the_default_model_is_named_without_help():
    looked = look_into(str(assets.models_folder() / "coco-ssd.onnx"), None)
    found = detect(looked.facts)
    assert isinstance(found, Guess), found
    assert (found.layout, found.classes) == ("ssd", 80)


@pytest.mark.parametrize("name", ["coco-ssd", *FILES])
def test_what_is_printed_is_a_description_that_can_be_run(name, request, tmp_path, media_dir, capsys):
    if name == "coco-ssd":
        path = assets.models_folder() / "coco-ssd.onnx"
    else:
        path = request.getfixturevalue("shared_dir") / "models" / f"{name}.onnx"
        if not path.is_file() or FILES[name] not in LAYOUTS:
            pytest.skip(f"needs models/{path.name} in the data folder, and its layout in this version")
    assert main(["models", "inspect", str(path)]) == 0
    described = tmp_path / "described.yaml"
    described.write_text(capsys.readouterr().out)
    plan = draft_plan(resolve(replay_site([media_dir / "street.mp4"], str(described))))
    (model,) = plan.models
    assert model.layout == FILES.get(name, "ssd")
    assert len(model.labels) == 80
    assert model.labels[0] == "person"


@pytest.mark.parametrize(
    ("shape", "size", "candidates"),
    [
        ((1, 85, 8400), 640, ["yolov8 with 81 classes", "yolov5 channels first with 80 classes"]),
        ((1, 8400, 6), 640, ["yolov5 with 1 classes", "yolox with 1 classes"]),
        ((1, 300, 6), 640, ["end2end", "rtdetr with 2 classes"]),
        ((1, 84, 84), 64, ["yolov8 with 80 classes"]),
    ],
)
def test_an_ambiguous_file_is_refused_with_candidates_and_remedy(shape, size, candidates, tmp_path, capsys):
    path = constant_model(tmp_path / "odd.onnx", shape, size=size)
    assert main(["models", "inspect", path]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "layout" in told.err
    for candidate in candidates:
        assert f"candidate {candidate}" in told.err


def test_a_layout_that_is_stated_settles_an_ambiguous_file(tmp_path):
    path = constant_model(tmp_path / "odd.onnx", (1, 85, 8400))
    text = inspect(path, layout="yolov8")
    assert "layout: yolov8" in text
    assert '- "class 80"' in text
    with pytest.raises(UserError, match="layout yolov5"):
        inspect(path, layout="yolov5", labels="coco")
    with pytest.raises(UserError, match="is not a layout"):
        inspect(path, layout="yolov77")


def test_labels_with_odd_characters_come_back_from_the_yaml_as_they_were(tmp_path, media_dir):
    labels = ["no", "a: b", "#1", "'\"", "ü 🚲", "- x", "{y}", "12:30"]
    names = str(dict(enumerate(labels)))
    path = constant_model(tmp_path / "own model.onnx", (1, 4 + len(labels), 8400), metadata={"names": names})
    described = tmp_path / "own.yaml"
    described.write_text(inspect(path))
    (model,) = draft_plan(resolve(replay_site([media_dir / "street.mp4"], str(described)))).models
    assert list(model.labels) == labels


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "is empty"), (b"no model at all", "can't be loaded"), (None, "can't be read")],
)
def test_what_is_no_model_is_refused_in_one_line(content, says, tmp_path, capsys):
    path = tmp_path / "bad.onnx"
    if content is not None:
        path.write_bytes(content)
    assert main(["models", "inspect", str(path)]) == 2
    assert says in capsys.readouterr().err


def test_a_file_that_takes_no_picture_is_refused(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Identity", ["words"], ["output0"])],
        "words",
        [helper.make_tensor_value_info("words", TensorProto.FLOAT, [1, 77])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, [1, 77])],
    )
    path = tmp_path / "words.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    with pytest.raises(UserError, match="not a batch of colour pictures"):
        inspect(str(path))


def loaded(path, tmp_path, media_dir, **changes):
    """Load a file in a device as a run does, with its own description changed."""
    described = tmp_path / "described.yaml"
    described.write_text(inspect(str(path)))
    (model,) = draft_plan(resolve(replay_site([media_dir / "street.mp4"], str(described)))).models
    device = OnnxDevice(1)
    try:
        device.open()
        device.load(dataclasses.replace(model, **changes), 1)
    finally:
        device.close()


def test_a_layout_that_the_shapes_allow_but_the_numbers_do_not_is_refused_at_load(shared_dir, tmp_path, media_dir):
    path = shared_dir / "models" / "yolox_nano.onnx"
    if not path.is_file():
        pytest.skip("needs models/yolox_nano.onnx in the data folder")
    loaded(path, tmp_path, media_dir)
    with pytest.raises(UserError, match=r"contradicts its layout yolov5.*set `layout: yolox`"):
        loaded(path, tmp_path, media_dir, layout="yolov5")


def test_fewer_labels_than_the_file_names_are_refused_at_load(tmp_path, media_dir):
    path = assets.models_folder() / "coco-ssd.onnx"
    with pytest.raises(UserError, match=r"names 80 classes .person, bicycle, car, …., but its description 3"):
        loaded(path, tmp_path, media_dir, labels=("a", "b", "c"))


def test_a_file_that_is_cut_short_is_refused_in_one_line(tmp_path, capsys):
    whole = (assets.models_folder() / "coco-ssd.onnx").read_bytes()
    path = tmp_path / "cut.onnx"
    path.write_bytes(whole[: len(whole) // 2])
    assert main(["models", "inspect", str(path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("folder", "named"),
    [(".", "mine.onnx"), ("descriptions", "../mine.onnx"), ("a/b", "../../mine.onnx"), ("a/b/c", None)],
)
def test_a_description_that_goes_to_a_file_names_its_model_from_there(folder, named, tmp_path):
    path = constant_model(tmp_path / "mine.onnx", (1, 84, 8400))
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    described = tmp_path / folder / "mine.yaml"
    with described.open("w") as out:
        command = [sys.executable, "-m", "pipeline", "models", "inspect", path]
        subprocess.run(command, stdout=out, check=True, cwd=ROOT, timeout=60)
    assert f'file: "{named or path}"' in described.read_text().splitlines()
    find_file(named or path, described.parent)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe.onnx"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="no regular file"):
        look_into(str(pipe), None)


def test_labels_in_a_pipe_or_a_device_are_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for odd in (str(tmp_path / "pipe"), "/dev/zero"):
        with pytest.raises(UserError, match="is not a regular file; name a file"):
            labels_given(odd)
    with pytest.raises(UserError, match="is a folder; name a file"):
        labels_given(str(tmp_path))
    with pytest.raises(UserError, match="no such file; check the path"):
        labels_given("-5")
    with pytest.raises(UserError, match="give 1 to"):
        labels_given("9" * 5000)

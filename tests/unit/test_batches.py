"""Batches of 1 to 8 give the same detections, and a file that claims any batch but has 1 built in is run at 1."""

from __future__ import annotations

import logging
import select
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from made.files import constants, described
from onnx import helper, numpy_helper

from pipeline import assets
from pipeline.cli import main
from pipeline.config import replay_site, resolve
from pipeline.planning import draft_plan
from pipeline.testing import replay
from stages.accelerators.accelerator import RunTimes
from stages.accelerators.onnx import OnnxDevice
from stages.camera import CameraSpec
from stages.frames import HeapRing
from stages.letterbox import geometry, place
from stages.messages import Objects, PostItem, PostTask
from stages.model import ModelSpec, output_slot_bytes, output_views
from stages.postprocess.stage import Postprocess

MOST = 8
WIDTH, HEIGHT = 768, 576  # of the street clip


def with_batch(path: Path, batch: int) -> Path:
    """The default model with a batch built in."""
    model = onnx.load(str(assets.models_folder() / "coco-ssd.onnx"))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    onnx.save(model, str(path))
    return path


def of_file(file: Path, folder: Path, clip: Path, more: str = "", settings: Sequence[str] = ()) -> ModelSpec:
    path = described(folder, file, "ssd", 300, extra=more)
    (model,) = draft_plan(resolve(replay_site([clip], str(path), overrides=list(settings)))).models
    return model


@pytest.fixture(scope="module")
def frames(media_dir: Path) -> list[np.ndarray]:
    """Eight pictures of the street clip as the default model takes them."""
    import av

    lies = geometry(WIDTH, HEIGHT, 300, 300, "stretch")
    found = []
    with av.open(str(media_dir / "street.mp4")) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number % 12 == 0:
                found.append(np.empty((300, 300, 3), np.uint8))
                place(frame.to_ndarray(format="rgb24"), lies, 114, found[-1])
            if len(found) == MOST:
                return found
    raise AssertionError("the clip is too short")


def detections(device: OnnxDevice, model: ModelSpec, frames: Sequence[np.ndarray], batch: int) -> list[Objects]:
    """Of all frames, ``batch`` at a time, through an output slot and the stage."""
    camera = CameraSpec("cam", "/clip", model.name, confidence=0.3)
    lanes = device.lanes(1)
    objects: list[Objects] = []
    try:
        for start in range(0, len(frames), batch):
            part = frames[start : start + batch]
            ring = HeapRing(f"outputs/{model.name}", 1, output_slot_bytes(model, MOST))
            lanes.submit(0, model.name, part, output_views(model, ring.begin_write(0), MOST, len(part)))
            poll = select.poll()
            poll.register(lanes.wake_fd or 0, select.POLLIN)
            assert poll.poll(20_000)
            ((_, result),) = lanes.finished()
            assert isinstance(result, RunTimes), result
            stage = Postprocess([model], [camera], {model.name: ring}, {model.name: MOST}, lambda: 0)
            stage.open()
            items = [PostItem(i, "cam", WIDTH, HEIGHT) for i in range(len(part))]
            (done,) = stage.step(PostTask(1, model.name, 0, ring.end_write(0), items))
            assert not done.failed
            objects += done.objects
    finally:
        lanes.close()
    return objects


def as_found(objects: Sequence[Objects]) -> list[tuple[Any, ...]]:
    """Without the place in its batch, which differs."""
    return [
        (
            np.frombuffer(each.boxes, "<f4").reshape(-1, 4).round(2).tolist(),
            np.frombuffer(each.scores, "<f4").round(4).tolist(),
            np.frombuffer(each.class_ids, "<i4").tolist(),
        )
        for each in objects
    ]


@pytest.fixture(scope="module")
def alone(frames: list[np.ndarray], tmp_path_factory: pytest.TempPathFactory, media_dir: Path) -> list[tuple[Any, ...]]:
    """What is found in the frames one by one."""
    folder = tmp_path_factory.mktemp("alone")
    model = of_file(assets.models_folder() / "coco-ssd.onnx", folder, media_dir / "street.mp4")
    device = OnnxDevice(1)
    device.open()
    device.load(model, 1)
    found = as_found(detections(device, model, frames, 1))
    device.close()
    assert sum(len(scores) for _, scores, _ in found) >= 2 * MOST
    return found


def test_a_dynamic_model_finds_the_same_in_batches_of_1_to_8(
    frames: list[np.ndarray], alone: list[tuple[Any, ...]], tmp_path: Path, media_dir: Path
) -> None:
    model = of_file(assets.models_folder() / "coco-ssd.onnx", tmp_path, media_dir / "street.mp4")
    assert model.fixed_batch is None
    device = OnnxDevice(1)
    device.open()
    device.load(model, MOST)
    for batch in range(1, MOST + 1):
        assert as_found(detections(device, model, frames, batch)) == alone, batch
    device.close()


@pytest.mark.parametrize("built_in", range(1, MOST + 1))
def test_a_model_with_a_batch_built_in_finds_the_same_in_batches_of_any_size(
    built_in: int, frames: list[np.ndarray], alone: list[tuple[Any, ...]], tmp_path: Path, media_dir: Path
) -> None:
    model = of_file(with_batch(tmp_path / "fixed.onnx", built_in), tmp_path, media_dir / "street.mp4")
    assert model.fixed_batch == built_in
    device = OnnxDevice(1)
    device.open()
    device.load(model, MOST)
    for batch in {max(built_in - 1, 1), built_in, MOST}:  # padded, whole, in several runs
        assert as_found(detections(device, model, frames, batch)) == alone, batch
    device.close()


def baked(path: Path) -> Path:
    """One object, for any number of pictures by its declaration; its last node makes one frame of all."""
    rows = np.zeros((60, 7))
    rows[7] = 32, 24, 32, 32, 0, 0.75, 0
    constants(path, {"output0": rows}, 64)
    model = onnx.load(str(path))
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(helper.make_node("Reshape", ["before", "one"], ["output0"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 60, 7], np.int64), "one"))
    onnx.save(model, str(path))
    return path


OUTPUTS = "outputs: [{name: output0, shape: [60, 7], dtype: float32}]"
WARNING = "model model: its file claims any batch size but has 1 built in; it is run at batch 1"


@pytest.mark.parametrize("more", ["", OUTPUTS])
def test_an_export_that_claims_any_batch_but_has_1_built_in_runs_at_1_with_one_warning(
    more: str, tmp_path: Path, media_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = described(tmp_path, baked(tmp_path / "baked.onnx"), "ssd", 64, "[a, b, c]", more)
    clip = media_dir / "street.mp4"
    with caplog.at_level(logging.WARNING):
        result = replay([clip, clip], model=str(path), max_frames=6, overrides=["batch.max_batch=4"])
    assert [record.getMessage() for record in caplog.records] == [f"{WARNING} (`batch: 1` in its description says so)"]
    for frames in result.detections.values():
        assert [[(o.label, o.score) for o in frame.objects] for frame in frames] == [[("b", 0.75)]] * 6
    (model,) = draft_plan(resolve(replay_site([clip], str(path), overrides=["batch.max_batch=4"]))).models
    assert model.fixed_batch == 1


def test_a_device_that_was_told_of_larger_batches_runs_it_frame_by_frame_too(
    tmp_path: Path, media_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = described(tmp_path, baked(tmp_path / "baked.onnx"), "ssd", 64, "[a, b, c]", OUTPUTS)
    (model,) = draft_plan(resolve(replay_site([media_dir / "street.mp4"], str(path)))).models
    assert model.fixed_batch is None  # batches of 1 need no look
    device = OnnxDevice(1)
    device.open()
    with caplog.at_level(logging.WARNING):
        device.load(model, 4)
    assert "has 1 built in: set `batch: 1`; it is run frame by frame" in caplog.text
    pictures = [np.full((64, 64, 3), value, np.uint8) for value in range(4)]
    together = as_found(detections(device, model, pictures, 4))
    assert together == as_found(detections(device, model, pictures, 1))
    assert [scores for _, scores, _ in together] == [[0.75]] * 4
    device.close()


def test_check_says_so(tmp_path: Path, media_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    described(tmp_path, baked(tmp_path / "baked.onnx"), "ssd", 64, "[a, b, c]", OUTPUTS)
    (tmp_path / "cameras").mkdir()
    (tmp_path / "cameras" / "gate.yaml").write_text(f"source: {{url: {media_dir}/street.mp4}}\nmodel: mine\n")
    site = tmp_path / "site.yaml"
    site.write_text("cameras: cameras\nmodels: {mine: model.yaml}\nbatch: {max_batch: 4}\n")
    assert main(["check", str(site)]) == 0
    assert capfd.readouterr().err.count("claims any batch size but has 1 built in; it is run at batch 1") == 1

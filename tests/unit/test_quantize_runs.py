"""``campipe models quantize`` as a whole: the default model is accepted, YOLOX-nano, which INT8 harms, is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from pipeline.cli import main
from pipeline.config import replay_site, resolve
from pipeline.models import quantize_compare
from stages.accelerators.onnx import OnnxDevice

ROOT = Path(__file__).resolve().parents[2]
CLIP = str(ROOT / "tests/media/street.mp4")
YOLOX = """\
name: yolox-nano
file: {file}
licence: Apache-2.0
input: {{width: 416, height: 416, channels: bgr, placement: top_left}}
layout: yolox
labels: names.txt
batch: 1
confidence: 0.4
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_default_model_is_accepted_and_the_same_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        assert main(["models", "quantize", "coco-ssd", "--clip", CLIP, "--frames", "12", "--out", str(folder)]) == 0
        out = capsys.readouterr().out
        assert "accepted; use it with" in out
        assert "times as fast" in out
        assert sorted(path.name for path in folder.iterdir()) == ["coco-ssd-int8.onnx", "coco-ssd-int8.yaml"]
        contents.append([path.read_bytes() for path in sorted(folder.iterdir())])
    assert contents[0] == contents[1]
    # the description is whole: a run takes it as it is, checksum and all
    (model,) = resolve(replay_site([CLIP], model=str(tmp_path / "a" / "coco-ssd-int8.yaml"))).models
    assert model.sha256 == hashlib.sha256(contents[0][0]).hexdigest()
    assert (model.name, model.fixed_batch, len(model.labels), model.confidence) == ("coco-ssd-int8", None, 80, 0.35)
    text = contents[0][1].decode()
    assert "INT8 of coco-ssd.onnx (sha256 c3ef7d5a" in text
    assert "12 frames of street.mp4" in text
    assert str(tmp_path) not in text
    device = OnnxDevice(threads=2)
    device.open()
    device.load(model, 4)
    assert device._models["coco-ssd-int8"].frames_per_run is None, "a frame's result depends on its batch"
    device.close()


def test_a_model_that_int8_harms_is_refused_unless_taken_as_it_is(
    tmp_path: Path, shared_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipeline.config.labels import COCO

    (tmp_path / "names.txt").write_text("\n".join(COCO) + "\n")
    description = tmp_path / "yolox-nano.yaml"
    description.write_text(YOLOX.format(file=shared_dir / "models" / "yolox_nano.onnx"))
    bikes = str(shared_dir / "video" / "bikes.mp4")
    out = tmp_path / "out"
    arguments = ["models", "quantize", str(description), "--clip", CLIP, "--clip", bikes, "--frames", "12"]
    assert main([*arguments, "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert "found again" in said.out
    assert "INT8 is refused" in said.err
    assert "95% are asked" in said.err
    assert "scores move by" in said.err
    assert "nothing was written" in said.err
    assert not out.exists()
    assert main([*arguments, "--out", str(out), "--accept"]) == 0
    assert "accepted as it is" in capsys.readouterr().out
    (model,) = resolve(replay_site([CLIP], model=str(out / "yolox-nano-int8.yaml"))).models
    assert model.labels == COCO
    assert model.fixed_batch == 1


def test_slower_is_refused_with_the_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = quantize_compare.Speed(10.0, 12.0, tuple(np.linspace(0.7, 0.9, 5)))
    monkeypatch.setattr(quantize_compare, "measure_speed", lambda *_: slow)
    assert main(["models", "quantize", "coco-ssd", "--clip", CLIP, "--frames", "6", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert "10.0 to 12.0 ms, 0.80 times as fast (0.70 to 0.90 over 5 pairs of runs)" in said.out
    assert "no faster (0.80 times" in said.err
    assert list(tmp_path.iterdir()) == []

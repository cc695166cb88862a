"""What the YAML says of heads, groups and scaling arrives where it is read; mistakes are told with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import load_site, resolve
from stages.errors import UserError
from stages.model import HeadOptions

MODEL = "file: m.onnx\nlayout: yolov5_raw\nlabels: [a, b, c]\n"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "clip.mp4").write_bytes(b"clip")
    (tmp_path / "m.onnx").write_bytes(b"model")
    return tmp_path


def site(here: Path, model: str = "", camera: str = "", size: str = "width: 64, height: 32") -> Path:
    (here / "m.yaml").write_text(f"{MODEL}input: {{{size}}}\n{model}\n")
    path = here / "site.yaml"
    path.write_text(f"models: {{m: m.yaml}}\ncameras: [{{name: a, source: clip.mp4, model: m{camera}}}]\n")
    return path


def resolved(here: Path, *args: str):
    return resolve(load_site(site(here, *args)))


def test_options_arrive(here: Path) -> None:
    head = "head: {scores: logits, anchors: [[1, 2], [3, 4.5]], strides: [8, 16], cell_offset: 0.5, keypoint_values: 2}"
    found = resolved(here, head, ", nms_groups: [[c, a]]", "width: 64, height: 32, scale_up: false")
    (model,) = found.models
    assert model.head == HeadOptions("logits", ((1.0, 2.0), (3.0, 4.5)), (8, 16), 0.5, 2, 5)
    assert model.scale_up is False
    assert found.cameras[0].nms_groups == ((0, 2),)


def test_defaults_and_names_of_anchors(here: Path) -> None:
    (model,) = resolved(here).models
    assert (model.head, model.scale_up) == (HeadOptions(), True)
    (model,) = resolved(here, "head: {anchors: yolov7}").models
    assert model.head.anchors is not None
    assert [len(each) for each in model.head.anchors] == [6, 6, 6]
    assert model.head.anchors[0][:2] == (12, 16)


WRONG = [
    ("head: {anchors: [[1, 2, 3]]}", "", "width, height"),
    ("head: {anchors: [[1, 2], [1, 2, 3, 4]]}", "", "width, height"),
    ("head: {anchors: [[0, 2]]}", "", "a number above 0"),
    ("head: {anchors: yolov9}", "", "head.anchors"),
    ("head: {scores: sigmoid}", "", "head.scores"),
    ("head: {top: 0}", "", "head.top"),
    ("", ", nms_groups: [[a]]", "nms_groups"),
    ("", ", nms_groups: [[a, b], [b, c]]", "names b twice"),
    ("", ", nms_groups: [[a, d]]", "is not a label of the model"),
    ("", ", nms_groups: [[a, 3]]", "from 0 to 2"),
    ("", ", class_agnostic: true, nms_groups: [[a, b]]", "keep one of them"),
]


@pytest.mark.parametrize(("model", "camera", "words"), WRONG)
def test_mistakes_are_told(model: str, camera: str, words: str, here: Path) -> None:
    with pytest.raises(UserError) as caught:
        resolved(here, model, camera)
    assert any(words in problem for problem in caught.value.problems), caught.value.problems

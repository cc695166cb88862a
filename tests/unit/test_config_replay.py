"""The site of ``campipe replay``: names, copies, and clips that can't be played."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import replay_site, resolve
from pipeline.config.replay import clip_name, unique_names
from stages.errors import UserError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "street.mp4").write_bytes(b"some bytes")
    (tmp_path / "my clip ${X}.mkv").write_bytes(b"some bytes")
    return tmp_path


def test_cameras_are_called_after_their_clips(here: Path) -> None:
    site = replay_site(["street.mp4", here / "my clip ${X}.mkv", "./street.mp4"])
    assert [camera.name for camera in site.cameras] == ["street", "my-clip-X", "street-2"]
    assert site.cameras[1].source.url == str(here / "my clip ${X}.mkv")
    assert site.publish is None
    assert site.sinks == ()


def test_recordings_are_replayed_without_loss_and_as_fast_as_possible(here: Path) -> None:
    resolved = resolve(replay_site(["street.mp4"], copies=3))
    assert [camera.name for camera in resolved.cameras] == ["street", "street-2", "street-3"]
    assert {(camera.pace, camera.live, camera.loop) for camera in resolved.cameras} == {("fast", False, False)}
    assert [model.name for model in resolved.models] == ["coco-ssd"]
    assert [device.device for device in resolved.devices] == ["cpu"]


def test_all_options_arrive(here: Path) -> None:
    resolved = resolve(
        replay_site(
            ["street.mp4"],
            "coco-ssd",
            "canned:0",
            1,
            jsonl="out.jsonl",
            publish="tcp://*:0",
            executors=3,
            nms_workers=2,
            max_batch=4,
            max_frames=9,
            overrides=["camera.street.confidence=0.1", "batch.max_wait_ms=0"],
        )
    )
    assert [(device.device, device.executors) for device in resolved.devices] == [("canned:0", 3)]
    assert (resolved.batch.max_batch, resolved.batch.max_wait_ms, resolved.nms_workers) == (4, 0.0, 2)
    assert resolved.publish is not None
    assert resolved.publish.bind == "tcp://*:0"
    assert [(plan.path, plan.merged) for plan in resolved.jsonl] == [(str(here / "out.jsonl"), True)]
    assert (resolved.cameras[0].max_frames, resolved.cameras[0].confidence) == (9, 0.1)


def test_one_file_per_camera_is_not_merged(here: Path) -> None:
    [plan] = resolve(replay_site(["street.mp4"], jsonl="{camera}.jsonl")).jsonl
    assert (plan.path, plan.merged) == (str(here / "{camera}.jsonl"), False)


def test_a_model_may_be_the_path_of_its_description(here: Path) -> None:
    (here / "my model.yaml").write_text("file: m.onnx\ninput: {width: 64, height: 64}\nlayout: ssd\nlabels: coco\n")
    (here / "m.onnx").write_bytes(b"x")
    resolved = resolve(replay_site(["street.mp4"], str(here / "my model.yaml")))
    assert [model.name for model in resolved.models] == ["my-model"]
    assert [model.name for model in resolve(replay_site(["street.mp4"], "my model.yaml")).models] == ["my-model"]


def test_the_clip_that_comes_with_campipe() -> None:
    [camera] = replay_site(["asset:street.mp4"]).cameras
    assert camera.name == "street"
    assert Path(camera.source.url).is_file()


def test_all_clips_that_can_not_be_played_are_told_at_once(here: Path) -> None:
    (here / "empty.mp4").write_bytes(b"")
    (here / "folder").mkdir()
    with pytest.raises(UserError) as caught:
        replay_site(["none.mp4", "street.mp4", "folder", "empty.mp4", "stret.mp4", "no\x1bpe", "rstp://x"], copies=2)
    assert caught.value.problems == (
        '"none.mp4": no such file; check the path',
        '"folder": is a folder; name a video file in it',
        '"empty.mp4": is an empty file (0 bytes); name a video file with content',
        "\"stret.mp4\": no such file; did you mean 'street.mp4'?",
        '"no\\x1bpe": no such file; check the path',
        "\"rstp://x\": 'rstp://' is not a kind of source; did you mean 'rtsp://'?",
    )


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"model": "coco-sd"}, "cameras[0].model: \"coco-sd\": is not a known model; did you mean 'coco-ssd'?"),
        ({"model": "none.yaml"}, 'models.none: "none.yaml": no such file; check the path'),
        ({"model": "x/y.onnx"}, "models.y: model 'x/y.onnx' is a model file; name the YAML that describes it instead"),
        ({"device": "CPU"}, 'devices[0].device: "CPU": is not the name of a device; write its kind and number'),
        ({"copies": 0}, "copies: 0: is out of bounds; write a whole number from 1 to 1000"),
        (
            {"publish": "5600"},
            'publish.bind: "5600": is not an address to publish at: it has no tcp:// or ipc:// in front; write one',
        ),
        ({"max_frames": 0}, "cameras[0].source.max_frames: 0: is out of bounds; write a whole number"),
        ({"jsonl": "."}, 'sinks[0].jsonl.path: ".": is a folder; name a file in it'),
        ({"overrides": ["camera.x.iou=1"]}, "--set camera.x.iou: there is no camera 'x'; known are street"),
        ({"overrides": ["iou"]}, "--set: iou: is not of the form KEY=VALUE"),
    ],
)
def test_options_are_checked(here: Path, keywords: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        replay_site(["street.mp4"], **keywords)  # type: ignore[arg-type]
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(message)


def test_no_clip_at_all() -> None:
    with pytest.raises(UserError, match="no clip is named; name at least one"):
        replay_site([])


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/a/street.mp4", "street"),
        ("street", "street"),
        ("a b.mp4", "a-b"),
        (".hidden.mp4", "hidden"),
        ("ü.mp4", "clip"),
        ("...", "clip"),
        ("a.b.mp4", "a.b"),
        ("-x-.mp4", "x"),
        ("n" * 100 + ".mp4", "n" * 64),
        ("日本 1.mp4", "1"),
    ],
)
def test_names_after_clips(path: str, name: str) -> None:
    assert clip_name(path) == name


def test_numbers_keep_names_apart() -> None:
    assert unique_names(["a", "a", "a-2", "a"]) == ["a", "a-2", "a-2-2", "a-3"]
    assert unique_names(["n" * 64, "n" * 64]) == ["n" * 64, "n" * 62 + "-2"]

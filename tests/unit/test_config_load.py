"""Sites that are in order: defaults, short forms, paths, secrets, overrides and origins."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Site, load_site

ROOT = Path(__file__).resolve().parents[2]
Load = Callable[..., Site]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Writes files beside a clip, goes there and loads site.yaml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clip.mp4").write_bytes(b"some bytes")

    def load(
        files: dict[str, str] | str, *overrides: str, env: dict[str, str] | None = None, at: str = "site.yaml"
    ) -> Site:
        for name, text in ({"site.yaml": files} if isinstance(files, str) else files).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return load_site(at, overrides, env=env or {})

    return load


ONE = "cameras: [{name: a, source: clip.mp4}]\n"


def test_only_cameras_must_be_stated(load: Load, tmp_path: Path) -> None:
    site = load(ONE)
    assert [device.device for device in site.devices] == ["cpu"]
    assert site.publish is not None
    assert site.publish.bind == "tcp://127.0.0.1:5600"
    assert site.sinks == ()
    assert site.batch.max_batch == "auto"
    [camera] = site.cameras
    assert camera.source.url == str(tmp_path / "clip.mp4")
    assert camera.model == "coco-ssd"
    assert (camera.confidence, camera.classes, camera.roi) == (None, None, None)
    assert list(site.models) == ["coco-ssd"]
    assert site.models["coco-ssd"].labels[:3] == ("person", "bicycle", "car")


def test_cameras_of_a_folder_are_called_after_their_files_and_sorted(load: Load) -> None:
    files = {
        f"c/{name}": "source: ../clip.mp4\n" for name in ("b.yaml", "a.yml", "gate-1.front.yaml", ".x.yaml", "n.txt")
    }
    site = load({"site.yaml": "cameras: c\n", **files, "c/z.yaml": "name: first\nsource: ../clip.mp4\n"})
    assert [camera.name for camera in site.cameras] == ["a", "b", "gate-1.front", "first"]


def test_relative_paths_count_from_the_file_that_states_them(load: Load, tmp_path: Path) -> None:
    site = load(
        {
            "deep/site.yaml": "cameras: ../c\nsinks: [{jsonl: out.jsonl}]\nlimits: {quarantine: q}\n"
            "models: {m: m/m.yaml}\npublish: {bind: 'ipc://run/x'}\n",
            "c/a.yaml": "source: ../clip.mp4\nmodel: m\n",
            "deep/m/m.yaml": "file: m.onnx\ninput: {width: 64, height: 64}\nlayout: ssd\nlabels: l.txt\n",
            "deep/m/l.txt": "one\ntwo\n\n",
        },
        at="deep/site.yaml",
    )
    assert Path(site.cameras[0].source.url).samefile(tmp_path / "clip.mp4")
    assert site.sinks[0].jsonl.path == str(tmp_path / "deep" / "out.jsonl")
    assert site.limits.quarantine == str(tmp_path / "deep" / "q")
    assert site.publish is not None
    assert site.publish.bind == f"ipc://{tmp_path}/deep/run/x"
    assert site.models["m"].folder == tmp_path / "deep" / "m"
    assert site.models["m"].labels == ("one", "two")


def test_dots_are_cut_out_of_paths_unless_a_link_is_before_them(load: Load, tmp_path: Path) -> None:
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "far" / "clip.mp4").write_bytes(b"another")
    (tmp_path / "plain").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "deep")
    site = load("cameras: [{name: a, source: plain/../clip.mp4}, {name: b, source: link/../clip.mp4}]\n")
    assert site.cameras[0].source.url == str(tmp_path / "clip.mp4")
    assert Path(site.cameras[1].source.url).read_bytes() == b"another"


def test_paths_of_overrides_count_from_the_current_folder(load: Load, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "clip.mp4").write_bytes(b"x")
    site = load({"deep/site.yaml": ONE}, "camera.a.source.url=clip.mp4", at="deep/site.yaml")
    assert site.cameras[0].source.url == str(tmp_path / "clip.mp4")


def test_home_is_known(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load(ONE.replace("clip", "~/clip")).cameras[0].source.url == str(tmp_path / "clip.mp4")


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("devices: {device: 'canned:0'}", "devices.0.device", "canned:0"),
        (
            "devices: {options: {a: 1, b: true, c: 0.5, d: x}}",
            "devices.0.options",
            {"a": "1", "b": "true", "c": "0.5", "d": "x"},
        ),
        ("publish: off", "publish", None),
        ("publish: false", "publish", None),
        ("publish: null", "publish", None),
        ("publish:", "publish.hwm", 10_000),
        ("publish:\n  # bind: tcp://*:1", "publish.hwm", 10_000),
        ("publish: on", "publish.hwm", 10_000),
        ("publish: {bind: 'tcp://*:0'}", "publish.bind", "tcp://*:0"),
        ("publish: {bind: 'tcp://[::1]:5600'}", "publish.bind", "tcp://[::1]:5600"),
        ("sinks: {jsonl: /x/out.jsonl}", "sinks.0.jsonl.path", "/x/out.jsonl"),
        ("sinks: [{jsonl: {path: '/x/{camera}', rotate_mb: 1}}]", "sinks.0.jsonl.rotate_mb", 1.0),
        ("limits: {shared_memory_mb: 64}", "limits.shared_memory_mb", 64),
        ("limits:", "limits.restarts", 10),
        ("batch: {max_wait_ms: 0}", "batch.max_wait_ms", 0.0),
    ],
)
def test_forms_of_a_site(load: Load, text: str, path: str, value: Any) -> None:
    assert at(load(ONE + text + "\n"), path) == value


def at(section: Any, path: str) -> Any:
    for step in path.split("."):
        section = section[int(step)] if step.isdecimal() else getattr(section, step)
    return section


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("source: clip.mp4", "source.loop", False),
        ("source: {url: clip.mp4, loop: true}", "source.loop", True),
        (
            "source: {url: clip.mp4, recorded_at: 2026-05-01T14:00:00+02:00}",
            "source.recorded_at",
            datetime(2026, 5, 1, 12, tzinfo=UTC),
        ),
        ("source: {url: clip.mp4, track: 3}", "source.track", 3),
        ("roi: [0, 0.25, 1, 1.0]", "roi", (0.0, 0.25, 1.0, 1.0)),
        ("roi: null", "roi", None),
        ("roi:", "roi", None),
        ("classes: [person, 3]", "classes", ("person", 3)),
        ("sampling: {every: 3}", "sampling.every", 3),
        ("sampling: {fps: 5}", "sampling.fps", 5.0),
        ("confidence: 0", "confidence", 0.0),
        ("live: {policy: newest, max_age_ms: 50}", "live.max_age_ms", 50),
        ("name: 1-2.3_x", "name", "1-2.3_x"),
    ],
)
def test_forms_of_a_camera(load: Load, text: str, path: str, value: Any) -> None:
    source = "" if text.startswith("source") else "source: clip.mp4\n"
    lines = source + text
    if "name:" not in text:
        lines += "\nname: a"
    site = load("cameras:\n- " + lines.replace("\n", "\n  ") + "\n")
    assert at(site.cameras[0], path) == value


def test_things_that_yaml_1_1_would_spoil_stay_text(load: Load) -> None:
    site = load("cameras: [{name: no, source: clip.mp4}, {name: on, source: clip.mp4}]\n")
    assert [camera.name for camera in site.cameras] == ["no", "on"]


def test_anchors_share_settings_between_inline_cameras(load: Load) -> None:
    site = load(
        "cameras:\n- {name: a, source: &s {url: clip.mp4, loop: true}}\n- {name: b, source: *s}\n",
        "camera.b.source.loop=false",
    )
    assert [camera.source.loop for camera in site.cameras] == [True, False]


# --- secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "url", "user", "password", "shown"),
    [
        ("rtsp://u:p@cam/x", "rtsp://cam/x", "u", "p", "rtsp://***@cam/x"),
        ("rtsp://u@cam", "rtsp://cam", "u", None, "rtsp://***@cam"),
        ("rtsp://u:p%40%2F@cam:554/x", "rtsp://cam:554/x", "u", "p@/", "rtsp://***@cam:554/x"),
        ("rtsp://u:p@q@cam/x", "rtsp://cam/x", "u", "p@q", "rtsp://***@cam/x"),
        ("rtsp://${U}:${P}@cam/x", "rtsp://cam/x", "me", "s/e@c:r$t", "rtsp://***@cam/x"),
        ("rtsp://cam/${U}/x", "rtsp://cam/me/x", None, None, "rtsp://cam/${U}/x"),
        (
            "rtsp://cam/x?user=a&password=b&c=1",
            "rtsp://cam/x?user=a&password=b&c=1",
            None,
            None,
            "rtsp://cam/x?user=***&password=***&c=1",
        ),
        ("RTSP://cam", "RTSP://cam", None, None, "RTSP://cam"),
        ("{url: rtsp://cam, user: '${U}', password: 'a$$b${P}$c'}", "rtsp://cam", "me", "a$bs/e@c:r$t$c", "rtsp://cam"),
        ("{url: rtsp://cam, password: '$${P}'}", "rtsp://cam", None, "${P}", "rtsp://cam"),
        ("{url: rtsp://cam, password: 'no: @x'}", "rtsp://cam", None, "no: @x", "rtsp://cam"),
    ],
)
def test_secrets_are_filled_in_and_never_shown(
    load: Load, source: str, url: str, user: str | None, password: str | None, shown: str
) -> None:
    quoted = source if source.startswith("{") else f"'{source}'"
    site = load(f"cameras: [{{name: a, source: {quoted}}}]\n", env={"U": "me", "P": "s/e@c:r$t"})
    found = site.cameras[0].source
    assert found.url == url
    assert (found.user.get_secret_value() if found.user else None) == user
    assert (found.password.get_secret_value() if found.password else None) == password
    assert found.shown == shown
    texts = [
        repr(site),
        str(site),
        site.model_dump_json(exclude={"cameras": {"__all__": {"source": {"url"}}}}),
        repr(found),
    ]
    for text in texts:
        assert "s/e@c" not in text
        assert "p@q" not in text
        assert "password=b" not in text
    assert "password" not in site.model_dump()["cameras"][0]["source"]


def test_variables_are_filled_in_nowhere_else(load: Load) -> None:
    assert (
        load(ONE + "sinks: [{jsonl: '/x/${U}{camera}'}]\n".replace("{U}", "U"), env={"U": "me"}).sinks[0].jsonl.path
        == "/x/$U{camera}"
    )


def test_a_file_name_may_hold_a_variable_and_a_dollar(load: Load, tmp_path: Path) -> None:
    (tmp_path / "me$1.mp4").write_bytes(b"x")
    site = load(ONE.replace("clip.mp4", "'${U}$$1.mp4'"), env={"U": "me"})
    assert site.cameras[0].source.url == str(tmp_path / "me$1.mp4")
    assert site.cameras[0].source.shown == "${U}$$1.mp4"


# --- overrides --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("camera.a.confidence=0.4", "cameras.0.confidence", 0.4),
        ("cameras.a.confidence=0.4", "cameras.0.confidence", 0.4),
        ("camera.a.b.confidence=0.4", "cameras.1.confidence", 0.4),
        ("camera.a.source.loop=true", "cameras.0.source.loop", True),
        ("camera.a.roi=[0, 0, 0.5, 1]", "cameras.0.roi", (0.0, 0.0, 0.5, 1.0)),
        ("camera.a.classes.0=bus", "cameras.0.classes", ("bus",)),
        ("camera.a.classes=", "cameras.0.classes", None),
        ("camera.a.max_objects=", "cameras.0.max_objects", 100),
        ("camera.a.name=z", "cameras.0.name", "z"),
        ("publish.bind=tcp://*:5700", "publish.bind", "tcp://*:5700"),
        ("publish=off", "publish", None),
        ("limits.shared_memory_mb=1", "limits.shared_memory_mb", 1),
        ("limits.shared_memory_mb=auto", "limits.shared_memory_mb", "auto"),
        ("devices.executors=3", "devices.0.executors", 3),
        ("devices.0.executors=3", "devices.0.executors", 3),
        ("devices={device: 'canned:0'}", "devices.0.device", "canned:0"),
        ("sinks.0.jsonl=/x/a", "sinks.0.jsonl.path", "/x/a"),
        ("sinks.jsonl.path=/x/a", "sinks.0.jsonl.path", "/x/a"),
        ("sinks.1.jsonl.path=/x/a", "sinks.1.jsonl.path", "/x/a"),
        ("nms.workers=2", "nms.workers", 2),
        (" batch.max_batch =8", "batch.max_batch", 8),
        ("camera.a.source={url: clip.mp4, pace: realtime}", "cameras.0.source.pace", "realtime"),
    ],
)
def test_overrides(load: Load, override: str, path: str, value: Any) -> None:
    site = (
        "cameras:\n- {name: a, source: clip.mp4, classes: [person], max_objects: 5}\n- {name: a.b, source: clip.mp4}\n"
    )
    assert at(load(site + "sinks: [{jsonl: /x/y}]\n", override), path) == value


def test_overrides_of_models_and_of_which_is_used(load: Load) -> None:
    site = load(
        ONE, "models.own=coco-ssd", "camera.a.model=own", "models.own.confidence=0.7", "models.own.input.pad_value=0"
    )
    assert list(site.models) == ["own"]
    assert site.models["own"].confidence == 0.7
    assert site.models["own"].input.pad_value == 0
    assert load(ONE, "models.coco-ssd.iou=0.9").models["coco-ssd"].iou == 0.9


def test_later_overrides_win_and_turn_what_was_off_on(load: Load) -> None:
    site = load(ONE + "publish: off\n", "publish.hwm=5", "publish.hwm=6")
    assert site.publish is not None
    assert site.publish.hwm == 6


def test_a_mistake_in_a_file_can_be_overridden(load: Load) -> None:
    assert load(ONE + "publish: {hwm: 0}\n", "publish.hwm=5").publish is not None


def test_an_override_of_a_whole_folder(load: Load) -> None:
    site = load(
        {"site.yaml": "cameras: c\n", "c/a.yaml": "source: ../clip.mp4\n", "d/b.yaml": "source: ../clip.mp4\n"},
        "cameras=d",
        "camera.b.iou=1",
    )
    assert [(camera.name, camera.iou) for camera in site.cameras] == [("b", 1.0)]


# --- origins ----------------------------------------------------------------------------------------------------------


def test_each_value_knows_where_it_was_stated(load: Load) -> None:
    site = load(
        {
            "site.yaml": "cameras: c\nbatch:\n  max_batch: 4\n",
            "c/a.yaml": "confidence: 0.5\nsource:\n  url: ../clip.mp4\n",
        },
        "camera.a.iou=0.3",
    )
    assert str(site.origin("batch", "max_batch")) == "site.yaml:3"
    assert str(site.origin("cameras", "a", "confidence")) == "c/a.yaml:1"
    assert str(site.origin("cameras", 0, "source", "url")) == "c/a.yaml:3"
    assert str(site.origin("cameras", "a", "iou")) == "--set camera.a.iou"
    assert str(site.origin("cameras", "a", "roi")) == "c/a.yaml:1"  # not stated: the camera
    assert re.search(r"coco-ssd\.yaml:[0-9]+$", str(site.origin("models", "coco-ssd", "iou")))
    assert site.origin("cameras", "b", "iou") is None
    assert site.camera("a").confidence == 0.5
    with pytest.raises(KeyError):
        site.camera("b")


# --- models -----------------------------------------------------------------------------------------------------------


def test_a_model_can_be_described_inline_in_a_file_or_by_name(load: Load) -> None:
    model = "{file: m.onnx, input: {width: 32, height: 16, std: [1, 2, 3], mean: 5}, layout: yolox, labels: [a, b]}"
    site = load(
        {
            "site.yaml": f"cameras: [{{name: a, source: clip.mp4, model: m, classes: [b]}}]\n"
            f"models:\n  m: {model}\n  n: n.yaml\n  c: coco-ssd\n",
            "n.yaml": "file: n.onnx\ninput: {width: 32, height: 32}\nlayout: ssd\nlabels: coco\nbatch: 4\n"
            f"sha256: {'AB' * 32}\noutputs: [{{name: o, shape: [3, 4]}}]\n",
        }
    )
    assert sorted(site.models) == ["c", "m", "n"]
    assert site.models["m"].input.std == (1.0, 2.0, 3.0)
    assert site.models["m"].input.mean == (5.0, 5.0, 5.0)
    assert site.models["m"].batch == "dynamic"
    assert site.models["n"].batch == 4
    assert site.models["n"].sha256 == "ab" * 32
    assert site.models["n"].outputs[0].shape == (3, 4)
    assert len(site.models["n"].labels) == 80


def test_models_of_the_users_own_folder_are_known_by_name(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.yaml").write_text(
        "file: m.onnx\ninput: {width: 32, height: 32}\nlayout: ssd\nlabels: [x]\n"
    )
    monkeypatch.setenv("CAMPIPE_MODELS", str(tmp_path / "own"))
    site = load("cameras: [{name: a, source: clip.mp4, model: mine, classes: [x]}]\n")
    assert site.models["mine"].folder == tmp_path / "own"


def test_sections_cannot_be_changed(load: Load) -> None:
    site = load(ONE)
    with pytest.raises(ValueError, match="frozen"):
        site.cameras[0].confidence = 0.5


@pytest.mark.parametrize("name", ["configs/example-site.yaml", "configs/demo/site.yaml"])
def test_the_example_sites_load(name: str) -> None:
    site = load_site(ROOT / name)
    assert len(site.cameras) == 2
    assert all(camera.source.url.endswith("street.mp4") for camera in site.cameras)


def test_the_example_of_a_live_camera_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOBBY_PASSWORD", "any #symbol@/ is fine")
    (tmp_path / "cameras").mkdir()
    (tmp_path / "cameras/lobby.yaml").write_text((ROOT / "configs/example-live-camera.yaml").read_text())
    (tmp_path / "site.yaml").write_text("cameras: cameras\n")
    (camera,) = load_site(tmp_path / "site.yaml").cameras
    assert camera.source.password is not None
    assert camera.source.password.get_secret_value() == "any #symbol@/ is fine"

"""From a Site to specs and plans, with model files found and checked."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pipeline.config import BatchRequest, DeviceRequest, load_site, resolve
from pipeline.config.resolve import class_ids
from pipeline.plan import JsonlPlan, Limits, PublishPlan
from stages.camera import CameraSpec, LinkSpec
from stages.decode.address import is_live
from stages.errors import UserError
from stages.model import TensorSpec

MODEL = (
    "file: m.onnx\ninput: {width: 64, height: 32, channels: bgr, mean: 1, std: 2}\nlayout: yolox\nlabels: [a, b, a]\n"
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with a clip and a model that is no model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CAMPIPE_MODELS", raising=False)
    (tmp_path / "clip.mp4").write_bytes(b"some bytes")
    (tmp_path / "m.yaml").write_text(MODEL)
    (tmp_path / "m.onnx").write_bytes(b"not a model")
    return tmp_path


def write(here: Path, text: str) -> Path:
    (here / "site.yaml").write_text(text)
    return here / "site.yaml"


def test_everything_stated_arrives(here: Path) -> None:
    site = load_site(
        write(
            here,
            """\
models: {m: m.yaml}
devices: [{device: cpu, executors: 2, threads: 3, lanes: 4, options: {a: 1}}, {device: 'canned:0'}]
batch: {max_batch: 8, max_wait_ms: 1.5}
nms: {workers: 3}
publish: {bind: 'tcp://*:1', hwm: 2, trace: true, heartbeat_ms: 60, join_ms: 4, stall_ms: 5, linger_ms: 6}
sinks: [{jsonl: {path: '/x/{camera}', rotate_mb: 0.5, status: true}}, {jsonl: {path: /y, merged: true}}]
limits:
  {shared_memory_mb: 2, start_ms: 101, stop_ms: 102, hang_ms: 3103, restarts: 4, restart_window_ms: 5000,
   quarantine: /q}
cameras:
- name: a
  source: {url: clip.mp4, loop: true, pace: realtime, recorded_at: 2026-05-01T00:00:00.000001Z, max_frames: 9, track: 1}
  sampling: {fps: 5}
  roi: [0, 0, 1, 0.5]
  model: m
  confidence: 0.1
  iou: 0.2
  classes: [a, 1]
  class_agnostic: true
  max_objects: 7
  live: {policy: newest, max_age_ms: 50}
- {name: b, source: clip.mp4, model: m, sampling: {every: 3}}
""",
        )
    )
    resolved = resolve(site)
    clip = str(here / "clip.mp4")
    assert resolved.cameras == (
        CameraSpec(
            "a",
            clip,
            "m",
            loop=True,
            pace="realtime",
            live=True,
            recorded_at_ns=1_777_593_600_000_001_000,
            max_frames=9,
            sample_fps=5.0,
            roi=(0.0, 0.0, 1.0, 0.5),
            confidence=0.1,
            iou=0.2,
            classes=(0, 1, 2),
            class_agnostic=True,
            max_objects=7,
            max_age_ms=50,
            track=1,
        ),
        CameraSpec("b", clip, "m", sample_every=3, confidence=0.4, iou=0.45),
    )
    assert resolved.devices == (DeviceRequest("cpu", 2, 3, 4, {"a": "1"}), DeviceRequest("canned:0", None, None, None))
    assert resolved.batch == BatchRequest(8, 1.5)
    assert resolved.nms_workers == 3
    assert resolved.publish == PublishPlan("tcp://*:1", 2, True, 60, 4, 5, 6)
    assert resolved.jsonl == (JsonlPlan("/x/{camera}", 1 << 19, False, True), JsonlPlan("/y", None, True, False))
    assert resolved.limits == Limits(2 << 20, 101, 102, 3103, 4, 5000, "/q")
    [model] = resolved.models
    assert (model.name, model.path, model.sha256) == ("m", str(here / "m.onnx"), "")
    assert (model.width, model.height, model.channels, model.input_layout) == (64, 32, "bgr", "nchw")
    assert (model.mean, model.std, model.labels) == ((1.0, 1.0, 1.0), (2.0, 2.0, 2.0), ("a", "b", "a"))
    assert (model.outputs, model.fixed_batch) == ((), None)


def test_defaults_are_those_of_the_plan_and_of_the_model(here: Path) -> None:
    site = load_site(write(here, "cameras: [{name: a, source: clip.mp4}]\n"))
    resolved = resolve(site)
    assert resolved.publish == PublishPlan("tcp://127.0.0.1:5600")
    assert resolved.limits == Limits()
    assert resolved.devices == (DeviceRequest("cpu", None, None, None),)
    assert (resolved.batch.max_batch, resolved.nms_workers, resolved.jsonl) == (None, None, ())
    [camera], [model] = resolved.cameras, resolved.models
    described = site.models["coco-ssd"]
    expected = CameraSpec("a", str(here / "clip.mp4"), "coco-ssd", confidence=described.confidence, iou=described.iou)
    assert camera == expected
    assert model.outputs == (TensorSpec("output0", (1917, 84), "float32"),)
    assert model.frame_bytes == 300 * 300 * 3
    assert Path(model.path).is_file()


def test_only_models_in_use_are_looked_for(here: Path) -> None:
    (here / "m.onnx").unlink()
    resolved = resolve(load_site(write(here, "cameras: [{name: a, source: clip.mp4}]\nmodels: {m: m.yaml}\n")))
    assert [model.name for model in resolved.models] == ["coco-ssd"]


def test_publish_off_is_none(here: Path) -> None:
    assert resolve(load_site(write(here, "cameras: [{name: a, source: clip.mp4}]\npublish: off\n"))).publish is None


SITE = """\
cameras:
- {name: a, source: clip.mp4, model: m}
- {name: b, source: rtsp://u:hunter2@cam/x, model: n}
models: {m: m.yaml, n: n.yaml}
"""


def test_all_models_that_can_not_be_used_are_told_at_once(here: Path) -> None:
    (here / "n.yaml").write_text(MODEL.replace("m.onnx", "n.onnx"))
    (here / "m.yaml").write_text(MODEL + f"sha256: {hashlib.sha256(b'other').hexdigest()}\n")
    site = load_site(write(here, SITE))
    with pytest.raises(UserError) as caught:
        resolve(site)
    first, second = caught.value.problems
    assert f"{here}/m.yaml:1: file: model file {here}/m.onnx has sha256" in first
    assert f"{here}/n.yaml:1: file: model file n.onnx is not here" in second
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("line", ["size_bytes: 12", f"sha256: {'0' * 64}"])
def test_a_model_file_of_the_wrong_size_or_content_is_refused(here: Path, line: str) -> None:
    (here / "m.yaml").write_text(MODEL + line + "\n")
    site = load_site(write(here, "cameras: [{name: a, source: clip.mp4, model: m}]\nmodels: {m: m.yaml}\n"))
    with pytest.raises(UserError, match="it is damaged or another version"):
        resolve(site)


def test_a_model_file_with_the_right_content_is_taken(here: Path) -> None:
    digest = hashlib.sha256(b"not a model").hexdigest()
    (here / "m.yaml").write_text(MODEL + f"sha256: {digest.upper()}\nsize_bytes: 11\nbatch: 4\n")
    site = load_site(write(here, "cameras: [{name: a, source: clip.mp4, model: m}]\nmodels: {m: m.yaml}\n"))
    [model] = resolve(site).models
    assert (model.sha256, model.fixed_batch) == (digest, 4)


@pytest.mark.parametrize(
    ("classes", "ids"), [(["a"], (0, 2)), ([1, "a"], (0, 1, 2)), ([2, 2], (2,)), (["b"], (1,)), ([0, "b"], (0, 1))]
)
def test_classes_by_label_or_number(classes: list[str | int], ids: tuple[int, ...]) -> None:
    assert class_ids(classes, ("a", "b", "a")) == ids


def test_a_password_stays_out_of_the_repr_of_what_is_resolved(here: Path) -> None:
    site = load_site(write(here, "cameras: [{name: a, source: 'rtsp://me:${P}@cam/x'}]\n"), env={"P": "hunter2"})
    resolved = resolve(site)
    [camera] = resolved.cameras
    assert (camera.url, camera.user, camera.password) == ("rtsp://cam/x", "me", "hunter2")
    assert camera.live
    assert camera.network
    assert camera.link == LinkSpec()
    assert "hunter2" not in repr(resolved) + repr(site)
    assert "hunter2" not in repr(camera.without_secrets())


def test_everything_stated_of_a_live_camera_arrives(here: Path) -> None:
    (here / "cams").mkdir()
    (here / "cams" / "ca.pem").write_text("certificates")
    (here / "cams" / "gate.yaml").write_text(
        """\
source:
  {url: "rtsps://cam:7441/a%2Fb?x=1", user: "${U}", password: "p%41", transport: udp, track: 1, open_timeout_ms: 101,
   read_timeout_ms: 102, stall_ms: 103, tls_verify: false, tls_ca: ca.pem,
   reconnect: {first_ms: 500, longest_ms: 400, attempts: 3}}
sampling: {keyframes: true}
corrupt: drop
model: m
"""
    )
    site = load_site(write(here, "cameras: cams\nmodels: {m: m.yaml}\n"), env={"U": "m@e"})
    [camera] = resolve(site).cameras
    assert (camera.url, camera.user, camera.password) == ("rtsps://cam:7441/a%2Fb?x=1", "m@e", "p%41")
    assert camera.link == LinkSpec("udp", 101, 102, 103, 500, 500, 3, False, str(here / "cams" / "ca.pem"))
    assert (camera.network, camera.live, camera.track, camera.keyframes, camera.corrupt) == (
        True,
        True,
        1,
        True,
        "drop",
    )


@pytest.mark.parametrize(
    ("url", "network"),
    [
        ("rtsp://cam/x", True), ("rtsps://cam", True), ("http://cam/mjpeg", True), ("https://cam/a.m3u8", True),
        ("udp://239.1.1.1:5000", True), ("/dev/video0", True), ("clip.mp4", False),
    ],
)  # fmt: skip
def test_what_is_live_is_known_by_its_address(here: Path, url: str, network: bool) -> None:
    [camera] = resolve(load_site(write(here, f"cameras: [{{name: a, source: '{url}'}}]\n"))).cameras
    assert (camera.network, camera.live) == (network, network)
    assert is_live(camera.url) == network


def test_no_camera_waits(here: Path) -> None:
    site = write(here, "cameras: [{name: a, source: 'rtsp://cam/x', live: {policy: lossless}}]\n")
    with pytest.raises(UserError, match=r'cameras\[0\].live.policy: "lossless": a camera does not wait'):
        load_site(site)


def test_a_file_of_certificates_that_is_not_there_is_refused(here: Path) -> None:
    site = write(here, "cameras: [{name: a, source: {url: 'rtsps://cam/x', tls_ca: no.pem}}]\n")
    with pytest.raises(UserError, match=r'cameras\[0\].source.tls_ca: "no.pem": no such file'):
        load_site(site)

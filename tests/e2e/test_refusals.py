"""Every mistake a user can make with a clip, a site or a model: status 2, one clear line, no traceback, nothing run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

SITE = "cameras:\n  - name: gate\n    source: {clip}\npublish: off\n"

TWICE = "cameras:\n  - {name: a, source: {clip}}\n  - {name: a, source: {clip}}\n"


def assert_refused(done: Any, *words: str) -> None:
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    problems = [line for line in done.stderr.splitlines() if line.strip()]
    assert "Traceback" not in done.stderr + done.stdout
    assert any(all(word in line for word in words) for line in problems), problems
    assert all(len(line) < 1000 for line in problems), "a message as long as the mistake"


def make_audio(path: Path) -> None:
    with wave.open(str(path), "wb") as out:
        out.setparams((1, 2, 8000, 8000, "NONE", ""))
        out.writeframes(b"\0\1" * 8000)


def text_clip(path: Path) -> None:
    path.write_text("this is no video\n" * 100)


@pytest.mark.parametrize(
    ("name", "make", "words"),
    [
        ("absent.mp4", lambda path: None, ["absent.mp4", "no such file"]),
        ("folder.mp4", lambda path: path.mkdir(), ["folder.mp4", "folder"]),
        ("text.mp4", text_clip, ["text.mp4"]),
        ("empty.mp4", lambda path: path.touch(), ["empty.mp4", "empty"]),
        ("sound.wav", make_audio, ["sound.wav", "video"]),
    ],
)
def test_clips(
    name: str, make: Callable[[Path], object], words: list[str], campipe_here: Callable[..., Any], tmp_path: Path
) -> None:
    make(tmp_path / name)
    assert_refused(campipe_here("replay", tmp_path / name), *words)


def test_all_bad_clips_are_told_at_once(campipe: Callable[..., Any], media_dir: Path, tmp_path: Path) -> None:
    text_clip(tmp_path / "text.mp4")
    make_audio(tmp_path / "sound.wav")
    done = campipe("replay", media_dir / "street.mp4", tmp_path / "text.mp4", tmp_path / "sound.wav")
    assert_refused(done, "text.mp4")
    assert_refused(done, "sound.wav")


def test_a_clip_that_ends_in_mid_frame_plays_to_the_break(
    campipe: Callable[..., Any], media_dir: Path, tmp_path: Path
) -> None:
    whole = (media_dir / "street.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(whole[: len(whole) * 6 // 10])
    done = campipe("replay", tmp_path / "cut.mp4", "--report", tmp_path / "r.json")
    assert done.returncode == 0, done.stderr
    camera = json.loads((tmp_path / "r.json").read_text())["cameras"]["cut"]
    assert camera["cause"] == "truncated"
    assert "of 100 frames" in camera["detail"]
    ledger = camera["ledger"]
    assert 30 < ledger["decoded"] == ledger["published"] < 90
    assert "truncated" in done.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SITE + "publsh: off\n", ["site.yaml:5", "publsh", "did you mean 'publish'"]),
        (SITE.replace("    source", "\tsource"), ["site.yaml:3", "tab"]),
        (SITE.replace("gate", "x" * 5000), ["site.yaml:2", "name"]),
        (SITE.replace("{clip}", "missing.mp4"), ["site.yaml:3", "missing.mp4"]),
        (TWICE, ["site.yaml:3", "is the name of the camera at site.yaml:2"]),
        (SITE + "batch: {max_batch: many}\n", ["site.yaml:5", "max_batch", "many"]),
        ("", ["site.yaml", "empty"]),
    ],
)
def test_sites(text: str, words: list[str], campipe_here: Callable[..., Any], media_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(text.replace("{clip}", str(media_dir / "street.mp4")))
    assert_refused(campipe_here("run", "site.yaml"), *words)


@pytest.mark.parametrize("command", ["check", "graph"])
def test_other_commands_refuse_a_site_alike(command: str, campipe_here: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(SITE.replace("{clip}", "missing.mp4") + "publsh: off\n")
    done = campipe_here(command, "site.yaml")
    assert_refused(done, "site.yaml:3", "missing.mp4")
    assert_refused(done, "site.yaml:5", "publsh")


SECRET = "Canary-7f3a!"
LIVE_SITE = (
    "cameras:\n  - name: gate\n    source:\n"
    f"      url: rtsp://viewer:{SECRET}@127.0.0.1:1/x\n"
    "  - name: yard\n    source:\n      url: rtsp://127.0.0.1:1/y\n      user: viewer\n      password: ${PW}\n"
)


def test_a_port_in_use(campipe_here: Callable[..., Any], media_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        done = campipe_here("replay", media_dir / "street.mp4", "--publish", address)
        assert_refused(done, address, "another program uses that port")


def test_models_of_wrong_size_or_content(campipe_here: Callable[..., Any], media_dir: Path, tmp_path: Path) -> None:
    models = media_dir.parents[1] / "configs" / "models"
    whole = (models / "coco-ssd.onnx").read_bytes()
    description = (models / "coco-ssd.yaml").read_text()
    (tmp_path / "coco-ssd.yaml").write_text(description)
    (tmp_path / "coco-ssd.onnx").write_bytes(whole[:-1000])
    done = campipe_here("replay", media_dir / "street.mp4", "--model", tmp_path / "coco-ssd.yaml")
    assert_refused(done, "coco-ssd.onnx", str(len(whole) - 1000), str(len(whole)))
    (tmp_path / "coco-ssd.onnx").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    done = campipe_here("replay", media_dir / "street.mp4", "--model", tmp_path / "coco-ssd.yaml")
    assert_refused(done, "coco-ssd.onnx", "sha256")


def test_an_unknown_model_and_an_unknown_device(campipe_here: Callable[..., Any], media_dir: Path) -> None:
    assert_refused(campipe_here("replay", media_dir / "street.mp4", "--model", "coco-sd"), "coco-sd", "coco-ssd")
    assert_refused(campipe_here("replay", media_dir / "street.mp4", "--device", "gpu"), "gpu")
    assert_refused(campipe_here("replay", media_dir / "street.mp4", "--device", "ascend:0"), "acl", "set_env.sh")


@pytest.mark.parametrize("command", ["run", "check"])
def test_too_little_shared_memory(
    command: str, campipe_here: Callable[..., Any], media_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "site.yaml").write_text(SITE.replace("{clip}", str(media_dir / "street.mp4")))
    done = campipe_here(command, "site.yaml", "--set", "limits.shared_memory_mb=1")
    assert done.returncode == 2
    assert "shared memory" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("command", "status", "says"), [("check", 2, "nobody listens"), ("graph", 0, "decode/yard")])
def test_a_password_is_nowhere(
    command: str, status: int, says: str, campipe_here: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "site.yaml").write_text(LIVE_SITE)
    done = campipe_here(command, "site.yaml", env={"PW": SECRET})
    assert done.returncode == status
    assert SECRET not in done.stdout + done.stderr
    assert says in done.stderr + done.stdout


def test_a_password_is_nowhere_in_a_run_whose_cameras_fail(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(LIVE_SITE + "publish: off\ndevices: {device: canned:0}\n")
    once = [f"--set=camera.{name}.source.reconnect.attempts=1" for name in ("gate", "yard")]
    command = [sys.executable, "-P", "-m", "pipeline", "run", "site.yaml", "--view", "none", "--log-level", "debug"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PW": SECRET}
    log = tmp_path / "log.txt"
    with log.open("w") as stderr:
        run = subprocess.Popen(
            [*command, "--report", "report.json", *once],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        deadline = time.monotonic() + 60
        while log.read_text().count("given up after one try") < 2:  # a run with cameras to mend goes on
            assert run.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        run.terminate()
        summary, _ = run.communicate(timeout=60)
    told = summary + log.read_text() + (tmp_path / "report.json").read_text()
    assert "nobody listens" in told
    assert SECRET not in told

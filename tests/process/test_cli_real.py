"""The commands with real engines, sources and models behind them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli import main

ROOT = Path(__file__).resolve().parents[2]


def environ() -> dict[str, str]:
    """Of a terminal at a desk; asked by each test, for each has its own folder for sockets."""
    return {key: value for key, value in os.environ.items() if key != "CI"} | {"PYTHONPATH": str(ROOT)}


def test_check_tries_everything_and_says_that_it_fits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text('publish: off\ncameras: [{name: gate-1, source: "asset:street.mp4"}]\n')
    assert main(["check", str(site)]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"^gate-1 +768x576 +10 +h264 +100 +coco-ssd ", out, re.MULTILINE)
    assert "all sources and models work, and it fits" in out
    assert err == ""


def test_check_tells_every_bad_source_and_the_lack_of_memory_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "text.mp4").write_text("not a video, only text\n" * 100)
    (tmp_path / "noise.mp4").write_bytes(bytes(i * 97 % 251 for i in range(5000)))
    site = tmp_path / "site.yaml"
    site.write_text(
        "publish: off\nlimits: {shared_memory_mb: 1}\ncameras:\n"
        "- {name: a, source: text.mp4}\n"
        "- {name: b, source: noise.mp4}\n"
        '- {name: c, source: "asset:street.mp4"}\n'
    )
    assert main(["check", str(site)]) == 2
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert [line.partition(str(tmp_path))[0] for line in lines[:2]] == ["campipe: camera a: ", "campipe: camera b: "]
    assert lines[2].startswith("campipe: too little shared memory: ")
    assert len(lines) == 3
    assert re.search(r"^c +768x576 ", out, re.MULTILINE)
    assert "does not fit" in out


def test_replay_writes_the_ledger_to_stdout_and_to_its_report(
    capsys: pytest.CaptureFixture[str], media_dir: Path, tmp_path: Path
) -> None:
    arguments = ["replay", str(media_dir / "street.mp4"), "--max-frames", "12", "--report", str(tmp_path / "r.json")]
    assert main([*arguments, "--jsonl", str(tmp_path / "found.jsonl"), "--copies", "2"]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"^all +24 +=  +24 ", out, re.MULTILINE)
    assert "street: max_frames reached" in out
    assert re.search(r"INFO    street-2: ended", err)
    report = json.loads((tmp_path / "r.json").read_text())
    assert {camera["ledger"]["published"] for camera in report["cameras"].values()} == {12}
    assert len((tmp_path / "found.jsonl").read_text().splitlines()) == 24


def test_replay_in_process_finds_the_same(media_dir: Path, tmp_path: Path) -> None:
    clip = str(media_dir / "street.mp4")
    for name, extra in (("a", []), ("b", ["--in-process"])):
        arguments = ["replay", clip, "--max-frames", "6", "--jsonl", str(tmp_path / name), "--view", "none"]
        assert main([*arguments, *extra]) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_replay_refuses_what_is_no_video_without_a_traceback(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "text.mp4").write_text("not a video, only text\n" * 100)
    report = tmp_path / "r.json"
    assert main(["replay", str(tmp_path / "text.mp4"), "--view", "none", "--report", str(report)]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("campipe: ")]
    assert "text.mp4" in line
    assert json.loads(report.read_text())["exit_status"] == 2


def test_a_port_in_use_is_refused_before_anything_is_decoded(
    capsys: pytest.CaptureFixture[str], media_dir: Path
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        assert main(["replay", str(media_dir / "street.mp4"), "--publish", address]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("campipe: ")
    assert address in line


@pytest.mark.parametrize(
    ("setting", "number", "status"),
    [
        ("source.loop=true", signal.SIGINT, 0),  # has no end that was missed
        ("source.pace=realtime", signal.SIGINT, 1),
        ("source.pace=realtime", signal.SIGHUP, 1),
    ],
)
def test_an_interrupt_drains_and_is_told(
    media_dir: Path, tmp_path: Path, setting: str, number: signal.Signals, status: int
) -> None:
    arguments = ["replay", str(media_dir / "street.mp4"), "--set", f"camera.street.{setting}", "--every", "0.1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", *arguments, "--report", str(tmp_path / "r.json")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ(),
        start_new_session=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if re.search(r"street: streaming .* [1-9]\d* published", line):
            break
    os.killpg(process.pid, number)  # as a terminal does: to the workers as well
    out, err = process.communicate(timeout=60)
    assert process.returncode == status
    assert f"stopping: {number.name}" in err
    assert "street: stopped on request" in out
    assert f"stopped by {number.name}" in out
    assert ("not the whole recording was played" in out) == bool(status)
    assert "restart" not in err
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["exit_status"] == status
    ledger = report["cameras"]["street"]["ledger"]
    assert ledger["decoded"] == ledger["published"] > 0


def test_the_demo_finds_people() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "demo"], capture_output=True, text=True, env=environ(), timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert "campipe subscribe tcp://127.0.0.1:" in done.stdout
    assert re.search(r"^all +200 += +200 ", done.stdout, re.MULTILINE)
    assert "Every decoded frame of 2 cameras was published.\n" in done.stdout
    assert "The subscriber got 200 of 200 detections messages.\n" in done.stdout
    assert re.search(r"People were found \d{3,} times\.", done.stdout)

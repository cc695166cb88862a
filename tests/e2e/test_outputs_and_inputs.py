"""What a run writes must never cost its user a file: outputs against inputs, other outputs, and files of others."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.cli import main

ROOT = Path(__file__).resolve().parents[2]


def environ() -> dict[str, str]:
    """Of a terminal at a desk; asked by each test, for each has its own folder for sockets."""
    return {key: value for key, value in os.environ.items() if key != "CI"} | {"PYTHONPATH": str(ROOT)}


@pytest.fixture
def folder(tmp_path: Path, media_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with two recordings, a link of each kind to the first, and a site."""
    for name in ("a.mp4", "b.mp4"):
        shutil.copy(media_dir / "street.mp4", tmp_path / name)
    (tmp_path / "soft").symlink_to("a.mp4")
    (tmp_path / "hard").hardlink_to(tmp_path / "a.mp4")
    (tmp_path / "up").symlink_to(".")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def campipe(*arguments: str | bytes, **options: object) -> subprocess.CompletedProcess[str]:
    settings = {"capture_output": True, "text": True, "env": environ(), "timeout": 60} | options
    return subprocess.run([sys.executable, "-m", "pipeline", *arguments], **settings)  # type: ignore[call-overload,no-any-return]


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> list[str]:
    before = contents(folder)
    assert main(arguments) == 2
    assert contents(folder) == before
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("campipe: ")]


@pytest.mark.parametrize(
    "arguments",
    [
        ["a.mp4", "--jsonl", "a.mp4"],
        ["--jsonl", "a.mp4", "b.mp4", "a.mp4"],
        ["a.mp4", "--report", "a.mp4"],
        ["a.mp4", "--jsonl", "./a.mp4"],
        ["a.mp4", "--jsonl", "up/a.mp4"],
        ["a.mp4", "--report", "soft"],
        ["a.mp4", "--jsonl", "soft"],
        ["a.mp4", "--report", "hard"],
        ["a.mp4", "--jsonl", "hard"],
        ["soft", "--jsonl", "a.mp4"],
        ["a.mp4", "--jsonl", "{camera}.mp4"],
        ["a.mp4", "--jsonl", "x", "--report", "x"],
        ["a.mp4", "--jsonl", "./x", "--report", "up/x"],
        ["a.mp4", "no-such.mp4", "--report", "a.mp4"],
    ],
)
def test_an_output_overwrites_a_recording_or_another_output(
    capsys: pytest.CaptureFixture[str], folder: Path, arguments: list[str]
) -> None:
    lines = refused(capsys, folder, "replay", *arguments)
    assert lines
    assert "overwritten; name another file" in lines[0]


def test_a_recording_that_is_not_played_is_overwritten_by_a_slip(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    for option in ("--jsonl", "--report"):
        (line,) = refused(capsys, folder, "replay", option, "a.mp4", "b.mp4")
        assert "a.mp4: a file of that name is there, and campipe has not written it; choose another name" in line


def test_files_of_ours_are_replaced_as_ever(folder: Path) -> None:
    for _ in range(2):
        arguments = ["replay", "a.mp4", "--max-frames", "1", "--view", "none", "--in-process"]
        assert main([*arguments, "--jsonl", "out", "--report", "r.json"]) == 0
    assert len((folder / "out").read_text().splitlines()) == 1


SITE = """\
{"cameras": "cameras", "publish": "off", "models": {"own": "own.yaml"}, "sinks": [%s]}
"""


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize(
    ("sinks", "says"),
    [
        (["site.yaml"], "the site's file"),
        (["cameras/gate.yaml"], "a file that the site is read from"),
        (["own.yaml"], "a file that the site is read from"),
        (["a.mp4"], "the recording of camera gate"),
        (["model.onnx"], "the file of model own"),
        (["{camera}.jsonl", "gate.jsonl"], "is written too"),
        (["x", "up/x"], "is written too"),
        (["notes.txt"], "campipe has not written it"),
    ],
)
def test_a_site_overwrites_its_own_files(
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    sinks: Sequence[str],
    says: str,
) -> None:
    from pipeline.preflight import trial

    monkeypatch.setattr(trial, "try_all", lambda _plan, **_: ({}, {}, []))  # sources and models are not the point
    models = ROOT / "configs" / "models"
    text = (models / "coco-ssd.yaml").read_text()
    (folder / "own.yaml").write_text(re.sub(r"(?m)^file: .*$", "file: model.onnx", text))
    from pipeline.models import store

    shutil.copy(store.find_file("coco-ssd.onnx", models), folder / "model.onnx")
    (folder / "cameras").mkdir()
    (folder / "cameras" / "gate.yaml").write_text('{"source": "../a.mp4", "model": "own"}\n')
    (folder / "notes.txt").write_text("milk, bread\n")
    (folder / "site.yaml").write_text(SITE % ", ".join(f'{{"jsonl": "{sink}"}}' for sink in sinks))
    (line,) = refused(capsys, folder, command, "site.yaml")
    assert says in line
    assert (folder / "cameras" / "gate.yaml").read_text().startswith('{"source"')


@pytest.mark.parametrize("report", ["site.yaml", "cameras/gate.yaml"])
def test_the_report_of_a_site_that_is_refused_overwrites_the_site(
    capsys: pytest.CaptureFixture[str], folder: Path, report: str
) -> None:
    (folder / "cameras").mkdir()
    (folder / "cameras" / "gate.yaml").write_text('{"source": "../none.mp4"}\n')
    (folder / "site.yaml").write_text('{"cameras": "cameras", "publish": "off"}\n')
    refused(capsys, folder, "run", "site.yaml", "--report", report)
    assert "none.mp4" in (folder / "cameras" / "gate.yaml").read_text()


def test_rotation_renames_what_is_there_and_is_allowed_but_for_inputs(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "notes.txt").write_text("milk, bread\n")
    base = '{"cameras": [{"name": "gate", "source": {"url": "a.mp4", "max_frames": 1}}], "publish": "off", "sinks": '
    (folder / "site.yaml").write_text(base + '[{"jsonl": {"path": "notes.txt", "rotate_mb": 1}}]}')
    assert main(["run", "site.yaml", "--view", "none", "--in-process"]) == 0
    assert (folder / "notes.1.txt").read_text() == "milk, bread\n"
    capsys.readouterr()
    (folder / "site.yaml").write_text(base + '[{"jsonl": {"path": "a.mp4", "rotate_mb": 1}}]}')
    (line,) = refused(capsys, folder, "run", "site.yaml")
    assert "the recording of camera gate" in line


@pytest.mark.parametrize("place", ["/proc/none/q", "a.mp4/q"])
def test_a_quarantine_that_can_not_be_written_is_known_when_it_is_needed(
    capsys: pytest.CaptureFixture[str], folder: Path, place: str
) -> None:
    (line,) = refused(capsys, folder, "replay", "a.mp4", "--set", f"limits.quarantine={place}")
    assert "limits.quarantine" in line
    assert "name another folder" in line


# --- streams ----------------------------------------------------------------------------------------------------------

SHORT = ("replay", "a.mp4", "--max-frames", "1", "--view", "none", "--in-process")


def test_no_report_when_the_summary_has_nowhere_to_go(folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = campipe(*SHORT, "--report", "r.json", stdout=full, stderr=subprocess.PIPE, capture_output=False)
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert json.loads((folder / "r.json").read_text())["exit_status"] == 0


def test_a_terminal_without_unicode_ends_in_an_internal_error(folder: Path) -> None:
    shutil.copy("a.mp4", "straße.mp4")
    settings = environ() | {"PYTHONIOENCODING": "ascii:strict"}
    done = campipe("replay", "straße.mp4", *SHORT[2:], "--report", "r.json", env=settings)
    assert (done.returncode, done.stderr) == (0, "")
    assert campipe("replay", "nö.mp4", env=settings).stderr.startswith('campipe: "n\\xf6.mp4": no such file')
    assert (folder / "r.json").exists()


def test_a_report_to_a_pipe_that_nobody_reads_hangs_after_the_run(folder: Path) -> None:
    os.mkfifo("pipe")
    done = campipe(*SHORT, "--report", "pipe")
    assert done.returncode == 2
    assert "nobody reads from that pipe; start what is to read it first" in done.stderr
    with subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE, text=True) as cat:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # cat has opened it once this succeeds; kept open, so that cat stays
                held = os.open("pipe", os.O_WRONLY | os.O_NONBLOCK)
                break
            time.sleep(0.01)
        assert campipe(*SHORT, "--report", "pipe").returncode == 0
        os.close(held)
        out, _ = cat.communicate(timeout=20)
    assert json.loads(out)["exit_status"] == 0
    assert folder.joinpath("pipe").is_fifo()


def hung_up(arguments: Sequence[str], *, nohup: bool) -> int:
    """The status (as of waitpid) of a campipe whose terminal is closed as soon as frames are published."""
    pid, terminal = pty.fork()
    if pid == 0:
        if nohup:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.execve(sys.executable, [sys.executable, "-m", "pipeline", *arguments], environ())
    seen = b""
    deadline = time.monotonic() + 60
    while not re.search(rb" [1-9]\d* published", seen) and time.monotonic() < deadline:
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 65536)
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_closing_the_terminal_kills_the_run_without_a_report(folder: Path) -> None:
    arguments = ["replay", "a.mp4", "--set", "camera.a.source.pace=realtime", "--report", "r.json", "--every", "0.1"]
    status = hung_up([*arguments, "--view", "lines"], nohup=False)
    report = json.loads((folder / "r.json").read_text())
    assert (report["stopped_by"], report["exit_status"], status) == ("SIGHUP", 1, 1)
    ledger = report["cameras"]["a"]["ledger"]
    assert 0 < ledger["decoded"] == ledger["published"] < 100


def test_a_run_with_nohup_outlives_its_terminal(folder: Path) -> None:
    arguments = ["replay", "a.mp4", "--max-frames", "30", "--every", "0.1", "--view", "lines"]
    hung_up([*arguments, "--set", "camera.a.source.pace=realtime", "--report", "r.json"], nohup=True)
    report = json.loads((folder / "r.json").read_text())
    assert (report["stopped_by"], report["cameras"]["a"]["ledger"]["published"]) == ("", 30)


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_file_name_that_is_not_utf8_is_refused_with_a_false_sentence(folder: Path) -> None:
    odd = b"odd\xff"
    Path(os.fsdecode(odd)).mkdir()
    shutil.copy(b"a.mp4", odd + b"/a.mp4")
    shutil.copy(b"a.mp4", odd + b".mp4")
    for name in (odd + b".mp4", odd + b"/a.mp4"):
        done = campipe("replay", name)
        assert done.returncode == 2
        assert "not UTF-8; rename it" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    done = campipe("replay", "a.mp4", cwd=odd)
    assert (done.returncode, "not UTF-8; rename it" in done.stderr) == (2, True)
    done = campipe(*SHORT, "--jsonl", odd)
    assert (done.returncode, "not UTF-8; rename it" in done.stderr) == (2, True)
    assert campipe(*SHORT, "--report", odd + b".json").returncode == 0
    assert json.loads((folder / os.fsdecode(odd + b".json")).read_text())["exit_status"] == 0


def test_a_folder_that_is_gone_is_an_internal_error(folder: Path) -> None:
    script = f"mkdir gone && cd gone && rmdir ../gone && exec {sys.executable} -m pipeline replay a.mp4"
    done = subprocess.run(["sh", "-c", script], env=environ(), capture_output=True, text=True, timeout=60, cwd=folder)
    says = "campipe: the folder that this was started in exists no longer; change to one that does\n"
    assert (done.returncode, done.stderr) == (2, says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", ""], "argument SITE: '' names nothing; name a site file"),
        (["check", ""], "argument SITE: '' names nothing"),
        (["graph", ""], "argument SITE: '' names nothing"),
        (["replay", ""], "argument CLIP: '' names nothing; name a video file"),
        (["replay", "a.mp4", "--jsonl", ""], "argument --jsonl: '' names nothing"),
        (["replay", "a.mp4", "--report", ""], "argument --report: '' names nothing"),
        (["replay", "a.mp4", "--model", ""], "argument --model: '' names nothing"),
        (["replay", "a.mp4", "--jsonl", "-"], "write /dev/stdout for the standard output"),
        (["replay", "a.mp4", "--report", "-"], "write /dev/stdout for the standard output"),
        (["replay", "a.mp4", "--model", "../../../etc/passwd"], "a description's path ends in .yaml or .yml"),
        (["models", "path", "../../../etc/passwd"], "neither the name of a model nor a description"),
    ],
)
def test_a_name_that_is_none_is_told_as_something_else(
    capsys: pytest.CaptureFixture[str], folder: Path, arguments: list[str], says: str
) -> None:
    (line,) = refused(capsys, folder, *arguments)
    assert says in line


@pytest.mark.parametrize("value", ["x" * 5000, "/nowhere/at/all", "~nobody-of-that-name/x"])
def test_a_bad_folder_of_models_is_told_with_a_false_second_problem(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("CAMPIPE_MODELS", value)
    for arguments in (["replay", "a.mp4"], ["models", "list"], ["models", "path", "coco-ssd"]):
        (line,) = refused(capsys, folder, *arguments)
        assert "which is not a folder" in line
        assert len(line) < 400

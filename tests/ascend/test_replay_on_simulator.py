"""Replays of the clip on the simulator, the sanitizer on: the detections of the CPU, and every frame accounted for."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stages.accelerators.aclsim import describe

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "configs" / "models"
CLIP = ROOT / "tests" / "media" / "street.mp4"
FRAMES = 14
pytestmark = pytest.mark.timeout(240)  # a busy machine; on a quiet one each takes 2 to 4 seconds

Replay = Callable[..., "subprocess.CompletedProcess[str]"]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-P", "-m", "pipeline", "replay", str(CLIP), "--view", "none", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}


@pytest.fixture(autouse=True, scope="module")
def _own_run_folder() -> Iterator[None]:
    """Sockets in a place of its own, so that no other campipe of this machine tidies there."""
    with tempfile.TemporaryDirectory(prefix="ct-", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        yield


@pytest.fixture
def replay(tmp_path: Path) -> Replay:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command("--jsonl", "out.jsonl", "--report", "report.json", *arguments),
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=220,
            stdin=subprocess.DEVNULL,
        )

    return run


def option(**options: str) -> list[str]:
    return [word for key, value in options.items() for word in ("--set", f"devices.0.options.{key}={value}")]


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("cpu") / "out.jsonl"
    done = subprocess.run(
        command("--max-frames", FRAMES, "--device", "cpu", "--jsonl", out),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert done.returncode == 0, done.stderr
    return out.read_bytes()


def model_with_om(folder: Path, batch: int | tuple[int, ...]) -> Path:
    """The default model's description with an OM beside it."""
    description = (MODELS / "coco-ssd.yaml").read_text(encoding="utf-8")
    onnx = MODELS / "coco-ssd.onnx"
    describe(onnx, batch=batch, width=300, height=300).write(folder / "model.om")
    shown = batch if isinstance(batch, int) else list(batch)
    path = folder / "coco-ssd.yaml"
    text = description.replace("file: coco-ssd.onnx", f"file: {onnx}")
    path.write_text(f"{text}\nom: {{file: model.om, batch: {shown}}}\n", encoding="utf-8")
    return path


def assert_clean(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    assert "sanitizer" not in done.stderr, done.stderr
    assert "left at its end" not in done.stderr, done.stderr


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "batch",
    [pytest.param(None, marks=LONG), 4, pytest.param((1, 2, 4, 8), marks=LONG)],
    ids=["no-om", "batch-4", "gears"],
)
def test_detections_are_those_of_the_cpu(
    batch: int | tuple[int, ...] | None, replay: Replay, on_cpu: bytes, tmp_path: Path
) -> None:
    model = [] if batch is None else ["--model", model_with_om(tmp_path, batch)]
    done = replay("--max-frames", FRAMES, "--device", "ascend-sim:0", *model)
    assert_clean(done)
    assert (tmp_path / "out.jsonl").read_bytes() == on_cpu


def assert_exact(report: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    for camera in told["cameras"].values():
        ledger = camera["ledger"]
        assert camera["exact"]
        assert ledger["decoded"] == ledger["published"] + sum(ledger["dropped"].values()) + ledger["in_flight"]
    return told


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("fail the 9th execute_async with 507018", "507018"),
        pytest.param("hang the 9th execute_async", "has not ended in 2000 ms", marks=pytest.mark.long),
        pytest.param("fail the 18th memcpy_async with 507899", "507899", marks=pytest.mark.long),
    ],
    ids=["aicpu-exception", "hang", "driver"],
)
def test_a_device_that_fails_in_the_middle(
    fault: str, told: str, replay: Replay, on_cpu: bytes, tmp_path: Path
) -> None:
    """The process ends and another goes on: no frame is lost, none comes twice, the detections are the same."""
    options = option(faults=f"{fault} once", state_path="state.json", hang_ms="2000")
    done = replay("--max-frames", FRAMES, "--device", "ascend-sim:0", "--batch", "1", *options)
    assert done.returncode == 0, done.stderr
    assert told in done.stderr
    report = assert_exact(tmp_path / "report.json")
    assert report["cameras"]["street"]["ledger"]["published"] == FRAMES
    assert report["stages"]["executor"]["restarts"] >= 1  # a very busy machine may seem to hang once more
    assert (tmp_path / "out.jsonl").read_bytes() == on_cpu


@pytest.mark.long
def test_a_failure_that_needs_no_new_process(replay: Replay, on_cpu: bytes, tmp_path: Path) -> None:
    options = option(faults="fail the 7th execute_async with 500002")
    done = replay("--max-frames", FRAMES, "--device", "ascend-sim:0", "--batch", "1", *options)
    assert done.returncode == 0, done.stderr
    assert "its lanes are rebuilt" in done.stderr
    assert "left at its end" not in done.stderr, done.stderr
    assert assert_exact(tmp_path / "report.json")["stages"]["executor"]["restarts"] == 0
    assert (tmp_path / "out.jsonl").read_bytes() == on_cpu


def test_sigterm_leaves_nothing(tmp_path: Path) -> None:
    options = option(compute="canned", service_ms="1=60", variant="B")
    arguments = (
        "--device",
        "ascend-sim:0",
        "--batch",
        "1",
        "--report",
        "report.json",
        "--jsonl",
        "out.jsonl",
        *options,
    )
    with subprocess.Popen(
        command(*arguments, *options),
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 120
        out = tmp_path / "out.jsonl"
        while not (out.is_file() and out.stat().st_size) and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=100)
    assert process.returncode == 1, told  # stopped before its end
    assert "sanitizer" not in told, told
    assert "left at its end" not in told, told
    assert "was not closed" not in told, told
    report = assert_exact(tmp_path / "report.json")
    assert 0 < report["cameras"]["street"]["ledger"]["published"] < 100
    assert report["stages"]["executor"]["restarts"] == 0


@pytest.mark.long
def test_eight_executors_on_two_devices(replay: Replay, tmp_path: Path) -> None:
    two = [word for n in (0, 1) for word in ("--set", f"devices.{n}.device=ascend-sim:{n}", "--set",
           f"devices.{n}.executors=4", "--set", f"devices.{n}.options.compute=canned")]  # fmt: skip
    done = replay("--copies", "3", "--max-frames", "60", *two)
    assert_clean(done)
    report = assert_exact(tmp_path / "report.json")
    assert report["stages"]["executor"]["workers"] == 2  # a process for each device
    assert len(re.findall("\n", (tmp_path / "out.jsonl").read_text(encoding="utf-8"))) >= 3 * 60

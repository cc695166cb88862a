"""Where a run puts its sockets: odd temporary folders, killed parents, too few descriptors."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from leaks import family, left_after

from pipeline.config import replay_site, resolve
from pipeline.engine import Engine
from pipeline.observe.snapshot import EngineSnapshot
from pipeline.plan import DevicePlan
from pipeline.planning import make_plan
from pipeline.report import RunReport
from pipeline.transport import channel
from stages.messages import Detections
from stages.sinks.collect import CollectSink

ROOT = Path(__file__).resolve().parents[2]


def command(media_dir: Path, *more: str) -> list[str]:
    clip = str(media_dir / "street.mp4")
    return [sys.executable, "-P", "-m", "pipeline", "replay", clip, "--device", "canned:0", "--max-frames", "3", *more]


def environment(**settings: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **settings}


@pytest.mark.parametrize("name", ["t" * 200, "ü" * 60, "with space", "gone"])
def test_odd_temporary_folders(name: str, media_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / name
    if name != "gone":
        folder.mkdir()
    settings = environment(TMPDIR=str(folder))
    settings.pop("XDG_RUNTIME_DIR", None)
    done = subprocess.run(command(media_dir), env=settings, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not folder.exists() or not list(folder.iterdir())


def test_a_parent_killed_while_it_starts_leaves_nothing_for_long(
    media_dir: Path, tmp_path: Path, run_folder: Path
) -> None:
    for delay_s in (0.15, 0.3, 0.45, 0.6, 0.9):
        run = subprocess.Popen(
            command(media_dir, "--copies", "2"),
            env=environment(TMPDIR=str(tmp_path)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(delay_s)
        workers = family(run.pid)
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        assert not left_after(workers, within_s=20)
    assert list(tmp_path.iterdir()) == []
    done = subprocess.run(command(media_dir), env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert list(run_folder.iterdir()) == [], "what a killed run could not remove, the next one does"


MAKES_ONE = """
from pipeline.config import replay_site, resolve
from pipeline.engine import Engine
from pipeline.observe.snapshot import EngineSnapshot
from pipeline.plan import DevicePlan
from pipeline.planning import make_plan
from pipeline.report import RunReport
from pipeline.transport import channel
from stages.messages import Detections
from stages.sinks.collect import CollectSink
folder = channel.run_folder()
print(folder.__enter__(), flush=True)
input()
"""


def test_folders_of_the_living_are_not_swept(run_folder: Path) -> None:
    others = [run_folder / name for name in ("campipe-notes", "campipe-2024-notes", "campipe-1-Abcdefgh")]
    for folder in others:
        folder.mkdir()
    (run_folder / "campipe-1-00000000").symlink_to(others[0])
    with channel.run_folder() as mine:
        with channel.run_folder() as second:
            assert mine.exists()
        assert not second.exists()
    assert sorted(run_folder.iterdir()) == sorted([*others, run_folder / "campipe-1-00000000"])
    (run_folder / "campipe-1-00000000").unlink()
    for folder in others:
        folder.rmdir()


@pytest.mark.parametrize("reaped", [True, False])
def test_the_folder_of_a_zombie_or_of_a_number_that_is_in_use_again_is_never_swept(
    run_folder: Path, *, reaped: bool
) -> None:
    code = [sys.executable, "-P", "-c", MAKES_ONE]
    with subprocess.Popen(code, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        made = Path(maker.stdout.readline().rstrip())
        with channel.run_folder():
            assert made.exists()
        maker.kill()
        if reaped:
            maker.wait()
            made = made.rename(run_folder / f"campipe-{os.getpid()}-{made.name.rpartition('-')[2]}")
        else:
            os.waitid(os.P_PID, maker.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        with channel.run_folder():
            assert not made.exists()


def test_the_forkserver_killed_while_workers_start_is_no_internal_error(media_dir: Path) -> None:
    for _ in range(3):
        run = subprocess.Popen(
            command(media_dir, "--copies", "3"),
            env=environment(),
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 20
        killed = False
        while not killed and time.monotonic() < deadline and run.poll() is None:
            for child in psutil.Process(run.pid).children():  # forked workers have the forkserver's command line
                with contextlib.suppress(psutil.Error):
                    if any("forkserver" in part for part in child.cmdline()):
                        time.sleep(0.1)
                        child.kill()
                        killed = True
        _, errors = run.communicate(timeout=60)
        assert "internal error" not in errors
        assert "Traceback" not in errors
        assert run.returncode == 0, errors


def test_a_run_whose_folder_is_removed_goes_on_ends_cleanly_and_says_why_no_worker_can_be_replaced(
    media_dir: Path, run_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = replay_site([media_dir / "street.mp4"], overrides=["publish=off", "camera.street.source.loop=true"])
    plan = make_plan(resolve(site))
    plan = dataclasses.replace(plan, devices=(DevicePlan("canned:0", 1, 1, 2, {"objects": "1"}),), nms_workers=2)
    sink, reports, snapshots = CollectSink(), list[RunReport](), list[EngineSnapshot]()
    engine = Engine(plan, [sink], snapshots.append, 20)
    thread = threading.Thread(target=lambda: reports.append(engine.run()))
    thread.start()

    def published() -> int:
        return sum(isinstance(message, Detections) for message in sink.messages)

    def until(condition: Callable[[], object]) -> None:
        until_s = time.monotonic() + 60
        while not condition():
            assert thread.is_alive()
            assert time.monotonic() < until_s
            time.sleep(0.01)

    try:
        until(lambda: published() > 5)
        for folder in run_folder.iterdir():
            shutil.rmtree(folder)
        count = published()
        until(lambda: published() > count + 20)
        os.kill(next(each.pid for each in snapshots[-1].workers if each.kind == "nms"), signal.SIGKILL)
        until(lambda: "was removed, and its sockets with it" in caplog.text)
        count = published()
        until(lambda: published() > count + 20)
    finally:
        engine.request_stop("enough")
        thread.join(60)
    (report,) = reports
    assert report.exit_status == 0, report.problems
    assert all(camera.exact for camera in report.cameras.values())


def test_too_few_descriptors_are_told_before_anything_starts(media_dir: Path) -> None:
    limited = ["bash", "-c", 'ulimit -n 100; exec "$@"', "-", *command(media_dir, "--copies", "30")]
    done = subprocess.run(limited, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "too few file descriptors" in done.stderr
    assert "ulimit -n" in done.stderr

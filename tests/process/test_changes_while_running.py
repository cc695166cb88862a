"""Cameras of a running site are added, removed, paused, changed: real processes, looping clips, the real socket."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.cli import main
from pipeline.commands.run import look, make_desk
from pipeline.config import load_site, resolve
from pipeline.control import client
from pipeline.control.protocol import Answer, Request
from pipeline.engine import Engine
from pipeline.observe.snapshot import EngineSnapshot
from pipeline.planning import make_plan
from pipeline.report import RunReport
from pipeline.sinks import build
from stages.messages import Detections, Status
from stages.sinks.collect import CollectSink

SITE = """
cameras: cameras
devices: [{device: "canned:0", executors: 2, options: {service_ms: 4, objects: 3}}]
batch: {max_batch: 2}
publish: off
limits: {restarts: 50}
"""
DEADLINE_S = 30.0


class LiveSite:
    """A site of looping recordings that runs in a thread."""

    def __init__(self, folder: Path, clip: Path) -> None:
        self.folder = folder
        self.clip = clip
        self.sink = CollectSink()
        self.snapshot: EngineSnapshot | None = None
        self.report: RunReport | None = None
        self.engine: Engine
        self.thread: threading.Thread
        self.site = folder / "site.yaml"
        self.site.write_text(SITE)
        (folder / "cameras").mkdir()

    def camera(self, name: str, text: str = "", *, folder: str = "cameras") -> Path:
        """Write a camera's file, whole or not at all."""
        path = self.folder / folder / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(f"source: {{url: {self.clip}, loop: true, pace: realtime}}\n{text}")
        new.rename(path)
        return path

    def start(self, before_watching: Callable[[], object] = lambda: None) -> None:
        known = look(str(self.site), [])
        site = load_site(self.site, may_be_empty=True)
        resolved = resolve(site)
        before_watching()
        desk = make_desk(str(self.site), [], site, resolved, known)
        plan = make_plan(resolved)
        self.engine = Engine(plan, [self.sink, *build(plan)], self._keep, 20, desk=desk)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        self.until(lambda: self.engine.dispatcher.gates_open)

    def _run(self) -> None:
        self.report = self.engine.run()

    def _keep(self, snapshot: EngineSnapshot) -> None:
        self.snapshot = snapshot

    def until(self, true: Callable[[], object], what: str = "") -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not true():
            assert self.thread.is_alive(), "the run has ended"
            assert time.monotonic() < deadline, f"it did not come to it: {what}"
            time.sleep(0.01)

    def ask(self, do: str, **more: str) -> Answer:
        return client.ask(client.find_socket(str(self.site)), Request(do=do, **more), 30)  # type: ignore[arg-type]

    def frames(self, camera: str, since: int = 0) -> list[Detections]:
        return [m for m in self.sink.messages[since:] if isinstance(m, Detections) and m.camera == camera]

    def statuses(self, camera: str) -> list[tuple[str, str]]:
        return [(m.state, m.cause) for m in self.sink.messages if isinstance(m, Status) and m.camera == camera]

    def plays(self, *cameras: str) -> None:
        """Each of them publishes something from now on."""
        since = len(self.sink.messages)
        self.until(lambda: all(self.frames(camera, since) for camera in cameras), f"{cameras} play")

    def worker(self, name: str) -> Any:
        assert self.snapshot is not None
        return next((w for w in self.snapshot.workers if w.name == name), None)

    def end(self) -> RunReport:
        self.engine.request_stop("test")
        self.thread.join(30)
        assert not self.thread.is_alive(), "the run did not end"
        assert self.report is not None
        for name, camera in self.report.cameras.items():
            assert camera.exact, name
            assert camera.ledger.in_flight == 0, name
            told = [(m.epoch, m.seq) for m in self.frames(name)]
            assert told == sorted(set(told)), f"{name}: twice, or out of order"
            assert camera.ledger.published == len(told), name
        return self.report


@pytest.fixture
def site(tmp_path: Path, media_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveSite]:
    monkeypatch.setattr("pipeline.commands.run.WATCH_EVERY_S", 0.2)
    made = LiveSite(tmp_path, media_dir / "street.mp4")
    yield made
    if made.thread.is_alive():
        made.engine.request_stop("cleanup")
        made.engine.request_stop("cleanup")
        made.thread.join(20)


def test_everything_that_ctl_can_do_while_the_other_camera_feels_nothing(site: LiveSite) -> None:
    site.camera("stays")
    site.camera("comes")
    site.start()
    site.plays("stays", "comes")
    before = len(site.sink.messages)

    assert site.ask("pause", camera="comes").text == ["camera comes is paused"]
    site.until(lambda: site.statuses("comes")[-1] == ("paused", "paused"))
    paused = site.frames("comes")[-1]
    assert site.ask("pause", camera="comes").text == ["camera comes is paused already"]
    status = site.ask("status").status
    assert status is not None
    assert {c["name"]: c["state"] for c in status["cameras"]} == {"stays": "streaming", "comes": "paused"}

    assert site.ask("resume", camera="comes").ok
    site.plays("comes")
    assert site.statuses("comes")[-1] == ("started", "resumed")
    after = next(m for m in site.frames("comes") if (m.epoch, m.seq) > (paused.epoch, paused.seq))
    assert (after.epoch, after.seq) == (paused.epoch, paused.seq + 1), "a recording goes on at the next frame"

    assert site.ask("remove", camera="comes").ok
    site.until(lambda: site.statuses("comes")[-1] == ("ended", "removed"))
    site.until(lambda: site.worker("decode/comes") is None)
    epoch = site.frames("comes")[-1].epoch
    assert not site.ask("remove", camera="comes").ok
    assert not site.ask("pause", camera="nobody").ok
    reloaded = site.ask("reload")
    assert reloaded.text == ["nothing changed"], "what was removed by hand stays away until its file changes"

    added = site.ask("add", file=str(site.folder / "cameras" / "comes.yaml"))
    assert added.text == ["added comes"], added
    site.plays("comes")
    assert site.frames("comes")[-1].epoch > epoch
    elsewhere = site.camera("third", "confidence: 0.9\n", folder="elsewhere")
    assert site.ask("add", file=str(elsewhere)).ok
    site.plays("third")
    again = site.ask("add", file=str(elsewhere))
    assert not again.ok
    assert "already" in again.text[0]
    missing = site.ask("add", file=str(site.folder / "nothing.yaml"))
    assert not missing.ok

    seqs = [(m.epoch, m.seq) for m in site.frames("stays", before)]
    report = site.end()
    for (epoch_a, a), (epoch_b, b) in itertools.pairwise(seqs):
        assert (epoch_b == epoch_a and b == a + 1) or (epoch_b == epoch_a + 1 and b == 0), "the other lost a frame"
    assert report.cameras["stays"].ledger.dropped == {}
    assert report.exit_status == 0, report.problems


def test_edited_files_take_effect_and_bad_ones_change_nothing(site: LiveSite, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "campipe.control")
    site.camera("one", "confidence: 0.01\n")
    site.camera("two")
    site.start()
    site.plays("one", "two")
    decoder = site.worker("decode/one").pid

    site.camera("one", "confidence: 1.0\n")  # in place: nothing of the made-up device is so sure
    site.until(lambda: site.frames("one")[-1].objects == [], "the new threshold")
    assert site.worker("decode/one").pid == decoder, "the worker was not replaced"
    assert ("reconnecting", "reloaded") not in site.statuses("one")

    site.camera("one", "confidence: 7\n")
    site.until(lambda: "confidence: 7" in caplog.text, "the refusal")
    status = site.ask("status").status
    assert status is not None
    assert any("confidence" in problem for problem in status["problems"])
    refused = site.ask("reload")
    assert not refused.ok
    assert "one.yaml" in refused.text[0]
    site.camera("new", "model: no-such-model\n")
    site.camera("one", "confidence: 1.0\n")
    assert not site.ask("reload").ok
    site.plays("one", "two")
    assert set(site.engine.dispatcher.cameras) == {"one", "two"}

    site.camera("new", "confidence: 0.2\n")
    (site.folder / "cameras" / "two.yaml").unlink()
    site.until(lambda: {"one", "new"} == set(site.engine.dispatcher.cameras), "the files' doing")
    site.plays("one", "new")
    status = site.ask("status").status
    assert status is not None
    assert status["problems"] == []
    assert "the files are right again, and used" in caplog.text

    since = len(site.sink.messages)
    path = site.folder / "cameras" / "one.yaml"
    path.write_text(f"source: {{url: {site.clip}, loop: true, pace: realtime, max_frames: 100000}}\n")
    site.until(lambda: ("reconnecting", "reloaded") in site.statuses("one"), "its restart")
    epoch = max(m.epoch for m in site.frames("one"))
    site.until(lambda: site.frames("one") and site.frames("one")[-1].epoch > epoch, "a new epoch")
    assert site.worker("decode/one").pid != decoder
    assert len(site.frames("new", since)) > 3
    report = site.end()
    assert set(report.cameras) == {"one", "two", "new"}
    assert report.cameras["two"].cause == "removed"


def test_files_that_are_edited_while_the_run_starts_are_not_taken_for_known(site: LiveSite) -> None:
    site.camera("one")
    site.start(before_watching=lambda: site.camera("late"))
    site.plays("one", "late")
    site.end()


def test_changed_control_settings_are_said_to_wait_for_the_next_start(
    site: LiveSite, caplog: pytest.LogCaptureFixture
) -> None:
    site.camera("one")
    site.start()
    site.site.write_text(SITE + "control: {watch: false}\n")
    site.until(lambda: "control: changed, and used from the next start on" in caplog.text)
    assert "control: changed, and used from the next start on" in site.ask("reload").text
    site.end()


def test_a_run_without_cameras_waits_for_them(site: LiveSite) -> None:
    site.start()
    time.sleep(0.3)
    assert site.thread.is_alive()
    site.camera("late")
    site.plays("late")
    assert site.ask("remove", camera="late").ok
    site.until(lambda: not site.engine.dispatcher.cameras)
    time.sleep(0.3)
    assert site.thread.is_alive(), "it waits again"
    assert site.end().exit_status == 0


@pytest.mark.parametrize("kind", ["executor", "nms"])
def test_workers_that_die_know_the_present_cameras_again(site: LiveSite, kind: str) -> None:
    site.camera("one")
    site.start()
    site.plays("one")
    site.camera("two")
    assert site.ask("reload").text == ["added two"]
    site.plays("two")
    name = "executor/canned:0" if kind == "executor" else "nms/0"
    pid = site.worker(name).pid
    os.kill(pid, signal.SIGKILL)
    site.camera("three")  # while it starts
    assert site.ask("reload").ok
    site.until(lambda: site.worker(name).pid != pid and site.worker(name).state == "ready")
    site.plays("one", "two", "three")
    site.ask("remove", camera="one")
    report = site.end()
    for camera in report.cameras.values():
        assert set(camera.ledger.dropped) <= {"removed"}, "recordings lose nothing"


def figures(pids: list[int]) -> tuple[int, int, int]:
    """Descriptors, threads and maps of campipe's memory of these processes."""
    found = [0, 0, 0]
    for pid in pids:
        process = psutil.Process(pid)
        found[0] += process.num_fds()
        found[1] += process.num_threads()
        found[2] += Path(f"/proc/{pid}/maps").read_text().count("memfd:campipe")
    return found[0], found[1], found[2]


def test_cameras_that_come_and_go_leave_nothing_behind(site: LiveSite) -> None:
    rounds = int(os.environ.get("CAMPIPE_ADD_REMOVE", "20"))
    site.camera("stays")
    extra = site.camera("guest", "sampling: {fps: 5}\n", folder="elsewhere")
    site.start()
    site.plays("stays")

    def once() -> None:
        assert site.ask("add", file=str(extra)).ok
        site.plays("guest")
        assert site.ask("remove", camera="guest").ok
        site.until(lambda: site.worker("decode/guest") is None and site.engine._supervisor.departed)
        site.until(lambda: "guest" not in site.engine.dispatcher.cameras)
        time.sleep(0.05)

    once()
    once()
    pids = [os.getpid(), site.worker("executor/canned:0").pid, site.worker("nms/0").pid]
    before = figures(pids)
    children = len(psutil.Process().children(recursive=True))
    for _ in range(rounds):
        once()
    after = figures(pids)
    print(f"{rounds} cameras came and left: descriptors, threads, maps {before} -> {after}")
    assert [b - a for a, b in zip(before, after, strict=True)] <= [1, 0, 0]
    assert len(psutil.Process().children(recursive=True)) == children
    site.end()


def test_ctl_on_the_command_line(site: LiveSite, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--site", str(site.site)]
    site.camera("one")
    assert main(["ctl", "status", *where]) == 2
    assert "no campipe" in capsys.readouterr().err
    site.start()
    site.plays("one")
    assert main(["ctl", "pause", "one", *where]) == 0
    assert capsys.readouterr().out == "camera one is paused\n"
    site.until(lambda: site.statuses("one")[-1][0] == "paused")
    assert main(["ctl", "status", *where]) == 0
    said = capsys.readouterr().out
    assert "1 camera\n" in said
    assert "one  paused" in said
    assert main(["ctl", "status", "--json"]) == 0, "it is the only run there is"
    status = json.loads(capsys.readouterr().out)
    assert status["cameras"][0]["state"] == "paused"
    assert main(["ctl", "resume", "nobody", *where]) == 2
    assert "there are: one" in capsys.readouterr().err
    for wrong in (["pause"], ["add"], ["reload", "one"], ["explode"], ["status", "--site", "a", "--socket", "b"]):
        assert main(["ctl", *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    socket = client.find_socket(None)
    assert main(["ctl", "remove", "one", "--socket", str(socket)]) == 0
    assert site.end().exit_status == 0
    assert main(["ctl", "status", "--socket", str(socket)]) == 2
    assert "still running?" in capsys.readouterr().err


def test_a_camera_whose_file_of_results_cannot_be_written_is_refused_and_the_others_keep_theirs(
    site: LiveSite, tmp_path: Path
) -> None:
    site.site.write_text(SITE + "sinks: [{jsonl: 'out-{camera}.jsonl'}]\n")
    site.camera("one")
    guest = site.camera("guest", folder="elsewhere")
    (tmp_path / "out-guest.jsonl").mkdir()
    site.start()
    site.plays("one")
    refused = site.ask("add", file=str(guest))
    assert not refused.ok
    assert "out-guest.jsonl" in refused.text[0]
    assert set(site.engine.dispatcher.cameras) == {"one"}
    (tmp_path / "out-guest.jsonl").rmdir()
    assert site.ask("add", file=str(guest)).ok
    site.plays("one", "guest")
    assert site.ask("remove", camera="guest").ok
    site.until(lambda: "guest" not in site.engine.dispatcher.cameras)
    first = (tmp_path / "out-guest.jsonl").read_text().count("\n")
    assert site.ask("add", file=str(guest)).ok
    site.plays("guest")
    site.end()
    lines = [json.loads(line) for line in (tmp_path / "out-guest.jsonl").read_text().splitlines()]
    assert len(lines) == len(site.frames("guest")) > first > 0, "added again, its file goes on"


@pytest.mark.parametrize("ready", [False, True])
def test_a_model_that_is_not_loaded_is_refused_with_the_remedy_one_that_is_kept_ready_is_taken(
    site: LiveSite, ready: bool
) -> None:
    description = Path(__file__).parents[2] / "configs" / "models" / "coco-ssd.yaml"
    text = SITE + f"models: {{other: {description}}}\n" + ("control: {models: [other]}\n" if ready else "")
    site.site.write_text(text)
    site.camera("one")
    site.camera("two")
    site.start()
    site.plays("one", "two")
    site.camera("one", "model: other\n")
    site.camera("two", "confidence: 1.0\n")
    answer = site.ask("reload")
    if ready:
        assert answer.text == ["changed two (confidence); restarted one (model)"]
        site.until(lambda: any(m.model == "other" for m in site.frames("one")), "the other model")
        assert {m.model for m in site.frames("two")} == {"coco-ssd"}
        last = site.frames("one")[-1]
        assert last.epoch > 0
    else:
        assert not answer.ok
        assert "'other' is not loaded" in answer.text[0]
        assert "restart campipe" in answer.text[0]
        assert "control.models" in answer.text[0]
        site.plays("one", "two")
        assert all(line.settings == 0 for line in site.engine.dispatcher.cameras.values()), "nothing was changed"
    assert site.end().exit_status == 0

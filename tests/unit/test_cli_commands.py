"""What the commands refuse, print and decide on their own, without a run."""

from __future__ import annotations

import dataclasses
import mmap
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from made.plans import run_plan
from made.specs import model_spec

from pipeline.cli import main
from pipeline.commands import check, demo
from pipeline.commands.replay import confidence_settings
from pipeline.plan import BatchPlan, DevicePlan, JsonlPlan, Limits, PublishPlan, RunPlan
from pipeline.planning import needs
from pipeline.preflight import summary, trial
from pipeline.preflight.memory_forecast import MemoryForecast, forecast
from pipeline.preflight.rehearsal import Opened
from pipeline.report import CameraReport, RunReport
from stages.camera import CameraSpec
from stages.decode.source import SourceFacts
from stages.errors import UserError
from stages.messages import DetectedObject, Detections, LedgerEntry
from stages.model import TensorSpec
from stages.sinks.jsonl import JsonlSink

MODEL = model_spec(width=300, height=200, labels=("person", "car"), outputs=(TensorSpec("boxes", (100, 4), "float32"),))
PLAN = run_plan(
    CameraSpec("gate-1", "a.mp4", "m"),
    CameraSpec("yard", "b.mp4", "m"),
    slots=6,
    models=(MODEL,),
    devices=(DevicePlan("cpu", 2, 1, 2),),
    batch={"m": BatchPlan(4, 5)},
    output_slots={"m": 5},
    publish=PublishPlan("tcp://127.0.0.1:0"),
    limits=Limits(shared_memory_bytes=1 << 20),
)
FACTS = SourceFacts(768, 576, 29.97, "h264", "yuv420p", "mp4", 100, 10.0, 0, None, 100_000_000)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


# --- replay and run ---------------------------------------------------------------------------------------------------


def test_every_clip_that_can_not_be_played_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").touch()
    lines = refused(capsys, "replay", f"{tmp_path}/none.mp4", str(tmp_path), f"{tmp_path}/empty.mp4")
    assert len(lines) == 3
    assert all(line.startswith("campipe: ") for line in lines)
    assert "no such file" in lines[0]
    assert "is a folder" in lines[1]
    assert "empty" in lines[2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--wait-subscribers", "1"], "nothing is published; add --publish tcp://127.0.0.1:5600"),
        (["--copies", "0"], "argument --copies: 0 is not a whole number from 1 to 1000"),
        (["--confidence", "1.1"], "argument --confidence: 1.1 is not a number from 0 to 1"),
        (["--batch", "x"], "argument --batch: 'x' is not a whole number from 1 to 64"),
        (["--model", "coco-sdd"], "coco-ssd"),
        (["--publish", "5600"], "is not an address to publish at"),
        (["--set", "limits.start_mss=1"], "start_ms"),
        (["--set", "camera.streat.confidence=1"], "street"),
        (["--report", "/none/such/r.json"], "there is no folder /none/such; create it, or name another"),
        (["--view", "tables"], "invalid choice: 'tables'"),
    ],
)
def test_replay_refuses_in_one_line_with_the_remedy(
    capsys: pytest.CaptureFixture[str], media_dir: Path, arguments: list[str], says: str
) -> None:
    (line,) = refused(capsys, "replay", str(media_dir / "street.mp4"), *arguments)
    assert says in line


def test_a_site_that_does_not_exist(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for command in ("run", "check", "graph"):
        (line,) = refused(capsys, command, str(tmp_path / "site.yaml"))
        assert "site.yaml" in line


def test_a_clip_name_of_5000_characters_is_one_short_line(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = refused(capsys, "replay", "x" * 5000 + ".mp4")
    assert len(line) < 300


def test_confidence_holds_for_every_camera_that_the_clips_become() -> None:
    assert confidence_settings(["a/street.mp4", "b/street.mp4"], 2, 0.25) == [
        "camera.street.confidence=0.25",
        "camera.street-2.confidence=0.25",
        "camera.street-3.confidence=0.25",
        "camera.street-4.confidence=0.25",
    ]
    assert confidence_settings(["a.mp4"], 1, None) == []


def test_a_setting_is_more_particular_than_the_option(media_dir: Path) -> None:
    from pipeline.config import replay_site

    clip = str(media_dir / "street.mp4")
    settings = [*confidence_settings([clip], 2, 0.25), "camera.street-2.confidence=0.5"]
    site = replay_site([clip], copies=2, overrides=settings)
    assert [camera.confidence for camera in site.cameras] == [0.25, 0.5]


def test_graph_prints_the_graph_of_a_site(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text('cameras: [{name: gate-1, source: "asset:street.mp4"}]\n')
    assert main(["graph", str(site), "--set", "nms.workers=3"]) == 0
    out = capsys.readouterr().out
    assert "decode/gate-1" in out
    assert "nms/2" in out


# --- check ------------------------------------------------------------------------------------------------------------


def test_what_check_prints() -> None:
    sources, devices = {"gate-1": FACTS}, {"cpu": Opened(0.44, ("cpu: told",), 50 << 20)}
    expected = forecast(PLAN, sources, {name: found.own_bytes for name, found in devices.items()})
    lines = summary.render(PLAN, needs(PLAN), sources, devices, expected)
    assert lines[:3] == [
        "camera  picture    fps  codec          frames  model  slots   shared  processes",
        lines[1],
        lines[2],
    ]
    assert lines[1].split() == ["gate-1", "768x576", "29.97", "h264", "100", "m", "6", *lines[1].split()[7:9], "1"]
    assert lines[2].split()[:6] == ["yard", "-", "-", "can't", "be", "used"]
    assert "m      300x200  up to 4  ssd           2      5" in "\n".join(lines)
    assert "cpu             2      2        1  0.4 s" in lines
    assert "cpu: told" in lines
    assert lines[-3] == "processes: 1 engine + 2 decode + 1 executor + 1 nms = 5"
    assert lines[-2].startswith("memory of processes: about ")
    assert all(f"{kind} " in lines[-2] for kind in expected.kinds)
    assert lines[-1].endswith("needed, 1.0 MiB available: does not fit")


def test_a_site_that_does_not_fit_names_the_largest_part() -> None:
    assert "the largest part is frames/gate-1 with 1.0 MiB" in summary.too_little(needs(PLAN))


def test_processes_that_do_not_fit_beside_the_shared_memory_are_told() -> None:
    told = summary.too_little_memory(MemoryForecast({"engine": 40 << 20, "decode": 3 << 30}, 1 << 30), 2 << 30)
    assert told.startswith("too little memory: about 3.0 GiB of processes and 1.0 GiB of shared memory are needed, 2.0")
    assert "the largest part is decode with 3.0 GiB" in told


def sinks_plan(*paths: Path | str, bind: str = "tcp://127.0.0.1:0", **settings: Any) -> RunPlan:
    jsonl = tuple(JsonlPlan(str(path), **settings) for path in paths)
    return dataclasses.replace(PLAN, publish=PublishPlan(bind), jsonl=jsonl)


def test_check_says_no_of_a_site_whose_files_run_could_not_open(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    lines, problems, occupied = trial.try_sinks(
        sinks_plan(tmp_path / "folder", tmp_path / "a" / "b" / "x.jsonl", tmp_path / "new" / "{camera}.jsonl")
    )
    assert lines == [
        "publish tcp://127.0.0.1:0: can be used",
        f"jsonl {tmp_path}/folder: can't be used",
        f"jsonl {tmp_path}/a/b/x.jsonl: can't be used",
        f"jsonl {tmp_path}/new/{{camera}}.jsonl: can be used",
    ]
    assert (len(problems), occupied) == (2, [])
    assert "that is a folder; name a file in it" in problems[0]
    assert f"there is no folder {tmp_path}/a/b; create it" in problems[1]
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]


def test_what_is_occupied_is_told_apart_from_what_can_never_be_opened(tmp_path: Path) -> None:
    sink = JsonlSink(str(tmp_path / "x.jsonl"), cameras=("gate-1",), clock_ns=lambda: 0)
    sink.open()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        bind = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        lines, problems, occupied = trial.try_sinks(sinks_plan(tmp_path / "x.jsonl", bind=bind))
    sink.close(0)
    assert problems == []
    assert ["uses that port" in occupied[0], "is writing to it" in occupied[1]] == [True, True]
    assert lines[0].startswith(f"publish {bind}: not now: can't publish on {bind}: another program uses that port")
    assert "x.jsonl: not now: " in lines[1]
    assert "another run is writing to it" in lines[1]


def test_check_says_no_of_an_address_that_this_machine_does_not_have() -> None:
    lines, problems, _ = trial.try_sinks(sinks_plan(bind="tcp://192.0.2.1:5600"))
    assert lines == ["publish tcp://192.0.2.1:5600: can't be used"]
    assert "is no address of this machine" in problems[0]
    assert trial.try_sinks(dataclasses.replace(PLAN, publish=None)) == (["publish: off"], [], [])


def test_check_of_a_site_with_a_sink_that_can_not_be_opened_exits_with_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "try_all", lambda plan, **_: ({}, {}, []))  # sources and models are not the point
    site = tmp_path / "site.yaml"
    site.write_text(
        "publish: off\nsinks: [{jsonl: a/b/x.jsonl}]\ncameras: [{name: gate-1, source: 'asset:street.mp4'}]\n"
    )
    assert main(["check", str(site)]) == 2
    out, err = capsys.readouterr()
    assert "this site can be run" not in out
    assert "there is no folder" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("runs", [False, True])
def test_check_says_that_a_site_whose_port_is_busy_can_not_be_run_unless_it_is_its_own_run(
    runs: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "try_all", lambda plan, **_: ({}, {}, []))
    monkeypatch.setattr(check, "runs_now", lambda site: runs)
    site = tmp_path / "site.yaml"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        bind = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        site.write_text(f"publish: {{bind: '{bind}'}}\ncameras: [{{name: gate-1, source: 'asset:street.mp4'}}]\n")
        assert main(["check", str(site)]) == (0 if runs else 2)
    out, err = capsys.readouterr()
    assert f"publish {bind}: not now: " in out
    assert "this site can be run" not in out
    assert ("this site runs now, and has what is occupied" in out) == runs
    assert ("another program uses that port; end it" in err) == (not runs)


@pytest.mark.parametrize("held_mib", [0, 900, None])
@pytest.mark.parametrize("runs", [False, True])
def test_check_counts_what_the_run_of_the_same_site_holds_as_free(
    runs: bool,
    held_mib: int | None,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "try_all", lambda plan, **_: ({}, {}, []))
    monkeypatch.setattr(check, "runs_now", lambda site: runs)
    held_bytes = None if held_mib is None else held_mib << 20
    monkeypatch.setattr("pipeline.commands.held.bytes_held_by_run", lambda site: held_bytes)
    monkeypatch.setattr("pipeline.transport.memory.available_bytes", lambda: 1 << 20)
    site = tmp_path / "site.yaml"
    site.write_text("publish: off\nsinks: [{jsonl: x.jsonl}]\ncameras: [{name: gate-1, source: 'asset:street.mp4'}]\n")
    fits = runs and held_mib != 0
    assert main(["check", str(site)]) == (0 if fits else 2)
    out, err = capsys.readouterr()
    assert ("too little shared memory" in err) == (not fits)
    assert ("does not fit" in out) == (not fits)
    assert ("is not judged" in out) == (runs and held_mib is None)
    assert ("and it fits" in out) == (runs and held_mib == 900)


def test_what_a_run_holds_is_its_processes_and_its_rings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.commands.held import bytes_held_by_run

    assert bytes_held_by_run(str(tmp_path / "site.yaml")) is None, "it does not run"
    with socket.socket(socket.AF_UNIX) as listener:  # this process is the engine
        listener.bind(str(tmp_path / "control"))
        listener.listen()
        monkeypatch.setattr("pipeline.commands.held.find_socket", lambda _site: tmp_path / "control")
        before = bytes_held_by_run("site.yaml")
        with mmap.mmap(-1, 8 << 20) as ring:
            ring.write(bytes([1]) * (8 << 20))
            after = bytes_held_by_run("site.yaml")
    assert before is not None
    assert after is not None
    assert before > 8 << 20
    assert 7 << 20 < after - before < 20 << 20


def test_whether_the_site_itself_runs_is_asked_of_its_control_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.control.client.run_folders", lambda _more: ([], []))
    assert not check.runs_now(str(tmp_path / "site.yaml"))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "site").write_text(f"{tmp_path / 'site.yaml'}\n{folder / 'control'}\n")
    monkeypatch.setattr("pipeline.control.client.run_folders", lambda _more: ([folder], []))
    assert check.runs_now(str(tmp_path / "site.yaml"))
    assert not check.runs_now(str(tmp_path / "other.yaml"))


def test_in_parallel_keeps_every_problem_and_every_result() -> None:
    meet = threading.Barrier(2, timeout=30)

    def act(number: int) -> int:
        meet.wait()  # never passed if they ran one after the other
        if number % 2:
            raise UserError(f"{number} is odd", "and so on")
        return number * 10

    good, bad = trial.in_parallel(act, {"a": 1, "b": 2, "c": 3, "d": 4})
    assert good == {"b": 20, "d": 40}
    assert bad == {"a": ("1 is odd", "and so on"), "c": ("3 is odd", "and so on")}


# --- demo -------------------------------------------------------------------------------------------------------------


def test_the_demo_takes_another_port_when_its_own_is_taken() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        assert demo.free_port(taken) != taken
    assert demo.free_port(taken) == taken


def test_a_detections_message_in_one_line() -> None:
    one = DetectedObject(box=[312.4, 120.0, 360.2, 240.9], score=0.834, class_id=0, label="person")
    message = Detections(
        camera="gate-1",
        epoch=0,
        seq=25,
        pts_ns=2_500_000_000,
        captured_ns=0,
        clock="file",
        width=1,
        height=1,
        model="m",
        objects=[one] * 4,
    )
    shown = "person 0.83 at x 312 to 360, y 120 to 241"
    assert demo.describe(message) == f"gate-1, frame 25 at 2.50 s: {shown}; {shown}; and 2 more"


def demo_report(published: int = 100, people: int = 7, **changes: Any) -> RunReport:
    ledger = LedgerEntry(decoded=100, published=published, dropped={"stale": 100 - published}, in_flight=0)
    camera = CameraReport(ledger, True, "m", "ended", "ended", "", 1, 1, 1, 0, 0, 9, 5, {"person": people}, 0, 0, 10.0)
    return RunReport({"a": camera, "b": camera}, {}, 1.0, 1.0, 0, **changes)


@pytest.mark.parametrize(
    ("report", "good", "says"),
    [
        (demo_report(), True, "People were found 14 times."),
        (demo_report(people=0), False, "NOBODY was found."),
        (demo_report(published=99), False, "NOT every decoded frame of 2 cameras was published."),
        (demo_report(published=0), False, "NOT every decoded frame"),
        (demo_report(problems=["nms/0 died"]), False, "People were found"),
        (RunReport({}, {}, 0.0, 0.0, 0), False, "NOT every"),
    ],
)
def test_when_the_demo_counts_as_one(report: RunReport, good: bool, says: str) -> None:
    verdict, sentences = demo.verdict(report, 200)
    assert verdict is good
    assert says in "\n".join(sentences)

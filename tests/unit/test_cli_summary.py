"""The text that ends a run, and the report file."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.report import ReportFile
from pipeline.observe.summary import align, ending, summary
from pipeline.report import CameraReport, RunReport, StageReport
from stages.errors import UserError
from stages.messages import LedgerEntry


def camera(decoded: int = 10, published: int = 10, in_flight: int = 0, **changes: Any) -> CameraReport:
    """A camera that ended well, but for ``changes``."""
    fields: dict[str, Any] = {
        "ledger": LedgerEntry(
            decoded=decoded, published=published, dropped=changes.pop("dropped", {}), in_flight=in_flight
        ),
        "exact": True,
        "model": "m",
        "state": "ended",
        "cause": "ended",
        "detail": "",
        "epochs": 1,
        "width": 768,
        "height": 576,
        "decode_errors": 0,
        "corrupt": 0,
        "objects": 0,
        "frames_with_objects": 0,
        "classes": {},
        "cut_before": 0,
        "cut_after": 0,
        "fps": 0.0,
    }
    return CameraReport(**(fields | changes))


def run_report(cameras: dict[str, CameraReport], **changes: Any) -> RunReport:
    """A report over ``cameras``."""
    stages = {
        "decode": StageReport(1, 0.05, 0.05, 20, 0, 1 << 20),
        "executor": StageReport(1, 0.4, 0.3, 20, 0, 1 << 20),
    }
    return RunReport(
        **({"cameras": cameras, "stages": stages, "wall_s": 2.0, "start_s": 0.5, "shared_memory_bytes": 0} | changes)
    )


def test_the_whole_summary() -> None:
    found = {
        "gate-1": camera(objects=12, frames_with_objects=9, classes={"person": 11, "car": 1}, fps=7.53),
        "yard": camera(12, 9, dropped={"too_old": 1, "sampling": 2}, cause="stopped", detail="SIGINT"),
    }
    text = summary(run_report(found, stopped_by="SIGINT", lost_messages=3, problems=["nms/0 died"]))
    assert text.splitlines() == [
        "camera  decoded  = published  + dropped  + in flight",
        "gate-1       10  =        10  +       0  +         0  ✓",
        "yard         12  =         9  +       3  +         0  ✓  sampling 2, too_old 1",
        "all          22  =        19  +       3  +         0  ✓  sampling 2, too_old 1",
        "gate-1: played to its end · 7.5 fps · 12 objects in 9 of 10 frames: person 11, car 1",
        "yard: stopped on request (SIGINT) · no objects",
        "CPU per decoded frame, ms: decode 2.27 + executor 18.18 = 20.45",
        "19 frames published in 2.0 s, 9.5 frames/s",
        "messages lost: 3",
        "stopped by SIGINT",
        "problem: nms/0 died",
    ]


@pytest.mark.parametrize(
    "wrong", [camera(10, 9), camera(exact=False), camera(10, 9, 2), camera(10, 10, dropped={"stale": 1})]
)
def test_a_ledger_that_does_not_add_up_is_shown_as_wrong(wrong: CameraReport) -> None:
    lines = summary(run_report({"a": camera(), "b": wrong})).splitlines()
    assert [("✓" in line, "WRONG" in line) for line in lines[1:4]] == [(True, False), (False, True), (False, True)]


def test_a_terminal_without_check_marks_gets_words() -> None:
    text = summary(run_report({"a": camera(), "b": camera(1, 0)}), "latin-1")
    assert "0  ok\n" in text
    assert "0  WRONG\n" in text
    text.encode("latin-1")


@pytest.mark.parametrize(
    ("cause", "detail", "words"),
    [
        ("ended", "", "played to its end"),
        ("truncated", "the file stops after 48 of 100 frames", "truncated: the file stops after 48 of 100 frames"),
        ("truncated", "", "truncated: stops before the end that its index promises"),
        ("limit", "max_frames: 3", "max_frames reached"),
        ("stopped", "on request", "stopped on request"),
        ("stopped", "SIGTERM", "stopped on request (SIGTERM)"),
        ("worker_failed", "", "worker_failed: its decode process died too often"),
        ("something_new", "", "something_new: something_new"),
        ("", "", "still running"),
    ],
)
def test_how_a_camera_ended_in_words(cause: str, detail: str, words: str) -> None:
    assert ending(camera(cause=cause, detail=detail)) == words


def test_no_password_and_no_escape_reaches_the_terminal() -> None:
    bad = camera(cause="unreadable", detail="rtsp://u:geheim@h: \x1b[31mno\nway", state="failed")
    text = summary(run_report({"a\x1b[2J": bad}, problems=["rtsp://u:geheim@h\x1b[0m"]))
    assert "geheim" not in text
    assert "\x1b" not in text
    assert len(text.splitlines()) == 7


def test_an_empty_run_has_a_summary_too() -> None:
    assert "0 frames published in 0.0 s" in summary(run_report({}, wall_s=0.0))


def test_more_classes_than_fit_are_counted() -> None:
    text = summary(
        run_report(
            {"a": camera(objects=28, frames_with_objects=1, classes=dict(zip("abcdefg", range(1, 8), strict=True)))}
        )
    )
    assert "28 objects in 1 of 10 frames: g 7, f 6, e 5, d 4, c 3 and 2 other classes" in text


def test_columns_line_up() -> None:
    lines = align([("a", "x", "= y"), ("bb", "10", "= 200")])
    assert lines == ["a    x  =   y", "bb  10  = 200"]


def test_the_report_file_is_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("{}")
    file = ReportFile(str(path))
    file.check()
    assert path.read_text() == "{}"
    file.write(run_report({"a": camera()}).to_json())
    assert json.loads(path.read_text())["cameras"]["a"]["ledger"]["decoded"] == 10
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_a_new_report_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    ReportFile(str(tmp_path / "r.json")).write({})
    assert (tmp_path / "r.json").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "real" / "r.json")
    ReportFile(str(tmp_path / "link.json")).write({"x": 1})
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real" / "r.json").read_text()) == {"x": 1}


def test_a_pipe_is_written_to_and_not_replaced() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb"), os.fdopen(reader, "rb", buffering=0) as source:
        file = ReportFile(f"/proc/self/fd/{writer}")
        file.check()
        file.write({"x": 1})
        assert json.loads(source.read(100)) == {"x": 1}


def test_a_report_that_fails_half_way_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    path.write_text("old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        ReportFile(str(path)).write({})
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "that is a folder; name a file in it"),
        ("none/r.json", "there is no folder"),
        ("x" * 5000, "can't be written: File name too long"),
        ("file/r.json", "there is no folder"),
        ("nul\0r.json", "can't be written"),
    ],
)
def test_a_report_that_can_not_be_written_is_refused_beforehand(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as refusal:
        ReportFile(f"{tmp_path}/{name}").check()
    (problem,) = refusal.value.problems
    assert says in problem
    assert len(problem) < 500


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(UserError, match="Permission denied"):
        ReportFile(str(tmp_path / "r.json")).check()
    tmp_path.chmod(stat.S_IRWXU)

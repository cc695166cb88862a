"""The JSON Lines sink on real files: content, order, rotation, refusals, a full disk, pipes."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from made import messages

from stages.errors import StageDead, UserError
from stages.messages import Detections, Heartbeat, Status, Trace
from stages.sinks.again import Again
from stages.sinks.encode import Packer
from stages.sinks.jsonl import JsonlSink
from stages.sinks.sink import Occupied


def detections(seq: int, camera: str = "a", trace: Trace | None = None, label: str = "m") -> Detections:
    return messages.detections(seq, camera, model=label, trace=trace)


def status(state: Any, camera: str = "a") -> Status:
    return Status(camera=camera, epoch=0, state=state, cause=state, detail="", time_ns=time.time_ns())


@pytest.fixture
def make() -> Iterator[Callable[..., JsonlSink]]:
    made: list[JsonlSink] = []

    def make(path: Path | str, cameras: tuple[str, ...] = ("a",), **settings: Any) -> JsonlSink:
        made.append(JsonlSink(str(path), cameras=cameras, clock_ns=time.monotonic_ns, **settings))
        made[-1].open()
        return made[-1]

    yield make
    for sink in made:
        sink.close(0)


@pytest.fixture
def file_limit() -> Iterator[Callable[[int], None]]:
    """Sets the size at which files stop growing, as on a full disk, in the middle of a line too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def lines(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    assert data == b"" or data.endswith(b"\n"), "torn line"
    return [json.loads(line) for line in data.splitlines()]


def soon() -> int:
    return time.monotonic_ns() + 30_000_000_000  # long: a busy machine must not fail a test


def test_lines_hold_the_message_and_nothing_that_differs_from_run_to_run(tmp_path: Path, make: Any) -> None:
    contents = []
    for run in range(2):
        sink = make(tmp_path / f"{run}.jsonl")
        trace = Trace(**dict.fromkeys(Trace.__struct_fields__, float(run)))
        for message in (
            status("started"),
            detections(0, trace=trace),
            Heartbeat(time_ns=run, uptime_ns=0, cameras={}, lost_messages=0),
            detections(1),
            status("ended"),
        ):
            assert sink.take(message)
        assert sink.close(soon()) == ""
        contents.append((tmp_path / f"{run}.jsonl").read_bytes())
    assert contents[0] == contents[1]
    assert lines(tmp_path / "0.jsonl") == [
        {
            "type": "detections",
            "v": 1,
            "camera": "a",
            "epoch": 0,
            "seq": seq,
            "pts_ns": seq * 40_000_000,
            "captured_ns": 0,
            "clock": "file",
            "width": 8,
            "height": 6,
            "model": "m",
            "objects": [],
            "corrupt": False,
        }
        for seq in range(2)
    ]


def test_statuses_are_written_when_asked_for(tmp_path: Path, make: Any) -> None:
    sink = make(tmp_path / "x.jsonl", status=True)
    for message in (status("started"), detections(0), status("ended")):
        sink.take(message)
    sink.close(soon())
    assert [line.get("state", "-") for line in lines(tmp_path / "x.jsonl")] == ["started", "-", "ended"]


def test_service_brings_lines_to_the_file_without_another_message(tmp_path: Path, make: Any) -> None:
    sink = make(tmp_path / "x.jsonl")
    sink.take(detections(0))
    sink.service()
    assert [line["seq"] for line in lines(tmp_path / "x.jsonl")] == [0]


def test_one_file_per_camera(tmp_path: Path, make: Any) -> None:
    sink = make(tmp_path / "{camera}" / "found-{camera}.jsonl", ("a", "b"))
    for seq in range(3):
        sink.take(detections(seq, "a"))
        sink.take(detections(seq, "b"))
    sink.take(detections(0, "late"))
    sink.close(soon())
    for camera, count in (("a", 3), ("b", 3), ("late", 1)):
        found = lines(tmp_path / camera / f"found-{camera}.jsonl")
        assert [(line["camera"], line["seq"]) for line in found] == [(camera, seq) for seq in range(count)]


def test_a_file_of_the_same_name_is_begun_anew(tmp_path: Path, make: Any) -> None:
    for count in (3, 1):
        sink = make(tmp_path / "x.jsonl")
        for seq in range(count):
            sink.take(detections(seq))
        sink.close(soon())
        assert len(lines(tmp_path / "x.jsonl")) == count


def test_a_run_that_found_nothing_leaves_an_empty_file_and_no_old_results(tmp_path: Path, make: Any) -> None:
    (tmp_path / "x.jsonl").write_text("old\n")
    sink = make(tmp_path / "x.jsonl")
    sink.service()
    sink.close(soon())
    assert (tmp_path / "x.jsonl").read_bytes() == b""


def test_a_run_refused_for_another_reason_changes_no_file(tmp_path: Path, make: Any) -> None:
    (tmp_path / "old.jsonl").write_text("old\n")
    for name in ("old.jsonl", "new.jsonl"):
        make(tmp_path / name).close(soon())
    assert (tmp_path / "old.jsonl").read_text() == "old\n"
    assert not (tmp_path / "new.jsonl").exists()


def test_append_goes_on_with_the_file_and_cuts_a_line_that_a_crash_has_torn(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"seq":0}\n{"seq":1}\n{"se' + b"x" * 200_000)
    for seq in (2, 3):
        sink = make(path, append=True)
        sink.take(detections(seq))
        sink.close(soon())
    assert [line["seq"] for line in lines(path)] == [0, 1, 2, 3]


@pytest.mark.parametrize("content", [b"", b"torn", b"x" * 70_000])
def test_append_to_a_file_without_any_whole_line(tmp_path: Path, make: Any, content: bytes) -> None:
    (tmp_path / "x.jsonl").write_bytes(content)
    sink = make(tmp_path / "x.jsonl", append=True)
    sink.take(detections(0))
    sink.close(soon())
    assert [line["seq"] for line in lines(tmp_path / "x.jsonl")] == [0]


def test_rotation_by_size_keeps_every_line_in_files_numbered_upwards(tmp_path: Path, make: Any) -> None:
    sink = make(tmp_path / "out.jsonl", rotate_bytes=1000)
    for seq in range(40):
        sink.take(detections(seq))
        if seq % 3 == 0:
            sink.service()
    sink.close(soon())
    files = [tmp_path / f"out.{number}.jsonl" for number in range(1, len(list(tmp_path.iterdir())))]
    files.append(tmp_path / "out.jsonl")
    assert len(files) > 5
    assert [line["seq"] for path in files for line in lines(path)] == list(range(40))
    assert all(0 < path.stat().st_size <= 1000 for path in files)


def test_rotation_never_overwrites_what_earlier_runs_have_left(tmp_path: Path, make: Any) -> None:
    for run in range(3):
        sink = make(tmp_path / "out.jsonl", rotate_bytes=1_000_000)
        sink.take(detections(run))
        sink.close(soon())
    (tmp_path / "out.99.jsonl.bak").write_text("")
    (tmp_path / "out.x.jsonl").write_text("")
    found = {path.name: lines(path)[0]["seq"] for path in tmp_path.iterdir() if path.stat().st_size}
    assert found == {"out.1.jsonl": 0, "out.2.jsonl": 1, "out.jsonl": 2}


def test_a_line_longer_than_the_limit_has_a_file_of_its_own(tmp_path: Path, make: Any) -> None:
    sink = make(tmp_path / "out.jsonl", rotate_bytes=10)
    for seq in range(3):
        sink.take(detections(seq))
    sink.close(soon())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.1.jsonl", "out.2.jsonl", "out.jsonl"]


def test_what_a_symbolic_link_names_is_written_and_rotated_beside_itself(tmp_path: Path, make: Any) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x.jsonl").write_text("{}\n")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "real" / "x.jsonl")
    sink = make(tmp_path / "link.jsonl", rotate_bytes=100_000)
    sink.take(detections(5))
    sink.close(soon())
    assert (tmp_path / "link.jsonl").is_symlink()
    assert [line["seq"] for line in lines(tmp_path / "real" / "x.jsonl")] == [5]
    assert (tmp_path / "real" / "x.1.jsonl").read_text() == "{}\n"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("missing/deeper/x.jsonl", "create it (mkdir -p)"),
        ("file/missing/x.jsonl", "choose another path"),
        ("x" * 300 + "/x.jsonl", "choose another path"),
        ("link/x.jsonl", "choose another path"),
        (".", "that is a folder"),
        ("file/x.jsonl", "choose another path"),
        ("x" * 300, "choose another path"),
        ("x\0y", "no file can have that name"),
        ("/proc/x.jsonl", ""),
    ],
)
def test_paths_that_cannot_be_written(tmp_path: Path, make: Any, path: str, says: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "at" / "all")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError) as error:
        make(tmp_path / path)
    [problem] = error.value.problems
    assert says in problem
    assert problem.startswith(("can't write to", "can't create the folder"))
    if not path.startswith("/proc"):  # where root may write by its permissions, and yet nobody can
        with pytest.raises(UserError):
            unopened(tmp_path / path).check()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_fresh_clone_has_no_folder_for_the_example_and_gets_one(tmp_path: Path, make: Any) -> None:
    for name, settings in (("one/{camera}.jsonl", {}), ("two/x.jsonl", {"merged": True}), ("three/x.jsonl", {})):
        sink = make(tmp_path / name, ("a", "b"), **settings)
        for camera in ("a", "b"):
            sink.take(detections(0, camera))
        assert sink.close(soon()) == ""
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["a.jsonl", "b.jsonl"]
    assert len(lines(tmp_path / "two" / "x.jsonl")) == len(lines(tmp_path / "three" / "x.jsonl")) == 2


def test_a_relative_path_gets_its_folder_too(tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sink = make("out/x.jsonl")
    sink.take(detections(0))
    sink.close(soon())
    assert len(lines(tmp_path / "out" / "x.jsonl")) == 1


def test_a_run_refused_for_another_reason_leaves_no_new_folder(tmp_path: Path, make: Any) -> None:
    for name in ("out/{camera}.jsonl", "x/{camera}/y/z.jsonl"):
        make(tmp_path / name, ("a", "b")).close(soon())
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b").touch()
    with pytest.raises(UserError):
        make(tmp_path / "deep" / "{camera}" / "x.jsonl", ("a", "b"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["b", "deep"]


# --- what check foresees ----------------------------------------------------------------------------------------------


def unopened(path: Path | str, cameras: tuple[str, ...] = ("a",), **settings: Any) -> JsonlSink:
    return JsonlSink(str(path), cameras=cameras, clock_ns=time.monotonic_ns, **settings)


@pytest.mark.parametrize(
    "name", ["x.jsonl", "old.jsonl", "new/x.jsonl", "deep/{camera}/x/y.jsonl", "link.jsonl", "pipe", "/dev/null"]
)
def test_check_refuses_nothing_that_can_be_opened_and_changes_nothing(tmp_path: Path, make: Any, name: str) -> None:
    (tmp_path / "old.jsonl").write_text("old\n")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "not-yet.jsonl")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    before = [(path, path.lstat().st_mtime_ns) for path in sorted(tmp_path.rglob("*"))]
    unopened(tmp_path / name).check()
    assert [(path, path.lstat().st_mtime_ns) for path in sorted(tmp_path.rglob("*"))] == before
    make(tmp_path / name)
    os.close(reader)


def test_check_tells_every_file_that_cannot_be_written(tmp_path: Path) -> None:
    for camera in ("b", "c"):
        (tmp_path / f"{camera}.jsonl").mkdir()
    with pytest.raises(UserError) as error:
        unopened(tmp_path / "{camera}.jsonl", ("a", "b", "c", "d/e")).check()
    assert len(error.value.problems) == 3
    with pytest.raises(UserError, match="nothing to merge"):
        unopened(tmp_path / "{camera}.jsonl", merged=True).check()


def test_check_of_a_file_that_a_run_is_writing_says_occupied_and_lets_the_run_go_on(tmp_path: Path, make: Any) -> None:
    running = make(tmp_path / "x.jsonl")
    for seq in range(2):
        with pytest.raises(Occupied, match="another run is writing to it"):
            unopened(tmp_path / "x.jsonl").check()
        running.take(detections(seq))
        running.service()
    assert [line["seq"] for line in lines(tmp_path / "x.jsonl")] == [0, 1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_check_sees_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    for name in ("locked/x.jsonl", "locked/new/x.jsonl"):
        with pytest.raises(UserError, match="no permission"):
            unopened(tmp_path / name).check()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_file_that_may_not_be_written(tmp_path: Path, make: Any) -> None:
    (tmp_path / "x.jsonl").touch(0o444)
    with pytest.raises(UserError, match="no permission"):
        make(tmp_path / "x.jsonl")


def test_all_files_that_cannot_be_written_are_told_at_once_and_none_is_left_open(tmp_path: Path, make: Any) -> None:
    for camera in ("b", "c"):
        (tmp_path / f"{camera}.jsonl").mkdir()
    files = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(UserError) as error:
        make(tmp_path / "{camera}.jsonl", ("a", "b", "c"))
    assert len(error.value.problems) == 2
    assert len(list(Path("/proc/self/fd").iterdir())) == files
    assert not (tmp_path / "a.jsonl").exists()


@pytest.mark.parametrize("camera", ["a/b", "..", "../x"])
def test_a_camera_cannot_lead_out_of_the_folder(tmp_path: Path, make: Any, camera: str) -> None:
    with pytest.raises(UserError, match="rename the camera"):
        make(tmp_path / "{camera}", (camera,))


def test_two_runs_cannot_write_one_file(tmp_path: Path, make: Any) -> None:
    first = make(tmp_path / "x.jsonl", rotate_bytes=300)
    for seq in range(2):
        with pytest.raises(UserError, match="another run is writing"):
            make(tmp_path / "x.jsonl")
        first.take(detections(seq))
        first.service()
    first.close(soon())
    make(tmp_path / "x.jsonl").close(soon())


def test_merged_and_one_file_per_camera_contradict_each_other(tmp_path: Path, make: Any) -> None:
    with pytest.raises(UserError, match="nothing to merge"):
        make(tmp_path / "{camera}.jsonl", merged=True)


def test_a_full_disk_is_told_once_clearly_and_counted(make: Any) -> None:
    sink = make("/dev/full")
    sink.take(detections(0))
    sink.take(detections(1))
    with pytest.raises(StageDead, match=r"/dev/full: the disk is full; free some space; 2 lines are missing"):
        sink.service()
    with pytest.raises(StageDead, match="the disk is full"):
        sink.take(detections(2))
    sink.service()
    assert sink.close(soon()) == ""


def test_a_disk_that_becomes_full_in_the_middle_of_a_line_leaves_whole_lines_only(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "x.jsonl"
    sink = make(path)
    sink.take(detections(0))
    sink.service()
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for seq in range(1, 5):
        sink.take(detections(seq))
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size * 2 + size // 2, hard))
        with pytest.raises(StageDead, match="3 lines are missing"):
            sink.service()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [line["seq"] for line in lines(path)] == [0, 1]


def missing(said: str) -> int:
    [number] = re.findall(r"; (\d+) lines? (?:is|are) missing at the end of", said)
    return int(number)


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("room_lines", [0, 7, 500, 901])
def test_a_full_disk_met_by_any_call_counts_every_line_handed_over_that_is_not_in_the_file(
    tmp_path: Path, make: Any, file_limit: Any, merged: bool, room_lines: int
) -> None:
    path = tmp_path / "x.jsonl"
    sink = make(path, ("a", "b"), merged=merged)
    size = len(Packer().line(detections(100)))
    file_limit(room_lines * size + size // 2)
    handed = 0

    def go_on() -> None:
        nonlocal handed
        for seq in range(3000):
            for camera in ("a", "b") if seq < 1000 else ("a",):  # then those of a wait for b, if merged
                handed += 1
                sink.take(detections(seq, camera))
            if seq % 300 == 299:
                sink.service()

    with pytest.raises(StageDead) as error:
        go_on()
    assert sink.close(soon()) == ""
    assert handed - missing(str(error.value)) == len(lines(path))
    assert len(lines(path)) >= room_lines * 9 // 10  # some lines are a little longer


@pytest.mark.parametrize("merged", [False, True])
def test_a_disk_that_is_full_at_the_end_counts_every_line(
    tmp_path: Path, make: Any, file_limit: Any, merged: bool
) -> None:
    path = tmp_path / "x.jsonl"
    sink = make(path, ("a", "b"), merged=merged)
    for seq in range(1200):  # without b's end, those wait if merged
        sink.take(detections(seq, "a"))
    file_limit(1000 * len(Packer().line(detections(100))))
    said = sink.close(soon())
    assert 1200 - missing(said) == len(lines(path))
    assert sink.close(soon()) == ""


def test_a_full_disk_under_one_file_per_camera_counts_those_of_every_camera_once(
    tmp_path: Path, make: Any, file_limit: Any
) -> None:
    sink = make(tmp_path / "{camera}.jsonl", ("a", "b", "c"))
    for seq in range(5):
        for camera in ("a", "b", "c"):
            sink.take(detections(seq, camera))
    sink.take(detections(5, "b"))
    file_limit(2 * len(Packer().line(detections(1))) + 5)
    with pytest.raises(StageDead, match=r"a\.jsonl: ") as error:
        sink.service()
    assert missing(str(error.value)) == 16 - 3 * 2
    assert sink.close(soon()) == ""
    assert [len(lines(tmp_path / f"{camera}.jsonl")) for camera in "abc"] == [2, 2, 2]


def test_a_file_that_cannot_be_rotated_counts_the_line_that_met_it(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make(tmp_path / "x.jsonl", rotate_bytes=2 * len(Packer().line(detections(1))))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "rename", full)
    for seq in range(2):
        sink.take(detections(seq))
    with pytest.raises(StageDead, match="the disk is full; free some space; 1 line is missing at the end of"):
        sink.take(detections(2))
    assert sink.close(soon()) == ""
    assert [line["seq"] for line in lines(tmp_path / "x.jsonl")] == [0, 1]


def test_a_pipe_whose_reader_is_slow_makes_the_run_wait_and_loses_nothing(tmp_path: Path, make: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    sink = make(tmp_path / "pipe")
    seq = 0
    while sink.take(detections(seq, label="m" * 1000)):
        seq += 1
        assert seq < 10_000
    data = bytearray()

    def read() -> None:
        os.set_blocking(reader, True)
        while piece := os.read(reader, 65536):
            data.extend(piece)
        os.close(reader)

    thread = threading.Thread(target=read)
    thread.start()
    while not sink.take(detections(seq, label="m" * 1000)):
        time.sleep(0.001)
    assert sink.close(soon()) == ""
    thread.join(30)
    assert [json.loads(line)["seq"] for line in data.splitlines()] == list(range(seq + 1))


def test_a_pipe_that_is_not_read_to_the_end_is_told_with_a_count(tmp_path: Path, make: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    sink = make(tmp_path / "pipe")
    seq = 0
    while sink.take(detections(seq, label="m" * 1000)):
        seq += 1
    began = time.monotonic()
    said = sink.close(time.monotonic_ns() + 100_000_000)
    assert time.monotonic() - began < 30  # it returns; how soon is up to the machine
    assert "lines were not read in time" in said
    os.close(reader)


def test_pipes_without_reader(tmp_path: Path, make: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="start its reader first"):
        make(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    sink = make(tmp_path / "pipe")
    os.close(reader)
    sink.take(detections(0))
    with pytest.raises(StageDead, match="nobody reads it any more"):
        sink.service()


def test_merged_order_is_that_of_time_and_then_of_the_cameras(tmp_path: Path, make: Any) -> None:
    orders = [
        [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("a", 2)],
        [("b", 0), ("b", 1), ("a", 0), ("a", 1), ("a", 2)],
    ]
    for name, order in enumerate(orders):
        sink = make(tmp_path / f"{name}.jsonl", ("a", "b"), merged=True)
        for camera, seq in order:
            sink.take(detections(seq, camera))
        sink.close(soon())
        found = [(line["seq"], line["camera"]) for line in lines(tmp_path / f"{name}.jsonl")]
        assert found == [(0, "a"), (0, "b"), (1, "a"), (1, "b"), (2, "a")]


def test_merged_lines_leave_when_a_camera_has_ended(tmp_path: Path, make: Any) -> None:
    sink = make(tmp_path / "x.jsonl", ("a", "b"), merged=True)
    sink.take(detections(0, "a"))
    sink.service()
    assert lines(tmp_path / "x.jsonl") == []
    sink.take(status("failed", "b"))
    sink.service()
    assert [line["camera"] for line in lines(tmp_path / "x.jsonl")] == ["a"]


def test_merged_cameras_that_drift_apart_are_held_in_flat_memory(tmp_path: Path, make: Any) -> None:
    # recordings of 10 and 30 frames per second: 4000 lines of 2 kB wait, 8 MB
    sink = make(tmp_path / "x.jsonl", ("slow", "fast"), merged=True)
    tracemalloc.start()
    try:
        for seq in range(6000):
            for camera, fps in (("slow", 10), ("fast", 30)):
                message = detections(seq, camera, label="m" * 2000)
                sink.take(msgspec.structs.replace(message, pts_ns=seq * 1_000_000_000 // fps))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3_000_000
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]
    for camera in ("fast", "slow"):
        sink.take(status("ended", camera))
    assert sink.close(soon()) == ""
    found = [(line["pts_ns"], line["camera"] != "slow", line["seq"]) for line in lines(tmp_path / "x.jsonl")]
    assert len(found) == 12_000
    assert found == sorted(found)


def test_a_disk_that_is_full_of_waiting_lines_is_told_with_their_number(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sink = make(tmp_path / "x.jsonl", ("a", "b"), merged=True)
    monkeypatch.setattr("stages.sinks.spool.os.pwrite", full)
    sink.take(detections(0, "b"))
    taken = 0

    def go_on() -> None:
        nonlocal taken
        while sink.take(detections(taken, "a")):
            taken += 1

    with pytest.raises(StageDead, match=r"no room in .* the disk is full; free some space") as error:
        go_on()
    # a 0 and b 0 are written: of a's lines those after it are missing, the one that met the full disk included
    assert f"; {taken} lines are missing at the end of {tmp_path / 'x.jsonl'}" in str(error.value)
    with pytest.raises(StageDead):
        sink.take(detections(taken, "a"))
    assert sink.close(soon()) == ""
    assert [line["camera"] for line in lines(tmp_path / "x.jsonl")] == ["a", "b"]


def test_merged_lines_that_a_slow_pipe_does_not_take_are_waited_for_or_counted(tmp_path: Path, make: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    sink = make(tmp_path / "pipe", ("a", "b"), merged=True)
    for seq in range(3000):
        assert sink.take(detections(seq, "a", label="m" * 1000))
    sink.take(status("ended", "b"))
    for _ in range(5):
        sink.service()
    said = sink.close(time.monotonic_ns() + 100_000_000)
    data = bytearray()
    while piece := os.read(reader, 65536):
        data.extend(piece)
    os.close(reader)
    missing = int(said.split(": ")[1].split()[0])
    assert said.endswith("lines were not read in time")
    assert 2000 < missing == 3000 - data.count(b"\n")


@pytest.mark.parametrize("how", ["renamed", "removed", "folder removed"])
def test_a_file_that_was_moved_or_removed_is_gone_on_with_in_a_new_one(how: str, tmp_path: Path) -> None:
    now_ns = [0]
    path = tmp_path / "out" / "a.jsonl"
    sink = JsonlSink(str(path), cameras=("a",), clock_ns=lambda: now_ns[0])
    sink.open()
    assert sink.take(detections(0))
    sink.service()
    if how == "renamed":
        path.rename(tmp_path / "a.jsonl.1")
    elif how == "removed":
        path.unlink()
    else:
        shutil.rmtree(path.parent)
    now_ns[0] += 2_000_000_000
    assert sink.take(detections(1))
    sink.service()
    assert sink.take(detections(2))
    assert not sink.close(now_ns[0] + 1_000_000_000)
    seqs = [json.loads(line)["seq"] for line in path.read_text().splitlines()]
    assert seqs[-1] == 2
    if how == "renamed":
        moved = [json.loads(line)["seq"] for line in (tmp_path / "a.jsonl.1").read_text().splitlines()]
        assert moved + seqs == [0, 1, 2]  # none is missing, none is there twice


@pytest.mark.parametrize("name", ["x.jsonl", "{camera}.jsonl"])
def test_with_live_cameras_a_disk_that_was_full_is_written_again_and_what_is_missing_is_told_once(
    tmp_path: Path, file_limit: Any, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    now_ns = 0
    path = tmp_path / name
    sink = JsonlSink(str(path), cameras=("a",), clock_ns=lambda: now_ns, live=("a",), status=True)
    sink.open()
    path = tmp_path / name.replace("{camera}", "a")
    size = len(Packer().line(detections(1)))
    file_limit(3 * size + 5)
    for seq in range(10):
        assert sink.take(detections(seq))
    sink.service()
    assert "can't go on writing" in sink.trouble
    assert sink.missed == 7
    for seq in range(10, 20):
        now_ns += 1_000_000_000
        assert sink.take(detections(seq))
        sink.service()
    assert sink.missed == 17
    assert [json.loads(line)["seq"] for line in path.read_bytes().splitlines()] == [0, 1, 2]
    file_limit(resource.RLIM_INFINITY)
    now_ns += 31_000_000_000
    sink.service()
    for seq in range(20, 23):
        assert sink.take(detections(seq))
    sink.service()
    assert (sink.trouble, sink.missed) == ("", 17)
    assert [each["seq"] for each in lines(path)] == [0, 1, 2, 20, 21, 22]
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "17 lines are missing" in caplog.text
    file_limit(7 * size)
    for seq in range(23, 30):
        assert sink.take(detections(seq))
        sink.service()
    assert sink.missed == 30 - len(lines(path)) > 17, "of the first trouble too"
    assert f"{sink.missed} lines are missing in it: can't go on writing" in sink.close(soon())


@pytest.mark.parametrize("held", [False, True], ids=["service at once", "lines held"])
def test_of_live_cameras_a_file_that_cannot_be_written_costs_the_others_no_line(tmp_path: Path, held: bool) -> None:
    now_ns = 0
    sink = JsonlSink(
        str(tmp_path / "{camera}.jsonl"), cameras=("good",), clock_ns=lambda: now_ns, live=("good", "bad", "worse")
    )
    sink.open()
    for camera in ("bad", "worse"):
        (tmp_path / f"{camera}.jsonl").mkdir()
    for seq in range(300):
        now_ns += 100_000_000
        for camera in ("good", "bad", "worse"):
            assert sink.take(detections(seq, camera))
        if not held or seq % 50 == 49:
            sink.service()
    assert len(lines(tmp_path / "good.jsonl")) == 300
    assert sink.missed == 600
    assert "bad.jsonl: " in sink.trouble
    assert "(and 1 more)" in sink.trouble
    (tmp_path / "bad.jsonl").rmdir()
    now_ns += 31_000_000_000
    sink.service()
    for seq in range(300, 310):
        for camera in ("good", "bad", "worse"):
            assert sink.take(detections(seq, camera))
    sink.service()
    assert "worse.jsonl: " in sink.trouble, "what is written of others ends no trouble"
    assert [line["seq"] for line in lines(tmp_path / "bad.jsonl")] == list(range(300, 310))
    assert len(lines(tmp_path / "good.jsonl")) == 310
    assert sink.missed == 610
    sink.camera_removed("worse")
    assert (sink.trouble, sink.missed) == ("", 610)
    said = sink.close(soon())
    assert "610 lines are missing in it: " in said
    for camera in ("bad", "worse"):
        assert f"{camera}.jsonl: that is a folder" in said


@pytest.mark.parametrize("instead", ["pipe", "pipe with a reader that takes nothing", "device"])
def test_a_pipe_or_device_in_the_place_of_the_file_neither_holds_up_cameras_nor_ends_the_file(
    tmp_path: Path, instead: str
) -> None:
    now_ns = 0
    path = tmp_path / "a.jsonl"
    sink = JsonlSink(str(path), cameras=("a",), clock_ns=lambda: now_ns, live=("a",))
    sink.open()
    assert sink.take(detections(0))
    sink.service()
    path.rename(tmp_path / "a.jsonl.1")
    if instead == "device":
        path.symlink_to("/dev/full")
    else:
        os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if "reader" in instead else -1
    for seq in range(1, 2000):  # more than a pipe holds
        now_ns += 100_000_000
        assert sink.take(detections(seq)), "a live camera waits for nobody"
        sink.service()
    assert sink.trouble.endswith("; remove it") or "nobody reads this pipe" in sink.trouble
    path.unlink()
    now_ns += 31_000_000_000
    sink.service()
    assert sink.take(detections(2000))
    sink.service()
    assert [each["seq"] for each in lines(path)] == [2000]
    before = len(lines(tmp_path / "a.jsonl.1"))  # until it was looked at
    assert (sink.trouble, sink.missed) == ("", 2000 - before)
    assert before < 20
    sink.close(soon())
    if reader >= 0:
        os.close(reader)


def test_what_a_camera_that_left_could_not_hand_to_a_slow_pipe_is_told_at_the_end(tmp_path: Path, make: Any) -> None:
    os.mkfifo(tmp_path / "a")
    reader = os.open(tmp_path / "a", os.O_RDONLY | os.O_NONBLOCK)
    sink = make(tmp_path / "{camera}", ("a", "b"), live=("a", "b"))
    taken = 0
    while sink.take(detections(taken, label="m" * 1000)):
        taken += 1
    sink.camera_removed("a")
    data = bytearray()
    while piece := os.read(reader, 65536):
        data.extend(piece)
    os.close(reader)
    lost = taken - data.count(b"\n")
    assert sink.missed == lost > 0
    assert f"{lost} lines are missing in it: not read in time" in sink.close(soon())


def test_a_recording_that_goes_on_with_a_file_is_not_left_with_a_hole(tmp_path: Path, file_limit: Any) -> None:
    sink = JsonlSink(str(tmp_path / "x.jsonl"), cameras=("a",), clock_ns=lambda: 0, append=True)
    sink.open()
    file_limit(3 * len(Packer().line(detections(1))) + 5)
    for seq in range(10):
        assert sink.take(detections(seq))
    with pytest.raises(StageDead, match="7 lines are missing"):
        sink.service()
    with pytest.raises(StageDead):
        sink.take(detections(10))


def test_a_disk_that_stays_full_is_tried_ever_less_often() -> None:
    again, tries = Again(), []
    for second in range(200):
        again.look(second * 1_000_000_000)
        if not again.waits:
            tries.append(second)
            assert again.failed("full", second * 1_000_000_000) == (second == 0)
    assert tries == [0, 1, 3, 7, 15, 31, 61, 91, 121, 151, 181]

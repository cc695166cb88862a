"""The merged order depends on what cameras say, never on when: against sorting everything at the end."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import messages

from stages.errors import StageDead
from stages.messages import Detections, Status
from stages.sinks.merge import Merge
from stages.sinks.spool import Spool

CAMERAS = ["c", "a", "b"]


def detections(camera: str, epoch: int, seq: int, pts_ns: int) -> Detections:
    return messages.detections(seq, camera, epoch=epoch, pts_ns=pts_ns)


def ended(camera: str, epoch: int) -> Status:
    return Status(camera=camera, epoch=epoch, state="ended", cause="ended", detail="", time_ns=0)


@st.composite
def streams(draw: st.DrawFn) -> dict[str, list[Detections | Status]]:
    result: dict[str, list[Detections | Status]] = {}
    for camera in CAMERAS:
        messages: list[Detections | Status] = []
        epochs = draw(st.integers(0, 2))
        for epoch in range(epochs):
            stamps = sorted(draw(st.lists(st.integers(0, 8), max_size=8)))
            messages += [detections(camera, epoch, seq, pts) for seq, pts in enumerate(stamps)]
        messages.append(ended(camera, epochs))
        result[camera] = messages
    return result


def interleaved(data: st.DataObject, streams: dict[str, list[Detections | Status]]) -> list[Detections | Status]:
    order = data.draw(st.permutations([camera for camera, messages in streams.items() for _ in messages]))
    at = dict.fromkeys(streams, 0)
    result = []
    for camera in order:
        result.append(streams[camera][at[camera]])
        at[camera] += 1
    return result


@given(streams(), st.data())
def test_any_interleaving_gives_the_sorted_order(
    streams: dict[str, list[Detections | Status]], data: st.DataObject
) -> None:
    merge: Merge[Detections] = Merge(CAMERAS)
    out: list[Detections] = []
    for message in interleaved(data, streams):
        merge.put(message, message if isinstance(message, Detections) else None)
        out += merge.ready()
    everything = [m for messages in streams.values() for m in messages if isinstance(m, Detections)]
    assert merge.held == 0, "every camera has ended"
    assert out == sorted(everything, key=lambda m: (m.epoch, m.pts_ns, CAMERAS.index(m.camera), m.seq))


@given(streams(), st.data())
def test_what_leaves_early_is_the_beginning_of_the_whole(
    streams: dict[str, list[Detections | Status]], data: st.DataObject
) -> None:
    messages = interleaved(data, streams)
    cut = data.draw(st.integers(0, len(messages)))
    outs = []
    for part in (messages[:cut], messages):
        merge: Merge[Detections] = Merge(CAMERAS)
        out: list[Detections] = []
        for message in part:
            merge.put(message, message if isinstance(message, Detections) else None)
            out += merge.ready()
        outs.append(out)
        assert merge.held == sum(isinstance(m, Detections) for m in part) - len(out)
    assert outs[1][: len(outs[0])] == outs[0]


def test_rest_gives_what_is_held_as_if_all_had_ended() -> None:
    merge: Merge[str] = Merge(["a", "b"])
    merge.put(detections("b", 0, 0, 5), "b5")
    merge.put(detections("b", 0, 1, 9), "b9")
    merge.put(detections("a", 1, 0, 0), "a1:0")
    assert list(merge.ready()) == ["b5", "b9"]
    assert list(merge.rest()) == ["a1:0"]
    assert merge.held == 0


def test_statuses_stand_where_their_camera_is() -> None:
    merge: Merge[str] = Merge(["a", "b"])
    started = Status(camera="a", epoch=0, state="started", cause="started", detail="", time_ns=0)
    gap = Status(camera="a", epoch=0, state="gap", cause="bad_frame", detail="", time_ns=0, from_seq=1, to_seq=1)
    merge.put(started, "a started")
    merge.put(detections("a", 0, 0, 10), "a10")
    merge.put(gap, "a gap")
    merge.put(detections("a", 0, 2, 30), "a30")
    merge.put(detections("b", 0, 0, 0), "b0")
    merge.put(detections("b", 0, 1, 20), "b20")
    merge.put(ended("b", 0), "b ended")
    merge.put(ended("a", 0), "a ended")
    assert list(merge.ready()) == ["a started", "b0", "a10", "a gap", "b20", "b ended", "a30", "a ended"]


# --- what is held by the merge, in files ------------------------------------------------------------------------------


def open_files() -> list[str]:
    """Where the descriptors of this process lead; unnamed files are shown as deleted ones."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that listed them
            found.append(str(descriptor.readlink()))
    return found


def append(spool: Spool, count: int, line: bytes) -> None:
    for number in range(count):
        spool.append((0, number, line))


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path, block_lines=3, block_bytes=1000, file_bytes=200)
    yield spool
    spool.close()


@given(streams(), st.data(), st.integers(1, 4), st.integers(1, 80), st.integers(0, 200))
def test_merging_through_files_gives_the_very_same_as_merging_in_memory(
    tmp_path_factory: pytest.TempPathFactory,
    streams: dict[str, list[Detections | Status]],
    data: st.DataObject,
    block_lines: int,
    block_bytes: int,
    file_bytes: int,
) -> None:
    folder = tmp_path_factory.getbasetemp()
    spools: list[Spool] = []

    with contextlib.ExitStack() as cleanup:

        def spooled() -> Spool:
            spools.append(Spool(folder, block_lines=block_lines, block_bytes=block_bytes, file_bytes=file_bytes))
            cleanup.callback(spools[-1].close)
            return spools[-1]

        in_files: Merge[bytes] = Merge(CAMERAS, spooled)
        in_memory: Merge[bytes] = Merge(CAMERAS)
        for number, message in enumerate(interleaved(data, streams)):
            line = b"%d" % number * data.draw(st.integers(0, 10)) + b"\n"
            for merge in (in_files, in_memory):
                merge.put(message, line)
            if data.draw(st.booleans()):
                assert list(in_files.ready()) == list(in_memory.ready())
            assert in_files.held == in_memory.held
            assert all(spool.in_memory <= 2 * block_lines for spool in spools)
        assert list(in_files.rest()) == list(in_memory.rest())
        assert all(len(spool) == spool.in_memory == spool.on_disk_bytes == 0 for spool in spools)


@given(st.lists(st.one_of(st.none(), st.binary(max_size=30)), max_size=200))
def test_the_spool_is_a_queue(tmp_path_factory: pytest.TempPathFactory, steps: list[bytes | None]) -> None:
    queue: list[tuple[int, int, bytes]] = []
    spool = Spool(tmp_path_factory.getbasetemp(), block_lines=3, block_bytes=40, file_bytes=100)
    with contextlib.closing(spool):
        for number, line in enumerate(steps):
            if line is not None:
                queue.append((number, -number, line))
                spool.append(queue[-1])
            elif queue:
                assert spool.popleft() == queue.pop(0)
            else:
                with pytest.raises(IndexError):
                    spool.popleft()
            assert len(spool) == len(queue)
            assert spool.in_memory <= 6
        assert [spool.popleft() for _ in queue] == queue


def test_cameras_that_drift_apart_do_not_fill_the_memory(tmp_path: Path) -> None:
    # recordings of 10 and 30 frames per second, decoded equally fast: 13 333 lines were held in memory
    spools: list[Spool] = []

    def spooled() -> Spool:
        spools.append(Spool(tmp_path))
        return spools[-1]

    merge: Merge[bytes] = Merge(["slow", "fast"], spooled)
    most_held = most_in_memory = out = 0
    for seq in range(20_000):
        for camera, fps in (("slow", 10), ("fast", 30)):
            merge.put(detections(camera, 0, seq, seq * 1_000_000_000 // fps), b"x" * 100 + b"\n")
        out += sum(1 for _ in merge.ready())
        most_held = max(most_held, merge.held)
        most_in_memory = max(most_in_memory, *(spool.in_memory for spool in spools))
    assert most_held > 13_000, "not the case that was meant"
    assert most_in_memory <= 1000
    assert list(tmp_path.iterdir()) == [], "the files have no name"
    assert out + sum(1 for _ in merge.rest()) == 40_000
    for spool in spools:
        spool.close()


def test_long_lines_are_bounded_by_their_bytes(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for _ in range(100):
        spool.append((0, 0, b"x" * 100_000))
        assert spool.in_memory <= 6
    assert len(spool) == 100
    spool.close()


def test_a_camera_that_is_ahead_for_ever_does_not_fill_the_disk(spool: Spool) -> None:
    append(spool, 50, b"x" * 20)
    most = 0
    for number in range(50, 5000):
        spool.append((0, number, b"x" * 20))
        assert spool.popleft()[1] == number - 50
        most = max(most, spool.on_disk_bytes)
    assert most < 8000  # 50 lines take about 2000 bytes


def test_a_closed_spool_leaves_no_file_and_no_descriptor(spool: Spool, tmp_path: Path) -> None:
    before = open_files()
    append(spool, 50, b"x\n")
    assert [path for path in open_files() if path.startswith(str(tmp_path))]
    assert list(tmp_path.iterdir()) == []
    spool.close()
    spool.close()
    assert len(spool) == 0
    assert sorted(open_files()) == sorted(before)


def test_the_folder_of_temporary_files_is_used_when_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    for folder in (None, tmp_path / "gone"):
        spool = Spool(folder, block_lines=1)
        append(spool, 3, b"x\n")
        assert [path for path in open_files() if path.startswith(str(tmp_path / "temporary"))]
        assert [spool.popleft()[1] for _ in range(3)] == [0, 1, 2]
        spool.close()


def test_a_disk_that_is_full_of_waiting_lines_is_told_in_a_sentence(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("stages.sinks.spool.os.pwrite", full)
    with pytest.raises(StageDead) as error:
        append(spool, 50, b"x\n")
    assert str(error.value) == (
        f"no room in {tmp_path} for the lines that wait for cameras that are behind: the disk is full; free some "
        "space, or write one file per camera (a path with {camera} in it)"
    )


def test_a_write_that_is_cut_short_by_a_limit_is_told(spool: Spool) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        with pytest.raises(StageDead, match="as large as the system allows"):
            append(spool, 50, b"x" * 50)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

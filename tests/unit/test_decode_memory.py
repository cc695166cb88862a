"""A recording's beginning from memory: the same pictures as from the file, again and again, within its bounds."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pipeline.bench.workload import MODEL_640, retime, size_of
from stages.camera import CameraSpec
from stages.decode.file import FileSource
from stages.decode.memory import MOST_BYTES, MemorySource, frame_bytes
from stages.decode.stage import Decode
from stages.frames import HeapRing
from stages.messages import FrameReady, StreamEnded, StreamStarted


def camera(clip: Path, **more: object) -> CameraSpec:
    return dataclasses.replace(CameraSpec("street", str(clip), MODEL_640.name, preload=True), **more)


def test_its_pictures_are_those_of_the_file_and_no_more_than_the_bound(media_dir: Path) -> None:
    clip = media_dir / "street.mp4"
    plain, memory = FileSource(camera(clip)), MemorySource(FileSource(camera(clip)), loop=False)
    facts = memory.open()
    plain.open()
    held = 0
    while (frame := memory.read()) is not None:
        expected = plain.read()
        assert expected is not None
        assert (frame.pts_ns, frame.whole, frame.corrupt) == (expected.pts_ns, expected.whole, expected.corrupt)
        assert np.array_equal(frame.frame.to_ndarray(), expected.frame.to_ndarray())
        held += frame_bytes(frame.frame)
    assert MOST_BYTES <= held < MOST_BYTES + 2 * held / (facts.frames or 1)
    assert (memory.ending().cause, facts.width, facts.height) == ("ended", 768, 576)
    plain.close()
    memory.close()
    memory.close()
    assert memory.read() is None


def test_a_loop_never_ends_and_its_clock_goes_on_evenly(media_dir: Path) -> None:
    memory = MemorySource(FileSource(camera(media_dir / "street.mp4")), loop=True)
    facts = memory.open()
    assert facts.frames is None
    stamps = [frame.pts_ns for frame in (memory.read() for _ in range(200)) if frame is not None]
    assert len(stamps) == 200
    assert {round((later - earlier) / 1e6) for earlier, later in pairwise(stamps)} == {100}
    memory.close()


@pytest.mark.parametrize(("loop", "limit", "frames", "cause"), [(True, 120, 120, "limit"), (False, None, 26, "ended")])
def test_the_stage_plays_it_in_one_epoch(media_dir: Path, loop: bool, limit, frames: int, cause: str) -> None:
    ring = HeapRing("street", 2, MODEL_640.frame_bytes)
    stage = Decode(camera(media_dir / "street.mp4", loop=loop, max_frames=limit), MODEL_640, ring, lambda: 0)
    messages = stage.open()
    stage.grant([0, 1])
    while not stage.done:
        for message in stage.step():
            messages.append(message)
            if isinstance(message, FrameReady):
                stage.grant([message.slot])
    told = [message for message in messages if isinstance(message, FrameReady)]
    (started,) = [message for message in messages if isinstance(message, StreamStarted)]
    ended = messages[-1]
    assert isinstance(ended, StreamEnded)
    assert [message.seq for message in told] == list(range(len(told)))
    assert (ended.cause, ended.decoded) == (cause, len(told))
    assert abs(len(told) - frames) <= (0 if loop else 1)
    assert started.frames_expected in {None, len(told)}


def test_a_paced_recording_stamps_frames_with_the_time_at_which_they_are_due(media_dir: Path) -> None:
    now = [1_000_000_000]
    ring = HeapRing("street", 8, MODEL_640.frame_bytes)
    stage = Decode(camera(media_dir / "street.mp4", pace="realtime"), MODEL_640, ring, lambda: now[0])
    stage.open()
    stage.grant(range(8))
    told = []
    while len(told) < 5:
        told += [message for message in stage.step() if isinstance(message, FrameReady)]
        now[0] += 7_000_000  # looks late by up to 7 ms
    assert [message.arrived_at_ns - message.pts_ns for message in told] == [1_000_000_000] * 5
    assert all(0 <= message.decoded_at_ns - message.arrived_at_ns <= 7_000_000 for message in told)
    stage.close()


def test_a_retimed_clip_has_the_same_pictures_at_another_rate(media_dir: Path, tmp_path: Path) -> None:
    from fractions import Fraction

    clip = media_dir / "street.mp4"
    faster = retime(clip, Fraction(25), tmp_path)
    plain, other = FileSource(camera(clip)), FileSource(camera(faster))
    plain.open()
    facts = other.open()
    assert facts.fps == pytest.approx(25, rel=0.01)
    assert size_of(faster) == (768, 576)
    stamps = []
    while (frame := other.read()) is not None:
        expected = plain.read()
        assert expected is not None
        assert np.array_equal(frame.frame.to_ndarray(), expected.frame.to_ndarray())
        stamps.append(frame.pts_ns)
    assert plain.read() is None
    assert {round((later - earlier) / 1e6) for earlier, later in pairwise(stamps)} == {40}
    assert other.ending().cause == "ended"

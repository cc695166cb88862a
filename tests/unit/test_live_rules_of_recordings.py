"""Rules that cameras and recordings share, on recordings: keyframes alone, damaged pictures, before the first keyframe,
settings that change while it plays."""

from __future__ import annotations

import dataclasses

import av
import pytest
from made.specs import model_spec
from media.odd.making import encode, scene
from media.odd.odd_inputs import OddInputs

from stages.camera import CameraSpec
from stages.decode.stage import Decode
from stages.frames import HeapRing
from stages.messages import FrameDropped, FrameReady, StreamEnded, StreamStarted

MS = 1_000_000
MODEL = model_spec(width=32, height=32, layout="yolov8", labels=(), outputs=())


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    return OddInputs(tmp_path_factory.getbasetemp() / "odd_inputs")


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """24 frames at 25 fps, a keyframe each 6."""
    path = tmp_path_factory.mktemp("short") / "short.mp4"
    options = {"preset": "veryfast", "g": "6", "keyint_min": "6", "sc_threshold": "0", "bf": "0", "threads": "1"}
    encode(path, scene(24, 48, 32), options=options)
    return path


class Player:
    """Plays with one slot that is given back at once."""

    def __init__(self, path, **camera) -> None:
        self.camera = CameraSpec("gate", str(path), "m", **camera)
        self.stage = Decode(self.camera, MODEL, HeapRing("frames/gate", 1, MODEL.frame_bytes + 64), lambda: 0)
        self.messages = list(self.stage.open())
        self.stage.grant([0])

    def play(self, messages: int | None = None):
        while not self.stage.done and (messages is None or len(self.messages) < messages):
            for message in self.stage.step():
                self.messages.append(message)
                if isinstance(message, FrameReady):
                    self.stage.grant([message.slot])
        return self

    def of(self, kind):
        return [message for message in self.messages if isinstance(message, kind)]


def test_keyframes_alone_are_decoded(short) -> None:
    player = Player(short, keyframes=True).play()
    assert [frame.pts_ns // MS for frame in player.of(FrameReady)] == [0, 240, 480, 720]
    assert [frame.seq for frame in player.of(FrameReady)] == [0, 1, 2, 3]
    (ended,) = player.of(StreamEnded)
    assert (ended.cause, ended.decoded, ended.sampled_out) == ("ended", 4, 0)
    assert player.of(StreamStarted)[0].frames_expected is None  # what the index promises is another number


@pytest.mark.parametrize("every", [1, 3])
def test_damaged_pictures_are_left_out_and_told(odd, every) -> None:
    path = odd.path("corrupt_heavy.mp4")
    flagged = Player(path).play()
    damaged = [frame.pts_ns for frame in flagged.of(FrameReady) if frame.corrupt]
    assert damaged
    dropped = Player(path, corrupt="drop", sample_every=every).play()
    assert not any(frame.corrupt for frame in dropped.of(FrameReady))
    assert [frame.cause for frame in dropped.of(FrameDropped)] == ["corrupt"] * len(damaged)
    whole = [frame.pts_ns for frame in flagged.of(FrameReady) if not frame.corrupt]
    assert [frame.pts_ns for frame in dropped.of(FrameReady)] == whole[::every]  # they take nobody's turn
    (ended,) = dropped.of(StreamEnded)
    told = [*dropped.of(FrameReady), *dropped.of(FrameDropped)]
    assert sorted(frame.seq for frame in told) == list(range(len(told)))
    assert ended.decoded == len(told) + ended.sampled_out == len(flagged.of(FrameReady))


def test_what_comes_before_the_first_keyframe_is_dropped(tmp_path) -> None:
    """MPEG-4 begins with whatever it is given: grey, with the changes of a picture that was never sent."""
    whole, begun = tmp_path / "whole.avi", tmp_path / "begun.avi"
    encode(whole, scene(24, 64, 48), codec="mpeg4", options={"g": "8", "bf": "0", "threads": "1", "sc_threshold": "0"})
    with av.open(str(whole)) as reader, av.open(str(begun), "w") as writer:
        copy = writer.add_stream_from_template(reader.streams.video[0])
        for n, packet in enumerate(reader.demux(video=0)):
            if n >= 3 and packet.size:
                packet.stream = copy
                writer.mux(packet)
    player = Player(begun).play()
    assert [(frame.seq, frame.cause) for frame in player.of(FrameDropped)] == [(n, "no_keyframe") for n in range(5)]
    assert [frame.seq for frame in player.of(FrameReady)] == list(range(5, 21))


@pytest.mark.parametrize("name", ["good.mp4", "cut_start.mp4", "mid_start.ts", "vfr.mp4"])
def test_whole_recordings_lose_nothing_by_that(odd, name) -> None:
    player = Player(odd.path(name)).play()
    assert player.of(FrameDropped) == []
    assert len(player.of(FrameReady)) > 40


def test_a_stream_that_never_has_a_keyframe_but_refreshes_bit_by_bit_is_played(tmp_path) -> None:
    path = tmp_path / "refresh.ts"
    encode(path, scene(90, 160, 128), options={"preset": "veryfast", "intra-refresh": "1", "g": "20", "bf": "0"})
    cut = tmp_path / "cut.ts"
    cut.write_bytes(path.read_bytes()[188 * 60 :])
    player = Player(cut).play()
    assert player.of(FrameDropped) == []
    assert len(player.of(FrameReady)) > 20


def test_settings_change_in_the_middle_of_a_recording(short) -> None:
    player = Player(short, sample_every=2).play(messages=4)
    assert [frame.pts_ns // MS for frame in player.of(FrameReady)] == [0, 80, 160]
    player.stage.change(dataclasses.replace(player.camera, sample_every=5, roi=(0, 0, 0.5, 1)), 3)
    player.play()
    frames = player.of(FrameReady)
    assert [frame.settings for frame in frames[:3]] == [0, 0, 0]
    assert {frame.settings for frame in frames[3:]} == {3}
    assert [frame.pts_ns // MS for frame in frames[3:]] == [200, 400, 600, 800]
    (ended,) = player.of(StreamEnded)
    assert ended.decoded == len(frames) + ended.sampled_out == 24

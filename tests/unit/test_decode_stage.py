"""The decode stage: slots, back-pressure, pace, loops, limits, stops, and going on where another one was lost."""

from __future__ import annotations

import hashlib
import shutil

import cv2
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made.specs import model_spec
from media.odd.making import encode, scene
from media.odd.odd_inputs import OddInputs
from searching import examples

from stages.camera import CameraSpec
from stages.decode import upright
from stages.decode.stage import FRAMES_PER_STEP, Decode, ResumePoint
from stages.errors import SourceRefused
from stages.frames import HeapRing
from stages.letterbox import geometry
from stages.messages import FrameDropped, FrameReady, StreamEnded, StreamStarted
from stages.model import ModelSpec

MS = 1_000_000
SECOND = 1000 * MS


def model(width=96, height=96, placement="center", channels="rgb") -> ModelSpec:
    return model_spec(
        width=width, height=height, placement=placement, channels=channels, layout="yolov8", labels=(), outputs=()
    )


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    return OddInputs(tmp_path_factory.getbasetemp() / "odd_inputs")


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """13 frames of 48x32 at 25 fps, B-frames."""
    path = tmp_path_factory.mktemp("short") / "short.mp4"
    encode(path, scene(13, 48, 32), options={"preset": "veryfast", "g": "6", "bf": "2", "threads": "1"})
    return path


class Engine:
    """Grants slots, reads them at once and gives them back; its clock goes on only when the stage waits."""

    def __init__(self, path, *, model=None, slots=2, resume=None, hold=False, **camera) -> None:
        self.model = model or globals()["model"]()
        self.camera = CameraSpec(name="gate", url=str(path), model="m", **camera)
        self.ring = HeapRing("frames/gate", slots, self.model.frame_bytes + 64)
        self.now_ns = 1_000 * SECOND
        self.hold = hold
        self.messages = []
        self.pictures = []
        self.at_ns = []
        self.stage = Decode(self.camera, self.model, self.ring, lambda: self.now_ns, resume)

    def open(self):
        self.take(self.stage.open())
        self.stage.grant(range(self.ring.slots))
        return self

    def take(self, messages) -> None:
        for message in messages:
            if isinstance(message, FrameReady):
                self.pictures.append(hashlib.md5(self.read(message)).hexdigest())
                if not self.hold:
                    self.stage.grant([message.slot])
            self.messages.append(message)
            self.at_ns.append(self.now_ns)

    def read(self, ready) -> bytes:
        return bytes(self.ring.read(ready.slot, ready.generation)[: self.model.frame_bytes])

    def picture(self, ready):
        return np.frombuffer(self.read(ready), np.uint8).reshape(self.model.height, self.model.width, 3)

    def step(self):
        """One step, when one is due or will be."""
        wait_ns = self.stage.wait_ns()
        assert wait_ns is not None
        self.now_ns += wait_ns
        before = len(self.messages)
        self.take(self.stage.step())
        return self.messages[before:]

    def play(self, messages=None):
        """Until the end, or until so many messages."""
        while not self.stage.done and (messages is None or len(self.messages) < messages):
            if self.stage.wait_ns() is None:
                break
            self.step()
        return self

    def of(self, kind):
        return [message for message in self.messages if isinstance(message, kind)]

    @property
    def told(self):
        """All messages, without what depends on slots and clocks, and with what lies in the slots."""
        pictures = iter(self.pictures)
        return [
            (msgspec.structs.replace(m, slot=0, generation=0, decoded_at_ns=0, arrived_at_ns=0), next(pictures))
            if isinstance(m, FrameReady)
            else m
            for m in self.messages
        ]


# --- one whole recording ----------------------------------------------------------------------------------------------


def test_a_recording_from_start_to_end(odd) -> None:
    engine = Engine(odd.path("good.mp4")).open().play()
    started, *frames, ended = engine.messages
    assert started == StreamStarted("gate", 0, 160, 120, 25.0, "h264", "file", 100)
    assert ended == StreamEnded("gate", 0, "ended", "", 100, 0, 0, last=True)
    assert [f.seq for f in frames] == list(range(100))
    assert [f.pts_ns for f in frames] == [n * 40 * MS for n in range(100)]
    assert [f.decoded for f in frames] == list(range(1, 101))
    assert {(f.camera, f.epoch, f.width, f.height, f.sampled_out, f.corrupt) for f in frames} == {
        ("gate", 0, 160, 120, 0, False)
    }
    assert [f.captured_ns for f in frames] == [f.pts_ns for f in frames]
    assert all(f.generation % 2 == 0 for f in frames)
    assert engine.stage.done
    assert engine.stage.wait_ns() is None
    assert engine.stage.step() == engine.stage.stop() == []


@pytest.mark.parametrize("channels", ["rgb", "bgr"])
@pytest.mark.parametrize("placement", ["stretch", "center", "top_left"])
@pytest.mark.parametrize("name", ["good.mp4", "rotated90.mp4", "odd_321x241_444.mp4"])
@pytest.mark.parametrize("roi", [None, (0.25, 0.1, 0.8, 0.9)])
def test_slots_hold_the_letterboxed_upright_picture(odd, name, placement, channels, roi) -> None:
    """Against PyAV, NumPy and OpenCV used the straight way."""
    import av

    engine = Engine(
        odd.path(name), model=model(96, 64, placement, channels), roi=roi, max_frames=6, hold=True, slots=6
    ).open()
    engine.play()
    frames = engine.of(FrameReady)
    assert len(frames) == 6
    with av.open(str(odd.path(name))) as container:
        for ready, frame in zip(frames, container.decode(video=0), strict=False):
            image = np.rot90(frame.to_ndarray(format=channels + "24"), frame.rotation // 90)
            assert (ready.height, ready.width) == image.shape[:2]
            g = geometry(ready.width, ready.height, 96, 64, placement, roi)
            crop = image[g.crop_y : g.crop_y + g.crop_height, g.crop_x : g.crop_x + g.crop_width]
            expected = np.full((64, 96, 3), 114, np.uint8)
            expected[g.top : g.top + g.height, g.left : g.left + g.width] = cv2.resize(
                np.ascontiguousarray(crop), (g.width, g.height), interpolation=cv2.INTER_LINEAR
            )
            np.testing.assert_array_equal(engine.picture(ready), expected)


def test_a_size_change_gets_a_new_geometry(odd) -> None:
    engine = Engine(odd.path("size_change.ts"), model=model(160, 160, "center")).open().play()
    frames = engine.of(FrameReady)
    assert [(f.width, f.height) for f in frames] == [(160, 120)] * 50 + [(320, 240)] * 50
    assert engine.of(StreamEnded)[0].cause == "ended"
    bottom = engine.picture(frames[-1])[145:155, 80:].astype(int)  # the ring still holds the last one
    assert abs(bottom - 114).max() == 0
    right = engine.picture(frames[-1])[60:100, 150:, 0]  # red grows to the right edge of the whole picture
    assert right.min() > 200


@pytest.mark.parametrize(
    ("name", "cause"),
    [("trunc_faststart.mp4", "truncated"), ("corrupt_heavy.mp4", "ended"), ("vtest.avi", "ended")],
)
def test_the_ledger_of_broken_and_real_files(odd, request, name, cause) -> None:
    path = request.getfixturevalue("shared_dir") / "video" / name if name == "vtest.avi" else odd.path(name)
    engine = Engine(path, max_frames=200).open().play()
    (ended,) = engine.of(StreamEnded)
    assert ended.decoded == len(engine.of(FrameReady))
    if name == "vtest.avi":
        assert (ended.cause, ended.decoded) == ("limit", 200)
    else:
        assert ended.cause == cause
        assert ended.decode_errors > 0
        assert any(f.corrupt for f in engine.of(FrameReady)) == name.startswith("corrupt")


def test_captured_at(odd, shared_dir) -> None:
    clip = shared_dir / "video" / "car-detection.mp4"
    for more, first in (({}, 1_524_177_960 * SECOND), ({"recorded_at_ns": 5}, 5)):
        frames = Engine(clip, max_frames=2, **more).open().play().of(FrameReady)
        assert [f.captured_ns for f in frames] == [first, first + 80 * MS]


# --- slots ------------------------------------------------------------------------------------------------------------


def test_a_recording_waits_for_slots_and_loses_nothing(odd) -> None:
    engine = Engine(odd.path("good.mp4"), slots=3, hold=True).open().play()
    assert [m.slot for m in engine.of(FrameReady)] == [0, 1, 2]
    assert engine.stage.wait_ns() is None
    assert engine.stage.step() == []  # no harm when called all the same
    engine.stage.grant([1])
    assert engine.stage.wait_ns() == 0
    engine.play()
    assert [(m.seq, m.slot) for m in engine.of(FrameReady)] == [(0, 0), (1, 1), (2, 2), (3, 1)]


def test_nothing_is_written_without_a_grant(odd) -> None:
    engine = Engine(odd.path("good.mp4"))
    engine.take(engine.stage.open())
    assert engine.stage.wait_ns() is None
    engine.stage.grant([1])
    engine.hold = True
    engine.play()
    assert [m.slot for m in engine.of(FrameReady)] == [1]


def test_a_live_camera_is_read_on_without_slots(odd) -> None:
    engine = Engine(odd.path("good.mp4"), slots=2, hold=True, live=True).open().play()
    started, *frames, ended = engine.messages
    assert [type(f) for f in frames] == [FrameReady] * 2 + [FrameDropped] * 98
    assert [f.seq for f in frames] == list(range(100))
    assert [f.decoded for f in frames] == list(range(1, 101))
    assert {f.cause for f in frames[2:]} == {"no_slot"}
    assert (started.epoch, ended.decoded) == (0, 100)


def test_a_frame_that_cannot_be_used_is_told_and_costs_no_slot(odd, monkeypatch) -> None:
    monkeypatch.setattr(upright, "MAX_PIXELS", 200 * 200)
    engine = Engine(odd.path("size_change.ts"), slots=2).open().play()
    frames = engine.messages[1:-1]
    assert [type(f) for f in frames] == [FrameReady] * 50 + [FrameDropped] * 50
    assert frames[50].cause == "bad_frame"
    assert "320x240" in frames[50].detail
    assert engine.messages[-1].decoded == 100


# --- sampling, limits, loops ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({"sample_every": 7}, list(range(0, 100, 7))),
        ({"sample_fps": 5.0}, list(range(0, 100, 5))),
        ({"sample_fps": 10.0}, [0, 3, 5, 8, 10, 13, 15, 18, 20, 23]),
    ],
)
def test_sampling_numbers_the_frames_that_are_kept(odd, sampling, kept) -> None:
    engine = Engine(odd.path("good.mp4"), **sampling).open().play()
    frames = engine.of(FrameReady)
    assert [f.pts_ns // (40 * MS) for f in frames][: len(kept)] == kept
    assert [f.seq for f in frames] == list(range(len(frames)))
    assert [f.decoded for f in frames][: len(kept)] == [n + 1 for n in kept]
    (ended,) = engine.of(StreamEnded)
    assert (ended.decoded, ended.sampled_out) == (100, 100 - len(frames))


def test_many_frames_sampled_out_do_not_keep_a_stop_waiting(odd) -> None:
    engine = Engine(odd.path("good.mp4"), sample_every=90).open()
    assert len(engine.step()) == 1
    assert [engine.step() for _ in range(2)] == [[], []]
    assert FRAMES_PER_STEP == 32
    (ended,) = engine.stage.stop()
    assert (ended.cause, ended.decoded, ended.sampled_out) == ("stopped", 1, 0)


@pytest.mark.parametrize(("limit", "kept"), [(1, 1), (10, 3), (13, 4), (14, 4)])
def test_max_frames_counts_decoded_frames(odd, limit, kept) -> None:
    engine = Engine(odd.path("good.mp4"), max_frames=limit, sample_every=4).open().play()
    (ended,) = engine.of(StreamEnded)
    assert (ended.cause, ended.last, ended.decoded) == ("limit", True, limit)
    assert len(engine.of(FrameReady)) == kept
    assert ended.sampled_out == limit - kept


def test_a_limit_needs_no_slot_to_be_told(odd) -> None:
    engine = Engine(odd.path("good.mp4"), max_frames=2, slots=2, hold=True).open().play()
    assert engine.messages[-1].cause == "limit"


def test_each_loop_is_an_epoch(short) -> None:
    engine = Engine(short, loop=True, max_frames=30, sample_every=2).open().play()
    kinds = [(type(m).__name__, m.epoch) for m in engine.messages]
    epochs = []
    for epoch, frames in ((0, 7), (1, 7)):
        epochs += [("StreamStarted", epoch)] + [("FrameReady", epoch)] * frames + [("StreamEnded", epoch)]
    assert kinds == [*epochs, ("StreamStarted", 2), ("FrameReady", 2), ("FrameReady", 2), ("StreamEnded", 2)]
    ends = engine.of(StreamEnded)
    assert [(e.cause, e.last, e.decoded, e.sampled_out) for e in ends] == [
        ("ended", False, 13, 6),
        ("ended", False, 26, 12),
        ("limit", True, 30, 14),
    ]
    assert [f.seq for f in engine.of(FrameReady)] == [*range(7), *range(7), 0, 1]
    assert engine.pictures[:7] == engine.pictures[7:14]
    assert engine.pictures[:2] == engine.pictures[14:]


def test_a_recording_deleted_between_two_loops_ends_the_stream(short, tmp_path) -> None:
    path = tmp_path / "gone.mp4"
    shutil.copy(short, path)
    engine = Engine(path, loop=True).open()
    path.unlink()
    engine.play()
    ended = engine.messages[-1]
    assert (ended.epoch, ended.cause, ended.last, ended.decoded) == (0, "not_found", True, 13)
    assert "no such file" in ended.detail
    assert len(engine.of(StreamEnded)) == 1


# --- pace -------------------------------------------------------------------------------------------------------------


def test_realtime_frames_are_due_at_start_plus_pts(odd) -> None:
    engine = Engine(odd.path("vfr.mp4"), pace="realtime").open().play()
    due = [at for at, m in zip(engine.at_ns, engine.messages, strict=True) if isinstance(m, FrameReady)]
    assert [at - due[0] for at in due] == [m.pts_ns for m in engine.of(FrameReady)]
    assert due[0] == 1_000 * SECOND


def test_realtime_goes_on_without_a_break_into_the_next_loop(short) -> None:
    engine = Engine(short, pace="realtime", loop=True, max_frames=39, sample_every=3).open().play()
    due = [at for at, m in zip(engine.at_ns, engine.messages, strict=True) if isinstance(m, FrameReady)]
    assert [(at - due[0]) // (40 * MS) for at in due] == [e * 13 + n for e in range(3) for n in (0, 3, 6, 9, 12)]


def test_realtime_waits_before_the_frame_not_after_it(odd) -> None:
    engine = Engine(odd.path("good.mp4"), pace="realtime").open()
    assert engine.stage.wait_ns() == 0
    assert len(engine.stage.step()) == 1
    engine.now_ns += 10 * MS
    assert engine.stage.wait_ns() == 0  # the next frame isn't read yet
    assert engine.stage.step() == []
    assert engine.stage.wait_ns() == 30 * MS
    assert engine.stage.step() == []  # called too early: nothing lost
    engine.now_ns += 30 * MS
    assert engine.stage.wait_ns() == 0
    (ready,) = engine.stage.step()
    assert (ready.seq, ready.decoded_at_ns) == (1, engine.now_ns)


def test_realtime_starts_with_the_first_slot_not_with_open(odd) -> None:
    engine = Engine(odd.path("good.mp4"), pace="realtime")
    engine.take(engine.stage.open())
    engine.now_ns += 60 * SECOND  # models load
    engine.stage.grant([0, 1])
    engine.play(messages=10)
    assert engine.at_ns[-1] - engine.at_ns[1] == 8 * 40 * MS


def test_a_live_recording_drops_what_is_due_while_all_slots_are_taken(odd) -> None:
    engine = Engine(odd.path("good.mp4"), pace="realtime", live=True, hold=True, slots=1).open()
    engine.play(messages=5)
    assert [type(m) for m in engine.messages[1:]] == [FrameReady] + [FrameDropped] * 3
    engine.stage.grant([0])
    engine.play(messages=6)
    assert isinstance(engine.messages[-1], FrameReady)
    assert engine.messages[-1].seq == 4
    assert engine.at_ns[-1] - engine.at_ns[1] == 4 * 40 * MS


# --- stop, close, refusal ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pace", ["fast", "realtime"])
@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_stop_tells_the_end_once_with_exact_totals(odd, pace, steps) -> None:
    engine = Engine(odd.path("good.mp4"), sample_every=3, pace=pace).open()
    for _ in range(steps):
        engine.step()
    engine.take(engine.stage.stop())
    ended = engine.messages[-1]
    assert (ended.cause, ended.last) == ("stopped", True)
    assert ended.decoded == len(engine.of(FrameReady)) + ended.sampled_out
    assert engine.stage.done
    assert engine.stage.stop() == engine.stage.step() == []


def test_stop_before_open() -> None:
    stage = Engine("/nowhere.mp4").stage
    assert [m.cause for m in stage.stop()] == ["stopped"]
    assert stage.done


def test_close_may_be_called_at_any_time_and_twice(odd) -> None:
    engine = Engine(odd.path("good.mp4"))
    engine.stage.close()
    engine = Engine(odd.path("good.mp4")).open()
    engine.step()
    engine.stage.close()
    engine.stage.close()
    assert engine.stage.step() == engine.stage.stop() == []


def test_step_before_open_is_a_mistake_of_the_caller(odd) -> None:
    with pytest.raises(RuntimeError, match="before open"):
        Engine(odd.path("good.mp4")).stage.step()


def test_open_refuses_what_cannot_be_played(odd) -> None:
    with pytest.raises(SourceRefused, match="is not a video file"):
        Engine(odd.path("text.mp4")).open()


# --- going on where a lost stage stopped ------------------------------------------------------------------------------


def resume_after(messages) -> ResumePoint:
    """What an engine knows that has got just these messages."""
    epoch, next_seq, decoded, sampled_out = 0, 0, 0, 0
    for message in messages:
        if isinstance(message, StreamStarted):
            if message.epoch != epoch:
                next_seq = 0
            epoch = message.epoch
        elif isinstance(message, FrameReady | FrameDropped):
            next_seq = message.seq + 1
        if not isinstance(message, StreamStarted):
            decoded, sampled_out = message.decoded, message.sampled_out
    return ResumePoint(epoch, next_seq, decoded, sampled_out)


@pytest.mark.parametrize("at", [1, 2, 17, 43])
def test_resumed_on_a_damaged_file_nothing_differs(odd, at) -> None:
    """Same frames, same pixels, same counts of errors."""
    whole = Engine(odd.path("corrupt_heavy.mp4"), sample_every=2, max_frames=85).open().play()
    assert whole.messages[-1].decode_errors > 0
    rest = Engine(
        odd.path("corrupt_heavy.mp4"), sample_every=2, max_frames=85, resume=resume_after(whole.messages[:at])
    )
    rest.open().play()
    assert rest.told[1:] == whole.told[max(at, 1) :]


def test_resumed_in_real_time_the_next_frame_is_due_at_once(odd) -> None:
    engine = Engine(odd.path("good.mp4"), pace="realtime", resume=ResumePoint(0, 50, 50, 0)).open()
    engine.play(messages=4)
    assert [m.seq for m in engine.of(FrameReady)] == [50, 51, 52]
    assert [at - 1_000 * SECOND for at in engine.at_ns[1:]] == [0, 40 * MS, 80 * MS]


def test_frames_already_told_need_no_slot(odd) -> None:
    engine = Engine(odd.path("good.mp4"), resume=ResumePoint(0, 50, 50, 0))
    engine.take(engine.stage.open())
    while engine.stage.wait_ns() == 0:
        assert engine.stage.step() == []
    engine.stage.grant([0])
    (ready,) = engine.step()
    assert (ready.seq, ready.decoded) == (50, 51)


cameras = st.fixed_dictionaries(
    {
        "loop": st.booleans(),
        "max_frames": st.integers(1, 45),
        "pace": st.sampled_from(["fast", "realtime"]),
    },
    optional={"sample_every": st.integers(1, 20), "sample_fps": st.floats(0.5, 60)},
)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(camera=cameras, slots=st.integers(1, 3), data=st.data())
def test_any_camera_keeps_its_ledger_and_can_be_resumed_anywhere(short, camera, slots, data) -> None:
    whole = Engine(short, slots=slots, **camera).open().play()
    assert isinstance(whole.messages[-1], StreamEnded)
    frames = 0
    for message in whole.messages:
        if isinstance(message, StreamStarted):
            expected_seq = 0
            continue
        if isinstance(message, FrameReady | FrameDropped):
            frames += 1
            assert message.seq == expected_seq
            expected_seq += 1
        assert message.decoded == frames + message.sampled_out, "decoded = told + sampled out, at every message"
    ends = whole.of(StreamEnded)
    assert [e.last for e in ends] == [False] * (len(ends) - 1) + [True]
    assert [e.epoch for e in ends] == list(range(len(ends)))
    total = camera["max_frames"] if camera["loop"] else min(camera["max_frames"], 13)
    assert ends[-1].decoded == total
    assert ends[-1].cause == ("limit" if camera["max_frames"] <= 13 or camera["loop"] else "ended")

    # StreamEnded and the StreamStarted behind it leave in one step: an engine has both or neither
    points = [n for n in range(len(whole.messages)) if n == 0 or not isinstance(whole.messages[n - 1], StreamEnded)]
    at = data.draw(st.sampled_from(points))
    rest = Engine(short, slots=slots, resume=resume_after(whole.messages[:at]), **camera).open().play()
    assert rest.told[1:] == whole.told[max(at, 1) :]
    assert rest.messages[0] == [m for m in whole.messages[: max(at, 1)] if isinstance(m, StreamStarted)][-1]

"""The stage of live cameras with a scripted source and its own clock: states, epochs, deadlines, drops, changes."""

from __future__ import annotations

import dataclasses
import os
import queue
import select
import threading

import numpy as np
import pytest
from av.video.frame import VideoFrame
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.camera import CameraSpec, LinkSpec
from stages.decode import live as live_module
from stages.decode.live import GRACE_NS, RESOLVE_NS, LiveDecode
from stages.decode.reader import FRAMES_HELD
from stages.decode.source import LiveFrame, SourceFacts
from stages.decode.stage import ResumePoint
from stages.errors import LinkFault, StageDead
from stages.frames import HeapRing
from stages.messages import FrameDropped, FrameReady, LinkChanged, StreamEnded, StreamStarted
from stages.model import ModelSpec

MS = 1_000_000
SECOND = 1000 * MS
UTC = 1_800_000_000 * SECOND
WAIT_S = 10.0
FACTS = SourceFacts(0, 0, 25.0, "h264", "yuv420p", "rtsp", None, None, 0, None, 40 * MS)
LINK = LinkSpec(open_timeout_ms=3000, read_timeout_ms=1500, stall_ms=4000, retry_first_ms=200, retry_longest_ms=1000)
MODEL = ModelSpec(
    name="m", path="/m.onnx", sha256="", width=32, height=32, channels="rgb", input_layout="nchw",
    input_dtype="float32", mean=(0, 0, 0), std=(1, 1, 1), pad_value=114, placement="center", layout="yolov8",
    labels=(), outputs=(), fixed_batch=None, confidence=0.4, iou=0.45,
)  # fmt: skip


NEXT = {
    "connecting": {"connecting", "streaming", "stalled", "reconnecting"},
    "streaming": {"stalled", "reconnecting"},
    "stalled": {"reconnecting"},
    "reconnecting": {"connecting"},
}


class ScriptedSource:
    """Does what it is told, and blocks until it is."""

    def __init__(self, camera: CameraSpec) -> None:
        self.keyframes = camera.keyframes
        self.decode_errors = 0
        self.skipped = 0
        self.remark = ""
        self.resolving = False
        self.closed = 0
        self.told: queue.Queue[tuple[object, threading.Event]] = queue.Queue()
        self._done: threading.Event | None = None

    def _next(self) -> object:
        if self._done is not None:
            self._done.set()  # what came before has been taken in
        action, self._done = self.told.get()
        if isinstance(action, Exception):
            raise action
        return action

    def open(self) -> SourceFacts:
        found = self._next()
        assert isinstance(found, SourceFacts)
        return found

    def read(self) -> list[LiveFrame]:
        found = self._next()
        assert isinstance(found, list)
        return found

    def silence(self) -> tuple[str, str]:
        return "no_picture", "it sends no pictures"

    def close(self) -> None:
        self.closed += 1
        if self._done is not None:
            self._done.set()


class Rig:
    """A stage, its clock, and what it told."""

    def __init__(self, *, slots: int = 4, grant: bool = True, resume=None, delay_ms: int = 0, link=LINK, **camera):
        self.camera = CameraSpec("gate", "rtsp://cam/x", "m", live=True, network=True, link=link, **camera)
        self.now_ns = 1_000 * SECOND
        self.sources: list[ScriptedSource] = []
        self.messages: list[object] = []
        self.ring = HeapRing("frames/gate", slots, MODEL.frame_bytes + 64)
        self.stage = LiveDecode(
            self.camera, MODEL, self.ring, lambda: self.now_ns, resume, wall_ns=lambda: UTC + self.now_ns,
            draw=lambda: 1.0, delay_ms=delay_ms, open_source=self._open_source,
        )  # fmt: skip
        assert self.stage.open() == []
        if grant:
            self.stage.grant(range(slots))
            self.run()

    def _open_source(self, camera: CameraSpec) -> ScriptedSource:
        self.sources.append(ScriptedSource(camera))
        return self.sources[-1]

    @property
    def source(self) -> ScriptedSource:
        return self.sources[-1]

    def run(self) -> list[object]:
        """Step while something is due now; what that told."""
        before = len(self.messages)
        for _ in range(1000):
            if self.stage.wait_ns() != 0:
                return self.messages[before:]
            self.messages += self.stage.step()
        raise AssertionError("a busy loop")

    def say(self, *actions: object) -> list[object]:
        """Let the source do this, one after the other, and step after all of it."""
        for action in actions:
            done = threading.Event()
            self.source.told.put((action, done))
            assert done.wait(WAIT_S)
        if isinstance(actions[-1], Exception):
            for _ in range(int(WAIT_S * 100)):  # the thread sets its fault after it has closed the source
                if self.stage.wait_ns() == 0:
                    break
                select.select([], [], [], 0.01)
        return self.run()

    def later(self, ms: float) -> list[object]:
        """Let time pass as a worker's loop would: it looks when it is told to, or earlier."""
        before, until_ns = len(self.messages), self.now_ns + int(ms * MS)
        while self.now_ns < until_ns:
            self.run()
            wait_ns = self.stage.wait_ns()
            self.now_ns = until_ns if wait_ns is None else min(until_ns, self.now_ns + wait_ns)
            self.run()
        return self.messages[before:]

    def frame(self, pts_ms: float = 0.0, *, size=(64, 48), corrupt=False, whole=True, clock="arrival") -> LiveFrame:
        picture = VideoFrame.from_ndarray(np.zeros((size[1], size[0], 3), np.uint8), format="rgb24")
        return LiveFrame(
            picture, int(pts_ms * MS), corrupt, whole, arrived_at_ns=self.now_ns, captured_ns=UTC, clock=clock
        )

    def of(self, kind):
        return [message for message in self.messages if isinstance(message, kind)]

    @property
    def states(self) -> list[tuple[str, str]]:
        return [(message.state, message.cause) for message in self.of(LinkChanged)]


@pytest.fixture
def rig(request):
    """Makes rigs, and lets their threads go."""
    made: list[Rig] = []

    def make(**more) -> Rig:
        made.append(Rig(**more))
        return made[-1]

    yield make
    for each in made:
        for source in each.sources:
            source.told.put((LinkFault("stopped", ""), threading.Event()))
        each.stage.close()
        assert not each.stage.stuck


# --- from nothing to streaming ----------------------------------------------------------------------------------------


def test_a_camera_is_connected_and_streams(rig) -> None:
    it = rig()
    assert it.states == [("connecting", "first")]
    assert it.say(FACTS) == []
    told = it.say([it.frame(0.0, clock="rtcp")])
    assert told[0] == StreamStarted("gate", 0, 64, 48, 25.0, "h264", "arrival", None)
    assert told[1] == LinkChanged("gate", 0, "streaming", "first", "")
    (ready,) = told[2:]
    assert isinstance(ready, FrameReady)
    assert (ready.seq, ready.decoded, ready.sampled_out, ready.width, ready.height) == (0, 1, 0, 64, 48)
    assert (ready.pts_ns, ready.captured_ns, ready.clock, ready.arrived_at_ns) == (0, UTC, "rtcp", it.now_ns)
    assert it.ring.read(ready.slot, ready.generation) is not None
    (second,) = it.say([it.frame(40.0)])
    assert (second.seq, second.pts_ns) == (1, 40 * MS)


def test_nothing_is_connected_before_anybody_can_use_a_frame(rig) -> None:
    it = rig(grant=False)
    assert it.stage.wait_ns() is None
    assert it.stage.step() == []
    it.later(100_000)
    assert it.sources == []
    it.stage.grant([0])
    it.run()
    assert len(it.sources) == 1


def test_connects_are_staggered(rig) -> None:
    it = rig(delay_ms=700)
    assert (it.messages, it.sources) == ([], [])
    assert it.later(699) == []
    assert len(it.later(2)) == 1


def test_the_stage_wakes_up_when_there_is_something(rig) -> None:
    it = rig()
    it.stage.wait_ns()
    assert select.select([it.stage.wake_fd], [], [], 0)[0] == []
    it.source.told.put((FACTS, threading.Event()))
    assert select.select([it.stage.wake_fd], [], [], WAIT_S)[0] == [it.stage.wake_fd]
    it.run()
    it.source.told.put(([it.frame()], threading.Event()))
    assert select.select([it.stage.wake_fd], [], [], WAIT_S)[0] == [it.stage.wake_fd]
    it.run()
    assert it.stage.wait_ns() > 0
    assert select.select([it.stage.wake_fd], [], [], 0)[0] == []


# --- lost and found ---------------------------------------------------------------------------------------------------


def test_a_lost_connection_ends_the_epoch_and_is_made_again(rig) -> None:
    it = rig(sample_every=2)
    it.say(FACTS, [it.frame(0), it.frame(40), it.frame(80), it.frame(120)])
    it.source.decode_errors = 7
    ended, changed = it.say(LinkFault("disconnected", "cam:554 closed the connection"))
    assert ended == StreamEnded("gate", 0, "disconnected", "cam:554 closed the connection", 4, 2, 7, last=False)
    assert (changed.epoch, changed.state, changed.cause, changed.attempt) == (1, "reconnecting", "disconnected", 0)
    assert changed.retry_ms == 200
    assert changed.detail == "cam:554 closed the connection; trying again in 0.2 s"
    assert it.source.closed == 1
    assert it.later(199) == []
    (connecting,) = it.later(1)
    assert (connecting.state, connecting.cause, connecting.attempt) == ("connecting", "disconnected", 1)
    it.say(FACTS)
    started, streaming, ready = it.say([it.frame(0, size=(128, 96))])
    assert (started.epoch, started.width, started.height) == (1, 128, 96)
    assert (streaming.epoch, streaming.state) == (1, "streaming")
    assert (ready.epoch, ready.seq, ready.decoded, ready.sampled_out, ready.width) == (1, 0, 5, 2, 128)


def test_a_try_that_failed_uses_no_epoch_up(rig) -> None:
    it = rig()
    for attempt, wait_ms in ((1, 200), (2, 400), (3, 800), (4, 1000), (5, 1000)):
        (changed,) = it.say(LinkFault("refused", "nobody listens at cam:554"))
        assert (changed.epoch, changed.attempt, changed.retry_ms) == (0, attempt, wait_ms)
        it.later(wait_ms)
    it.say(FACTS, [it.frame()])
    assert [message.epoch for message in it.of(StreamStarted)] == [0]
    assert it.of(StreamEnded) == []


def test_after_the_tries_that_are_allowed_the_camera_has_failed(rig) -> None:
    it = rig(link=dataclasses.replace(LINK, attempts=2))
    it.say(LinkFault("not_found", "no such stream"))
    it.later(200)
    failed, ended = it.say(LinkFault("not_found", "no such stream"))
    assert (failed.state, failed.cause, failed.retry_ms) == ("failed", "not_found", None)
    assert (ended.cause, ended.last, ended.epoch) == ("not_found", True, 0)
    assert "given up after 2 tries in a row" in ended.detail
    assert it.stage.done
    assert it.stage.wait_ns() is None


def test_a_new_worker_goes_on_with_the_epoch_and_the_totals_that_it_is_given(rig) -> None:
    it = rig(resume=ResumePoint(3, 0, 100, 40))
    it.say(FACTS)
    started, _, ready = it.say([it.frame()])
    assert (started.epoch, ready.epoch, ready.seq, ready.decoded, ready.sampled_out) == (3, 3, 0, 101, 40)


def test_what_was_left_out_undecoded_is_told_with_each_message_over_all_connections(rig) -> None:
    it = rig(resume=ResumePoint(3, 0, 100, 40, skipped=10))
    it.say(FACTS, [it.frame()])
    it.source.skipped = 4
    it.say([it.frame(40, whole=False)])
    it.source.skipped = 6
    it.say(LinkFault("disconnected", ""))
    assert it.stage.skipped == 16
    it.later(200)
    it.say(FACTS, [it.frame()])
    it.source.skipped = 1
    assert it.stage.skipped == 17
    it.messages += it.stage.stop()
    told = [m for m in it.messages if isinstance(m, FrameReady | FrameDropped | StreamEnded)]
    assert [message.skipped for message in told] == [10, 14, 16, 16, 17]


def test_what_is_odd_about_a_camera_that_streams_is_told_once_for_each_connection(rig) -> None:
    it = rig()
    it.say(FACTS, [it.frame()])
    for number in range(1, 4):
        it.source.remark = "its timestamps run 10 times as fast as time"
        it.say([it.frame(40 * number)])
    it.source.remark = ""
    it.say([it.frame(200)])
    told = [(m.state, m.detail) for m in it.of(LinkChanged)][1:]
    odd = "its timestamps run 10 times as fast as time"
    assert told == [("streaming", ""), ("streaming", odd), ("streaming", "")]


# --- deadlines, enforced from outside ---------------------------------------------------------------------------------


def test_a_camera_that_never_answers_is_given_up_in_time(rig) -> None:
    it = rig()
    assert it.later(2999) == []
    (changed,) = it.later(1)
    assert (changed.state, changed.cause) == ("reconnecting", "timeout")
    assert changed.detail.startswith("the camera does not answer within 3.0 s;")
    it.later(5000)
    assert len(it.sources) == 1  # nobody else may connect while the first reader hangs
    it.say(LinkFault("stopped", ""))
    it.run()
    assert len(it.sources) == 2


def test_a_connection_without_data_is_given_up_in_time(rig) -> None:
    it = rig()
    it.say(FACTS, [it.frame()])
    it.later(1000)
    it.say([])  # a packet of another track
    assert it.later(1499) == []
    ended, changed = it.later(1)
    assert (ended.cause, changed.cause) == ("timeout", "timeout")
    assert ended.detail.startswith("no data for 1.5 s, although connected;")


@pytest.mark.parametrize("started", [True, False])
def test_data_without_pictures_is_a_stall(rig, started) -> None:
    """Endless sound, or parameter sets that never come."""
    it = rig()
    it.say(FACTS, *([[it.frame()]] if started else []))
    for _ in range(3):
        it.later(1000)
        assert it.say([]) == []
    told = it.later(1000)
    assert [message.state for message in told if isinstance(message, LinkChanged)] == ["stalled", "reconnecting"]
    assert told[0].detail == "no picture for 4.0 s: it sends no pictures"
    assert (told[-1].cause, told[-1].epoch) == ("no_picture", 1 if started else 0)
    assert len(it.of(StreamEnded)) == started


def test_frames_before_a_keyframe_are_dropped_and_do_not_count_as_pictures(rig) -> None:
    it = rig()
    it.say(FACTS)
    for _ in range(4):
        told = it.say([it.frame(whole=False)])
        assert told[-1].cause == "no_keyframe"
        it.later(1000)
    assert it.states == [("connecting", "first"), ("stalled", "no_picture"), ("reconnecting", "no_picture")]
    (ended,) = it.of(StreamEnded)
    assert (ended.decoded, len(it.of(FrameDropped))) == (4, 4)


def test_keyframes_are_waited_for_longer(rig) -> None:
    it = rig(keyframes=True, link=dataclasses.replace(LINK, read_timeout_ms=100_000))
    it.say(FACTS, [it.frame()])
    assert it.later(29_000) == []
    assert it.later(1000)[0].state == "stalled"


def test_a_reader_that_never_comes_back_ends_the_worker(rig) -> None:
    it = rig()
    it.later(3000)
    it.later(3000 + GRACE_NS / MS - 1001)
    assert len(it.sources) == 1
    with pytest.raises(StageDead, match="hangs in a call that does not return"):
        it.later(1001)
    it.say(LinkFault("stopped", ""))


def test_a_slow_name_service_ends_no_worker(rig) -> None:
    it = rig()
    it.source.resolving = True
    (changed,) = it.later(3000)
    assert "the name service does not answer" in changed.detail
    it.later(RESOLVE_NS / MS - 2000)
    it.say(LinkFault("unknown_host", ""))
    assert len(it.sources) == 2


def test_a_process_that_was_stopped_does_not_blame_the_camera(rig) -> None:
    it = rig()
    it.say(FACTS, [it.frame()])
    it.later(500)
    it.now_ns += 60 * SECOND  # SIGSTOP, SIGCONT
    assert it.run() == []
    assert it.later(1400) == []
    assert it.later(100)[0].cause == "timeout"


def test_a_bug_in_the_reader_is_told_without_its_text(rig) -> None:
    it = rig()
    with pytest.raises(StageDead, match=r"camera gate: KeyError in test_live_decode.py:\d+ < ") as dead:
        it.say(KeyError("rtsp://u:kanarienvogel-7@cam"))
    assert "kanarienvogel" not in str(dead.value)
    assert dead.value.__context__ is None


# --- what becomes of frames -------------------------------------------------------------------------------------------


def test_the_newest_frames_are_kept_and_each_that_gave_way_is_told(rig) -> None:
    it = rig(slots=10)
    it.say(FACTS, [it.frame(40 * n) for n in range(10)])
    frames = it.of(FrameReady) + it.of(FrameDropped)
    assert sorted(frame.seq for frame in frames) == list(range(10))
    assert [frame.seq for frame in it.of(FrameReady)] == list(range(10 - FRAMES_HELD, 10))
    assert {frame.cause for frame in it.of(FrameDropped)} == {"superseded"}


def test_frames_without_a_slot_are_dropped(rig) -> None:
    it = rig(slots=1)
    it.say(FACTS, [it.frame(0), it.frame(40)])
    assert [(m.seq, getattr(m, "cause", "")) for m in it.messages[-2:]] == [(0, ""), (1, "no_slot")]
    it.stage.grant([0])
    (ready,) = it.say([it.frame(80)])
    assert (ready.seq, ready.slot) == (2, 0)


def test_frames_that_waited_too_long_are_dropped(rig) -> None:
    it = rig(max_age_ms=100)
    it.say(FACTS)
    old = it.frame(0)
    it.now_ns += 101 * MS
    told = it.say([old, it.frame(40)])
    assert [(m.seq, getattr(m, "cause", "")) for m in told[-2:]] == [(0, "too_old"), (1, "")]


@pytest.mark.parametrize(("corrupt", "told"), [("drop", ["", "corrupt", ""]), ("flag", ["", "", ""])])
def test_damaged_frames_by_rule(rig, corrupt, told) -> None:
    it = rig(corrupt=corrupt)
    it.say(FACTS, [it.frame(0), it.frame(40, corrupt=True), it.frame(80)])
    frames = it.messages[-3:]
    assert [getattr(frame, "cause", "") for frame in frames] == told
    assert [frame.corrupt for frame in it.of(FrameReady)] == [False, *([True] if corrupt == "flag" else []), False]


def test_a_frame_of_no_use_costs_no_slot(rig, monkeypatch) -> None:
    from stages.decode import upright

    monkeypatch.setattr(upright, "MAX_PIXELS", 4000)
    it = rig(slots=1)
    it.say(FACTS, [it.frame(0, size=(128, 96)), it.frame(40)])
    assert [getattr(m, "cause", "") for m in it.messages[-2:]] == ["bad_frame", ""]


def test_sampling_by_the_clock_of_the_stream(rig) -> None:
    it = rig(sample_fps=5.0)
    it.say(FACTS)
    for n in range(10):
        it.say([it.frame(40 * n)])
    assert [frame.pts_ns // MS for frame in it.of(FrameReady)] == [0, 200]
    assert [frame.decoded for frame in it.of(FrameReady)] == [1, 6]
    (ended,) = it.stage.stop()
    assert (ended.decoded, ended.sampled_out) == (6, 4)  # what was not told counts as never read


def test_pictures_that_nobody_wants_still_show_that_the_camera_lives(rig) -> None:
    it = rig(sample_fps=0.01)
    it.say(FACTS)
    for n in range(20):
        it.say([it.frame(1000 * n)])
        it.later(1000)
    assert it.states == [("connecting", "first"), ("streaming", "first")]


@pytest.mark.parametrize(("every", "ready"), [(1, 5), (2, 3), (4, 2)])
def test_the_limit_counts_decoded_frames(rig, every, ready) -> None:
    it = rig(slots=8, max_frames=5, sample_every=every)
    it.say(FACTS)
    for n in range(20):
        if it.stage.done:
            break
        it.say([it.frame(40 * n)])
    ended = it.messages[-1]
    assert (ended.cause, ended.last, ended.decoded) == ("limit", True, 5)
    assert len(it.of(FrameReady)) == ready
    assert ended.sampled_out == 5 - ready


# --- whatever happens -------------------------------------------------------------------------------------------------

frames = st.tuples(st.just("frames"), st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6))
faults = st.tuples(st.just("fault"), st.sampled_from(["disconnected", "unauthorised", "timeout", "corrupt"]))
pauses = st.tuples(st.just("later"), st.sampled_from([1, 40, 300, 1500, 4000]))
others = st.tuples(st.sampled_from(["open", "sound", "grant", "change"]), st.just(0))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=st.lists(st.one_of(frames, frames, faults, pauses, others), max_size=25),
    camera=st.fixed_dictionaries(
        {"sample_every": st.integers(1, 3), "corrupt": st.sampled_from(["flag", "drop"]), "slots": st.integers(1, 3)},
        optional={"max_frames": st.integers(1, 20)},
    ),
)
def test_the_ledger_is_exact_and_states_follow_each_other_whatever_happens(rig, events, camera) -> None:
    it = rig(**camera)
    opened: ScriptedSource | None = None  # that reads
    given_back = 0
    for what, value in events:
        if it.stage._leaving is not None:  # its call returns at last
            it.source.told.put((LinkFault("stopped", ""), threading.Event()))
            it.stage._leaving[0].join(WAIT_S)
        it.now_ns += MS
        current = it.stage._reader is not None and it.stage._reader.fault is None
        reads = current and opened is it.source
        if it.stage.done:
            break
        if what == "later":
            it.later(value)
        elif what == "grant":
            ready = it.of(FrameReady)
            it.stage.grant([message.slot for message in ready[given_back:]])
            given_back = len(ready)
        elif what == "change":
            it.stage.change(dataclasses.replace(it.camera, corrupt="drop"), 1)
        elif what == "open" and current and not reads:
            opened = it.source
            it.say(FACTS)
        elif what == "fault" and current:
            it.say(LinkFault(value, value))
        elif what == "sound" and reads:
            it.say([])
        elif what == "frames" and reads:
            it.say([it.frame(40 * n, corrupt=corrupt, whole=whole) for n, (corrupt, whole) in enumerate(value)])
    it.messages += it.stage.stop()
    epoch, seq, started, told, state = 0, 0, False, 0, "connecting"
    for message in it.messages:
        match message:
            case StreamStarted():
                assert (message.epoch, started) == (epoch, False)
                started, seq = True, 0
            case FrameReady() | FrameDropped():
                assert started
                assert (message.epoch, message.seq) == (epoch, seq)
                seq, told = seq + 1, told + 1
                assert message.decoded == told + message.sampled_out
            case StreamEnded():
                assert message.epoch == epoch
                assert message.decoded == told + message.sampled_out
                epoch, started = epoch + (not message.last), False
            case LinkChanged():
                before, state = state, message.state
                assert state in NEXT[before], f"{before} -> {state}"
                assert (message.retry_ms is not None) == (state == "reconnecting")
    assert isinstance(it.messages[-1], StreamEnded)
    assert [m.last for m in it.of(StreamEnded)][-1:] == [True]
    assert sum(m.last for m in it.of(StreamEnded)) == 1


# --- changes, stop, close ---------------------------------------------------------------------------------------------


def test_settings_change_in_place(rig) -> None:
    it = rig(slots=8)
    it.say(FACTS, [it.frame(0)])
    changed = dataclasses.replace(it.camera, corrupt="drop", sample_every=3, roi=(0, 0, 0.5, 0.5), keyframes=True)
    it.stage.change(changed, 7)
    assert it.source.keyframes
    it.say([it.frame(40)])
    it.say([it.frame(80, corrupt=True)])
    for n in range(3, 6):
        it.say([it.frame(40 * n)])
    assert [(m.pts_ns // MS, m.settings) for m in it.of(FrameReady)] == [(0, 0), (40, 7), (200, 7)]
    assert [m.cause for m in it.of(FrameDropped)] == ["corrupt"]
    assert it.states == [("connecting", "first"), ("streaming", "first")]


def test_stop_ends_at_once_whatever_the_reader_does(rig) -> None:
    it = rig()
    it.say(FACTS, [it.frame()])
    (ended,) = it.stage.stop()
    assert (ended.cause, ended.last, ended.decoded) == ("stopped", True, 1)
    assert it.stage.done
    assert it.stage.stop() == it.stage.step() == []


def test_a_reader_that_is_stuck_does_not_delay_the_end(rig, monkeypatch) -> None:
    monkeypatch.setattr(live_module, "CLOSE_S", 0.01)
    it = rig()
    it.stage.stop()
    it.stage.close()
    it.stage.close()
    assert it.stage.stuck  # the process may leave all the same: its thread is a daemon


def test_nothing_is_left_open(rig) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  Path has no cheaper way
    for _ in range(20):
        it = rig()
        it.say(FACTS, [it.frame()], LinkFault("disconnected", ""))
        it.stage.stop()
        it.stage.close()
        assert it.source.closed == 1
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208  as above

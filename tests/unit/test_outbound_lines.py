"""Live cameras and recordings on their way to the sinks: neither waits for the other; each sink's kind of patience."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import zmq
from made import messages

from pipeline.runtime.camera_line import CameraLine
from pipeline.runtime.outbound import Outbound, Outgoing
from pipeline.runtime.outlet import LIVE_PATIENCE_NS, Outlet
from stages.camera import CameraSpec
from stages.errors import StageDead
from stages.messages import Detections, ExternalMessage, Heartbeat, Status
from stages.model import ModelSpec
from stages.sinks.publish import PublishSink

MODEL = ModelSpec(
    name="m", path="/m", sha256="", width=32, height=32, channels="rgb", input_layout="nchw", input_dtype="float32",
    mean=(0, 0, 0), std=(1, 1, 1), pad_value=0, placement="stretch", layout="ssd", labels=("a",), outputs=(),
    fixed_batch=None, confidence=0.4, iou=0.5,
)  # fmt: skip
MS = 1_000_000


def line(name: str, *, live: bool) -> CameraLine:
    return CameraLine(CameraSpec(name, "/", "m", live=live, max_age_ms=100), MODEL, 2, trace=False)


def detections(camera: str, seq: int, epoch: int = 0) -> Detections:
    return messages.detections(seq, camera, epoch=epoch, pts_ns=0)


class Dispatcher:
    """As much of it as an outlet sees."""

    def __init__(self) -> None:
        self.outbound = Outbound()
        self.cameras = {"live": line("live", live=True), "file": line("file", live=False)}

    def put(self, camera: str, seq: int, *, since_ms: int = 0, epoch: int = 0) -> None:
        made = self.cameras[camera]
        made.ledger.admitted(made.ledger.decoded + 1, 0)
        out = self.outbound.line(live=made.spec.live)
        out.append(Outgoing(made, detections(camera, seq, epoch), since_ms * MS))

    def peek_outbound(self, *, live: bool, untouched: bool) -> ExternalMessage | None:
        return self.outbound.peek(live=live, untouched=untouched)

    def delivered(self, *, live: bool) -> None:
        self.outbound.delivered(live=live)


class Fussy:
    """A sink that refuses some cameras, for as long as it is told to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.refuses: set[str] = set()
        self.breaks = False
        self.took: list[tuple[str, int | None]] = []

    def open(self) -> None:
        pass

    def take(self, message: ExternalMessage) -> bool:
        if self.breaks:
            raise StageDead("broken")
        if isinstance(message, Heartbeat):
            return True
        if message.camera in self.refuses:
            return False
        self.took.append((message.camera, message.seq if isinstance(message, Detections) else message.to_seq))
        return True

    def service(self) -> None:
        pass

    def close(self, deadline_ns: int) -> str:
        return ""


def test_a_recording_that_waits_holds_up_no_live_camera_and_nothing_is_taken_twice() -> None:
    first, second = Fussy("first"), Fussy("second")
    outlet = Outlet([first, second], 1000)
    outlet.open(0)
    dispatcher = Dispatcher()
    second.refuses = {"file"}
    for seq in range(3):
        dispatcher.put("file", seq)
        dispatcher.put("live", seq)
    assert outlet.deliver(dispatcher)  # type: ignore[arg-type]
    assert outlet.blocked
    assert first.took == [("live", 0), ("live", 1), ("live", 2), ("file", 0)]
    assert second.took == [("live", 0), ("live", 1), ("live", 2)]
    dispatcher.put("live", 3)
    outlet.deliver(dispatcher)  # type: ignore[arg-type]
    second.refuses = set()
    outlet.deliver(dispatcher)  # type: ignore[arg-type]
    assert not outlet.blocked
    for sink in (first, second):
        assert [seq for camera, seq in sink.took if camera == "file"] == [0, 1, 2]
        assert [seq for camera, seq in sink.took if camera == "live"] == [0, 1, 2, 3]
    assert [c.ledger.published for c in dispatcher.cameras.values()] == [4, 3]


def test_a_sink_that_breaks_between_two_lines_makes_the_others_miss_nothing() -> None:
    first, second, third = Fussy("first"), Fussy("second"), Fussy("third")
    outlet = Outlet([first, second, third], 1000)
    outlet.open(0)
    dispatcher = Dispatcher()
    third.refuses = {"file"}
    dispatcher.put("file", 0)
    outlet.deliver(dispatcher)  # type: ignore[arg-type]
    first.breaks = True
    dispatcher.put("live", 0)
    outlet.deliver(dispatcher)  # type: ignore[arg-type]
    third.refuses = set()
    outlet.deliver(dispatcher)  # type: ignore[arg-type]
    assert second.took == [("file", 0), ("live", 0)]
    assert sorted(third.took) == [("file", 0), ("live", 0)]


def test_a_sink_that_breaks_is_logged_at_once_and_told_in_every_snapshot(caplog: pytest.LogCaptureFixture) -> None:
    first, second = Fussy("first"), Fussy("second")
    outlet = Outlet([first, second], 1000)
    outlet.open(0)
    dispatcher = Dispatcher()
    assert [(s.name, s.state) for s in outlet.states] == [("first", "open"), ("second", "open")]
    first.breaks = True
    dispatcher.put("live", 0)
    outlet.deliver(dispatcher)  # type: ignore[arg-type]
    [record] = [r for r in caplog.records if r.levelname == "ERROR"]
    assert record.getMessage() == "first is closed: broken; the run goes on without it"
    assert record.stage == "sink"  # type: ignore[attr-defined]
    dispatcher.put("live", 1)
    outlet.deliver(dispatcher)  # type: ignore[arg-type]
    assert [(s.name, s.state, s.why, s.missed) for s in outlet.states] == [
        ("second", "open", "", 0),
        ("first", "broken", "broken", 1),
    ]


def test_what_became_too_old_while_it_waited_is_dropped_and_told_unless_a_sink_has_it() -> None:
    first, second = Fussy("first"), Fussy("second")
    outlet = Outlet([first, second], 1000)
    outlet.open(0)
    dispatcher = Dispatcher()
    second.refuses = {"live"}
    for seq in range(4):
        dispatcher.put("live", seq)
    dispatcher.put("live", 0, epoch=1)
    dispatcher.put("live", 1, since_ms=500, epoch=1)
    dispatcher.put("file", 0)
    outlet.deliver(dispatcher)  # type: ignore[arg-type]
    dispatcher.outbound.now_ns = 550 * MS
    second.refuses = set()
    outlet.deliver(dispatcher)  # type: ignore[arg-type]
    # seq 0 was with the first sink already; 1 to 3 are one gap, 0 of the next epoch another; recordings never age
    for sink in (first, second):
        assert [seq for camera, seq in sink.took if camera == "live"] == [0, 3, 0, 1]
        assert ("file", 0) in sink.took
    entry = dispatcher.cameras["live"].ledger.entry()
    assert (entry.published, entry.dropped, entry.in_flight) == (2, {"too_old": 4}, 0)


def test_a_sink_that_takes_nothing_of_live_cameras_for_minutes_is_given_up() -> None:
    first, second = Fussy("first"), Fussy("second")
    outlet = Outlet([first, second], 1000)
    outlet.open(0)
    dispatcher = Dispatcher()
    second.refuses = {"live"}
    for second_ns in range(0, LIVE_PATIENCE_NS + 3_000_000_000, 1_000_000_000):
        dispatcher.outbound.now_ns = second_ns
        dispatcher.put("live", second_ns // 1_000_000_000, since_ms=second_ns // MS)
        outlet.deliver(dispatcher)  # type: ignore[arg-type]
        outlet.deliver(dispatcher)  # type: ignore[arg-type]
    assert len(outlet.problems) == 1
    assert "second: took nothing for two minutes" in outlet.problems[0]
    assert len(dispatcher.outbound) == 0
    assert dispatcher.cameras["live"].ledger.exact
    assert not outlet.dead()


def test_gaps_of_what_became_too_old_are_told_before_the_end() -> None:
    dispatcher = Dispatcher()
    live = dispatcher.cameras["live"]
    dispatcher.put("live", 0)
    live.fail("removed", "", 0)
    live.leave(dispatcher.outbound.line(live=True), 0, 0)
    dispatcher.outbound.now_ns = 500 * MS
    states = []
    while (message := dispatcher.outbound.peek(live=True)) is not None:
        assert isinstance(message, Status)
        states.append(message.state)
        dispatcher.outbound.delivered(live=True)
    assert states == ["gap", "ended"]
    assert live.told_end
    assert live.ledger.exact


@pytest.fixture
def mixed() -> Iterator[tuple[PublishSink, zmq.Socket[bytes], zmq.Socket[bytes]]]:
    """A publisher of both kinds with two subscribers; the second one has a queue of a few messages and never reads."""
    sink = PublishSink(
        "tcp://127.0.0.1:0", clock_ns=time.monotonic_ns, lossless=True, hwm=200, join_ms=0, stall_ms=600, live=["live"]
    )
    sink.open()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets = []
    for topic in (b"detections/", b"detections/"):
        socket: zmq.Socket[bytes] = context.socket(zmq.SUB)
        socket.rcvhwm = 1 if sockets else 100_000
        socket.setsockopt(zmq.RCVBUF, 2048)
        socket.subscribe(topic)
        socket.connect(sink.address)
        sockets.append(socket)
    deadline = time.monotonic() + 30
    while sink.subscribers < 2 and time.monotonic() < deadline:
        sink.service()
        time.sleep(0.01)
    yield sink, sockets[0], sockets[1]
    for socket in sockets:
        socket.close(0)
    context.term()
    sink.close(0)


def test_live_messages_never_wait_for_a_stopped_subscriber_recordings_do_for_a_while(
    mixed: tuple[PublishSink, zmq.Socket[bytes], zmq.Socket[bytes]],
) -> None:
    sink, reader, _ = mixed
    sent = 0
    message = detections("file", 0)

    def refused_for(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            sink.service()
            if sink.take(message):
                return False
            time.sleep(0.01)
        return True

    began = time.monotonic()
    while True:
        for _ in range(50):
            assert sink.take(detections("live", sent)), "live input waits for nobody"
            sent += 1
        while reader.poll(1):
            reader.recv_multipart()
        if sink.lost_messages and refused_for(0.2):
            break  # the second subscriber is behind; a recording's message would be lost to it
        assert time.monotonic() - began < 20, "the stopped subscriber never filled"
    assert sink.take(detections("live", sent)), "and live input goes on meanwhile"
    assert not refused_for(5), "given up after stall_ms"
    sink.camera_removed("live")
    sink.camera_added("other", live=True)
    assert sink.take(detections("other", 0))


def test_a_sink_that_tries_again_by_itself_is_told_as_broken_while_it_does_and_stays_open() -> None:
    class Trying(Fussy):
        trouble, missed = "", 0

    first, second = Trying("first"), Fussy("second")
    outlet = Outlet([first, second], 1000)
    outlet.open(0)
    assert [sink.state for sink in outlet.states] == ["open", "open"]
    first.trouble, first.missed = "the disk is full", 7
    assert [(sink.state, sink.why, sink.missed) for sink in outlet.states] == [
        ("broken", "the disk is full", 7),
        ("open", "", 0),
    ]
    assert not outlet.dead()
    assert not outlet.problems
    first.trouble = ""
    assert [(sink.state, sink.why, sink.missed) for sink in outlet.states] == [("open", "", 7), ("open", "", 0)]
    first.breaks, first.missed = True, 9
    dispatcher = Dispatcher()
    for seq in range(2):
        dispatcher.put("live", seq)
        outlet.deliver(dispatcher)  # type: ignore[arg-type]
    assert [(sink.name, sink.missed) for sink in outlet.states] == [("second", 0), ("first", 10)], "never falls"

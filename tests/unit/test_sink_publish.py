"""The publishing sink over real sockets: binding, joining, full subscribers, delivery at the end.

Subscribers here are plain pyzmq and msgpack, as a user's own would be.
"""

from __future__ import annotations

import os
import socket as sockets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import psutil
import pytest
import zmq
from made import messages
from made.ports import free_port

from stages.errors import StageDead, UserError
from stages.messages import Detections, Heartbeat, Status, Trace
from stages.sinks.publish import PublishSink
from stages.sinks.sink import Occupied

BIG = "m" * 50_000  # so that the system's own buffers are full after about a hundred messages
BUFFER_MESSAGES = 400  # more than they hold
MS = 1_000_000


class Clock:
    """Real time, plus what a test adds."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def __call__(self) -> int:
        return time.monotonic_ns() + self.ahead_ns


def detections(seq: int, camera: str = "gate-1", model: str = "m", trace: Trace | None = None) -> Detections:
    return messages.detections(seq, camera, model=model, trace=trace)


def heartbeat() -> Heartbeat:
    return Heartbeat(time_ns=1, uptime_ns=1, cameras={"gate-1": "streaming"}, lost_messages=0)


class Reader:
    """A plain subscriber."""

    def __init__(
        self, address: str, topics: tuple[bytes, ...] = (b"",), hwm: int = 1000, buffer_bytes: int = -1
    ) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.rcvhwm = hwm
        self.socket.rcvbuf = buffer_bytes
        self.socket.linger = 0
        for topic in topics:
            self.socket.subscribe(topic)
        self.socket.connect(address)

    def read(self, wait_ms: int = 30_000) -> dict[str, Any] | None:
        if not self.socket.poll(wait_ms):
            return None
        topic, body = self.socket.recv_multipart()
        message: dict[str, Any] = msgpack.unpackb(body)
        expected = "heartbeat" if message["type"] == "heartbeat" else f"{message['type']}/{message['camera']}"
        assert topic.decode() == expected
        return message

    def seqs(self, least: int = 1) -> list[int]:
        """Of all that comes; silence is the end only when there are ``least``, for a busy machine may be silent too."""
        found: list[int] = []
        while (message := self.read(30_000 if len(found) < least else 300)) is not None:
            if message["type"] == "detections":
                found.append(message["seq"])
        return found

    def close(self) -> None:
        self.context.destroy(0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(clock: Clock) -> Iterator[Callable[..., PublishSink]]:
    made: list[PublishSink] = []

    def make(bind: str = "tcp://127.0.0.1:0", **settings: Any) -> PublishSink:
        settings = {"lossless": True, "join_ms": 0, "clock_ns": clock, **settings}
        sink = PublishSink(bind, **settings)
        made.append(sink)
        sink.open()
        return sink

    yield make
    for sink in made:
        sink.close(0)


@pytest.fixture
def reader() -> Iterator[Callable[..., Reader]]:
    made: list[Reader] = []

    def make(*args: Any, **settings: Any) -> Reader:
        made.append(Reader(*args, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def wait_for(sink: PublishSink, count: int) -> None:
    deadline = time.monotonic() + 30
    while sink.subscribers != count:
        assert time.monotonic() < deadline, f"{sink.subscribers} subscribers, not {count}"
        sink.service()
        time.sleep(0.005)


def take(sink: PublishSink, message: Any, within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not sink.take(message):
        assert time.monotonic() < deadline, "not taken"
        time.sleep(0.001)


def soon(seconds: float = 30.0) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)


def test_a_plain_reader_gets_each_kind_of_message_in_order(make: Any, reader: Any) -> None:
    sink = make()
    plain = reader(sink.address)
    wait_for(sink, 1)
    started = Status(camera="gate-1", epoch=0, state="started", cause="started", detail="", time_ns=5)
    for message in (started, detections(0), heartbeat(), detections(1)):
        take(sink, message)
    assert [plain.read()["type"] for _ in range(4)] == ["status", "detections", "heartbeat", "detections"]
    assert sink.close(soon()) == ""


def test_trace_goes_out_only_when_asked_for(make: Any, reader: Any) -> None:
    trace = Trace(**dict.fromkeys(Trace.__struct_fields__, 1.0))
    for wanted in (False, True):
        sink = make(trace=wanted)
        plain = reader(sink.address)
        wait_for(sink, 1)
        take(sink, detections(0, trace=trace))
        assert (plain.read()["trace"] is not None) is wanted


def test_port_zero_gives_the_real_port_and_name_and_log_show_it(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "campipe.publish")
    sink = make("tcp://127.0.0.1:0")
    assert f"publishing at {sink.address}" in caplog.messages
    assert sink.address.startswith("tcp://127.0.0.1:")
    assert not sink.address.endswith(":0")
    assert sink.name == f"publish {sink.address}"


def test_a_port_in_use_is_refused_with_the_remedy_and_nothing_is_left(make: Any, clock: Clock) -> None:
    first = make()
    files = psutil.Process().num_fds()
    second = PublishSink(first.address, lossless=True, clock_ns=clock)
    for _ in range(3):
        with pytest.raises(UserError) as error:
            second.open()
        [problem] = error.value.problems
        assert first.address in problem
        assert "another port" in problem
    assert psutil.Process().num_fds() == files
    assert second.close(soon()) == ""


@pytest.mark.parametrize(
    ("bind", "says"),
    [
        ("tcp://127.0.0.1:99999", "65535"),
        ("tcp://nosuchhost.invalid:0", "0.0.0.0"),
        ("tcp://eth99:0", "0.0.0.0"),
        ("tcp://192.0.2.1:0", "0.0.0.0"),
        ("ipc:///no/such/folder/x.sock", "there is no folder /no/such/folder"),
        ("ipc:///dev/null", "file or folder of that name"),
        ("ipc:///tmp", "file or folder of that name"),
        ("foo://x", "neither tcp nor ipc"),
    ],
)
def test_addresses_that_cannot_be_had(bind: str, says: str, clock: Clock) -> None:
    sink = PublishSink(bind, lossless=True, clock_ns=clock)
    with pytest.raises(UserError) as error:
        sink.open()
    assert says in str(error.value)
    assert bind in str(error.value)


@pytest.mark.parametrize(
    "bind",
    [
        "tcp://127.0.0.1:99999",
        "tcp://192.0.2.1:0",
        "ipc:///no/such/folder/x.sock",
        "ipc:///dev/null",
        "ipc:///dev/null/x.sock",
        "foo://x",
    ],
)
def test_check_says_of_an_address_that_cannot_be_had_what_opening_says(bind: str, clock: Clock) -> None:
    sink = PublishSink(bind, lossless=True, clock_ns=clock)
    with pytest.raises(UserError) as opened:
        sink.open()
    with pytest.raises(UserError) as checked:
        sink.check()
    assert checked.value.problems == opened.value.problems
    assert not isinstance(checked.value, Occupied)


def test_check_of_a_living_publishers_address_says_occupied_and_leaves_it_alone(
    tmp_path: Path, make: Any, reader: Any, clock: Clock
) -> None:
    for bind in ("tcp://127.0.0.1:0", f"ipc://{tmp_path}/s"):
        first = make(bind)
        with pytest.raises(Occupied, match="another program"):
            PublishSink(first.address, lossless=True, clock_ns=clock).check()
        plain = reader(first.address)
        wait_for(first, 1)
        take(first, detections(0))
        assert plain.seqs(1) == [0]


def test_check_of_a_free_address_leaves_nothing_behind(tmp_path: Path, clock: Clock) -> None:
    with sockets.socket(sockets.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead"))
    files = psutil.Process().num_fds()
    for bind in ("tcp://127.0.0.1:0", f"ipc://{tmp_path}/s", f"ipc://{tmp_path}/dead", "ipc://@abstract", "ipc://*"):
        PublishSink(bind, lossless=True, clock_ns=clock).check()
    assert [path.name for path in tmp_path.iterdir()] == ["dead"]
    assert psutil.Process().num_fds() == files


@pytest.mark.skipif(os.geteuid() == 0, reason="root may bind and write anywhere")
@pytest.mark.parametrize("bind", ["tcp://127.0.0.1:80", "ipc:///proc/x.sock"])
def test_addresses_that_are_not_allowed(bind: str, clock: Clock) -> None:
    sink = PublishSink(bind, lossless=True, clock_ns=clock)
    for act in (sink.open, sink.check):
        with pytest.raises(UserError, match="choose another"):
            act()


def test_a_users_file_at_an_ipc_address_is_not_deleted(tmp_path: Path, clock: Clock) -> None:
    document = tmp_path / "document.txt"
    document.write_text("precious")
    with pytest.raises(UserError, match="file or folder of that name"):
        PublishSink(f"ipc://{document}", lossless=True, clock_ns=clock).open()
    assert document.read_text() == "precious"


def test_a_living_publisher_keeps_its_ipc_address(tmp_path: Path, make: Any, reader: Any, clock: Clock) -> None:
    address = f"ipc://{tmp_path}/s"
    first = make(address)
    with pytest.raises(UserError, match="another program publishes there"):
        PublishSink(address, lossless=True, clock_ns=clock).open()
    plain = reader(address)
    wait_for(first, 1)
    take(first, detections(0))
    assert plain.seqs(1) == [0]
    first.close(soon())
    assert not (tmp_path / "s").exists()


def test_an_ipc_address_left_behind_by_a_crash_is_taken_over(tmp_path: Path, make: Any, reader: Any) -> None:
    with sockets.socket(sockets.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    sink = make(f"ipc://{tmp_path}/s")
    plain = reader(sink.address)
    wait_for(sink, 1)
    take(sink, detections(7))
    assert plain.seqs(1) == [7]


def test_a_subscriber_that_waited_for_the_address_misses_nothing(make: Any, reader: Any, clock: Clock) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    waiting = [reader(address) for _ in range(3)]
    time.sleep(0.35)  # long enough for several attempts, so that they are between two of them
    sink = make(address, join_ms=60_000)
    assert not sink.take(detections(0))
    wait_for(sink, len(waiting))
    assert not sink.take(detections(0)), "others may come yet"
    clock.ahead_ns = 60_001 * MS
    for seq in range(5):
        take(sink, detections(seq))
    for plain in waiting:
        assert plain.seqs(5) == [0, 1, 2, 3, 4]


def test_the_first_heartbeat_waits_for_subscribers_to_join_and_holds_up_nobody(
    make: Any, reader: Any, clock: Clock
) -> None:
    sink = make(join_ms=60_000)
    plain = reader(sink.address)
    wait_for(sink, 1)
    assert sink.take(heartbeat())
    assert not sink.take(detections(0))
    sink.service()
    assert plain.read(50) is None
    clock.ahead_ns = 60_001 * MS
    take(sink, detections(0))
    assert [plain.read()["type"] for _ in range(2)] == ["heartbeat", "detections"]


def test_a_late_subscriber_gets_what_comes_after(make: Any, reader: Any) -> None:
    sink = make()
    take(sink, detections(0))
    plain = reader(sink.address)
    wait_for(sink, 1)
    take(sink, detections(1))
    assert plain.seqs(1) == [1]


def test_subscribers_are_counted_by_connection(make: Any, reader: Any) -> None:
    sink = make()
    first = reader(sink.address, (b"detections/a", b"status/a", b"heartbeat"))
    second = reader(sink.address, (b"detections/b",))
    nothing = reader(sink.address, ())
    wait_for(sink, 2)
    first.close()
    wait_for(sink, 1)
    second.close()
    nothing.close()
    wait_for(sink, 0)


def fill(sink: PublishSink, most: int = BUFFER_MESSAGES) -> int:
    """Send until a message is refused; the number of messages taken."""
    for seq in range(most):
        patience = time.monotonic() + 0.3
        while not sink.take(detections(seq, model=BIG)):
            if time.monotonic() > patience:
                return seq
            time.sleep(0.002)
    raise AssertionError(f"never full in {most} messages")


def test_lossless_a_stopped_subscriber_holds_up_the_run_for_stall_ms_and_then_no_more(
    make: Any, reader: Any, clock: Clock
) -> None:
    sink = make(hwm=20, stall_ms=60_000)
    stopped = reader(sink.address, hwm=1)
    wait_for(sink, 1)
    taken = fill(sink)
    message = detections(taken, model=BIG)
    clock.ahead_ns += 59_000 * MS
    assert not sink.take(message)
    assert sink.lost_messages == 0
    clock.ahead_ns += 2_000 * MS
    assert sink.take(message)
    assert sink.lost_messages == 1
    for seq in range(taken + 1, taken + 101):  # it is set aside: nobody waits for it any more
        assert sink.take(detections(seq, model=BIG))
    assert sink.lost_messages == 101
    assert stopped.seqs(taken) == list(range(taken))
    # it keeps up again, so it gets everything again, and no loss is counted
    sink.service()
    lost = sink.lost_messages
    for seq in range(1000, 1005):
        take(sink, detections(seq, model=BIG))
    assert stopped.seqs(5) == [1000, 1001, 1002, 1003, 1004]
    assert sink.lost_messages == lost


def test_lossless_a_slow_subscriber_that_still_moves_loses_nothing_however_long_it_takes(
    make: Any, reader: Any, clock: Clock
) -> None:
    sink = make(hwm=256, stall_ms=4500)
    slow = reader(sink.address, hwm=1, buffer_bytes=65536)
    wait_for(sink, 1)
    taken = fill(sink)
    seqs = []
    message = detections(taken, model=BIG)
    blocked_ms = 0
    while not sink.take(message):
        # about 70 messages must be read before libzmq opens the queue again
        seqs.append(slow.read()["seq"])
        clock.ahead_ns += 80 * MS
        blocked_ms += 80
        time.sleep(0.002)
        assert blocked_ms < 60_000
    assert blocked_ms > 4500, "too short to show anything"
    seqs += slow.seqs(taken + 1 - len(seqs))
    assert seqs == list(range(taken + 1))
    assert sink.lost_messages == 0


def test_lossless_heartbeats_are_left_out_rather_than_waited_for(make: Any, reader: Any, clock: Clock) -> None:
    sink = make(hwm=5, stall_ms=1000)
    stopped = reader(sink.address, hwm=1)
    wait_for(sink, 1)
    taken = fill(sink)
    message = detections(taken, model=BIG)
    assert not sink.take(message)
    for _ in range(10):
        assert sink.take(heartbeat())
        clock.ahead_ns += 150 * MS
    assert sink.take(message), "heartbeats must not prolong the stall"
    assert sink.lost_messages == 1
    assert stopped.seqs(taken) == list(range(taken))


def test_lossless_a_full_subscriber_of_one_camera_does_not_hold_up_the_others(make: Any, reader: Any) -> None:
    sink = make(hwm=5)
    reader(sink.address, (b"detections/gate-1",), hwm=1)
    other = reader(sink.address, (b"detections/gate-2",))
    wait_for(sink, 2)
    taken = fill(sink)
    assert not sink.take(detections(taken, model=BIG))
    for seq in range(20):
        take(sink, detections(seq, "gate-2"))
    assert other.seqs(20) == list(range(20))


def test_lossless_a_stopped_subscriber_that_leaves_frees_the_run(make: Any, reader: Any) -> None:
    sink = make(hwm=5, stall_ms=600_000)
    stopped = reader(sink.address, hwm=1)
    wait_for(sink, 1)
    taken = fill(sink)
    stopped.close()
    take(sink, detections(taken, model=BIG))
    assert sink.lost_messages == 0


def test_live_a_stopped_subscriber_never_holds_up_the_run_and_others_get_everything(make: Any, reader: Any) -> None:
    sink = make(hwm=20, lossless=False)
    stopped = reader(sink.address, hwm=1)
    keen = reader(sink.address)
    wait_for(sink, 2)
    seqs = []
    count = BUFFER_MESSAGES
    for seq in range(count):
        assert sink.take(detections(seq, model=BIG)), "it would have been waited for"
        seqs.append(keen.read()["seq"])
    assert seqs == list(range(count))
    got = stopped.seqs(count - sink.lost_messages)
    missed = count - len(got)
    assert missed > 0
    assert sorted(set(got)) == got
    assert missed <= sink.lost_messages <= count


def test_the_loss_of_a_subscriber_that_is_full_again_and_again_is_never_counted_too_low(make: Any, reader: Any) -> None:
    sink = make(hwm=8, lossless=False)
    bursty = reader(sink.address, hwm=1)
    wait_for(sink, 1)
    got: list[int] = []
    seq = 0
    for burst in range(6):
        for _ in range(150):
            assert sink.take(detections(seq, f"camera-{seq % 7}", model=BIG))
            seq += 1
        wanted = 40 * burst
        while wanted and (message := bursty.read(100)) is not None:
            got.append(message["seq"])
            wanted -= 1
    got += bursty.seqs(seq - sink.lost_messages - len(got))
    missed = seq - len(got)
    assert missed > 0
    assert missed <= sink.lost_messages < seq


def test_close_delivers_everything_to_a_subscriber_that_is_slow(make: Any, reader: Any) -> None:
    sink = make(hwm=1000)
    slow = reader(sink.address, hwm=1)
    wait_for(sink, 1)
    for seq in range(300):
        assert sink.take(detections(seq, model=BIG))
    seqs: list[int] = []

    def read() -> None:
        while len(seqs) < 300:
            message = slow.read()
            assert message is not None
            seqs.append(message["seq"])
            time.sleep(0.001)

    thread = threading.Thread(target=read)
    thread.start()
    said = sink.close(soon(60))
    thread.join(60)
    assert said == ""
    assert seqs == list(range(300))
    assert sink.close(soon()) == ""


def test_close_says_how_many_messages_a_stopped_subscriber_did_not_take(make: Any, reader: Any) -> None:
    sink = make(hwm=1000)
    stopped = reader(sink.address, hwm=1)
    wait_for(sink, 1)
    for seq in range(BUFFER_MESSAGES):
        assert sink.take(detections(seq, model=BIG))
    began = time.monotonic()
    said = sink.close(soon(0.5))
    assert time.monotonic() - began < 30  # it returns; the reader never reads
    assert "could not be delivered within" in said
    assert sink.address in said
    count = int(said.split("up to ")[1].split()[0])
    got = stopped.seqs(BUFFER_MESSAGES - count)
    assert BUFFER_MESSAGES - len(got) <= count < BUFFER_MESSAGES
    assert sink.close(soon()) == ""


@pytest.mark.parametrize("late_ms", [0, 5000])
def test_close_after_its_deadline_still_returns_at_once(make: Any, reader: Any, late_ms: int) -> None:
    sink = make(hwm=1000)
    reader(sink.address, hwm=1)
    wait_for(sink, 1)
    for seq in range(BUFFER_MESSAGES):
        assert sink.take(detections(seq, model=BIG))
    began = time.monotonic()
    assert "could not be delivered" in sink.close(time.monotonic_ns() - late_ms * MS)
    assert time.monotonic() - began < 30  # it returns; the reader never reads


def test_a_loss_is_told_though_the_machine_was_too_busy_to_see_it_happen(
    make: Any, reader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make(hwm=1000)
    reader(sink.address, hwm=1)
    wait_for(sink, 1)
    for seq in range(BUFFER_MESSAGES):
        assert sink.take(detections(seq, model=BIG))

    class Busy(threading.Thread):
        def start(self) -> None:
            super().start()
            if self.name == "campipe-publish-end":
                self.join()  # the linger has run out before the caller sees anything

    monkeypatch.setattr(threading, "Thread", Busy)
    assert "could not be delivered" in sink.close(time.monotonic_ns())


def test_close_without_subscribers_is_immediate_and_leaves_nothing_open(make: Any) -> None:
    files, threads = 0, 0
    for attempt in range(5):
        if attempt == 2:  # the thread that pyzmq keeps for its own purposes is there by then
            files, threads = psutil.Process().num_fds(), psutil.Process().num_threads()
        sink = make()
        sink.take(detections(0))
        began = time.monotonic()
        assert sink.close(soon(600)) == ""
        assert time.monotonic() - began < 30
    deadline = time.monotonic() + 30  # threads of contexts of other tests may be about to end or to start
    while psutil.Process().num_fds() > files or psutil.Process().num_threads() > threads:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_closed_sink_can_be_opened_again_and_a_sink_that_is_not_open_takes_nothing(make: Any, reader: Any) -> None:
    sink = make()
    sink.close(soon())
    with pytest.raises(StageDead, match="not open"):
        sink.take(detections(0))
    sink.open()
    plain = reader(sink.address)
    wait_for(sink, 1)
    take(sink, detections(3))
    assert plain.seqs(1) == [3]


def status(state: Any, camera: str = "gate-1", cause: str = "started") -> Status:
    return Status(camera=camera, epoch=0, state=state, cause=cause, detail="", time_ns=1)


@pytest.mark.parametrize("live", [(), ("gate-1",), ("gate-1", "yard")])
def test_a_late_subscriber_is_told_the_last_status_of_each_camera(
    make: Any, reader: Any, clock: Clock, live: tuple[str, ...]
) -> None:
    sink = make(live=live)
    for message in (status("connecting"), status("started"), status("gap"), status("failed", "yard")):
        take(sink, message)
    late = reader(sink.address, (b"status/",))
    wait_for(sink, 1)
    sink.service()
    told = [late.read(), late.read()]
    assert [(m["camera"], m["state"], m["repeated"]) for m in told if m] == [
        ("gate-1", "started", True),
        ("yard", "failed", True),
    ]
    clock.ahead_ns += 10_000 * MS
    sink.service()
    assert late.read(200) is None  # told once


@pytest.mark.parametrize("live", [(), ("gate-1",)])
def test_a_camera_that_was_taken_out_is_not_told_of_any_more(make: Any, reader: Any, live: tuple[str, ...]) -> None:
    sink = make(live=live)
    take(sink, status("started"))
    take(sink, status("ended", cause="removed"))
    late = reader(sink.address, (b"status/gate-1",))
    wait_for(sink, 1)
    sink.service()
    assert late.read(200) is None


def test_a_late_subscriber_of_a_live_camera_is_told_though_another_is_full(
    make: Any, reader: Any, clock: Clock
) -> None:
    sink = make(live=("gate-1",), hwm=20)
    reader(sink.address, hwm=1)
    wait_for(sink, 1)
    take(sink, status("started"))
    for seq in range(BUFFER_MESSAGES):
        take(sink, detections(seq, model=BIG))
    late = reader(sink.address, (b"status/",))
    wait_for(sink, 2)
    clock.ahead_ns += 1_000 * MS
    sink.service()
    assert (late.read() or {}).get("state") == "started"


@pytest.mark.parametrize("live", [(), ("gate-1",)])
def test_a_subscriber_of_detections_alone_is_told_no_status(make: Any, reader: Any, live: tuple[str, ...]) -> None:
    sink = make(live=live)
    take(sink, status("started"))
    late = reader(sink.address, (b"detections/",))
    wait_for(sink, 1)
    sink.service()
    assert late.read(200) is None


def test_a_thousand_who_join_at_once_are_served_by_one_repetition(make: Any, reader: Any, clock: Clock) -> None:
    sink = make()
    take(sink, status("started"))
    first = reader(sink.address, (b"status/",))
    wait_for(sink, 1)
    sink.service()
    assert first.read() is not None
    others = [reader(sink.address, (f"status/gate-1{' ' * (i % 3)}".rstrip().encode(),)) for i in range(20)]
    wait_for(sink, 21)
    clock.ahead_ns += 1_000 * MS
    sink.service()
    assert all(other.read() is not None for other in others)
    assert first.read() is not None  # the price: those who were there get it again, marked
    assert first.read(200) is None

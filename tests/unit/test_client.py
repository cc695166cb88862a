"""The Subscriber over real sockets, fed by a plain publisher that may say anything."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import msgspec
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import messages
from searching import examples

from pipeline.client import Subscriber
from pipeline.gaps import Gap
from stages.errors import UserError
from stages.messages import Detections, Heartbeat, Status
from stages.sinks.publish import PublishSink


class Publisher:
    """A plain XPUB socket that waits for its subscribers."""

    def __init__(self, address: str = "tcp://127.0.0.1:0") -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.XPUB)
        self.socket.linger = 0
        self.socket.bind(address)
        endpoint = self.socket.last_endpoint
        assert isinstance(endpoint, bytes)
        self.address = endpoint.decode()

    def wait(self) -> None:
        """Until somebody has subscribed to heartbeats, which a Subscriber does last."""
        while True:
            assert self.socket.poll(30_000), "nobody subscribed"
            if self.socket.recv() == b"\x01heartbeat":
                return

    def send(self, message: Any) -> None:
        plain = msgspec.to_builtins(message)
        topic = "heartbeat" if plain["type"] == "heartbeat" else f"{plain['type']}/{plain['camera']}"
        self.socket.send_multipart([topic.encode(), msgpack.packb(plain)])

    def close(self) -> None:
        self.context.destroy(0)


@pytest.fixture
def publish() -> Iterator[Callable[..., Publisher]]:
    made: list[Publisher] = []

    def make(*args: Any) -> Publisher:
        made.append(Publisher(*args))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def publisher(publish: Callable[..., Publisher]) -> Publisher:
    return publish()


@pytest.fixture
def subscribe(publisher: Publisher) -> Iterator[Callable[..., Subscriber]]:
    made: list[Subscriber] = []

    def make(*args: Any, **settings: Any) -> Subscriber:
        subscriber = Subscriber(publisher.address, *args, **settings).open()
        made.append(subscriber)
        publisher.wait()
        return subscriber

    yield make
    for each in made:
        each.close()


def detections(seq: int, camera: str = "a", epoch: int = 0) -> Detections:
    return messages.detections(seq, camera, epoch=epoch, pts_ns=seq)


def status(state: Any, camera: str = "a", epoch: int = 0, first: int | None = None, last: int | None = None) -> Status:
    return Status(
        camera=camera, epoch=epoch, state=state, cause=state, detail="", time_ns=0, from_seq=first, to_seq=last
    )


def heartbeat(uptime_s: int = 1, **cameras: str) -> Heartbeat:
    return Heartbeat(time_ns=0, uptime_ns=uptime_s * 10**9, cameras=cameras, lost_messages=0)


def everything(subscriber: Subscriber, wait_s: float = 0.2) -> list[Any]:
    found = []
    while (message := subscriber.receive(wait_s)) is not None:
        found.append(message)
    return found


def test_messages_come_typed_and_in_order(publisher: Publisher, subscribe: Any) -> None:
    subscriber = subscribe()
    sent = [status("started"), detections(0), detections(1), status("gap", first=2, last=3), detections(4)]
    for message in sent:
        publisher.send(message)
    publisher.send(heartbeat(a="streaming"))
    assert everything(subscriber) == sent
    assert subscriber.heartbeat == heartbeat(a="streaming")
    assert subscriber.counts == {"received": 6, "lost": 0}


@pytest.mark.parametrize("statuses", [True, False])
@pytest.mark.parametrize("heartbeats", [True, False])
def test_statuses_and_heartbeats_are_given_as_asked_for(
    publisher: Publisher, subscribe: Any, statuses: bool, heartbeats: bool
) -> None:
    subscriber = subscribe(statuses=statuses, heartbeats=heartbeats)
    sent = [detections(0), status("gap", first=1, last=1), heartbeat(), detections(2)]
    for message in sent:
        publisher.send(message)
    kinds = (Detections, *((Status,) if statuses else ()), *((Heartbeat,) if heartbeats else ()))
    assert everything(subscriber) == [message for message in sent if isinstance(message, kinds)]


def test_messages_lost_on_the_way_are_told_before_the_message_that_shows_it(
    publisher: Publisher, subscribe: Any
) -> None:
    subscriber = subscribe()
    for message in (detections(5), detections(8), detections(9)):
        publisher.send(message)
    gap = Gap(camera="a", epoch=0, from_seq=6, to_seq=7)
    assert everything(subscriber) == [detections(5), gap, detections(8), detections(9)]
    assert subscriber.counts["lost"] == 2


def test_a_camera_whose_name_begins_like_another_is_not_taken_for_it(publisher: Publisher, subscribe: Any) -> None:
    subscriber = subscribe(["gate-1"])
    for camera in ("gate-1", "gate-10", "gate-1.b", "gate"):
        publisher.send(detections(0, camera))
        publisher.send(status("ended", camera))
    assert everything(subscriber) == [detections(0, "gate-1"), status("ended", "gate-1")]


def test_duplicates_are_left_out_and_counted(publisher: Publisher, subscribe: Any) -> None:
    subscriber = subscribe()
    for seq in (0, 1, 1, 2):
        publisher.send(detections(seq))
    assert [message.seq for message in everything(subscriber)] == [0, 1, 2]
    assert subscriber.counts["duplicates"] == 1


PLAIN = msgspec.to_builtins(detections(1))
DAMAGED = [
    [b"detections/a"],
    [b"detections/a", b""],
    [b"detections/a", b"\xc1"],
    [b"detections/a", b"not msgpack"],
    [b"detections/a", msgpack.packb({})],
    [b"detections/a", msgpack.packb([1, 2])],
    [b"detections/a", msgpack.packb(PLAIN | {"seq": "1"})],
    [b"detections/a", msgpack.packb(PLAIN | {"seq": 2**63})[:-5]],
    [b"detections/a", msgpack.packb(PLAIN | {"objects": [{"box": "x"}]})],
    [b"detections/a", msgpack.packb({"type": "detections", "v": 1})],
    [b"detections/b", msgpack.packb(PLAIN)],
    [b"status/a", msgpack.packb(PLAIN)],
    [b"detections/a", b"\x81\xa1x" + b"\x91" * 100_000],
    [b"detections/a", b"\xdd\xff\xff\xff\xff"],
]
LATER = [
    [b"detections/a", msgpack.packb(PLAIN | {"v": 2})],
    [b"detections/a", msgpack.packb(PLAIN | {"v": 2, "objects": "other form"})],
    [b"detections/a", msgpack.packb({"type": "tracks", "v": 1, "camera": "a"})],
    [b"detections/a", msgpack.packb({"type": "tracks"})],
]


@pytest.mark.parametrize("parts", DAMAGED)
def test_damaged_messages_are_counted_and_skipped(publisher: Publisher, subscribe: Any, parts: list[bytes]) -> None:
    subscriber = subscribe()
    publisher.socket.send_multipart(parts)
    publisher.send(detections(7))
    assert everything(subscriber) == [detections(7)]
    assert (subscriber.counts["corrupt"], subscriber.counts["unknown"]) == (1, 0)


@pytest.mark.parametrize("parts", LATER)
def test_messages_of_later_versions_are_counted_and_skipped(
    publisher: Publisher, subscribe: Any, parts: list[bytes]
) -> None:
    subscriber = subscribe()
    publisher.socket.send_multipart(parts)
    publisher.send(detections(7))
    assert everything(subscriber) == [detections(7)]
    assert (subscriber.counts["corrupt"], subscriber.counts["unknown"]) == (0, 1)


def test_fields_and_frames_that_are_not_known_yet_are_left_aside(publisher: Publisher, subscribe: Any) -> None:
    subscriber = subscribe()
    publisher.socket.send_multipart([b"detections/a", msgpack.packb(PLAIN | {"tracks": [1, {"x": None}]}), b"pixels"])
    assert everything(subscriber) == [detections(1)]


@given(st.binary(max_size=60), st.sampled_from([b"detections/a", b"status/a", b"heartbeat"]))
@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_no_bytes_can_crash_a_subscriber(body: bytes, topic: bytes) -> None:
    subscriber = Subscriber("tcp://127.0.0.1:1")
    packed = msgpack.packb(PLAIN)
    for each in (body, packed[: len(body)] + body + packed[2 * len(body) :]):
        subscriber._take([topic, each])
    assert subscriber.counts["received"] == 2


def test_a_publisher_started_anew_is_found_again_and_is_no_gap(publish: Any) -> None:
    first = publish()
    with Subscriber(first.address) as subscriber:
        first.wait()
        for seq in range(3):
            first.send(detections(seq, epoch=4))
        assert [message.seq for message in everything(subscriber)] == [0, 1, 2]
        first.close()
        assert subscriber.receive(0.2) is None
        second = publish(first.address)
        second.wait()
        second.send(status("started"))
        for seq in range(2):
            second.send(detections(seq))
        assert everything(subscriber, 0.5) == [status("started"), detections(0), detections(1)]


def test_a_heartbeat_tells_that_the_publisher_was_started_anew(publisher: Publisher, subscribe: Any) -> None:
    subscriber = subscribe()
    publisher.send(heartbeat(100, a="streaming"))
    publisher.send(detections(5))
    publisher.send(heartbeat(1, a="streaming"))
    publisher.send(detections(90))
    assert everything(subscriber) == [detections(5), detections(90)]
    assert subscriber.counts["restarts"] == 1


def test_a_loss_while_disconnected_is_told(publish: Any) -> None:
    first = publish()
    with Subscriber(first.address) as subscriber:
        first.wait()
        first.send(detections(0))
        assert subscriber.receive(5) == detections(0)
        first.close()
        second = publish(first.address)
        assert subscriber.receive(0.3) is None  # subscribes anew
        second.wait()
        second.send(detections(10))
        assert everything(subscriber) == [Gap(camera="a", epoch=0, from_seq=1, to_seq=9), detections(10)]


def test_a_subscriber_may_be_there_before_the_publisher(publish: Any) -> None:
    probe = publish()
    probe.close()
    with Subscriber(probe.address, timeout_s=30) as subscriber:
        assert subscriber.receive(0.3) is None
        sink = PublishSink(probe.address, clock_ns=time.monotonic_ns, lossless=True)
        sink.open()
        deadline = time.monotonic() + 30
        while not sink.subscribers:
            sink.service()
            assert time.monotonic() < deadline, "the subscriber does not come"
            time.sleep(0.005)
        for seq in range(3):
            while not sink.take(detections(seq)):
                time.sleep(0.005)
        while not sink.take(status("ended")):
            time.sleep(0.005)
        assert sink.close(time.monotonic_ns() + 30 * 10**9) == ""
        assert list(subscriber.until_ended()) == [*(detections(seq) for seq in range(3)), status("ended")]


def test_receive_keeps_its_time(publisher: Publisher, subscribe: Any) -> None:
    subscriber = subscribe()
    for wait_s in (0.0, 0.05, 0.3):
        began = time.monotonic()
        assert subscriber.receive(wait_s) is None
        assert wait_s <= time.monotonic() - began < wait_s + 30


def test_iteration_raises_timeout_when_nothing_is_given_even_if_the_heart_beats(
    publisher: Publisher, subscribe: Any
) -> None:
    subscriber = subscribe(timeout_s=0.4)
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.05):
            publisher.send(heartbeat())

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while subscriber.heartbeat is None:
            assert subscriber.receive(0.1) is None
            assert time.monotonic() < deadline, "the heart does not beat"
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=rf"nothing came from {publisher.address} for 0.4 s"):
            next(subscriber)
        assert 0.4 <= time.monotonic() - began < 30
        while subscriber.quiet_s >= time.monotonic() - began:  # until a beat was heard after the beginning
            assert subscriber.receive(0.1) is None
            assert time.monotonic() < deadline, "the heart has stopped"
        with pytest.raises(TimeoutError):
            list(subscriber.until_ended())
    finally:
        stop.set()
        thread.join()


def test_iteration_stops_when_the_subscriber_is_closed(publisher: Publisher, subscribe: Any) -> None:
    subscriber = subscribe()
    publisher.send(detections(0))
    for message in subscriber:
        assert message == detections(0)
        subscriber.close()
    subscriber.close()
    with pytest.raises(RuntimeError, match="not open"):
        subscriber.receive(0)


@pytest.mark.parametrize("statuses", [True, False])
def test_until_ended_stops_when_the_last_named_camera_has_ended(
    publisher: Publisher, subscribe: Any, statuses: bool
) -> None:
    subscriber = subscribe(["a", "b"], timeout_s=30, statuses=statuses)
    for message in (detections(0), status("ended", "c"), status("ended"), detections(0, "b"), status("failed", "b")):
        publisher.send(message)
    found = [message for message in subscriber.until_ended() if isinstance(message, Detections)]
    assert found == [detections(0), detections(0, "b")]


def test_until_ended_knows_all_cameras_from_the_heartbeat(publisher: Publisher, subscribe: Any) -> None:
    subscriber = subscribe(timeout_s=30)
    for message in (heartbeat(a="starting", b="starting"), status("ended", "a"), detections(0, "b")):
        publisher.send(message)
    publisher.send(status("ended", "b"))
    assert len(list(subscriber.until_ended())) == 3


def test_until_ended_does_not_believe_a_heartbeat_that_overtook_detections(
    publisher: Publisher, subscribe: Any
) -> None:
    subscriber = subscribe(timeout_s=30)
    for message in (heartbeat(a="ended"), detections(0), heartbeat(2, a="ended"), detections(1), status("ended")):
        publisher.send(message)
    assert len(list(subscriber.until_ended())) == 3


def test_until_ended_of_a_camera_that_had_ended_before_joining(publisher: Publisher, subscribe: Any) -> None:
    subscriber = subscribe(["a"], timeout_s=30)
    for uptime_s in (10, 11):
        publisher.send(heartbeat(uptime_s, a="ended", b="streaming"))
    assert list(subscriber.until_ended()) == []


def test_until_ended_goes_on_when_a_camera_begins_anew(publisher: Publisher, subscribe: Any) -> None:
    subscriber = subscribe(["a", "b"], timeout_s=30)
    for message in (status("ended"), status("started", epoch=1), status("ended", "b"), detections(0, epoch=1)):
        publisher.send(message)
    publisher.send(status("ended", epoch=1))
    assert len(list(subscriber.until_ended())) == 5


@pytest.mark.parametrize("address", ["127.0.0.1:5600", "tcp://*:5600", "tcp://127.0.0.1:0", "nonsense"])
def test_malformed_addresses_are_refused(address: str) -> None:
    with pytest.raises(UserError):
        Subscriber(address)


@pytest.mark.parametrize(("cameras", "error"), [("gate-1", TypeError), ([], ValueError)])
def test_cameras_that_would_match_nothing_are_refused(cameras: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Subscriber("tcp://127.0.0.1:5600", cameras)


def test_the_client_imports_nothing_heavy() -> None:
    code = (
        "import sys, pipeline.client\n"
        "heavy = {'numpy', 'cv2', 'av', 'onnxruntime', 'pydantic', 'ruamel', 'rich', 'multiprocessing'}\n"
        "ours = sorted(name for name in sys.modules if name.startswith(('pipeline', 'stages')))\n"
        "print(sorted(heavy & set(sys.modules)), *ours)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == [
        "[]",
        "pipeline",
        "pipeline.client",
        "pipeline.gaps",
        "stages",
        "stages.camera",
        "stages.errors",
        "stages.messages",
        "stages.messages.causes",
        "stages.messages.external",
        "stages.messages.internal",
        "stages.sinks",
        "stages.sinks.address",
        "stages.sinks.encode",
    ]


def test_a_status_repeated_for_others_is_given_once_and_is_no_gap(publisher: Publisher, subscribe: Any) -> None:
    subscriber = subscribe()
    publisher.send(status("started"))
    publisher.send(detections(0))
    publisher.send(msgspec.structs.replace(status("started"), repeated=True))
    publisher.send(detections(1))
    given = everything(subscriber)
    assert [type(each).__name__ for each in given] == ["Status", "Detections", "Detections"]


def test_a_status_repeated_for_a_late_subscriber_in_mid_stream_is_no_gap(publisher: Publisher, subscribe: Any) -> None:
    subscriber = subscribe()
    publisher.send(msgspec.structs.replace(status("started"), repeated=True))
    publisher.send(detections(500))
    publisher.send(detections(501))
    given = everything(subscriber)
    assert [type(each).__name__ for each in given] == ["Status", "Detections", "Detections"]

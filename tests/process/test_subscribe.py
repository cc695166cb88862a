"""``campipe subscribe`` as a process of its own against a real publisher, and a ten-line reader without campipe."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made import messages

from pipeline.commands import subscribe
from stages.messages import DetectedObject, Detections, Heartbeat, LedgerEntry, Status
from stages.sinks.publish import PublishSink

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0  # long: a busy machine must not fail a test

PLAIN_READER = """
import msgpack, sys, zmq
socket = zmq.Context().socket(zmq.SUB)
socket.connect(sys.argv[1])
socket.subscribe("detections/")
socket.subscribe("status/")
while True:
    topic, body = socket.recv_multipart()
    message = msgpack.unpackb(body)
    print(topic.decode(), message.get("seq"), [found["label"] for found in message.get("objects", [])], flush=True)
    if message["type"] == "status" and message["state"] == "ended":
        break
"""


def detections(seq: int, *labels: str, camera: str = "gate-1") -> Detections:
    objects = [
        DetectedObject(box=[1.0, 2.0, 3.0, 4.0], score=0.914, class_id=number, label=label)
        for number, label in enumerate(labels)
    ]
    return messages.detections(seq, camera, pts_ns=seq * 100_000_000, objects=objects)


def status(state: Any, camera: str = "gate-1", **values: Any) -> Status:
    values = {"epoch": 0, "cause": state, "detail": "", "time_ns": 0, **values}
    return Status(camera=camera, state=state, **values)


def said(errors: str) -> list[str]:
    """What a subscriber said on stderr, but for a connection that took long: on a busy machine it may."""
    return [line for line in errors.splitlines() if "waiting for the first message" not in line]


class Publisher:
    """A sink whose ``take`` waits."""

    def __init__(self, bind: str = "tcp://127.0.0.1:0") -> None:
        self.sink = PublishSink(bind, clock_ns=time.monotonic_ns, lossless=True, join_ms=0)
        self.sink.open()

    @property
    def address(self) -> str:
        return self.sink.address

    def wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.sink.subscribers:
            assert time.monotonic() < deadline
            self.sink.service()
            time.sleep(0.01)

    def say(self, *messages: Any) -> None:
        for message in messages:
            while not self.sink.take(message):
                time.sleep(0.001)


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    made = Publisher()
    yield made
    made.sink.close(time.monotonic_ns() + 10**9)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **settings: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline", "subscribe", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            **settings,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_lines_for_people_until_all_cameras_have_ended(publisher: Publisher, start: Any) -> None:
    process = start(publisher.address)
    publisher.wait()
    ledger = LedgerEntry(decoded=9, published=6, dropped={"superseded": 2, "stale": 1}, in_flight=0)
    publisher.say(
        status("started", detail="8x6 h264 10 fps"),
        detections(0, "person", "car"),
        detections(1),
        status("gap", cause="superseded", from_seq=2, to_seq=3),
        detections(4, *["person"] * 11),
        detections(7, "dog \x1b[31mred\n"),
        status("ended", ledger=ledger),
    )
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert said(err) == []
    assert out.splitlines() == [
        "gate-1 started: 8x6 h264 10 fps",
        "gate-1 #0 at 0.000 s: person 0.91, car 0.91",
        "gate-1 #1 at 0.100 s: nothing",
        "gate-1 #2 to #3 dropped: superseded",
        f"gate-1 #4 at 0.400 s: {'person 0.91, ' * 8}and 3 more",
        "gate-1 #5 to #6 lost on the way",
        r"gate-1 #7 at 0.700 s: dog \x1b[31mred\n 0.91",
        "gate-1 ended: ended; 9 decoded, 6 published, 3 dropped",
    ]


def test_json_lines_hold_the_whole_message_in_utf8_whatever_the_terminal_speaks(
    publisher: Publisher, start: Any
) -> None:
    process = start(
        publisher.address,
        "--json",
        "--camera",
        "gate-1",
        env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
    )
    publisher.wait()
    publisher.say(detections(0, "人"), detections(3), detections(0, camera="gate-10"), status("ended"))
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said(err)) == (0, [])
    found = [json.loads(line) for line in out.splitlines()]
    assert [each["type"] for each in found] == ["detections", "lost", "detections", "status"]
    assert found[0]["objects"] == [{"box": [1.0, 2.0, 3.0, 4.0], "score": 0.914, "class_id": 0, "label": "人"}]
    assert found[1] == {"type": "lost", "camera": "gate-1", "epoch": 0, "from_seq": 1, "to_seq": 2}


def test_labels_that_the_terminal_cannot_show_are_escaped(publisher: Publisher, start: Any) -> None:
    process = start(publisher.address, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    publisher.wait()
    publisher.say(detections(0, "人"), status("ended"))
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert r"\u4eba 0.91" in out


def test_count_is_of_frames(publisher: Publisher, start: Any) -> None:
    process = start(publisher.address, "--count", "2")
    publisher.wait()
    publisher.say(status("started"), *(detections(seq) for seq in range(10)))
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert len(out.splitlines()) == 3


def test_nothing_for_too_long_is_a_failure(start: Any) -> None:
    process = start("tcp://127.0.0.1:1", "--timeout", "2.5")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (1, "")
    assert err.splitlines() == [
        "campipe: waiting for the first message from tcp://127.0.0.1:1 (Ctrl-C to leave)",
        "campipe: nothing came from tcp://127.0.0.1:1 for 2.5 s",
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["127.0.0.1:5600"], "write tcp://127.0.0.1:5600"),
        (["tcp://127.0.0.1:99999"], "65535"),
        (["tcp://*:5600"], "name the host"),
        (["tcp://127.0.0.1:5600", "--count", "0"], "--count"),
        (["tcp://127.0.0.1:5600", "--timeout", "nan"], "--timeout"),
        (["tcp://127.0.0.1:5600", "--camera", ""], "--camera"),
    ],
)
def test_refusals(start: Any, arguments: list[str], says: str) -> None:
    process = start(*arguments)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_ends_it_quietly(publisher: Publisher, start: Any, number: signal.Signals, code: int) -> None:
    process = start(publisher.address)
    publisher.wait()
    publisher.say(detections(0))
    assert process.stdout.readline() == "gate-1 #0 at 0.000 s: nothing\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, said(err)) == (code, "", [])


def test_a_reader_that_has_seen_enough_ends_it_quietly(publisher: Publisher, start: Any) -> None:
    process = start(publisher.address)
    publisher.wait()
    publisher.say(detections(0))
    assert process.stdout.readline()
    process.stdout.close()
    deadline = time.monotonic() + PATIENCE_S
    seq = 1
    while process.poll() is None:
        assert time.monotonic() < deadline
        publisher.say(detections(seq))
        seq += 1
        time.sleep(0.02)
    assert process.returncode == 0
    assert said(process.stderr.read()) == []


def test_a_camera_that_is_not_there_is_told_with_what_may_be_meant(publisher: Publisher, start: Any) -> None:
    process = start(publisher.address, "--camera", "gate1", "--timeout", "2")
    publisher.wait()
    publisher.say(Heartbeat(time_ns=0, uptime_ns=0, cameras={"gate-1": "streaming"}, lost_messages=0))
    _, err = process.communicate(timeout=PATIENCE_S)
    assert f"no camera 'gate1' is published at {publisher.address}; did you mean 'gate-1'?" in err


def test_a_heart_that_stops_and_beats_again_is_told(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subscribe, "SILENT_AFTER_S", 1.0)

    def talk() -> None:
        publisher.wait()
        publisher.say(detections(0))
        time.sleep(2.5)
        publisher.say(detections(1), status("ended"))

    thread = threading.Thread(target=talk)
    thread.start()
    args = argparse.Namespace(address=publisher.address, cameras=None, json=False, count=None, timeout_s=None)
    assert subscribe.run(args) == 0
    thread.join()
    assert capsys.readouterr().err.splitlines() == [
        f"campipe: no heartbeat from {publisher.address} for 1 s; still waiting",
        f"campipe: {publisher.address} is heard again",
    ]


def test_a_publisher_that_was_started_anew_is_shown_again(start: Any) -> None:
    first = Publisher()
    process = start(first.address)
    first.wait()
    first.say(detections(0), detections(1))
    assert first.sink.close(time.monotonic_ns() + 2 * 10**9) == ""
    second = Publisher(first.address)
    second.wait()
    second.say(status("started"), detections(0), status("ended"))
    second.sink.close(time.monotonic_ns() + 2 * 10**9)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert [line.split(" at ")[0] for line in out.splitlines()] == [
        "gate-1 #0",
        "gate-1 #1",
        "gate-1 started: started",
        "gate-1 #0",
        "gate-1 ended: ended",
    ]


def test_a_reader_of_ten_lines_without_campipe(publisher: Publisher, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", PLAIN_READER, publisher.address], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    publisher.wait()
    publisher.say(status("started"), detections(0, "person"), detections(1), status("ended"))
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert out.splitlines() == [
        "status/gate-1 None []",
        "detections/gate-1 0 ['person']",
        "detections/gate-1 1 []",
        "status/gate-1 None []",
    ]


def test_a_stopped_subscriber_process_is_waited_for_and_then_not(tmp_path: Path) -> None:
    """SIGSTOP, as a debugger or Ctrl-Z does: the run waits ``stall_ms``, goes on, and the loss is counted."""
    sink = PublishSink("tcp://127.0.0.1:0", clock_ns=time.monotonic_ns, lossless=True, join_ms=0, hwm=20, stall_ms=500)
    sink.open()
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", PLAIN_READER, sink.address], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        while not sink.subscribers:
            sink.service()
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
        longest_s = 0.0
        for seq in range(600):
            began = time.monotonic()
            while not sink.take(detections(seq, "x" * 50_000)):
                time.sleep(0.002)
            longest_s = max(longest_s, time.monotonic() - began)
        assert 0.5 <= longest_s < 30
        assert sink.lost_messages > 100
        lost = sink.lost_messages
        process.send_signal(signal.SIGCONT)
        lines: list[str] = []
        reading = threading.Thread(target=lambda: lines.extend(process.stdout or []))
        reading.start()
        deadline = time.monotonic() + PATIENCE_S
        while reading.is_alive():  # until it has caught up, it is given nothing
            assert time.monotonic() < deadline, "it never catches up"
            sink.service()
            sink.take(status("ended"))
            time.sleep(0.02)
        assert sink.close(time.monotonic_ns() + 30 * 10**9) == ""
        seqs = [int(line.split()[1]) for line in lines if line.startswith("detections")]
        assert seqs == list(range(len(seqs)))
        assert 600 - len(seqs) <= lost
    finally:
        process.kill()
        process.communicate()
        sink.close(0)

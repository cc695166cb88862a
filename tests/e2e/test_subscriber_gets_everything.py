"""A plain pyzmq + msgpack program, started first, gets every frame once, in order, until the stream's end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import zmq
from made.ports import free_port

FRAMES = 100
PATIENCE_MS = 30_000


def test_plain_subscriber_started_before_replay(campipe: Callable[..., Any], media_dir: Path, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/out"
    device = ["--device", "canned:0", "--set", "devices.options={service_ms: 4, objects: 3}"]
    device += ["--set", "publish.heartbeat_ms=100"]  # the run may well take less than the usual second
    received: list[tuple[str, dict[str, Any]]] = []
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.connect(address)
        socket.subscribe(b"")
        done = campipe("replay", *[media_dir / "street.mp4"] * 2, "--publish", address, *device)
        assert done.returncode == 0, done.stderr
        while socket.poll(500 if sum(each[1].get("state") == "ended" for each in received) == 2 else PATIENCE_MS):
            topic, data = socket.recv_multipart()
            received.append((topic.decode(), msgpack.unpackb(data)))
    seqs: dict[str, list[int]] = {}
    states: dict[str, list[str]] = {}
    beats = 0
    for topic, message in received:
        assert message["v"] == 1
        kind, _, camera = topic.partition("/")
        assert kind == message["type"]
        if kind == "detections":
            assert states[camera] == ["started"], "detections come between started and ended"
            seqs.setdefault(camera, []).append(message["seq"])
            assert {"pts_ns", "captured_ns", "width", "height", "model", "objects", "epoch"} <= message.keys()
            for found in message["objects"]:
                x1, y1, x2, y2 = found["box"]
                assert 0 <= x1 < x2 <= message["width"]
                assert 0 <= y1 < y2 <= message["height"]
        elif kind == "status":
            states.setdefault(camera, []).append(message["state"])
            if message["state"] == "ended":
                ledger = message["ledger"]
                assert ledger == {"decoded": FRAMES, "published": FRAMES, "dropped": {}, "in_flight": 0}
        else:
            beats += 1
    assert seqs == {"street": list(range(FRAMES)), "street-2": list(range(FRAMES))}
    assert states == {"street": ["started", "ended"], "street-2": ["started", "ended"]}
    assert beats > 0


def test_the_ten_lines_of_the_readme_work(campipe: Callable[..., Any], media_dir: Path, tmp_path: Path) -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    programs = [block.split("```")[0] for block in readme.split("```python\n")[1:]]
    plain = next(program for program in programs if "msgpack" in program and "zmq" in program)
    assert len(plain.strip().splitlines()) <= 12
    port = free_port()
    script = tmp_path / "reader.py"
    script.write_text(plain.replace("5600", str(port)))
    reader = subprocess.Popen([sys.executable, "-u", script], stdout=subprocess.PIPE, text=True)
    try:
        address = ["--publish", f"tcp://127.0.0.1:{port}", "--wait-subscribers", "1"]
        done = campipe("replay", media_dir / "street.mp4", "--max-frames", "40", *address)
        assert done.returncode == 0, done.stderr
        assert reader.stdout is not None
        assert any("person" in line for line in reader.stdout)  # until pytest-timeout ends it
    finally:
        reader.terminate()
        reader.communicate()

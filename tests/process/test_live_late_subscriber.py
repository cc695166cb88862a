"""Who joins a running site of live cameras late: told at once how each of them is."""

from __future__ import annotations

import time
from pathlib import Path

import msgpack
import zmq
from faults.live_run import LiveRun
from faults.servers.rtsp import RtspServer

WITHIN_S = 30.0


def test_a_late_subscriber_is_told_that_a_live_camera_streams_and_another_does_not(tmp_path: Path) -> None:
    with RtspServer() as server, zmq.Context() as context:
        cameras = {
            "gate": {"source": {"url": server.url()}},
            "yard": {"source": {"url": "rtsp://127.0.0.1:9/yard"}},  # nobody is there
        }
        with LiveRun(tmp_path, cameras) as run:
            run.wait_for_frames(["gate"], 0.0, WITHIN_S, 3)
            run.wait("a refusal", lambda: [t for t in run.told_of("yard") if t.status.cause == "refused"], WITHIN_S)
            with context.socket(zmq.SUB) as late:
                late.linger = 0
                late.subscribe(b"status/")
                late.connect(run.address)
                states: dict[str, str] = {}
                end_s = time.monotonic() + WITHIN_S
                while states.get("gate") != "started" or "yard" not in states:
                    assert late.poll(max(0, int((end_s - time.monotonic()) * 1000))), f"told was only {states}"
                    status = msgpack.unpackb(late.recv_multipart()[1])
                    states[status["camera"]] = status["state"]
                    if status["camera"] == "gate":
                        assert status["repeated"]
            run.stop()

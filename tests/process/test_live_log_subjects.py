"""What JSON log lines of a real run are about: each that tells of a camera or a worker names it in fields."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from faults.live_run import LiveRun
from faults.servers.rtsp import RtspServer

WITHIN_S = 30.0


def records(run: LiveRun) -> list[dict[str, Any]]:
    lines = (run.folder / "stderr.txt").read_text(errors="replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def wait_for_record(run: LiveRun, says: str, **fields: Any) -> None:
    """A record with these words; its ``fields`` are these, and types stand for any value of that type."""

    def found() -> dict[str, Any] | None:
        return next((record for record in records(run) if says in record["message"]), None)

    record = run.wait(f"a record that says {says!r}", found, WITHIN_S)
    subject = {name: record.get(name) for name in ("camera", "stage", "epoch", "seq")}
    for name, value in subject.items():
        wanted = fields.get(name)
        assert isinstance(value, wanted) if isinstance(wanted, type) else value == wanted, (record, name)


def test_json_log_lines_name_camera_stage_and_epoch(tmp_path: Path) -> None:
    with RtspServer() as server:
        cameras = {
            "gate": {"source": {"url": server.url()}},
            "yard": {"source": {"url": "rtsp://127.0.0.1:9/yard"}},  # nobody is there
        }
        with LiveRun(tmp_path, cameras, command=["--log-format", "json"]) as run:
            run.wait_for_frames(["gate"], 0.0, WITHIN_S, 3)
            wait_for_record(run, "camera yard: reconnecting (refused)", camera="yard", stage="decode", epoch=0)
            workers = run.status()["workers"]
            for name in ("decode/gate", "nms/0"):
                [pid] = [worker["pid"] for worker in workers if worker["name"] == name]
                os.kill(pid, signal.SIGKILL)
            wait_for_record(run, "decode/gate was ended by SIGKILL", camera="gate", stage="decode", epoch=int)
            wait_for_record(run, "nms/0 was ended by SIGKILL", stage="nms")
            assert run.ask("pause", "gate").ok
            wait_for_record(run, "camera gate is paused", camera="gate", epoch=int)
            run.stop()

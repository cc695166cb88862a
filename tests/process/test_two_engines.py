"""Two runs in one program: the end of one is nothing to the other."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path

from pipeline.config import replay_site, resolve
from pipeline.engine import Engine
from pipeline.observe.snapshot import EngineSnapshot
from pipeline.plan import DevicePlan, RunPlan
from pipeline.planning import make_plan
from pipeline.report import RunReport
from stages.sinks.collect import CollectSink


def plan(media_dir: Path, *settings: str) -> RunPlan:
    site = replay_site([media_dir / "street.mp4"], overrides=["publish=off", *settings])
    device = DevicePlan("canned:0", 1, 1, 2, {"objects": "1"})
    return dataclasses.replace(make_plan(resolve(site)), devices=(device,))


def test_the_end_of_one_run_does_not_end_the_workers_of_another_in_the_same_program(media_dir: Path) -> None:
    sink, snapshots, reports = CollectSink(), list[EngineSnapshot](), list[RunReport]()
    endless = Engine(plan(media_dir, "camera.street.source.loop=true"), [sink], snapshots.append, 20)
    thread = threading.Thread(target=lambda: reports.append(endless.run()))
    thread.start()
    try:
        assert Engine(plan(media_dir)).run().exit_status == 0
        published, until_s = len(sink.messages), time.monotonic() + 60
        while len(sink.messages) < published + 20 and time.monotonic() < until_s:
            time.sleep(0.01)
    finally:
        endless.request_stop("enough")
        thread.join(60)
    (report,) = reports
    assert report.exit_status == 0, report.problems
    assert all(camera.exact for camera in report.cameras.values())
    assert not sum(worker.restarts for worker in snapshots[-1].workers)

"""Cameras that come and go under ever new names leave nothing behind in the engine but what is meant to be kept."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, deque
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from made.specs import model_spec

from pipeline.control.changes import Changes
from pipeline.observe.live import LinesView
from pipeline.plan import BatchPlan, DevicePlan, Limits, PublishPlan, RunPlan
from pipeline.runtime import cameras as cameras_module
from pipeline.runtime import fleet as fleet_module
from pipeline.runtime.crew import crew
from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.fleet import Fleet
from pipeline.runtime.gauge import Gauge
from pipeline.runtime.link_log import LinkLog
from pipeline.runtime.outlet import Outlet
from pipeline.runtime.rings import Rings
from pipeline.runtime.supervisor import Supervisor
from pipeline.runtime.worker_process import WorkerProcess
from pipeline.transport.arena import SharedRing
from stages.camera import CameraSpec
from stages.messages import FrameDropped, LinkChanged, StreamStarted
from stages.model import TensorSpec
from stages.sinks.jsonl import JsonlSink
from stages.sinks.publish import PublishSink

MODEL = model_spec(
    width=8,
    height=8,
    pad_value=0,
    placement="stretch",
    labels=("a",),
    outputs=(TensorSpec("o", (4, 5), "float32"),),
    iou=0.5,
)
STEADY = CameraSpec("steady", "rtsp://camera/1", "m", live=True, network=True)
# Kept for the report until PAST_KEPT, and one name for each file that was begun: a camera that comes again goes on.
MEANT = {"Cameras.past", "LineAccounts._left"}
KEPT = 8


class Idle(Supervisor):
    """Whatever it is to start has a process at once, which does nothing."""

    def _start(self, worker: WorkerProcess, now_ns: int) -> None:
        self._on_start(worker)
        worker.begin_incarnation(now_ns)
        worker.launching, worker.process, worker.state = False, object(), "ready"  # type: ignore[assignment]
        worker.greeted.update(worker.endpoints)


class Engine:
    """Everything that the engine's loop holds, without processes and sockets to them."""

    def __init__(self, folder: Path) -> None:
        plan = RunPlan(
            cameras=(STEADY,),
            models=(MODEL,),
            devices=(DevicePlan("cpu", 1, 1, 2),),
            batch={"m": BatchPlan(1, 0.0)},
            nms_workers=1,
            frame_slots={"steady": 3},
            output_slots={"m": 3},
            publish=PublishPlan("tcp://127.0.0.1:0"),
            jsonl=(),
            limits=Limits(),
        )
        self.now_ns = 0
        self.publish = PublishSink("tcp://127.0.0.1:0", clock_ns=self.clock, lossless=False, join_ms=0)
        lines = JsonlSink(f"{folder}/{{camera}}.jsonl", cameras=["steady"], clock_ns=self.clock, status=True)
        self.outlet = Outlet([self.publish, lines], 1000)
        self.outlet.open(0)
        self.dispatcher = Dispatcher(plan, self.clock)
        self.dispatcher.changes.stay = True
        self.rings = Rings(plan, SharedRing.create)
        self.rings.__enter__()
        self.fleet = Fleet(plan, self.dispatcher, self.rings, self.outlet, lambda *_: None)
        self.supervisor = Idle(
            "",
            str(folder),
            "",
            hang_ns=10**9,
            start_ns=10**9,
            needed=lambda _: True,
            on_lost=lambda *_: None,
            on_given_up=lambda *_: None,
            on_gone=lambda worker: self.fleet.gone(worker, self.now_ns),
            on_start=self.fleet.starting,
            wake=lambda: None,
        )
        self.fleet.attend(self.supervisor)
        for worker in crew(plan, self.rings):
            self.supervisor.add(worker, 0)
            self.dispatcher.worker_ready(worker.endpoints[0], worker.kind, 2)
        self.dispatcher.open_gates()
        self.gauge, self.link_log, self.view = Gauge(0, 0), LinkLog(), LinesView(clock=self.clock)

    def clock(self) -> int:
        return self.now_ns

    def turn(self) -> None:
        self.now_ns += 100_000_000
        self.fleet.step(self.now_ns)
        self.link_log.keep(self.dispatcher.cameras)
        self.dispatcher.pump(self.now_ns)
        self.outlet.deliver(self.dispatcher)
        self.outlet.service(self.dispatcher, self.now_ns, self.now_ns)
        self.dispatcher.outbox.clear()
        self.view.update(self.gauge.read(self.dispatcher, self.supervisor.workers.values(), self.now_ns))

    def come_and_go(self, name: str) -> None:
        """A camera is added, tells this and that, and is removed."""
        self.fleet.apply(Changes(add=(dataclasses.replace(STEADY, name=name),)), self.now_ns)
        self.turn()
        worker = self.supervisor.workers[f"decode/{name}"]
        self.dispatcher.worker_ready(worker.name, "decode", 3)
        lost = LinkChanged(name, 0, "reconnecting", "refused", "no")
        self.link_log.note(lost)
        for message in (StreamStarted(name, 0, 8, 8, 5.0, "h264", "arrival", None), lost):
            self.dispatcher.receive(worker.name, message)
        for seq in range(3):
            self.dispatcher.receive(worker.name, FrameDropped(name, 0, seq, seq + 1, 0, "too_old", ""))
        self.fleet.apply(Changes(change=(dataclasses.replace(STEADY, name=name, confidence=0.7),)), self.now_ns)
        self.turn()
        self.fleet.remove(name, self.now_ns)
        worker.process, worker.state = None, "gone"
        self.fleet.gone(worker, self.now_ns)
        for _ in range(3):
            self.turn()

    def settle(self) -> None:
        """What is kept of the last seconds is gone, and so is what pyzmq's thread releases."""
        self.now_ns += 10**10
        until_s = time.monotonic() + 10
        self.turn()
        while self.publish._marks.oldest_held is not None and time.monotonic() < until_s:
            time.sleep(0.005)

    def close(self) -> None:
        self.outlet.close(0)
        self.fleet.close()
        self.rings.close()


def census(*roots: object) -> Counter[str]:
    """By class and attribute: how much is in the containers of our objects that can be reached."""
    found: Counter[str] = Counter()
    seen: set[int] = set()

    def look(value: Any, where: str) -> None:
        if id(value) in seen or where in MEANT:
            return
        if isinstance(value, dict | set | frozenset | list | tuple | deque | MappingProxyType):
            seen.add(id(value))
            found[where] += len(value)
            for each in [*value.values()] if isinstance(value, dict | MappingProxyType) else [*value]:
                look(each, where)
        elif isinstance(value, Engine) or type(value).__module__.partition(".")[0] in {"pipeline", "stages"}:
            seen.add(id(value))
            names = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())}
            for name in names | set(getattr(value, "__dict__", ())):
                look(getattr(value, name, None), f"{type(value).__name__}.{name}")

    for root in roots:
        look(root, type(root).__name__)
    return found


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(fleet_module, "push", lambda *_: True)
    monkeypatch.setattr(cameras_module, "PAST_KEPT", KEPT)
    made = Engine(tmp_path)
    yield made
    made.close()


def test_after_cameras_under_ever_new_names_all_containers_are_as_at_the_start(engine: Engine) -> None:
    for number in range(3):
        engine.come_and_go(f"first-{number}")
    engine.settle()
    before = census(engine)
    assert before["Dispatcher._of_kind"], "the census sees nothing"
    for number in range(2 * KEPT):
        engine.come_and_go(f"x-{number}")
    engine.settle()
    after = census(engine)
    grown = {where: (before[where], after[where]) for where in after if after[where] > before[where]}
    assert not grown
    assert [*engine.dispatcher.cameras] == ["steady"]
    assert len(engine.dispatcher.changes.past) == KEPT

"""Owns one measured run of the engine: its sinks, a subscriber of its own, its end. Computes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pipeline.bench.outcome import Outcome, evaluate
from pipeline.bench.probe import MEASURED, Notes, Probe
from pipeline.bench.windows import Windows
from pipeline.bench.workload import Workload, make_up
from pipeline.plan import RunPlan
from stages.camera import CameraSpec
from stages.errors import CampipeError

SNAPSHOT_MS: Final = 500
# As a user would write it; it takes every message, so that publishing costs what it costs with somebody there.
SUBSCRIBER: Final = """
import sys, zmq
socket = zmq.Context().socket(zmq.SUB)
socket.connect(sys.argv[1])
socket.subscribe(b"")
while True:
    socket.recv_multipart()
"""


@contextmanager
def subscriber() -> Iterator[str]:
    """The address that a subscriber in a process of its own is connected to."""
    folder = Path(tempfile.mkdtemp(prefix="campipe-bench-"))
    address = f"ipc://{folder}/detections"
    reader = subprocess.Popen([sys.executable, "-c", SUBSCRIBER, address], stdin=subprocess.DEVNULL)
    try:
        yield address
    finally:
        reader.terminate()
        reader.wait()
        shutil.rmtree(folder, ignore_errors=True)


def plan_of(load: Workload, cameras: Sequence[CameraSpec], address: str, *, trace: bool) -> RunPlan:
    """The plan of ``run``, published at ``address``."""
    return make_up(load, cameras, publish=address, trace=trace)


def run(plan: RunPlan, windows: Windows, counted: Sequence[str] | None = None) -> Outcome:
    """Run the plan until its windows are over. Raises CampipeError when it fails or is stopped before."""
    return outcome(plan, observe(plan, windows), windows, counted)


def outcome(plan: RunPlan, notes: Notes, windows: Windows, counted: Sequence[str] | None = None) -> Outcome:
    """The figures of a run of the plan."""
    parallel = all(device.device == "cpu" for device in plan.devices)
    (batch,) = plan.batch.values()
    return evaluate(notes, windows, max_batch=batch.max_batch, parallel=parallel, cameras=counted)


def observe(
    plan: RunPlan, windows: Windows, all_of: Sequence[str] = (), at_end: Callable[[], object] = lambda: None
) -> Notes:
    """Run the plan until its windows, which begin when ``all_of`` have published, are over. Raises as ``run`` does.

    ``at_end`` is called then, while everything is still there.
    """
    from pipeline.engine import Engine
    from pipeline.signals import stop_on_signals
    from pipeline.sinks import build

    def stop(reason: str) -> None:
        at_end()
        engine.request_stop(reason)

    probe = Probe(windows, stop, os.getpid(), all_of)
    engine = Engine(plan, [*build(plan), probe], probe.on_snapshot, SNAPSHOT_MS)
    probe.attach(engine.dispatcher)
    with stop_on_signals(engine):
        report = engine.run()
    if report.stopped_by != MEASURED:
        reasons = [f"stopped by {report.stopped_by}"] if report.stopped_by else ["it ended before it was measured"]
        raise CampipeError("; ".join([*report.problems, *reasons]))
    inexact = [name for name, camera in report.cameras.items() if not camera.exact]
    if report.problems or inexact:
        raise CampipeError("; ".join([*report.problems, *(f"{name}: the ledger is not exact" for name in inexact)]))
    return probe.notes

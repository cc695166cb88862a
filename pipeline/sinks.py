"""Owns which sinks a plan asks for. Opens none."""

from __future__ import annotations

import time

from pipeline.plan import RunPlan
from stages.sinks.jsonl import JsonlSink
from stages.sinks.publish import PublishSink
from stages.sinks.sink import Sink


def build(plan: RunPlan, *, live_may_come: bool = False) -> list[Sink]:
    """The sinks of a plan, not opened. ``live_may_come``: cameras may join while it runs, live ones too."""
    sinks: list[Sink] = []
    live = frozenset(camera.name for camera in plan.cameras if camera.live)
    if plan.publish is not None:
        sinks.append(
            PublishSink(
                plan.publish.bind,
                clock_ns=time.monotonic_ns,
                lossless=True,
                live=live,
                live_may_come=live_may_come,
                hwm=plan.publish.hwm,
                trace=plan.publish.trace,
                join_ms=plan.publish.join_ms,
                stall_ms=plan.publish.stall_ms,
            )
        )
    names = [camera.name for camera in plan.cameras]
    sinks += [
        JsonlSink(
            jsonl.path,
            cameras=names,
            clock_ns=time.monotonic_ns,
            merged=jsonl.merged,
            status=jsonl.status,
            rotate_bytes=jsonl.rotate_bytes,
            live=live,  # a restarted site goes on; a replay starts anew
        )
        for jsonl in plan.jsonl
    ]
    return sinks

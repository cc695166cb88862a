"""Owns the loop of a decode worker around its stage: control in, messages out, waiting. Decides nothing."""

from __future__ import annotations

import time

from pipeline.runtime.meter import Meter
from pipeline.runtime.work import DecodeWork
from pipeline.transport.channel import WorkerChannel
from stages.messages import Begin, Goodbye, Ready, SlotsFreed, Stop

BEGIN_TIMEOUT_MS = 30_000


def run_decode(channel: WorkerChannel, work: DecodeWork) -> None:
    """Decode one camera until its stage is done."""
    import cv2

    from stages.decode.stage import Decode, ResumePoint

    cv2.setNumThreads(1)
    begin = channel.receive(BEGIN_TIMEOUT_MS)
    if not isinstance(begin, Begin):
        return
    resume = ResumePoint(begin.epoch, begin.next_seq, begin.decoded, begin.sampled_out)
    first = begin == Begin(0, 0, 0, 0)
    stage = Decode(work.camera, work.model, work.ring, time.monotonic_ns, None if first else resume)
    meter = Meter(channel)
    try:
        for message in stage.open():
            channel.send(message)
        channel.send(Ready(work.ring.slots, {}))
        while not stage.done:
            wait_ns = stage.wait_ns()
            now_ns = time.monotonic_ns()
            meter.report(now_ns)
            if wait_ns is None or wait_ns > 0:
                due_ms = meter.due_ms(now_ns)
                timeout_ms = due_ms if wait_ns is None else min(due_ms, -(-wait_ns // 1_000_000))
            else:
                timeout_ms = 0
            control = channel.receive(timeout_ms)
            while control is not None:
                if isinstance(control, SlotsFreed):
                    stage.grant(control.slots)
                elif isinstance(control, Stop):
                    for message in stage.stop():
                        channel.send(message)
                control = channel.receive(0)
            if not stage.done and stage.wait_ns() == 0:
                before_ns = time.monotonic_ns()
                for message in stage.step():
                    channel.send(message)
                meter.busy_ns += time.monotonic_ns() - before_ns
                meter.items += 1
        meter.report(time.monotonic_ns(), last=True)
        channel.send(Goodbye())
    finally:
        stage.close()
        work.ring.close()

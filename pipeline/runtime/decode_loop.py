"""Owns the loop of a decode worker around its stage: control in, messages out, waiting. Decides nothing."""

from __future__ import annotations

import logging
import random
import select
import time

from pipeline.observe.subject import about
from pipeline.runtime.heap import Heap
from pipeline.runtime.meter import Meter
from pipeline.runtime.work import DecodeWork
from pipeline.transport.channel import WorkerChannel
from stages.messages import Begin, CameraChanged, Goodbye, LinkChanged, Ready, SlotsFreed, Stop

LOG = logging.getLogger("campipe.decode")
BEGIN_TIMEOUT_MS = 30_000
TELL_EVERY_NS = 30_000_000_000
CHORES_EVERY_NS = 50_000_000


class Behind:
    """Says so, not too often, when a camera sends more than this machine decodes."""

    def __init__(self, camera: str, told: int = 0) -> None:
        self._camera = camera
        self._told = told
        self._next_ns = 0

    def look(self, skipped: int, now_ns: int) -> None:
        """``skipped``: pictures that were left out so far."""
        if skipped < self._told:
            self._told = 0
        if skipped == self._told or now_ns < self._next_ns:
            return
        LOG.warning(
            "camera %s sends more than is decoded: %d pictures were left out, unseen; lower its rate or size, set "
            "sampling.keyframes, or free the CPU",
            self._camera,
            skipped - self._told,
            extra=about(self._camera, "decode"),
        )
        self._told, self._next_ns = skipped, now_ns + TELL_EVERY_NS


def run_decode(channel: WorkerChannel, work: DecodeWork) -> None:
    """Decode one camera until its stage is done.

    A live camera's reader may be stuck in a call when this returns; its thread is a daemon and holds up nothing.
    """
    import cv2

    from stages.decode.choose import stage_of
    from stages.decode.stage import ResumePoint

    cv2.setNumThreads(1)
    begin = channel.receive(BEGIN_TIMEOUT_MS)
    if not isinstance(begin, Begin):
        return
    resume = ResumePoint(begin.epoch, begin.next_seq, begin.decoded, begin.sampled_out, begin.read, begin.skipped)
    stage = stage_of(
        work.camera,
        work.model,
        work.ring,
        time.monotonic_ns,
        None if resume == ResumePoint() else resume,
        wall_ns=time.time_ns,
        draw=random.random,
        delay_ms=begin.delay_ms,
    )
    meter = Meter(channel)
    behind = Behind(work.camera.name, begin.skipped)
    heap = Heap()
    heap.keep_in_one()
    poller = select.poll()
    poller.register(channel.socket, select.POLLIN)
    alone = stage.wake_fd < 0  # nothing but a message or the clock gives it something to do
    if not alone:
        poller.register(stage.wake_fd, select.POLLIN)
    try:
        for message in stage.open():
            channel.send(message)
        channel.send(Ready(work.ring.slots, {}))
        chores_ns = 0
        while not stage.done:
            wait_ns = stage.wait_ns()
            now_ns = time.monotonic_ns()
            if now_ns >= chores_ns:
                meter.report(now_ns)
                chores_ns = min(now_ns + CHORES_EVERY_NS, meter.due_ns)  # else it is polled for a report that is late
                heap.tidy(now_ns)
                behind.look(stage.skipped, now_ns)
            if wait_ns is None and alone:
                control = channel.wait()
            else:
                if wait_ns != 0:
                    due_ms = meter.due_ms(now_ns)
                    poller.poll(due_ms if wait_ns is None else min(due_ms, -(-wait_ns // 1_000_000)))
                control = channel.receive(0)
            while control is not None:
                match control:
                    case SlotsFreed():
                        stage.grant(control.slots)
                    case CameraChanged():
                        stage.change(control.spec, control.settings)
                    case Stop():
                        for message in stage.stop():
                            channel.send(message)
                    case _:
                        pass
                control = channel.receive(0)
            if not stage.done and stage.wait_ns() == 0:
                before_ns = time.monotonic_ns()
                for message in stage.step():
                    channel.send(message)
                    if isinstance(message, LinkChanged) and message.state == "reconnecting":
                        heap.connection_ended()  # or has never begun: a try leaves something behind too
                meter.busy_ns += time.monotonic_ns() - before_ns
                meter.items += 1
        meter.report(time.monotonic_ns(), last=True)
        channel.send(Goodbye())
    finally:
        stage.close()
        work.ring.close()

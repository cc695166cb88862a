"""Owns the loop of an NMS worker around its stage. Decides nothing."""

from __future__ import annotations

import logging
import time

from pipeline.observe.subject import about
from pipeline.plan import NMS_CAPACITY
from pipeline.runtime.meter import Meter
from pipeline.runtime.work import NmsWork
from pipeline.transport.channel import WorkerChannel
from stages.errors import UserError
from stages.messages import CameraChanged, CameraRemoved, Goodbye, PostTask, Ready, Stop

LOG = logging.getLogger("campipe.nms")


def run_nms(channel: WorkerChannel, work: NmsWork) -> None:
    """Turn raw outputs into objects until told to stop."""
    import cv2

    from stages.postprocess.stage import Postprocess

    cv2.setNumThreads(1)
    stage = Postprocess(work.models, (), work.outputs, work.max_batch, time.monotonic_ns)
    meter = Meter(channel)
    stage.open()
    problems: list[str] = []
    for number, camera in work.cameras:
        try:
            stage.add_camera(camera, number)
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError.of(problems)
    try:
        channel.send(Ready(NMS_CAPACITY, {}))
        while True:
            now_ns = time.monotonic_ns()
            meter.report(now_ns)
            message = channel.receive(meter.due_ms(now_ns))
            if isinstance(message, PostTask):
                before_ns = time.monotonic_ns()
                for done in stage.step(message):
                    channel.send(done)
                meter.busy_ns += time.monotonic_ns() - before_ns
                meter.items += len(message.items)
            elif isinstance(message, CameraChanged):
                try:
                    stage.add_camera(message.spec, message.settings)
                except UserError as error:  # its frames are then told as failed, one by one
                    subject = about(message.spec.name, "nms")
                    LOG.error("camera %s: %s", message.spec.name, "; ".join(error.problems), extra=subject)
            elif isinstance(message, CameraRemoved):
                stage.remove_camera(message.camera)
            elif isinstance(message, Stop):
                break
        meter.report(time.monotonic_ns(), last=True)
        channel.send(Goodbye())
    finally:
        stage.close()

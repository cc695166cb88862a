"""Owns the loop of the exporter worker: the engine's figures in, an HTTP page out. Decides nothing."""

from __future__ import annotations

import time

import msgspec

from pipeline.observe.exporter import Exporter
from pipeline.observe.snapshot import EngineSnapshot
from pipeline.runtime.meter import Meter
from pipeline.runtime.work import ExporterWork
from pipeline.transport.channel import WorkerChannel
from stages.messages import Figures, Goodbye, Ready, Stop


def run_exporter(channel: WorkerChannel, work: ExporterWork) -> None:
    """Serve the newest figures until told to stop."""
    decoder = msgspec.msgpack.Decoder(EngineSnapshot)
    exporter = Exporter(work.host, work.port)
    exporter.open()
    meter = Meter(channel)
    try:
        channel.send(Ready(1, {"address": exporter.address}))
        while True:
            now_ns = time.monotonic_ns()
            meter.report(now_ns)
            message = channel.receive(meter.due_ms(now_ns))
            if isinstance(message, Figures):
                exporter.update(decoder.decode(message.data))
                meter.items += 1
            elif isinstance(message, Stop):
                break
        meter.report(time.monotonic_ns(), last=True)
        channel.send(Goodbye())
    finally:
        exporter.close()

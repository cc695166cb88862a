"""Owns how long a frame spent in each stage. Pure: the stamps that came with it in, durations out."""

from __future__ import annotations

from pipeline.observe.latency import Histogram
from pipeline.runtime.inflight import Frame
from stages.messages import FrameReady, Trace

STAGES = ("decode", "queue", "upload", "execute", "download", "post", "reorder", "total")


def durations_ns(frame: Frame, now_ns: int) -> tuple[int, ...] | None:
    """Nanoseconds in each of ``STAGES`` of a frame that leaves now; ``total`` counts from the arrival of its data.

    None for a frame that no device has seen.
    """
    ready, raw = frame.ready, frame.raw
    if raw is None or not isinstance(ready, FrameReady):
        return None
    arrived_at_ns = ready.arrived_at_ns or ready.decoded_at_ns
    return (
        ready.decoded_at_ns - arrived_at_ns,
        raw.submitted_at_ns - ready.decoded_at_ns,
        raw.uploaded_at_ns - raw.submitted_at_ns,
        raw.executed_at_ns - raw.uploaded_at_ns,
        raw.finished_at_ns - raw.executed_at_ns,
        frame.posted_at_ns - raw.finished_at_ns,
        now_ns - frame.posted_at_ns,
        now_ns - arrived_at_ns,
    )


def work_ns(frame: Frame) -> int:
    """Nanoseconds for which the frame was worked on: its decoding, its batch on the device, its part of the NMS task.

    Of the time from its stamp to its publication the rest is what the pipeline adds.
    """
    ready = frame.ready
    if not isinstance(ready, FrameReady):
        return 0
    decoded_ns = ready.decoded_at_ns - (ready.arrived_at_ns or ready.decoded_at_ns)
    return decoded_ns + frame.computed_ns + frame.nms_ns


def trace_of(durations: tuple[int, ...]) -> Trace:
    """The same as subscribers get it."""
    return Trace(**{f"{stage}_ms": duration / 1e6 for stage, duration in zip(STAGES, durations, strict=True)})


def histograms() -> dict[str, Histogram]:
    """An empty histogram for each stage."""
    return {stage: Histogram() for stage in STAGES}


def count(histograms: dict[str, Histogram], durations: tuple[int, ...]) -> None:
    """Add one frame to the histograms."""
    for histogram, duration in zip(histograms.values(), durations, strict=True):
        histogram.add(duration)

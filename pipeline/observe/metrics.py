"""Owns the names, units and labels of the metrics, made from a snapshot of the engine. Serves nothing.

All have the prefix ``campipe_`` and the unit in the name. Counters count since the engine's start, over all restarts of
workers. Label values are names from the configuration; no address and no text of a message is among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from pipeline import __version__
from pipeline.observe.health import Health
from pipeline.observe.latency import BOUNDS_S
from pipeline.observe.snapshot import EngineSnapshot, LatencySnapshot

CAMERA_STATES = (
    "starting",
    "connecting",
    "streaming",
    "stalled",
    "reconnecting",
    "restarting",
    "paused",
    "ended",
    "failed",
)
COLOURS = ("green", "yellow", "red")


class SnapshotCollector(Collector):
    """Metrics of what ``read`` gives at the moment of the scrape: the newest snapshot, how old it is, the health."""

    def __init__(self, read: Callable[[], tuple[EngineSnapshot | None, float, Health]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """All metrics; without a snapshot only those of the exporter itself."""
        snapshot, age_s, health = self._read()
        info = InfoMetricFamily("campipe_build", "The version that runs.")
        info.add_metric([], {"version": __version__})
        yield info
        yield _states(
            "campipe_health", "1 for the present colour of /healthz.", "colour", COLOURS, [((), health.colour)]
        )
        if snapshot is None:
            return
        yield _one("campipe_snapshot_age_seconds", "Since the engine told these figures.", age_s)
        yield from _of_engine(snapshot)
        yield from _of_cameras(snapshot)
        yield from _of_workers(snapshot)
        yield from _latencies(snapshot)


def _one(name: str, says: str, value: float, labels: tuple[str, ...] = ()) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, says, labels=labels)
    if not labels:
        family.add_metric([], value)
    return family


def _states(
    name: str, says: str, label: str, known: tuple[str, ...], found: list[tuple[tuple[str, ...], str]], *labels: str
) -> GaugeMetricFamily:
    """A gauge per state, 1 for the present one: what dashboards can colour."""
    family = GaugeMetricFamily(name, says, labels=(*labels, label))
    for values, state in found:
        for each in known:
            family.add_metric((*values, each), float(each == state))
    return family


def _of_engine(snapshot: EngineSnapshot) -> Iterator[Metric]:
    yield _one("campipe_uptime_seconds", "Since the engine's start.", snapshot.uptime_s)
    yield _one("campipe_shared_memory_bytes", "Reserved for frames and raw outputs.", snapshot.shared_memory_bytes)
    yield _one("campipe_subscribers", "Connections that have subscribed.", snapshot.subscribers)
    lost = CounterMetricFamily("campipe_messages_lost", "Messages that at least one subscriber did not get.")
    lost.add_metric([], snapshot.lost_messages)
    yield lost
    waiting = _one("campipe_queue_length", "Pieces of work that wait.", 0, ("queue",))
    capacity = _one("campipe_queue_capacity", "Pieces of work that can wait.", 0, ("queue",))
    for queue, (length, most) in snapshot.queues.items():
        waiting.add_metric([queue], length)
        capacity.add_metric([queue], most)
    yield waiting
    yield capacity
    up = _one("campipe_sink_up", "1 while it takes messages, 0 while it is broken.", 0, ("sink",))
    missed = CounterMetricFamily("campipe_sink_messages_missed", "Messages it could not take.", labels=("sink",))
    for sink, each in {_sink_label(each.name): each for each in snapshot.sinks}.items():
        up.add_metric([sink], float(each.state == "open"))
        missed.add_metric([sink], each.missed)
    yield up
    yield missed


def _sink_label(name: str) -> str:
    """Without the address, which is chosen anew at each start when its port is 0."""
    return "publish" if name.startswith("publish ") else name


def _of_cameras(snapshot: EngineSnapshot) -> Iterator[Metric]:
    of = ("camera",)
    decoded = CounterMetricFamily("campipe_frames_decoded", "Frames decoded.", labels=of)
    published = CounterMetricFamily("campipe_frames_published", "Frames with published detections.", labels=of)
    dropped = CounterMetricFamily("campipe_frames_dropped", "Frames dropped, by cause.", labels=(*of, "cause"))
    errors = CounterMetricFamily("campipe_decode_errors", "Packets that could not be decoded.", labels=of)
    damaged = CounterMetricFamily("campipe_frames_corrupt", "Frames with damage.", labels=of)
    skipped = CounterMetricFamily(
        "campipe_packets_skipped", "Packets left out undecoded: the camera sends more than is decoded.", labels=of
    )
    epochs = CounterMetricFamily("campipe_stream_starts", "Starts of the stream: 1 and each reconnect.", labels=of)
    flight = _one("campipe_frames_in_flight", "Frames under way.", 0, of)
    age = _one("campipe_frame_age_seconds", "Arrival to published, of the newest published frame.", 0, of)
    since = _one("campipe_since_published_seconds", "Since a frame was published; while it should stream.", 0, of)
    rate = _one("campipe_frames_per_second", "Published, over the last seconds.", 0, of)
    found = _one("campipe_objects", "Objects in the newest frame.", 0, of)
    for camera in snapshot.cameras:
        name = [camera.name]
        decoded.add_metric(name, camera.decoded)
        published.add_metric(name, camera.published)
        for cause, count in camera.dropped.items():
            dropped.add_metric([camera.name, cause], count)
        errors.add_metric(name, camera.decode_errors)
        damaged.add_metric(name, camera.corrupt)
        skipped.add_metric(name, camera.skipped)
        epochs.add_metric(name, camera.epoch + 1)
        flight.add_metric(name, camera.in_flight)
        age.add_metric(name, camera.age_ms / 1000)
        if camera.since_published_s is not None:
            since.add_metric(name, camera.since_published_s)
        rate.add_metric(name, camera.fps_out)
        found.add_metric(name, camera.objects)
    yield from (decoded, published, dropped, errors, damaged, skipped, epochs, flight, age, since, rate, found)
    yield _states(
        "campipe_camera_state",
        "1 for the present state of the camera.",
        "state",
        CAMERA_STATES,
        [((camera.name,), camera.state) for camera in snapshot.cameras],
        "camera",
    )


def _of_workers(snapshot: EngineSnapshot) -> Iterator[Metric]:
    labels = ("worker", "kind")
    restarts = CounterMetricFamily("campipe_worker_restarts", "Deaths of the worker's process.", labels=labels)
    cpu = CounterMetricFamily("campipe_worker_cpu_seconds", "CPU time of all its processes.", labels=labels)
    busy = _one("campipe_worker_busy_ratio", "Share of the last seconds with work in hand.", 0, labels)
    memory = _one("campipe_worker_private_bytes", "Private memory of the present process.", 0, labels)
    up = _one("campipe_worker_up", "1 when it is ready for work.", 0, labels)
    for worker in snapshot.workers:
        values = [worker.name, worker.kind]
        restarts.add_metric(values, worker.restarts)
        cpu.add_metric(values, worker.cpu_s)
        busy.add_metric(values, worker.busy_share)
        memory.add_metric(values, worker.private_bytes)
        up.add_metric(values, float(worker.state == "ready"))
    yield from (restarts, cpu, busy, memory, up)


def _latencies(snapshot: EngineSnapshot) -> Iterator[Metric]:
    family = HistogramMetricFamily(
        "campipe_stage_seconds", "Time of a frame in each stage; total: arrival to published.", labels=("stage",)
    )
    for each in snapshot.latencies:
        _add(family, each)
    yield family


def _add(family: HistogramMetricFamily, each: LatencySnapshot) -> None:
    bounds = [*(f"{bound:.6g}" for bound in BOUNDS_S), "+Inf"]
    family.add_metric([each.stage], list(zip(bounds, each.cumulative, strict=True)), each.sum_ns / 1e9)

"""The HTTP face of a run, over real sockets."""

from __future__ import annotations

import dataclasses
import http.client
import json
import socket
import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pipeline.observe import exporter as module
from pipeline.observe.exporter import CONNECTIONS, Exporter
from pipeline.observe.latency import Histogram
from pipeline.observe.snapshot import CameraSnapshot, EngineSnapshot, LatencySnapshot, SinkSnapshot, WorkerSnapshot
from stages.errors import UserError


def snapshot(state: str = "streaming") -> EngineSnapshot:
    histogram = Histogram()
    histogram.add(3_000_000)
    return EngineSnapshot(
        12.5,
        (CameraSnapshot("gate", state, "m", 25, 24, 80.0, 100, 90, 4, {"too_old": 6}, None, 3, "", 2, 1, 5),),
        (WorkerSnapshot("nms/0", "nms", 1, "ready", 0.25, 1.5, 1000, 1),),
        {"batcher": (1, 8)},
        4096,
        2,
        7,
        latencies=(LatencySnapshot("post", tuple(histogram.cumulative()), histogram.sum_ns),),
    )


@pytest.fixture
def served() -> Iterator[Exporter]:
    exporter = Exporter("127.0.0.1", 0)
    exporter.open()
    yield exporter
    exporter.close()
    exporter.close()


def get(exporter: Exporter, path: str, method: str = "GET") -> tuple[int, str]:
    host, port = exporter.address.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_broken_sink_and_the_time_since_the_last_frame_are_metrics(served: Exporter) -> None:
    sinks = (
        SinkSnapshot("publish tcp://127.0.0.1:5600", "open"),
        SinkSnapshot("jsonl out", "broken", "full", 7),
        SinkSnapshot("jsonl again", "open", "", 5),
    )
    told = snapshot()
    camera = dataclasses.replace(told.cameras[0], since_published_s=12.5, overdue_s=12.0)
    served.update(dataclasses.replace(told, sinks=sinks, cameras=(camera,)))
    found = samples(get(served, "/metrics")[1])
    assert found["campipe_sink_up", (("sink", "publish"),)] == 1
    assert found["campipe_sink_up", (("sink", "jsonl out"),)] == 0
    assert found["campipe_sink_messages_missed_total", (("sink", "jsonl out"),)] == 7
    assert found["campipe_sink_messages_missed_total", (("sink", "jsonl again"),)] == 5
    assert found["campipe_sink_messages_missed_total", (("sink", "publish"),)] == 0
    assert found["campipe_since_published_seconds", (("camera", "gate"),)] == 12.5
    status, text = get(served, "/healthz")
    assert status == 503
    assert "jsonl out" in text
    served.update(snapshot("paused"))
    assert ("campipe_since_published_seconds", (("camera", "gate"),)) not in samples(get(served, "/metrics")[1])


def test_metrics_hold_the_ledger_exactly(served: Exporter) -> None:
    served.update(snapshot())
    status, text = get(served, "/metrics")
    found = samples(text)
    camera = (("camera", "gate"),)
    assert status == 200
    assert found["campipe_frames_decoded_total", camera] == 100
    assert found["campipe_frames_published_total", camera] == 90
    assert found["campipe_frames_in_flight", camera] == 4
    assert found["campipe_frames_dropped_total", (*camera, ("cause", "too_old"))] == 6
    assert found["campipe_stream_starts_total", camera] == 3
    assert found["campipe_frame_age_seconds", camera] == pytest.approx(0.08)
    assert found["campipe_camera_state", (*camera, ("state", "streaming"))] == 1
    assert found["campipe_camera_state", (*camera, ("state", "failed"))] == 0
    assert found["campipe_stage_seconds_count", (("stage", "post"),)] == 1
    assert found["campipe_stage_seconds_sum", (("stage", "post"),)] == pytest.approx(0.003)
    assert found["campipe_messages_lost_total", ()] == 7
    assert found["campipe_health", (("colour", "green"),)] == 1


def test_names_carry_units_and_the_prefix(served: Exporter) -> None:
    served.update(snapshot())
    names = {family.name for family in text_string_to_metric_families(get(served, "/metrics")[1])}
    assert all(name.startswith("campipe_") for name in names)
    assert not [name for name in names if name.endswith(("_ms", "_ns", "_mb"))]


def test_health_is_told_by_status_and_in_words(served: Exporter) -> None:
    assert get(served, "/healthz")[0] == 503  # nothing told yet
    served.update(snapshot("reconnecting"))
    status, text = get(served, "/healthz")
    assert (status, json.loads(text)["health"]) == (200, "yellow")
    served.update(snapshot("failed"))
    status, text = get(served, "/healthz")
    assert (status, json.loads(text)["findings"][0]["subject"]) == (503, "gate")
    assert get(served, "/livez") == (200, "ok\n")  # a failed camera is no reason to restart the whole


def test_an_engine_that_fell_silent_is_not_alive() -> None:
    now_s = [0.0]
    exporter = Exporter("127.0.0.1", 0, lambda: now_s[0])
    exporter.update(snapshot())
    assert exporter.answer("/livez")[0] == 200
    now_s[0] = 60.0
    assert exporter.answer("/livez")[0] == 503
    assert exporter.answer("/healthz")[0] == 503


def test_unknown_paths_and_methods(served: Exporter) -> None:
    assert get(served, "/")[0] == 404
    assert get(served, "/metrics", "POST")[0] == 501
    assert get(served, "/livez", "HEAD") == (503, "")


def test_a_taken_port_is_refused_in_words(served: Exporter) -> None:
    host, port = served.address.split(":")
    with pytest.raises(UserError, match=r"observe\.listen.*another port"):
        Exporter(host, int(port)).open()


def test_clients_that_say_nothing_do_not_keep_others_out(served: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEADLINE_S", 0.5)
    served.update(snapshot())
    host, port = served.address.split(":")
    silent = [socket.create_connection((host, int(port)), timeout=20) for _ in range(CONNECTIONS + 5)]
    try:
        silent[0].sendall(b"GET /livez HT")  # and no more
        for _ in range(100):
            try:
                if get(served, "/livez")[0] == 200:
                    break
            except (ConnectionError, http.client.HTTPException):
                pass  # no room yet
            time.sleep(0.1)
        else:
            pytest.fail("silent clients keep the others out")
    finally:
        for each in silent:
            each.close()

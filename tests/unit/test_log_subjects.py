"""Records of the engine's parts name what they are about, and details that come from elsewhere show no secret."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.observe import logs
from pipeline.observe.subject import about, about_worker
from pipeline.runtime.camera_line import CameraLine
from pipeline.runtime.decode_loop import Behind
from pipeline.runtime.inflight import Frame
from pipeline.runtime.link_log import LinkLog
from pipeline.runtime.losses import Losses
from pipeline.runtime.outbound import Outgoing
from pipeline.runtime.quarantine import Quarantine
from pipeline.runtime.worker import _last_words
from stages.camera import CameraSpec
from stages.messages import FrameDropped, FrameReady, LinkChanged, Refused, Status, StreamEnded
from stages.model import ModelSpec

MODEL = ModelSpec(
    name="m", path="/m", sha256="", width=32, height=32, channels="rgb", input_layout="nchw", input_dtype="float32",
    mean=(0, 0, 0), std=(1, 1, 1), pad_value=0, placement="stretch", layout="ssd", labels=("a",), outputs=(),
    fixed_batch=None, confidence=0.4, iou=0.5,
)  # fmt: skip
CANARY = "cnry-Zq7-w91x"


@pytest.fixture(autouse=True)
def _canary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_secrets", set())
    monkeypatch.setattr(logs, "_secret_pattern", None)
    logs.register_secret(CANARY)


def line() -> CameraLine:
    return CameraLine(CameraSpec("gate", "/", "m", live=True, network=True, max_age_ms=100), MODEL, 2, trace=False)


def subject_of(record: logging.LogRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in logs.SUBJECT if hasattr(record, name)}


def test_only_what_is_known_is_named() -> None:
    assert about("gate", None, 0, 3) == {"camera": "gate", "epoch": 0, "seq": 3}
    assert about_worker("decode/gate-1", 2) == {"camera": "gate-1", "stage": "decode", "epoch": 2}
    assert about_worker("executor/ascend:0") == {"stage": "executor"}
    assert about_worker("observe") == {"stage": "observe"}


def test_a_change_of_a_link_names_camera_stage_and_epoch(caplog: pytest.LogCaptureFixture) -> None:
    LinkLog().note(LinkChanged("gate", 4, "reconnecting", "refused", "no"))
    assert subject_of(caplog.records[-1]) == {"camera": "gate", "stage": "decode", "epoch": 4}


def test_a_frame_that_ended_workers_is_named_with_its_seq(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ready = FrameReady("gate", 1, 17, 0, 2, 8, 8, 0, 0, 1, 0, False, 1)
    (tmp_path / "file").write_text("")
    for folder in (None, str(tmp_path / "file" / "x")):  # the second can't be written
        Quarantine(folder, {"gate": line()}, SimpleNamespace(frames={})).keep(Frame(ready, 0), "nms")  # type: ignore[arg-type]
    assert len(caplog.records) == 3
    for record in caplog.records:
        assert subject_of(record) == {"camera": "gate", "stage": "nms", "epoch": 1, "seq": 17}


def test_a_camera_that_sends_too_much_is_named_by_its_worker(caplog: pytest.LogCaptureFixture) -> None:
    Behind("gate").look(3, 0)
    assert subject_of(caplog.records[-1]) == {"camera": "gate", "stage": "decode"}


class Dispatcher:
    def __init__(self) -> None:
        self.cameras = {"gate": line()}
        self.gates_open = True
        self.ended: list[str] = []

    def worker_lost(self, *_: object, **__: object) -> None: ...

    def end_camera(self, _name: str, _cause: str, detail: str) -> None:
        self.ended.append(detail)


def worker(name: str, state: str = "restarting") -> Any:
    return SimpleNamespace(name=name, kind=name.partition("/")[0], state=state, endpoints=(name,))


def test_losses_name_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    losses = Losses(Dispatcher())  # type: ignore[arg-type]
    gate, nms = worker("decode/gate"), worker("nms/0")
    losses.lost(gate, "decode/gate died", True)
    losses.given_up(gate, "decode/gate died", [gate])
    losses.refused(gate, Refused("refused", ["no"]), [gate])
    losses.given_up(nms, "nms/0 died", [nms, worker("nms/1", "ready")])
    losses.given_up(nms, "nms/0 died", [nms])
    decode, post = {"camera": "gate", "stage": "decode", "epoch": 0}, {"stage": "nms"}
    assert [subject_of(record) for record in caplog.records] == [decode, decode, decode, post, post]


def test_a_secret_in_what_a_worker_could_not_start_for_is_hidden(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = Dispatcher()
    losses = Losses(dispatcher)  # type: ignore[arg-type]
    losses.refused(worker("decode/gate"), Refused("tls", [f"can't open x?{CANARY}"]), [])
    dispatcher.gates_open = False
    losses.refused(worker("decode/gate"), Refused("tls", [f"can't open x?{CANARY}"]), [])
    told = [*dispatcher.ended, *losses.refusals]
    assert len(told) == 2
    assert not any(CANARY in text for text in told)


def test_a_secret_in_an_exception_is_not_in_a_workers_last_words() -> None:
    try:
        raise ValueError(f"bad address rtsp://viewer:{CANARY}@camera/1 or {CANARY}")
    except ValueError as error:
        words = _last_words(error)
    assert words.error == "ValueError: bad address rtsp://***@camera/1 or ***"
    assert CANARY not in words.traceback


def test_a_secret_in_a_detail_is_in_no_status_and_no_report() -> None:
    camera = line()
    out: list[Outgoing] = []
    camera.link_changed(LinkChanged("gate", 0, "reconnecting", "tls", f"said {CANARY}"), 0)
    frame = camera.admit(FrameDropped("gate", 0, 0, 1, 0, "bad_frame", f"it holds {CANARY}"), 0)
    assert frame is not None
    camera.drop(frame, "bad_frame", f"it holds {CANARY}")
    camera.stream_ended(StreamEnded("gate", 0, "worker_failed", f"ValueError: {CANARY}", 1, 0, 0, True), 0)
    camera.leave(out, 0, 0)  # type: ignore[arg-type]
    statuses = [item.message for item in out if isinstance(item.message, Status)]
    assert [status.detail for status in statuses] == ["said ***", "it holds ***", "ValueError: ***"]
    assert camera.end is not None
    assert camera.link is not None
    assert CANARY not in camera.end.detail + camera.link.detail

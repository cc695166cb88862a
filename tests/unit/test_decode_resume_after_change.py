"""A recording whose sampling was changed while it ran goes on at the right frame after its worker was replaced."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pipeline.observe.ledger import Ledger
from pipeline.runtime.camera_line import CameraLine
from stages.camera import CameraSpec
from stages.decode.stage import Decode, ResumePoint
from stages.frames import HeapRing
from stages.messages import FrameReady, InternalMessage, StreamEnded, StreamStarted
from stages.model import ModelSpec

MODEL = ModelSpec(
    name="m", path="/m", sha256="", width=32, height=32, channels="rgb", input_layout="nchw", input_dtype="float32",
    mean=(0, 0, 0), std=(1, 1, 1), pad_value=0, placement="stretch", layout="ssd", labels=("a",), outputs=(),
    fixed_batch=None, confidence=0.4, iou=0.5,
)  # fmt: skip


def play(stage: Decode, line: CameraLine, frames: int | None) -> list[FrameReady]:
    """So many frames, or all, told to the line as the dispatcher would."""
    told: list[FrameReady] = []

    def take(messages: list[InternalMessage]) -> None:
        for message in messages:
            if isinstance(message, FrameReady):
                told.append(message)
                frame = line.admit(message, 0)
                assert frame is not None, "told twice"
                line.release_slot(frame)
                stage.grant([message.slot])
            elif isinstance(message, StreamStarted):
                line.stream_started(message, 0)
            elif isinstance(message, StreamEnded):
                line.stream_ended(message, 0)

    take(stage.open())
    stage.grant([0, 1])
    while not stage.done and (frames is None or len(told) < frames):
        take(stage.step())
    return told


@pytest.mark.parametrize("pause", [True, False])
@pytest.mark.parametrize(("every", "then"), [(1, 5), (4, 2), (3, 1)])
def test_it_goes_on_at_the_next_frame(media_dir: Path, every: int, then: int, pause: bool) -> None:
    spec = CameraSpec("a", str(media_dir / "street.mp4"), "m", sample_every=every)
    line = CameraLine(spec, MODEL, 2, trace=False)
    first = Decode(spec, MODEL, HeapRing("r", 2, MODEL.frame_bytes), lambda: 0)
    before = play(first, line, 6)
    changed = dataclasses.replace(spec, sample_every=then)
    line.change(changed)
    first.change(changed, line.settings)
    more: list[FrameReady] = []
    while len(more) < 4:
        for message in first.step():
            assert isinstance(message, FrameReady)
            more.append(message)
            frame = line.admit(message, 0)
            assert frame is not None
            line.release_slot(frame)
            first.grant([message.slot])
    if pause:  # in order; else it is killed
        line.hold = "paused"
        for last in first.stop():
            assert isinstance(last, StreamEnded)
            line.stream_ended(last, 0)
    first.close()
    begin = line.begin()
    assert begin.read == line.ledger.decoded
    resume = ResumePoint(begin.epoch, begin.next_seq, begin.decoded, begin.sampled_out, begin.read)
    second = Decode(changed, MODEL, HeapRing("r", 2, MODEL.frame_bytes), lambda: 0, resume)
    line.hold = ""
    rest = play(second, line, None)
    told = [*before, *more, *rest]
    assert [m.seq for m in told] == list(range(len(told)))
    pts = [m.pts_ns for m in told]
    assert pts == sorted(set(pts)), "no frame twice"
    nominal = pts[-1] - pts[-2]
    assert 0 < rest[0].pts_ns - more[-1].pts_ns <= max(nominal, more[-1].pts_ns - more[-2].pts_ns), "none skipped"
    assert line.end is not None
    assert isinstance(line.ledger, Ledger)
    assert line.ledger.decoded == 100, "every frame of the clip was counted once"

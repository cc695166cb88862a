"""Owns one camera's side of the dispatcher: its ledger, slots, order and what it tells subscribers. Pure."""

from __future__ import annotations

from collections import Counter, deque

import msgspec
import numpy as np

from pipeline.observe.latency import Histogram
from pipeline.observe.ledger import Ledger
from pipeline.runtime.inflight import Frame, Notice
from pipeline.runtime.timing import count, durations_ns, trace_of
from stages.camera import CameraSpec
from stages.messages import (
    Begin,
    DetectedObject,
    Detections,
    ExternalMessage,
    FrameDropped,
    FrameReady,
    LinkChanged,
    Objects,
    Status,
    StreamEnded,
    StreamStarted,
)
from stages.model import ModelSpec
from stages.reorder import Reorder

BOX_DECIMALS = 2  # of a pixel: far below what a detector can tell, and the same text on every machine
SCORE_DECIMALS = 4

# "truncated" and "corrupt" are not among them: the recording was played as far as it goes.
FAILED_CAUSES = frozenset(
    {"worker_failed", "stage_failed", "refused", "not_found", "not_video", "no_frames", "unsupported", "unreadable"}
)


class CameraLine:
    """Everything that the dispatcher knows of one camera."""

    def __init__(
        self,
        spec: CameraSpec,
        model: ModelSpec,
        slots: int,
        *,
        trace: bool,
        latencies: dict[str, Histogram] | None = None,
    ) -> None:
        self.spec = spec
        self.model = model
        self.slots = slots
        self.ledger = Ledger()
        self.order: Reorder[Frame | Notice] = Reorder()
        self.held: set[int] = set()
        self.freed: list[int] = []
        self.epoch = 0
        self.next_seq = 0
        self.clock = "file"
        self.started: StreamStarted | None = None
        self.end: StreamEnded | None = None
        self.told_end = False
        self.link: LinkChanged | None = None  # how a live camera is connected, as last told
        self.decode_errors = 0
        self.corrupt = 0
        self.objects = 0
        self.newest_objects = 0
        self.newest_age_ms = 0.0
        self.frames_with_objects = 0
        self.class_counts: Counter[int] = Counter()
        self.cut_before = 0
        self.cut_after = 0
        self._trace = trace
        self._latencies = latencies
        self._gap: tuple[int, int, int, str, str] | None = None  # epoch, first, last, cause, detail

    @property
    def name(self) -> str:
        """Name of the camera."""
        return self.spec.name

    @property
    def state(self) -> str:
        """starting | streaming | ended | failed, and of live cameras every LinkState."""
        if self.end is not None:
            return "failed" if self.end.cause in FAILED_CAUSES else "ended"
        if self.link is not None:
            return self.link.state
        return "streaming" if self.started else "starting"

    @property
    def classes(self) -> dict[str, int]:
        """Objects found so far by label, the most frequent first."""
        counts: Counter[str] = Counter()
        for class_id, found in self.class_counts.items():
            counts[self.model.labels[class_id]] += found
        return dict(counts.most_common())

    @property
    def frames_expected(self) -> int | None:
        """What the file's index promises, None when it says nothing or the camera plays for ever."""
        if self.started is None or self.spec.loop:
            return self.spec.max_frames
        expected = self.started.frames_expected
        return expected if self.spec.max_frames is None else min(expected or self.spec.max_frames, self.spec.max_frames)

    @property
    def free_slots(self) -> int:
        """Slots that the decode worker may still write."""
        return self.slots - len(self.held)

    def begin(self) -> Begin:
        """Where a (new) decode worker goes on."""
        if self.spec.network and self.started is not None:
            # what a camera sent while nobody read is gone, so its stream starts anew: a new epoch
            return Begin(self.epoch + 1, 0, self.ledger.decoded, self.ledger.entry().dropped.get("sampling", 0))
        return Begin(self.epoch, self.next_seq, self.ledger.decoded, self.ledger.entry().dropped.get("sampling", 0))

    def grant_all(self) -> list[int]:
        """Every slot that no frame holds, for a worker that has just started."""
        self.freed.clear()
        return [slot for slot in range(self.slots) if slot not in self.held]

    def admit(self, ready: FrameReady | FrameDropped, arrived_ns: int) -> Frame | None:
        """Take a frame in; None when it was taken before (told twice by a worker that was replaced)."""
        if (ready.epoch, ready.seq) < (self.epoch, self.next_seq) or self.end is not None:
            return None
        self.epoch, self.next_seq = ready.epoch, ready.seq + 1
        frame = Frame(ready, arrived_ns)
        self.ledger.admitted(ready.decoded, ready.sampled_out)
        self.order.admit(frame)
        if isinstance(ready, FrameReady):
            frame.holds_slot = True
            self.held.add(ready.slot)
            self.corrupt += ready.corrupt
        return frame

    def release_slot(self, frame: Frame) -> None:
        """The frame's pixels are not needed any more."""
        if frame.holds_slot and isinstance(frame.ready, FrameReady):
            frame.holds_slot = False
            self.held.discard(frame.ready.slot)
            self.freed.append(frame.ready.slot)

    def drop(self, frame: Frame, cause: str, detail: str = "") -> None:
        """Settle the frame as dropped."""
        if frame.settled:
            return
        frame.cause, frame.detail = cause, detail
        self.ledger.dropped(cause)
        self.release_slot(frame)

    def stream_started(self, message: StreamStarted, time_ns: int) -> None:
        """A source is open; told once per epoch."""
        if self.end is not None or (self.started is not None and message.epoch <= self.started.epoch):
            return
        self.started = message
        self.clock = message.clock
        if message.epoch > self.epoch:
            self.epoch, self.next_seq = message.epoch, 0
        detail = f"{message.width}x{message.height} {message.codec} {message.fps:.4g} fps"
        self._notice("started", "started", detail, time_ns)

    def link_changed(self, message: LinkChanged, time_ns: int) -> None:
        """The connection changed its state; ``streaming`` is told by the stream that has started."""
        if self.end is not None:
            return
        self.link = message
        if message.state != "streaming":
            self._notice(message.state, message.cause, message.detail, time_ns)

    def stream_ended(self, message: StreamEnded, time_ns: int) -> None:
        """An epoch is over; the camera is over when it was the last.

        What a worker still tells of a camera that was given up is not counted: its frames are not taken in either.
        """
        if self.end is not None:
            return
        self.ledger.totals(message.decoded, message.sampled_out)
        self.decode_errors += message.decode_errors
        if not message.last:
            # a worker that dies now goes on with the next epoch: the end of this one is counted
            self.epoch, self.next_seq = message.epoch + 1, 0
        else:
            self.end = message
            state = "failed" if message.cause in FAILED_CAUSES else "ended"
            self._notice(state, message.cause, message.detail, time_ns)

    def fail(self, cause: str, detail: str, time_ns: int) -> None:
        """The camera is over because something of ours, or its source, is."""
        if self.end is None:
            totals = self.ledger
            sampled_out = totals.entry().dropped.get("sampling", 0)
            self.stream_ended(
                StreamEnded(self.name, self.epoch, cause, detail, totals.decoded, sampled_out, 0, True),
                time_ns,
            )

    def _notice(self, state: str, cause: str, detail: str, time_ns: int) -> None:
        status = Status(
            camera=self.name,
            epoch=self.epoch,
            state=state,  # type: ignore[arg-type]
            cause=cause,
            detail=detail,
            time_ns=time_ns,
        )
        self.order.admit(Notice(status))

    def leave(self, out: deque[tuple[CameraLine, ExternalMessage, bool]], now_ns: int, time_ns: int) -> None:
        """Move what is settled, in order, to ``out``; the flag says that the message stands for a frame."""
        for item in self.order.leave():
            if isinstance(item, Frame) and item.cause is not None:
                self._widen_gap(item, out, time_ns)
                continue
            self._tell_gap(out, time_ns)
            if isinstance(item, Notice):
                out.append((self, item.status, False))
            else:
                out.append((self, self._detections(item, now_ns), True))

    def _widen_gap(self, frame: Frame, out: deque[tuple[CameraLine, ExternalMessage, bool]], time_ns: int) -> None:
        ready = frame.ready
        if self._gap is not None:
            epoch, first, last, cause, detail = self._gap
            if epoch == ready.epoch and cause == frame.cause and last + 1 == ready.seq:
                self._gap = (epoch, first, ready.seq, cause, detail)
                return
            self._tell_gap(out, time_ns)
        self._gap = (ready.epoch, ready.seq, ready.seq, frame.cause or "", frame.detail)

    def _tell_gap(self, out: deque[tuple[CameraLine, ExternalMessage, bool]], time_ns: int) -> None:
        if self._gap is None:
            return
        epoch, first, last, cause, detail = self._gap
        self._gap = None
        status = Status(
            camera=self.name,
            epoch=epoch,
            state="gap",
            cause=cause,
            detail=detail,
            time_ns=time_ns,
            from_seq=first,
            to_seq=last,
        )
        out.append((self, status, False))

    def _detections(self, frame: Frame, now_ns: int) -> Detections:
        ready, objects = frame.ready, frame.objects
        assert isinstance(ready, FrameReady)
        assert objects is not None
        found = self._objects(objects)
        self.newest_age_ms = (now_ns - (ready.arrived_at_ns or ready.decoded_at_ns)) / 1e6
        durations = durations_ns(frame, now_ns) if self._trace or self._latencies else None
        if durations is not None and self._latencies:
            count(self._latencies, durations)
        return Detections(
            camera=self.name,
            epoch=ready.epoch,
            seq=ready.seq,
            pts_ns=ready.pts_ns,
            captured_ns=ready.captured_ns,
            clock=ready.clock or self.clock,
            width=ready.width,
            height=ready.height,
            model=self.model.name,
            objects=found,
            corrupt=ready.corrupt,
            trace=trace_of(durations) if durations is not None and self._trace else None,
        )

    def _objects(self, objects: Objects) -> list[DetectedObject]:
        boxes = np.frombuffer(objects.boxes, np.float32).reshape(-1, 4)
        scores = np.frombuffer(objects.scores, np.float32)
        class_ids = np.frombuffer(objects.class_ids, np.int32).tolist()
        labels = self.model.labels
        self.cut_before += objects.cut_before
        self.cut_after += objects.cut_after
        self.newest_objects = len(class_ids)
        if not class_ids:
            return []
        self.objects += len(class_ids)
        self.frames_with_objects += 1
        found = [
            DetectedObject(box=box, score=score, class_id=class_id, label=labels[class_id])
            for box, score, class_id in zip(
                np.round(boxes.astype(np.float64), BOX_DECIMALS).tolist(),
                np.round(scores.astype(np.float64), SCORE_DECIMALS).tolist(),
                class_ids,
                strict=True,
            )
        ]
        for class_id in class_ids:
            self.class_counts[class_id] += 1
        if objects.keypoints or objects.corners or objects.masks:
            return _with_details(found, objects)
        return found


def _with_details(found: list[DetectedObject], objects: Objects) -> list[DetectedObject]:
    """The same objects with the keypoints, corners and masks that the model gave."""
    n = len(found)
    keypoints = np.frombuffer(objects.keypoints, np.float32).reshape(n, -1, 3).astype(np.float64)
    points = np.round(keypoints[..., :2], BOX_DECIMALS).tolist()
    scores = np.round(keypoints[..., 2:], SCORE_DECIMALS).tolist()
    corners = np.frombuffer(objects.corners, np.float32).reshape(n, -1, 2).astype(np.float64)
    rounded = np.round(corners, BOX_DECIMALS).tolist()
    return [
        msgspec.structs.replace(
            item,
            keypoints=[[*xy, *score] for xy, score in zip(points[i], scores[i], strict=True)] or None,
            corners=rounded[i] or None,
            mask=objects.masks[i] if objects.masks else None,
        )
        for i, item in enumerate(found)
    ]

"""Owns one camera's side of the dispatcher: its ledger, slots, order and what it tells subscribers. Pure."""

from __future__ import annotations

from collections import Counter, deque

import msgspec

from pipeline.observe.latency import Histogram
from pipeline.observe.ledger import Ledger
from pipeline.observe.logs import redact
from pipeline.runtime.found import detected
from pipeline.runtime.inflight import Frame, Notice
from pipeline.runtime.outbound import Gap, Outgoing
from pipeline.runtime.rhythm import Rhythm
from pipeline.runtime.timing import count, durations_ns, trace_of
from stages.camera import CameraSpec
from stages.messages import (
    Begin,
    DetectedObject,
    Detections,
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

SETTINGS_KEPT = 64  # as many as an NMS worker keeps

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
        self.rhythm = Rhythm()
        self.held: set[int] = set()
        self.freed: list[int] = []
        self.changed = False  # something of it may be able to leave, or a slot was freed
        self.epoch = 0
        self.next_seq = 0
        self.clock = "file"
        self.started: StreamStarted | None = None
        self.end: StreamEnded | None = None
        self.told_end = False
        self.link: LinkChanged | None = None  # how a live camera is connected, as last told
        self.decode_errors = 0
        self.corrupt = 0
        self.skipped = 0  # packets that were left out undecoded; in no ledger
        self.objects = 0
        self.newest_objects = 0
        self.newest_age_ms = 0.0
        self.frames_with_objects = 0
        self.class_counts: Counter[int] = Counter()
        self.cut_before = 0
        self.cut_after = 0
        self._trace = trace
        self._latencies = latencies
        self._gap: Gap | None = None
        self.late_gap: Gap | None = None  # frames that became too old while they waited for the sinks
        self.hold = ""  # paused | restarting | removed: on request no frames come, or none ever again
        self.settings = 0  # number of the present spec
        self.kept: dict[int, CameraSpec] = {0: spec}  # specs that frames under way may have been made with
        self._newest_settings = 0  # that a frame has named
        self._resumed = self._told_paused = False
        self._decoded_before = 0  # when this epoch began
        self._sampling_changed = False  # within this epoch
        self._past_classes: Counter[str] = Counter()  # of models that it had before

    @property
    def name(self) -> str:
        """Name of the camera."""
        return self.spec.name

    @property
    def state(self) -> str:
        """starting | streaming | ended | failed, and of live cameras every LinkState."""
        if self.end is not None:
            return "failed" if self._has_failed(self.end) else "ended"
        if self.hold == "paused":
            return "paused"
        if self.link is not None:
            return self.link.state
        return "streaming" if self.started else "starting"

    def _has_failed(self, end: StreamEnded) -> bool:
        """A live camera's source says itself whether it gave up, or ended as it was told to."""
        return end.cause in FAILED_CAUSES or (self.link is not None and self.link.state == "failed")

    @property
    def classes(self) -> dict[str, int]:
        """Objects found so far by label, the most frequent first."""
        counts: Counter[str] = Counter(self._past_classes)
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
            sampled_out = self.ledger.entry().dropped.get("sampling", 0)
            return Begin(self.epoch + 1, 0, self.ledger.decoded, sampled_out, skipped=self.skipped)
        read = self.ledger.decoded - self._decoded_before if self._sampling_changed else -1
        sampled_out = self.ledger.entry().dropped.get("sampling", 0)
        return Begin(self.epoch, self.next_seq, self.ledger.decoded, sampled_out, read=read, skipped=self.skipped)

    def _begin_epoch(self, epoch: int) -> None:
        self.epoch, self.next_seq = epoch, 0
        self._decoded_before = self.ledger.decoded
        self._sampling_changed = False

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
        self.skipped = max(self.skipped, ready.skipped)
        self.order.admit(frame)
        if isinstance(ready, FrameReady):
            self._newest_settings = ready.settings
            if self.spec.live:
                self.rhythm.came(ready.decoded_at_ns)
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
            self.changed = True

    def found(self, frame: Frame, objects: Objects, posted_at_ns: int) -> None:
        """Settle the frame: these are its objects."""
        frame.objects, frame.posted_at_ns = objects, posted_at_ns
        self.changed = True

    def drop(self, frame: Frame, cause: str, detail: str = "") -> None:
        """Settle the frame as dropped."""
        if frame.settled:
            return
        self.changed = True
        frame.cause, frame.detail = cause, redact(detail) if detail else ""
        self.ledger.dropped(cause)
        self.release_slot(frame)

    def stream_started(self, message: StreamStarted, time_ns: int) -> None:
        """A source is open; told once per epoch, and when it was paused."""
        known = self.started is not None and message.epoch <= self.started.epoch
        if self.end is not None or (known and not self._resumed):
            return
        cause, self._resumed = ("resumed" if self._resumed else "started"), False
        self.started = message
        self.clock = message.clock
        if message.epoch > self.epoch:
            self._begin_epoch(message.epoch)
        rate = f" {message.fps:.4g} fps" if message.fps else ""
        detail = f"{message.width}x{message.height} {message.codec}{rate}"
        self._notice("started", cause, detail, time_ns)

    def link_changed(self, message: LinkChanged, time_ns: int) -> None:
        """The connection changed its state; ``streaming`` is told by the stream that starts, an end by its end."""
        if self.end is not None or self.hold:
            return
        self.link = message = msgspec.structs.replace(message, detail=redact(message.detail))
        if message.state not in {"streaming", "failed", "ended"}:
            self._notice(message.state, message.cause, message.detail, time_ns)

    def stream_ended(self, message: StreamEnded, time_ns: int) -> None:
        """An epoch is over; the camera is over when it was the last.

        What a worker still tells of a camera that was given up is not counted: its frames are not taken in either.
        """
        if self.end is not None:
            return
        self.ledger.totals(message.decoded, message.sampled_out)
        self.skipped = max(self.skipped, message.skipped)
        if self.hold in {"paused", "restarting"} and message.cause == "stopped":
            return  # it goes on: a recording within this epoch (its errors are counted then), a live one with the next
        self.decode_errors += message.decode_errors
        if not message.last:
            # a worker that dies now goes on with the next epoch: the end of this one is counted
            self._begin_epoch(message.epoch + 1)
        else:
            self.end = message = msgspec.structs.replace(message, detail=redact(message.detail))
            self.hold = self.hold if self.hold in {"restarting", "removed"} else ""
            state = "failed" if self._has_failed(message) else "ended"
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
            detail=redact(detail),
            time_ns=time_ns,
        )
        self.order.admit(Notice(status))
        self.changed = True

    # --- changes while running ----------------------------------------------------------------------------------------

    def go_on_from(self, past: CameraLine) -> None:
        """A camera of this name was removed before: its counts go on, and no seq comes twice."""
        self.ledger = past.ledger
        self._begin_epoch(past.epoch + 1)
        self.settings = past.settings + 1
        self.kept = {self.settings: self.spec}
        self.decode_errors, self.corrupt, self.skipped = past.decode_errors, past.corrupt, past.skipped
        self.objects, self.frames_with_objects = past.objects, past.frames_with_objects
        self.cut_before, self.cut_after = past.cut_before, past.cut_after
        self._past_classes = Counter(past.classes)

    def change(self, spec: CameraSpec) -> None:
        """Frames that are made from now on are judged by ``spec``; those under way by what they were made with."""
        self.settings += 1
        before, self.spec = self.spec, spec
        sampling = (before.sample_every, before.sample_fps) != (spec.sample_every, spec.sample_fps)
        self._sampling_changed = self._sampling_changed or sampling
        under_way = [item.settings for item in self.order if isinstance(item, Frame) and not item.settled]
        oldest = min([self._newest_settings, self.settings, *(number for number in under_way if number is not None)])
        self.kept[self.settings] = spec
        wanted = [number for number in sorted(self.kept) if number >= oldest][-SETTINGS_KEPT:]
        self.kept = {number: self.kept[number] for number in wanted}

    def start_over(self, spec: CameraSpec, model: ModelSpec, slots: int) -> None:
        """The same camera from another source or for another model: a new epoch, its counts go on."""
        if self.started is not None or self.next_seq:
            self._begin_epoch(self.epoch + 1)
        self._past_classes = Counter(self.classes)
        self.class_counts.clear()
        self.model, self.slots = model, slots
        self.change(spec)
        self.kept = {self.settings: spec}
        self.held.clear()
        self.freed.clear()
        self.started = self.link = self.end = None
        self.told_end = self._resumed = self._told_paused = False
        self.hold = ""

    def paused(self, time_ns: int) -> None:
        """Its source is closed, and every frame of it is before this; told once."""
        if not self._told_paused:
            self._told_paused = True
            self._notice("paused", "paused", "on request", time_ns)

    def resume(self) -> None:
        """Its source is opened again."""
        self.hold = ""
        self.link = None
        self._resumed = self._told_paused
        self._told_paused = False

    def told(self, state: str, cause: str, detail: str, time_ns: int) -> None:
        """Tell a change of the camera's that no message of its source tells."""
        self._notice(state, cause, detail, time_ns)

    @property
    def max_age_ns(self) -> int:
        """Age beyond which a live camera's frame is worth nothing."""
        return self.spec.max_age_ms * 1_000_000

    def too_old(self, since_ns: int, now_ns: int) -> bool:
        """Whether a frame whose data came at ``since_ns`` is too old to be gone on with; never of a recording."""
        return self.spec.live and now_ns - since_ns > self.max_age_ns

    # --- what leaves --------------------------------------------------------------------------------------------------

    def leave(self, out: deque[Outgoing], now_ns: int, time_ns: int) -> None:
        """Move what is settled, in order, to ``out``."""
        for item in self.order.leave():
            if isinstance(item, Frame) and item.cause is None and self.too_old(item.arrived_ns, now_ns):
                item.cause = "too_old"
                self.ledger.dropped("too_old")
            if isinstance(item, Frame) and item.cause is not None:
                self._widen_gap(item, out, time_ns)
                continue
            self._tell_gap(out, time_ns)
            if isinstance(item, Notice):
                out.append(Outgoing(self, item.status))
            else:
                out.append(Outgoing(self, self._detections(item, now_ns), item.arrived_ns, item))

    def _widen_gap(self, frame: Frame, out: deque[Outgoing], time_ns: int) -> None:
        ready = frame.ready
        if self._gap is not None and not self._gap.widen(ready.epoch, ready.seq, frame.cause):
            self._tell_gap(out, time_ns)
        if self._gap is None:
            self._gap = Gap(ready.epoch, ready.seq, ready.seq, frame.cause or "", frame.detail)

    def _tell_gap(self, out: deque[Outgoing], time_ns: int) -> None:
        if self._gap is not None:
            out.append(Outgoing(self, self._gap.status(self.name, time_ns)))
            self._gap = None

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
        found = detected(objects, self.model.labels)
        self.cut_before += objects.cut_before
        self.cut_after += objects.cut_after
        self.newest_objects = len(found)
        if found:
            self.objects += len(found)
            self.frames_with_objects += 1
            self.class_counts.update([item.class_id for item in found])
        return found

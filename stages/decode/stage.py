"""Owns the decode stage: frames of one camera, sampled, paced, letterboxed into granted slots. No socket, no process.

The stage holds no queue: a step takes one wanted frame from the source and ends in one message for it. What a message
says (``decoded``, ``sampled_out``) covers the frames up to it, never those read ahead, so that the ledger is exact
whichever message is the last to arrive, and a new stage can go on from it (``ResumePoint``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stages.camera import CameraSpec
from stages.decode.file import FileSource
from stages.decode.memory import MemorySource
from stages.decode.sampling import Sampler
from stages.decode.slots import SlotWriter
from stages.decode.source import Ending, Source, SourceFacts, SourceFrame
from stages.decode.tally import Tally
from stages.errors import SourceRefused
from stages.frames import SlotRing
from stages.messages import FrameDropped, FrameReady, InternalMessage, StreamEnded, StreamStarted
from stages.model import ModelSpec
from stages.stage import MonotonicClock

FRAMES_PER_STEP = 32  # read in one step at most, so that a stop is heard while many frames are skipped


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a lost stage stopped: ``epoch`` and the seq after the last one told; totals of its last message.

    ``read``: frames of that epoch up to its last message, where the sampling was changed in between; -1: it was not.
    ``skipped``: packets of a live camera that were left out, in all.
    """

    epoch: int = 0
    next_seq: int = 0
    decoded: int = 0
    sampled_out: int = 0
    read: int = -1
    skipped: int = 0


class Decode:
    """Frames of one camera into slots of its ring. One thread; the clock is passed in.

    Recordings are lossless: without a free slot nothing is read. ``live`` cameras are read as fast as they deliver, and
    frames without a slot are told as dropped.

    ``max_frames`` counts decoded frames, those sampled out too, over all epochs. ``decode_errors`` of StreamEnded are
    those of its epoch.
    """

    def __init__(
        self,
        camera: CameraSpec,
        model: ModelSpec,
        ring: SlotRing,
        clock_ns: MonotonicClock,
        resume: ResumePoint | None = None,
    ) -> None:
        self._camera = camera
        self._clock_ns = clock_ns
        self._slots = SlotWriter(model, ring, camera.roi)
        self.done = False
        self.wake_fd = -1  # only time and slots change what there is to do
        self.skipped = 0  # of a recording nothing is
        self._source: Source | None = None
        self._facts: SourceFacts | None = None
        self._recorded_at_ns = camera.recorded_at_ns or 0
        start = resume or ResumePoint()
        self._tally = Tally(camera.name, start.epoch, start.next_seq, start.decoded, start.sampled_out)
        self._skip = start.next_seq if start.read < 0 else 0  # wanted frames that the lost stage has told already
        self._reread = max(start.read, 0)  # or else: frames of any kind that it has accounted for
        self._sampler = Sampler(camera.sample_every, camera.sample_fps)
        self._passed = 0  # frames sampled out since the last message
        self._ahead: SourceFrame | None = None  # read, not due yet
        self._ahead_cause = ""  # why it will be dropped when it is due
        self._origin_ns: int | None = None  # monotonic time at which pts 0 of this epoch is due
        self._last_pts_ns = 0

    def open(self) -> list[InternalMessage]:
        """Open the source. Raises SourceRefused."""
        return [self._open_source()]

    def grant(self, slots: Sequence[int]) -> None:
        """These slots of the ring may be written."""
        self._slots.grant(slots)

    def change(self, camera: CameraSpec, settings: int) -> None:
        """From the next frame on, frames are made by ``camera`` and carry ``settings``. The source stays as it is."""
        before, self._camera = self._camera, camera
        self._tally.settings = settings
        self._slots.look_at(camera.roi)
        if (before.sample_every, before.sample_fps) != (camera.sample_every, camera.sample_fps):
            self._sampler = Sampler(camera.sample_every, camera.sample_fps)
        if isinstance(self._source, FileSource):
            self._source.keyframes = camera.keyframes

    def wait_ns(self) -> int | None:
        """0: call ``step``. n > 0: nothing is due for n nanoseconds. None: nothing to do until a slot is granted."""
        if self.done:
            return None
        if self._skip or self._reread or self._limit_reached():
            return 0
        if not self._slots.free and not self._camera.live:
            return None
        if self._ahead is None:
            return 0
        return max(self._due_ns(self._ahead) - self._clock_ns(), 0)

    def step(self) -> list[InternalMessage]:
        """Read up to the next wanted frame and tell it, or how the stream ended; nothing when none is due yet."""
        if self.done:
            return []
        source = self._source
        if source is None:
            raise RuntimeError("step before open")
        if self._ahead is None:
            for _ in range(FRAMES_PER_STEP):
                if self._limit_reached():
                    self._count_passed()
                    return [self._end(Ending("limit", f"max_frames: {self._camera.max_frames}"), last=True)]
                frame = source.read()
                if frame is None:
                    return self._next_epoch(source)
                self._last_pts_ns = frame.pts_ns
                cause = self._unfit(frame)
                wanted = bool(cause) or self._sampler.keep(frame.pts_ns)
                if self._reread:
                    self._reread -= 1
                elif not wanted:
                    self._passed += 1
                elif self._skip:
                    self._skip -= 1
                    self._passed = 0
                else:
                    self._ahead, self._ahead_cause = frame, cause
                    break
        ahead = self._ahead
        if ahead is None or not (self._slots.free or self._camera.live) or self._due_ns(ahead) > self._clock_ns():
            return []
        self._ahead = None
        return [self._deliver(ahead)]

    def stop(self) -> list[InternalMessage]:
        """End now, on request. What was read ahead but not told counts as never read."""
        if self.done:
            return []
        self._passed = 0
        return [self._end(Ending("stopped", ""), last=True)]

    def close(self) -> None:
        """Release the source; may be called twice."""
        self.done = True
        self._ahead = None
        self._slots.close()
        self._close_source()

    def _open_source(self) -> StreamStarted:
        source: Source = FileSource(self._camera)
        if self._camera.preload:
            source = MemorySource(source, loop=self._camera.loop)
        facts = source.open()
        self._source, self._facts = source, facts
        if self._camera.recorded_at_ns is None:
            self._recorded_at_ns = facts.recorded_at_ns or 0
        return self._tally.started((facts.width, facts.height), facts.fps, facts.codec, "file", facts.frames)

    def _close_source(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def _limit_reached(self) -> bool:
        limit = self._camera.max_frames
        skips = self._skip or self._reread
        return limit is not None and not skips and self._ahead is None and self._tally.decoded + self._passed >= limit

    def _count_passed(self) -> None:
        """Frames sampled out after the last one that was told."""
        self._tally.count_sampled_out(self._passed)
        self._passed = 0

    def _due_ns(self, frame: SourceFrame) -> int:
        """Monotonic time at which this frame is due; the first one that could be delivered is due at once."""
        if self._camera.pace != "realtime":
            return 0
        if self._origin_ns is None:
            self._origin_ns = self._clock_ns() - frame.pts_ns
        return self._origin_ns + frame.pts_ns

    def _unfit(self, frame: SourceFrame) -> str:
        """Why this frame is dropped whatever comes; empty if it is not."""
        if not frame.whole:
            return "no_keyframe"
        return "corrupt" if frame.corrupt and self._camera.corrupt == "drop" else ""

    def _deliver(self, source_frame: SourceFrame) -> FrameReady | FrameDropped:
        """Count the frame, give it its seq, put it into a slot."""
        self._count_passed()
        tally = self._tally
        seq = tally.count_frame()
        if self._ahead_cause:
            return tally.dropped(seq, self._ahead_cause)
        return tally.placed(
            seq,
            self._slots,
            source_frame.frame,
            self._clock_ns,
            pts_ns=source_frame.pts_ns,
            captured_ns=self._recorded_at_ns + source_frame.pts_ns,
            corrupt=source_frame.corrupt,
            # a recording that plays a camera's part: its frame is there when it is due, however early it was read
            arrived_at_ns=self._due_ns(source_frame),
        )

    def _next_epoch(self, source: Source) -> list[InternalMessage]:
        """The source gave its last frame: begin anew when it loops."""
        self._count_passed()
        ending = source.ending()
        if not self._camera.loop:
            return [self._end(ending, last=True)]
        ended = self._ended(ending, last=False)
        if self._origin_ns is not None and self._facts is not None:
            self._origin_ns += self._last_pts_ns + self._facts.nominal_ns
        self._close_source()
        before = self._tally
        self._tally = before.next_epoch()
        self._skip = self._reread = 0
        self._sampler = Sampler(self._camera.sample_every, self._camera.sample_fps)
        try:
            return [ended, self._open_source()]
        except SourceRefused as refused:  # deleted or replaced since
            self._tally = before
            return [self._end(Ending(refused.cause, refused.problems[0]), last=True)]

    def _end(self, ending: Ending, last: bool) -> StreamEnded:
        message = self._ended(ending, last)
        self.close()
        return message

    def _ended(self, ending: Ending, last: bool) -> StreamEnded:
        decode_errors = 0 if self._source is None else self._source.decode_errors
        return self._tally.ended(ending.cause, ending.detail, decode_errors, last=last)

"""Owns the numbers of one camera's frames (epoch, seq, totals) and the messages that carry them.

Does not own which frames are wanted.

``decoded`` and ``sampled_out`` are totals over all epochs; a message says those up to its own frame, so that the ledger
is exact whichever message is the last to arrive.
"""

from __future__ import annotations

from av.video.frame import VideoFrame

from stages.decode.slots import SlotWriter
from stages.decode.upright import upright_size
from stages.errors import BadItem
from stages.messages import FrameDropped, FrameReady, StreamEnded, StreamStarted
from stages.stage import MonotonicClock


class Tally:
    """Counts and tells."""

    def __init__(self, camera: str, epoch: int, next_seq: int, decoded: int, sampled_out: int) -> None:
        self._camera = camera
        self.epoch = epoch
        self._next_seq = next_seq
        self.decoded = decoded
        self.sampled_out = sampled_out
        self.settings = 0  # number of the settings that frames are made with
        self.skipped = 0  # packets that no frames were made of, told with each message

    def count_sampled_out(self, frames: int) -> None:
        """So many frames were decoded and not wanted."""
        self.decoded += frames
        self.sampled_out += frames

    def count_frame(self) -> int:
        """One more frame was decoded, which will be told: its seq."""
        self.decoded += 1
        seq = self._next_seq
        self._next_seq += 1
        return seq

    def next_epoch(self) -> Tally:
        """Another one for the epoch after this, with the totals so far."""
        after = Tally(self._camera, self.epoch + 1, 0, self.decoded, self.sampled_out)
        after.settings, after.skipped = self.settings, self.skipped
        return after

    def started(
        self, size: tuple[int, int], fps: float, codec: str, clock: str, frames_expected: int | None
    ) -> StreamStarted:
        """An epoch begins; ``size``: width and height of the upright picture."""
        return StreamStarted(
            camera=self._camera,
            epoch=self.epoch,
            width=size[0],
            height=size[1],
            fps=fps,
            codec=codec,
            clock=clock,
            frames_expected=frames_expected,
        )

    def placed(
        self,
        seq: int,
        slots: SlotWriter,
        frame: VideoFrame,
        clock_ns: MonotonicClock,
        *,
        pts_ns: int,
        captured_ns: int,
        corrupt: bool,
        clock: str = "",
        arrived_at_ns: int = 0,
    ) -> FrameReady | FrameDropped:
        """Put a frame into a slot: where it lies, and when (``clock_ns``), or why it goes no further."""
        if not slots.free:
            return self.dropped(seq, "no_slot")
        try:
            slot, generation = slots.write(frame)
        except BadItem as bad:
            return self.dropped(seq, bad.cause, bad.detail)
        width, height = upright_size(frame)
        return FrameReady(
            camera=self._camera,
            epoch=self.epoch,
            seq=seq,
            slot=slot,
            generation=generation,
            width=width,
            height=height,
            pts_ns=pts_ns,
            captured_ns=captured_ns,
            decoded=self.decoded,
            sampled_out=self.sampled_out,
            corrupt=corrupt,
            decoded_at_ns=clock_ns(),
            clock=clock,
            arrived_at_ns=arrived_at_ns,
            settings=self.settings,
            skipped=self.skipped,
        )

    def dropped(self, seq: int, cause: str, detail: str = "") -> FrameDropped:
        """A frame was given its seq and goes no further."""
        return FrameDropped(
            camera=self._camera,
            epoch=self.epoch,
            seq=seq,
            decoded=self.decoded,
            sampled_out=self.sampled_out,
            cause=cause,
            detail=detail,
            skipped=self.skipped,
        )

    def ended(self, cause: str, detail: str, decode_errors: int, *, last: bool) -> StreamEnded:
        """The epoch is over."""
        return StreamEnded(
            camera=self._camera,
            epoch=self.epoch,
            cause=cause,
            detail=detail,
            decoded=self.decoded,
            sampled_out=self.sampled_out,
            decode_errors=decode_errors,
            last=last,
            skipped=self.skipped,
        )

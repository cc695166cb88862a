"""Owns the decode stage of a live camera: connected, watched, connected again for ever. No socket, no process.

Two threads. The reader's (``reader``) is in the source's blocking calls. The stage's, which runs everything here, never
blocks: it takes frames over, converts them into slots, tells, and watches the deadlines of the other from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from stages.camera import CameraSpec
from stages.decode.link import Link, Overdue
from stages.decode.network import NetworkSource
from stages.decode.reader import Arrived, Reader
from stages.decode.slots import SlotWriter
from stages.decode.source import LiveSource
from stages.decode.stage import ResumePoint
from stages.decode.tally import Tally
from stages.decode.wakeup import WakeUp
from stages.errors import StageDead
from stages.frames import SlotRing
from stages.messages import (
    FrameDropped,
    FrameReady,
    InternalMessage,
    LinkCause,
    LinkChanged,
    LinkState,
    StreamEnded,
)
from stages.model import ModelSpec
from stages.stage import MonotonicClock

MS: Final = 1_000_000
GRACE_NS: Final = 5_000 * MS  # for a reader that was told to leave, beyond its own deadlines
RESOLVE_NS: Final = 120_000 * MS  # the name service has deadlines of its own; it always comes back
LOOK_NS: Final = 1_000 * MS  # look at the reader that often
ASLEEP_NS: Final = 1_000 * MS  # so much too late for it: this process was stopped, so the deadlines start anew
CLOSE_S: Final = 0.3

OpenSource = Callable[[CameraSpec], LiveSource]


class LiveDecode:
    """Frames of one live camera into slots of its ring; the surface of ``stage.Decode``, and ``wake_fd``.

    ``wake_fd`` is readable when ``step`` has something. ``wall_ns``: UTC. ``draw``: random numbers from 0 to 1.
    ``delay_ms``: wait so long before the first try, so that not all cameras connect at once. The first try waits for
    the first grant too: before that nobody could use a frame.
    """

    def __init__(
        self,
        camera: CameraSpec,
        model: ModelSpec,
        ring: SlotRing,
        clock_ns: MonotonicClock,
        resume: ResumePoint | None = None,
        *,
        wall_ns: Callable[[], int],
        draw: Callable[[], float],
        delay_ms: int = 0,
        open_source: OpenSource | None = None,
    ) -> None:
        self._camera = camera
        self._clock_ns = clock_ns
        self._draw = draw
        self._delay_ms = delay_ms
        self._open_source = open_source or (lambda camera: NetworkSource(camera, clock_ns, wall_ns))
        self._slots = SlotWriter(model, ring, camera.roi)
        self.done = False
        self._link: Link | None = None  # None: not begun
        self._reader: Reader | None = None
        self._leaving: tuple[Reader, int] | None = None  # told to leave, and by when it has to have left
        self._back_ns = 0  # by when this stage meant to look again
        self._woke_ns = 0  # when it looked again after a pause that was not its own
        self._cause: str = "first"  # why the next try is made
        start = resume or ResumePoint()
        self._tally = Tally(camera.name, start.epoch, start.next_seq, start.decoded, start.sampled_out)
        self._skipped_before = self._tally.skipped = start.skipped  # on connections that are over
        self._started = False  # StreamStarted was told for this epoch
        self._remark = ""  # of the source, as last told
        self._wake_up = WakeUp()

    # --- surface ------------------------------------------------------------------------------------------------------

    def open(self) -> list[InternalMessage]:
        """Nothing yet: a camera that is absent holds up nobody."""
        return []

    def grant(self, slots: Sequence[int]) -> None:
        """These slots of the ring may be written."""
        self._slots.grant(slots)
        if self._link is None:
            due_ns = self._clock_ns() + self._delay_ms * MS
            self._link = Link(self._camera.link, self._draw, due_ns=due_ns, keyframes=self._camera.keyframes)

    def change(self, camera: CameraSpec, settings: int) -> None:
        """From the next frame on, frames are made by ``camera`` and carry ``settings``. The connection stays."""
        before, self._camera = self._camera, camera
        self._tally.settings = settings
        self._slots.look_at(camera.roi)
        if self._link is not None:
            self._link.keyframes = camera.keyframes
        if self._reader is not None:
            self._reader.source.keyframes = camera.keyframes
            self._reader.intake.change(before, camera)

    def wait_ns(self) -> int | None:
        """0: call ``step``. n > 0: ask again in n nanoseconds, or when ``wake_fd`` is readable. None: after a grant.

        Empties ``wake_fd`` before it looks, so that nothing that comes later is missed.
        """
        self._wake_up.clear()
        link = self._link
        if self.done or link is None:
            return None
        now_ns = self._clock_ns()
        if self._back_ns and now_ns - self._back_ns > ASLEEP_NS:
            self._woke_ns = now_ns
        wait_ns = 0 if self._has_news(link) else min(max(self._due_ns(link) - now_ns, 0), LOOK_NS)
        self._back_ns = now_ns + wait_ns
        return wait_ns

    def _has_news(self, link: Link) -> bool:
        if self._leaving is not None:
            return self._leaving[0].over
        reader = self._reader
        if reader is None:
            return False
        opened = reader.facts is not None and not link.is_open
        return opened or reader.intake.waiting or reader.over or self._pictures_come(reader, link)

    def _due_ns(self, link: Link) -> int:
        if self._leaving is not None:
            return self._leaving[1]
        return link.next_ns(*self._last_ns())

    def _last_ns(self) -> tuple[int, int]:
        """When data and a whole picture last came; a pause of ours counts as if they had come at its end."""
        reader = self._reader
        if reader is None:
            return 0, 0
        return max(reader.data_ns, self._woke_ns), max(reader.intake.whole_at_ns, self._woke_ns)

    @staticmethod
    def _pictures_come(reader: Reader, link: Link) -> bool:
        """Whether there is a whole picture that the link has not heard of."""
        return link.state == "connecting" and reader.intake.whole_at_ns > 0

    def step(self) -> list[InternalMessage]:
        """Take one frame over, or do what is due. Raises StageDead when a reader can't be ended."""
        link = self._link
        if self.done or link is None:
            return []
        now_ns = self._clock_ns()
        if self._leaving is not None:
            self._bury(*self._leaving, now_ns)
            return []
        reader = self._reader
        if reader is None:
            return self._connect(link, now_ns) if link.due_ns is not None and now_ns >= link.due_ns else []
        messages = self._take_news(reader, link, now_ns)
        overdue = link.overdue(now_ns, *self._last_ns())
        if overdue is not None and overdue.what == "picture":  # whatever else comes, endlessly
            return [*messages, *self._tear_down(link, reader, overdue, now_ns)]
        item = reader.intake.take() if self._started else None
        if item is not None:
            return [*messages, *self._take_in(item, now_ns)]
        if reader.bug is not None:
            raise StageDead(f"camera {self._camera.name}: {reader.bug}")
        if reader.fault is not None:
            self._reader = None
            return [*messages, *self._lost(link, reader, reader.fault.cause, reader.fault.detail, now_ns)]
        return messages if overdue is None else [*messages, *self._tear_down(link, reader, overdue, now_ns)]

    def stop(self) -> list[InternalMessage]:
        """End now, on request. Frames that wait to be told count as never read."""
        return [] if self.done else [self._end("stopped", "")]

    def close(self) -> None:
        """Let go of the source; may be called twice. A reader that is stuck is left behind: see ``stuck``."""
        self.done = True
        for reader in self._readers():
            reader.leave()
            reader.join(CLOSE_S)
        self._slots.close()
        self._wake_up.close()

    @property
    def wake_fd(self) -> int:
        """See the class; -1 after ``close``."""
        return self._wake_up.fd

    @property
    def stuck(self) -> bool:
        """Whether a thread is left that can only be ended with its process."""
        return any(not reader.gone for reader in self._readers())

    @property
    def skipped(self) -> int:
        """Packets of this camera that were left out because decoding could not keep up; in no ledger."""
        return self._skipped_before + (0 if self._reader is None else self._reader.source.skipped)

    def _readers(self) -> list[Reader]:
        leaving = [self._leaving[0]] if self._leaving is not None else []
        return [*leaving, *([self._reader] if self._reader is not None else [])]

    # --- the connection -----------------------------------------------------------------------------------------------

    def _connect(self, link: Link, now_ns: int) -> list[InternalMessage]:
        link.connect(now_ns)
        cause = self._cause
        self._remark = ""
        self._reader = Reader(self._open_source(self._camera), self._camera, self._clock_ns, self._wake_up.set)
        self._reader.start()
        return [self._changed("connecting", cause, f"try {link.attempt}" if link.attempt > 1 else "", link.attempt)]

    def _take_news(self, reader: Reader, link: Link, now_ns: int) -> list[InternalMessage]:
        messages: list[InternalMessage] = []
        size, facts = reader.intake.first_size, reader.facts  # the reader sets them the other way round
        if facts is not None and not link.is_open:
            link.opened(now_ns)
        if facts is not None and size is not None and not self._started:
            self._started = True
            messages.append(self._tally.started(size, facts.fps, facts.codec, "arrival", None))
        if self._started and self._pictures_come(reader, link) and link.picture(now_ns):
            messages.append(self._changed("streaming", self._cause, "", 0))
        if link.state == "streaming" and reader.source.remark != self._remark:
            self._remark = reader.source.remark
            messages.append(self._changed("streaming", self._cause, self._remark, 0))
        return messages

    def _tear_down(self, link: Link, reader: Reader, overdue: Overdue, now_ns: int) -> list[InternalMessage]:
        """A deadline has passed: let the reader go, whatever it is doing."""
        messages: list[InternalMessage] = []
        cause: LinkCause = "timeout"
        seconds = f"{overdue.waited_ns / 1e9:.1f} s"
        if overdue.what == "picture":
            cause, detail = reader.source.silence()
            link.stalled()
            messages.append(self._changed("stalled", cause, f"no picture for {seconds}: {detail}", link.attempt))
        elif overdue.what == "open":
            asked = "the name service does" if reader.source.resolving else "the camera does"
            detail = f"{asked} not answer within {seconds}; check the network, and that the camera is on"
        else:
            detail = f"no data for {seconds}, although connected; check the network between and the camera"
        spec = self._camera.link
        native_ns = max(spec.open_timeout_ms, spec.read_timeout_ms) * MS + GRACE_NS
        reader.leave()
        self._leaving = reader, now_ns + (RESOLVE_NS if reader.source.resolving else native_ns)
        self._reader = None
        return [*messages, *self._lost(link, reader, cause, detail, now_ns)]

    def _bury(self, reader: Reader, until_ns: int, now_ns: int) -> None:
        if reader.over:
            self._leaving = None
        elif now_ns >= until_ns:
            # nothing can interrupt it, and nobody else may close what it is in
            raise StageDead(f"camera {self._camera.name}: its connection hangs in a call that does not return")

    def _lost(self, link: Link, reader: Reader, cause: str, detail: str, now_ns: int) -> list[InternalMessage]:
        """The connection, or the try, is over: end the epoch, plan the next try."""
        self._cause = cause
        self._skipped_before += reader.source.skipped
        self._tally.skipped = self._skipped_before
        retry_ms = link.lost(now_ns, cause)
        self._tally.count_sampled_out(reader.intake.take_passed())
        if retry_ms is None:
            tries = f"{link.attempt} tries in a row" if link.attempt > 1 else "one try"
            detail = f"{detail}; given up after {tries}, see source.reconnect.attempts"
            failed = self._changed("failed", cause, detail, link.attempt)
            return [failed, self._end(cause, detail, reader)]
        messages: list[InternalMessage] = []
        if self._started:
            messages.append(self._tally.ended(cause, detail, reader.source.decode_errors, last=False))
            self._started = False
            self._tally = self._tally.next_epoch()
        told = f"{detail}; trying again in {retry_ms / 1000:.1f} s"
        return [*messages, self._changed("reconnecting", cause, told, link.attempt, retry_ms)]

    # --- frames -------------------------------------------------------------------------------------------------------

    def _take_in(self, item: Arrived, now_ns: int) -> list[InternalMessage]:
        """Count one frame, give it its seq, put it into a slot; the limit ends the stream before it."""
        tally, limit = self._tally, self._camera.max_frames
        tally.skipped = self.skipped
        left = None if limit is None else limit - tally.decoded
        if left is not None and item.passed >= left:
            tally.count_sampled_out(left)
            return [self._end("limit", f"max_frames: {limit}")]
        tally.count_sampled_out(item.passed)
        message = self._made(item, tally.count_frame(), now_ns)
        if left is not None and item.passed + 1 == left:
            return [message, self._end("limit", f"max_frames: {limit}")]
        return [message]

    def _made(self, item: Arrived, seq: int, now_ns: int) -> FrameReady | FrameDropped:
        live, tally = item.live, self._tally
        if live is None:
            return tally.dropped(seq, item.cause)
        if now_ns - live.arrived_at_ns > self._camera.max_age_ms * MS:
            return tally.dropped(seq, "too_old")
        return tally.placed(
            seq,
            self._slots,
            live.frame,
            self._clock_ns,
            pts_ns=live.pts_ns,
            captured_ns=live.captured_ns,
            corrupt=live.corrupt,
            clock=live.clock,
            arrived_at_ns=live.arrived_at_ns,
        )

    def _changed(
        self, state: LinkState, cause: str, detail: str, attempt: int, retry_ms: int | None = None
    ) -> LinkChanged:
        return LinkChanged(self._camera.name, self._tally.epoch, state, cause, detail, attempt, retry_ms)

    def _end(self, cause: str, detail: str, reader: Reader | None = None) -> StreamEnded:
        reader = reader or self._reader
        self.done = True
        self._tally.skipped = self.skipped
        if self._reader is not None:
            self._reader.leave()
        decode_errors = 0 if reader is None else reader.source.decode_errors
        return self._tally.ended(cause, detail, decode_errors, last=True)

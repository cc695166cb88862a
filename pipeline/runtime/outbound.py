"""Owns what waits for the sinks: two lines, live and recorded, so that neither waits for the other. Pure.

A recording's messages may wait for a slow sink (back-pressure); a live camera's may not, and one that has become older
than its camera's ``max_age_ms`` while it waited is dropped here, the last place where that can be done.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from pipeline.plan import OUTBOUND_LIMIT
from stages.messages import Detections, ExternalMessage, Status

if TYPE_CHECKING:
    from pipeline.runtime.camera_line import CameraLine
    from pipeline.runtime.inflight import Frame


@dataclass(slots=True)
class Gap:
    """Frames of one epoch that were dropped one after the other for one cause."""

    epoch: int
    first: int
    last: int
    cause: str
    detail: str = ""

    def widen(self, epoch: int, seq: int, cause: str | None) -> bool:
        """Take in the frame if it is the next one of the same kind; False if it is not."""
        if (epoch, seq, cause) != (self.epoch, self.last + 1, self.cause):
            return False
        self.last = seq
        return True

    def status(self, camera: str, time_ns: int) -> Status:
        """As subscribers are told."""
        return Status(
            camera=camera,
            epoch=self.epoch,
            state="gap",
            cause=self.cause,
            detail=self.detail,
            time_ns=time_ns,
            from_seq=self.first,
            to_seq=self.last,
        )


@dataclass(slots=True)
class Outgoing:
    """A message that waits. ``frame_ns``: it stands for a frame, whose age counts from then; None: for no frame."""

    camera: CameraLine
    message: ExternalMessage
    frame_ns: int | None = None
    frame: Frame | None = None


class Outbound:
    """Messages in the order of each camera. ``now_ns`` and ``time_ns`` are set by whoever knows the time."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.time_ns = 0
        self._lines: dict[bool, deque[Outgoing]] = {True: deque(), False: deque()}

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def line(self, *, live: bool) -> deque[Outgoing]:
        """Where messages of live cameras, or of recordings, are added."""
        return self._lines[live]

    def full(self, *, live: bool) -> bool:
        """As many wait as may."""
        return len(self._lines[live]) >= OUTBOUND_LIMIT

    def holds(self, camera: CameraLine) -> bool:
        """Whether a message of this camera waits."""
        return any(item.camera is camera for line in self._lines.values() for item in line)

    def peek(self, *, live: bool, untouched: bool = True) -> ExternalMessage | None:
        """The next message of that line, with its ledger as of now; it stays until ``delivered``.

        ``untouched``: no sink has taken it yet, so it may still be dropped for its age.
        """
        line = self._lines[live]
        while line:
            head = line[0]
            camera, message = head.camera, head.message
            late = camera.late_gap
            if untouched and late is not None and not (self._too_old(head) and self._widened(late, message)):
                camera.late_gap = None
                line.appendleft(Outgoing(camera, late.status(camera.name, self.time_ns)))
                return line[0].message
            if not untouched or not self._too_old(head):
                return self._with_ledger(head)
            assert isinstance(message, Detections)
            if late is None:
                camera.late_gap = Gap(message.epoch, message.seq, message.seq, "too_old")
            line.popleft()
            camera.ledger.dropped("too_old")
        return None

    def _too_old(self, item: Outgoing) -> bool:
        return item.frame_ns is not None and item.camera.too_old(item.frame_ns, self.now_ns)

    @staticmethod
    def _widened(gap: Gap, message: ExternalMessage) -> bool:
        return isinstance(message, Detections) and gap.widen(message.epoch, message.seq, "too_old")

    @staticmethod
    def _with_ledger(item: Outgoing) -> ExternalMessage:
        message = item.message
        if isinstance(message, Status) and message.state in {"ended", "failed"} and message.ledger is None:
            item.message = msgspec.structs.replace(message, ledger=item.camera.ledger.entry())
        return item.message

    def delivered(self, *, live: bool) -> None:
        """Every sink has taken the message that ``peek`` gave."""
        item = self._lines[live].popleft()
        if item.frame_ns is not None:
            item.camera.ledger.published_one()
        elif isinstance(item.message, Status) and item.message.state in {"ended", "failed"}:
            item.camera.told_end = True

    def discard(self, cause: str) -> int:
        """Give up everything; frames are counted under ``cause``."""
        count = len(self)
        for line in self._lines.values():
            for item in line:
                if item.frame_ns is not None:
                    item.camera.ledger.dropped(cause)
            line.clear()
        return count

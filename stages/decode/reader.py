"""Owns the thread that reads one connection, and the short queue of frames between it and the stage. Decides no retry.

The thread takes in all that the source gives, as fast as it gives it, and never waits for the stage: what the stage
can't take is dropped here, oldest first, and told by a mark in its place, so that every decoded frame is counted.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from stages.camera import CameraSpec
from stages.decode.sampling import Sampler
from stages.decode.source import LiveFrame, LiveSource, SourceFacts
from stages.decode.upright import upright_size
from stages.errors import LinkFault

FRAMES_HELD: Final = 3  # each holds a decoded picture, and is older than the one behind it


@dataclass(slots=True)
class Arrived:
    """A frame that is to be told, in order. ``cause``: it was dropped already, and ``live`` is None."""

    live: LiveFrame | None
    cause: Literal["", "superseded", "no_keyframe", "corrupt"]
    passed: int  # frames sampled out before it


class Intake:
    """Frames from the reader's thread to the stage's."""

    def __init__(self, camera: CameraSpec, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._items: deque[Arrived] = deque()
        self._held = 0  # items that hold a frame
        self._passed = 0
        self._sampler = Sampler(camera.sample_every, camera.sample_fps)
        self._drop_corrupt = camera.corrupt == "drop"
        self.first_size: tuple[int, int] | None = None  # of the first decoded picture, upright
        self.whole_at_ns = 0  # monotonic time at which the last picture that was whole was read; 0: none yet

    def change(self, before: CameraSpec, after: CameraSpec) -> None:
        """Other sampling or another rule for damaged pictures, from the next frame on."""
        with self._lock:
            self._drop_corrupt = after.corrupt == "drop"
            if (before.sample_every, before.sample_fps) != (after.sample_every, after.sample_fps):
                self._sampler = Sampler(after.sample_every, after.sample_fps)

    def offer(self, live: LiveFrame, now_ns: int) -> None:
        """Called by the reader: take the frame in, or note why not."""
        with self._lock:
            if self.first_size is None:
                self.first_size = upright_size(live.frame)
            item = Arrived(live, "", 0)
            if not live.whole:
                item = Arrived(None, "no_keyframe", 0)
            else:
                self.whole_at_ns = now_ns
                if live.corrupt and self._drop_corrupt:
                    item = Arrived(None, "corrupt", 0)
                elif not self._sampler.keep(live.pts_ns):
                    self._passed += 1
                    return
            item.passed, self._passed = self._passed, 0
            self._items.append(item)
            if item.live is not None:
                self._held += 1
                if self._held > FRAMES_HELD:
                    self._give_way()
            first = len(self._items) == 1
        if first:
            self._wake()

    def _give_way(self) -> None:
        oldest = next(item for item in self._items if item.live is not None)
        oldest.live, oldest.cause = None, "superseded"
        self._held -= 1

    def take(self) -> Arrived | None:
        """Called by the stage: the next one."""
        with self._lock:
            if not self._items:
                return None
            item = self._items.popleft()
            self._held -= item.live is not None
            return item

    def take_passed(self) -> int:
        """Frames sampled out after the last one that was told."""
        with self._lock:
            passed, self._passed = self._passed, 0
            return passed

    @property
    def waiting(self) -> bool:
        """Whether ``take`` would give something."""
        return bool(self._items)


class Reader:
    """One connection. Everything it says is set by its thread and read by the stage's."""

    def __init__(
        self, source: LiveSource, camera: CameraSpec, clock_ns: Callable[[], int], wake: Callable[[], None]
    ) -> None:
        self.source = source
        self.intake = Intake(camera, wake)
        self.facts: SourceFacts | None = None  # set: it is open
        self.data_ns = 0  # monotonic time of the last data
        self.fault: LinkFault | None = None
        self.bug: str | None = None  # something that should not have happened
        self._clock_ns = clock_ns
        self._wake = wake
        self._leaving = False
        # a daemon: one that is stuck in native code must not keep its process from ending
        self._thread = threading.Thread(target=self._run, name=f"reader of {camera.name}", daemon=True)

    def start(self) -> None:
        """Connect and read, in the thread."""
        self._thread.start()

    def leave(self) -> None:
        """Read no further; the thread ends when the call that it is in returns."""
        self._leaving = True

    @property
    def over(self) -> bool:
        """Whether the thread has ended, or is about to with nothing left to do."""
        return self.fault is not None or self.bug is not None

    @property
    def gone(self) -> bool:
        """Whether the thread has released everything."""
        return not self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, but not for ever."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        fault: LinkFault | None = LinkFault("stopped", "on request")
        bug: str | None = None
        try:
            self._read()
        except LinkFault as lost:
            fault = lost
        except Exception as error:  # noqa: BLE001  whatever it is, the stage must hear of it
            fault, bug = None, _where(error)
        try:
            self.source.close()
        except Exception as error:  # noqa: BLE001  as above
            bug = bug or _where(error)
        self.fault, self.bug = fault, bug
        self._wake()

    def _read(self) -> None:
        source, intake = self.source, self.intake
        facts = source.open()
        self.data_ns = self._clock_ns()
        self.facts = facts
        self._wake()
        while not self._leaving:
            frames = source.read()
            self.data_ns = self._clock_ns()
            for live in frames:
                intake.offer(live, self.data_ns)


def _where(error: BaseException) -> str:
    """The kind of ``error`` and where it was raised; its text may hold a URL with its password."""
    steps = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} in " + " < ".join(
        f"{Path(step.filename).name}:{step.lineno}" for step in reversed(steps)
    )

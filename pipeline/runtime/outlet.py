"""Owns the way from the dispatcher to the sinks: order, back-pressure, heartbeat. Does not own the sinks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

from pipeline.observe.snapshot import SinkSnapshot
from pipeline.runtime.dispatch import Dispatcher
from stages.errors import StageDead
from stages.messages import ExternalMessage, Heartbeat
from stages.sinks.sink import CameraAware, Retrying, Sink

LOG = logging.getLogger("campipe.sinks")
LIVE_PATIENCE_NS = 120_000_000_000  # beyond any publish.join_ms
RETRY_NS = 2_000_000  # a sink that is full is asked again this soon


class Outlet:
    """Gives each message to every sink once, in order; a sink that can't take it holds up the rest of its line.

    Messages of live cameras and of recordings are two lines: a recording that waits for a slow sink holds up no live
    camera. What is done about slow subscribers of live cameras is the sink's own decision (it then takes and counts the
    loss). A sink that breaks (a full disk) is closed, logged, and told in ``states`` and ``problems``; the others go
    on. It is not opened again, unless it does so itself (``Retrying``). One that takes nothing of live
    cameras for two minutes (a pipe that nobody reads) counts as broken: what is told of them would pile up for ever.
    """

    def __init__(self, sinks: Sequence[Sink], heartbeat_ms: int) -> None:
        self._sinks = sinks
        self._heartbeat_ns = heartbeat_ms * 1_000_000
        self._opened: list[Sink] = []
        self._taken_by = {True: 0, False: 0}  # by line (live or not): sinks that have taken the message at its head
        self._live_blocked_ns: int | None = None  # since when a sink has not taken the head of the live line
        self._next_heartbeat_ns = 0
        self._started_ns = 0
        self.blocked = False
        self._broke: dict[str, str] = {}  # sink: why
        self._missed: dict[str, int] = {}  # sink: messages that came after it broke
        self._missed_before: dict[str, int] = {}  # sink: those that it could not write before, and when it broke

    def open(self, now_ns: int) -> None:
        """Open every sink; those opened are closed again when one fails."""
        self._started_ns = now_ns
        for sink in self._sinks:
            sink.open()
            self._opened.append(sink)

    def camera_added(self, name: str, *, live: bool) -> None:
        """A camera joins, or becomes one of the other kind. Raises UserError when a sink can take nothing of it."""
        for sink in self._opened:
            if isinstance(sink, CameraAware):
                sink.camera_added(name, live=live)

    def camera_removed(self, name: str) -> None:
        """No message of this camera comes any more."""
        for sink in list(self._opened):
            if isinstance(sink, CameraAware):
                try:
                    sink.camera_removed(name)
                except StageDead as error:
                    self._broken(sink, error)

    def deliver(self, dispatcher: Dispatcher) -> bool:
        """Hand over everything that the sinks will take now; True when anything was handed over."""
        self.blocked = False
        moved = [self._deliver(dispatcher, live=live) for live in (True, False)]
        return any(moved)

    def _deliver(self, dispatcher: Dispatcher, *, live: bool) -> bool:
        moved = False
        while not self.dead():
            taken_by = self._taken_by[live]
            message = dispatcher.peek_outbound(live=live, untouched=taken_by == 0)
            if message is None:
                break
            while self._taken_by[live] < len(self._opened):
                sink = self._opened[self._taken_by[live]]
                try:
                    if not sink.take(message):
                        self.blocked = True
                        if live:
                            self._wait_for(sink, dispatcher.outbound.now_ns)
                        return moved
                except StageDead as error:
                    self._broken(sink, error)
                    self._missed[sink.name] = -1  # the message in hand is counted below, and by the sink already
                else:
                    self._taken_by[live] += 1
            self._taken_by[live] = 0
            self._live_blocked_ns = None if live else self._live_blocked_ns
            self._miss()
            if self.dead():
                break
            dispatcher.delivered(live=live)
            moved = True
        return moved

    def service(self, dispatcher: Dispatcher, now_ns: int, time_ns: int) -> None:
        """Housekeeping of the sinks, and the heartbeat when it is due."""
        for sink in list(self._opened):
            try:
                sink.service()
            except StageDead as error:
                self._broken(sink, error)
        if now_ns < self._next_heartbeat_ns:
            return
        self._next_heartbeat_ns = now_ns + self._heartbeat_ns
        beat: ExternalMessage = Heartbeat(
            time_ns=time_ns,
            uptime_ns=now_ns - self._started_ns,
            cameras={name: camera.state for name, camera in dispatcher.cameras.items()},
            lost_messages=self.lost_messages,
        )
        for sink in list(self._opened):
            try:
                sink.take(beat)  # a full sink misses a beat; the next one comes
            except StageDead as error:
                self._broken(sink, error)

    def dead(self) -> bool:
        """There were sinks and every one broke: what is found now reaches nobody."""
        return bool(self._broke) and not self._opened

    @property
    def problems(self) -> list[str]:
        """A sentence for each sink that broke."""
        missed = {
            name: f"; {count} later messages are not in it" if count else "" for name, count in self._missed.items()
        }
        return [f"{name}: {why}{missed[name]}" for name, why in self._broke.items()]

    @property
    def states(self) -> tuple[SinkSnapshot, ...]:
        """Each sink as it is now: broken ones with the reason; how many messages each has missed in the run."""
        missed = {name: self._missed_before[name] + max(0, count) for name, count in self._missed.items()}
        broken = [SinkSnapshot(name, "broken", why, missed[name]) for name, why in self._broke.items()]
        return (*(self._state(sink) for sink in self._opened), *broken)

    @staticmethod
    def _state(sink: Sink) -> SinkSnapshot:
        """One that tries again by itself is as good as broken while it does."""
        if not isinstance(sink, Retrying):
            return SinkSnapshot(sink.name, "open")
        trouble = sink.trouble
        return SinkSnapshot(sink.name, "broken" if trouble else "open", trouble, sink.missed)

    def _wait_for(self, sink: Sink, now_ns: int) -> None:
        if self._live_blocked_ns is None:
            self._live_blocked_ns = now_ns
        elif now_ns - self._live_blocked_ns > LIVE_PATIENCE_NS:
            self._live_blocked_ns = None
            self._broken(sink, StageDead("took nothing for two minutes, and live cameras wait for nobody"))

    def _miss(self) -> None:
        for name in self._missed:
            self._missed[name] += 1

    def _broken(self, sink: Sink, error: StageDead) -> None:
        index = self._opened.index(sink)
        for live, taken_by in self._taken_by.items():
            self._taken_by[live] = taken_by - (index < taken_by)
        self._opened.remove(sink)
        self._broke[sink.name] = str(error)
        self._missed[sink.name] = 0
        self._missed_before[sink.name] = sink.missed if isinstance(sink, Retrying) else 0
        rest = "the run goes on without it" if self._opened else "no other is left"
        LOG.error("%s is closed: %s; %s", sink.name, error, rest, extra={"stage": "sink"})
        with contextlib.suppress(StageDead):
            sink.close(0)

    def next_due_ns(self, now_ns: int) -> int:
        """When ``deliver`` or ``service`` should run next."""
        return now_ns + RETRY_NS if self.blocked else min(self._next_heartbeat_ns, now_ns + 100_000_000)

    @property
    def lost_messages(self) -> int:
        """Messages that at least one subscriber did not get."""
        return sum(getattr(sink, "lost_messages", 0) for sink in self._sinks)

    @property
    def subscribers(self) -> int:
        """Subscriptions that the sinks know of."""
        return sum(getattr(sink, "subscribers", 0) for sink in self._opened)

    def close(self, deadline_ns: int) -> list[str]:
        """Deliver what the sinks hold, close them; sentences on what was lost. May be called twice."""
        lost: list[str] = []
        for sink in reversed(self._opened):
            try:
                lost.append(sink.close(deadline_ns))
            except StageDead as error:
                lost.append(f"{sink.name}: {error}")
        self._opened = []
        return [sentence for sentence in lost if sentence]

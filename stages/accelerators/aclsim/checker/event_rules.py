"""Owns the rules of events."""

from __future__ import annotations

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.checker.order import Point
from stages.accelerators.aclsim.checker.shadows import EventShadow, StreamShadow
from stages.accelerators.aclsim.checker.state import State
from stages.accelerators.aclsim.checker.stream_rules import TIMEOUTS, StreamRules
from stages.accelerators.aclsim.violations import (
    DestroyedInUse,
    EventNeverRecorded,
    EventNotResettable,
    EventReused,
    WrongHandle,
)


class EventRules:
    """Hooks are named ``before_`` and ``after_`` the call; those after get what the call returned first."""

    def __init__(self, state: State, streams: StreamRules) -> None:
        self._s = state
        self._streams = streams

    def _made(self, result: tuple[int, int], make: str, flags: int) -> None:
        handle, code = result
        if code == codes.SUCCESS:
            event = EventShadow(handle, self._s.site, make, flags)
            event.context = self._s.me.context
            self._s.add(event)

    def before_create_event(self, *_: int) -> None:
        """In a context."""
        self._s.check_callback()
        self._s.context()

    before_create_event_with_flag = before_create_event
    before_create_event_ex_with_flag = before_create_event

    def after_create_event(self, result: tuple[int, int]) -> None:
        """An event lives."""
        self._made(result, "plain", codes.EVENT_SYNC | codes.EVENT_TIME_LINE)

    def after_create_event_with_flag(self, result: tuple[int, int], flag: int) -> None:
        """An event lives."""
        self._made(result, "flag", flag)

    def after_create_event_ex_with_flag(self, result: tuple[int, int], flag: int) -> None:
        """An event lives."""
        self._made(result, "ex", flag)

    def before_destroy_event(self, handle: int) -> None:
        """Also before it is over, but not while a call waits for it."""
        self._s.check_callback()
        event = self._s.want(handle, EventShadow)
        if event is not None and event.calls:
            self._s.tell(
                DestroyedInUse,
                f"{event} is destroyed while a thread waits for it",
                event.record_site,
                "end the waiting call first",
            )

    def after_destroy_event(self, code: int, handle: int) -> None:
        """It is gone."""
        event = self._s.handles.get(handle)
        if isinstance(event, EventShadow):
            if code == codes.SUCCESS:
                self._s.remove(event)
            else:
                event.refused = code

    def before_record_event(self, handle: int, stream_handle: int) -> StreamShadow | None:
        """An event that is free for it."""
        event = self._s.want(handle, EventShadow)
        if event is None:
            return None
        stream = self._s.stream(stream_handle)
        if stream is None:
            return None
        self._check_record(event, stream)
        return self._streams.queued(stream_handle)

    def _check_record(self, event: EventShadow, stream: StreamShadow) -> None:
        clock = stream.clock
        if event.make == "flag" and event.flags & codes.EVENT_SYNC:
            if event.raised:
                self._s.tell(
                    EventReused,
                    f"{event} was recorded before and not reset since",
                    event.record_site,
                    "queue rt.reset_event behind the wait, in the waiting stream, or make the event with "
                    "rt.create_event_ex_with_flag",
                )
            elif event.reset is not None and not clock.after(event.reset[0], event.reset[1]):
                self._s.tell(
                    EventReused,
                    f"{event} is recorded while its reset in another stream is not known to be over",
                    event.reset[2],
                    "synchronise the stream that resets it before it is recorded again",
                )
        elif event.make == "plain" and event.record is not None and event.record.tick > event.record.stream.done:
            self._s.tell(
                EventReused,
                f"{event} is recorded again before its last record is known to be over",
                event.record_site,
                "use one event per buffer set, or make it with rt.create_event_ex_with_flag",
            )

    def after_record_event(self, code: int, handle: int, stream_handle: int) -> None:
        """A point in the stream."""
        event = self._s.handles.get(handle)
        stream: StreamShadow | None = self._s.me.token
        if code != codes.SUCCESS:
            self._streams.refused()
        elif stream is not None and isinstance(event, EventShadow):
            event.record, event.record_site, event.raised = stream.clock.point(), self._s.site, True
            event.waiters.clear()
            event.reset = None

    def before_stream_wait_event(self, stream_handle: int, handle: int) -> StreamShadow | None:
        """An event that was recorded."""
        stream = self._s.stream(stream_handle)
        event = self._s.want(handle, EventShadow)
        if event is None or stream is None:
            return None
        if not event.flags & codes.EVENT_SYNC:
            self._s.tell(
                WrongHandle,
                f"{event} was made without the SYNC flag: no stream can wait for it",
                event.site,
                "make it with flag ACL_EVENT_SYNC (1)",
            )
        if event.make != "ex" and (event.record is None or (event.make == "flag" and not event.raised)):
            self._s.tell(
                EventNeverRecorded,
                f"{event} is not recorded: the stream may stand still for ever",
                event.site if event.record is None else event.record_site,
                "record it before the wait is queued",
            )
        return self._streams.queued(stream_handle)

    def after_stream_wait_event(self, code: int, stream_handle: int, handle: int) -> None:
        """The stream goes on after that point."""
        event = self._s.handles.get(handle)
        stream: StreamShadow | None = self._s.me.token
        if code != codes.SUCCESS:
            self._streams.refused()
        elif stream is not None and isinstance(event, EventShadow) and event.record is not None:
            stream.clock.wait_for(event.record)
            event.waiters[stream.clock] = stream.clock.tick

    def before_reset_event(self, handle: int, stream_handle: int) -> StreamShadow | None:
        """Only events that can be, behind all waits."""
        event = self._s.want(handle, EventShadow)
        if event is None:
            return None
        if event.make != "flag" or not event.flags & codes.EVENT_SYNC:
            needless = {"ex": "; an ex event needs none", "plain": ""}.get(event.make, "")
            self._s.tell(
                EventNotResettable,
                f"{event} was not made by rt.create_event_with_flag with the SYNC flag{needless}",
                event.site,
                "reset only such events",
            )
            return None
        stream = self._s.stream(stream_handle)
        if stream is None:
            return None
        clock = stream.clock
        early = [s for s, tick in event.waiters.items() if not clock.after(s, tick)]
        if early:
            self._s.tell(
                EventReused,
                f"{event} is reset while another stream may still wait for it",
                event.record_site,
                "reset it in the stream that waits, behind the wait; use one event per waiting stream",
            )
        return self._streams.queued(stream_handle)

    def after_reset_event(self, code: int, handle: int, stream_handle: int) -> None:
        """It can be recorded again, behind this."""
        event = self._s.handles.get(handle)
        stream: StreamShadow | None = self._s.me.token
        if code != codes.SUCCESS:
            self._streams.refused()
        elif stream is not None and isinstance(event, EventShadow):
            event.raised = False
            event.reset = (stream.clock, stream.clock.tick, self._s.site)

    def before_query_event_status(self, handle: int) -> Point | None:
        """What was recorded last may be over."""
        event = self._s.want(handle, EventShadow)
        return event.record if event is not None else None

    def after_query_event_status(self, result: tuple[int, int], handle: int) -> None:
        """1: it is."""
        if self._s.me.token is not None and result[0] == codes.EVENT_STATUS_COMPLETE:
            self._s.learn(self._s.me.token)

    def before_query_event(self, handle: int) -> Point | None:
        """Not for ex events."""
        event = self._s.want(handle, EventShadow)
        if event is not None and event.make == "ex":
            self._s.tell(
                WrongHandle,
                f"{event} was made by rt.create_event_ex_with_flag: this call does not take it",
                event.site,
                "use rt.query_event_status (1 = done)",
            )
        return event.record if event is not None else None

    def after_query_event(self, result: tuple[int, int], handle: int) -> None:
        """0: it is."""
        if self._s.me.token is not None and result == (codes.QUERY_COMPLETE, codes.SUCCESS):
            self._s.learn(self._s.me.token)

    def before_query_event_wait_status(self, handle: int) -> None:
        """Not for ex events."""
        self.before_query_event(handle)

    def before_synchronize_event(self, handle: int, *_: int) -> Point | None:
        """What was recorded last will be over."""
        self._s.check_callback()
        event = self._s.want(handle, EventShadow)
        if event is None:
            return None
        if event.record is None and event.make != "ex":
            self._s.tell(
                EventNeverRecorded,
                f"{event} was never recorded: the call may never return",
                event.site,
                "record it first",
            )
        event.calls += 1
        return event.record

    def after_synchronize_event(self, code: int, handle: int, *_: int) -> None:
        """It is over, but for a timeout."""
        event = self._s.handles.get(handle)
        if isinstance(event, EventShadow):
            event.calls -= 1
        if self._s.me.token is not None and code not in TIMEOUTS and code != codes.RT_CONTEXT_NULL:
            self._s.learn(self._s.me.token, compare=code == codes.SUCCESS)

    before_synchronize_event_with_timeout = before_synchronize_event
    after_synchronize_event_with_timeout = after_synchronize_event

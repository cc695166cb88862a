"""Owns the calls of streams and events, as the vendor's module answers them."""

from __future__ import annotations

from typing import Any

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.machine.device import MOST_EVENTS, MOST_STREAMS, EventHandle
from stages.accelerators.aclsim.machine.machine import Machine
from stages.accelerators.aclsim.machine.timeline import NEVER, RECORD, RESET, WAIT, Event, Stream, Task


def timeout_ns_of(timeout_ms: int) -> int:
    """-1 is for ever."""
    return NEVER if timeout_ms == -1 else timeout_ms * 1_000_000


class StreamCalls:
    """``acl.rt``: streams."""

    def __init__(self, machine: Machine) -> None:
        self._m = machine

    def create_stream(self) -> tuple[int, int]:
        """In the current context."""
        context = self._m.context()
        if context is None:
            return 0, codes.RT_CONTEXT_NULL
        if context.device.stream_count >= MOST_STREAMS:
            return 0, codes.RT_NO_STREAM_RESOURCE
        stream = Stream(self._m.new_handle(), context)
        context.streams[stream.handle] = stream
        self._m.objects[stream.handle] = stream
        return stream.handle, codes.SUCCESS

    def create_stream_with_config(self, priority: int, flag: int) -> tuple[int, int]:
        """Priority and flags change nothing here."""
        del priority
        return (0, codes.RT_PARAM_INVALID) if flag & ~0x3F else self.create_stream()

    def destroy_stream(self, handle: int) -> int:
        """After its work."""
        return self._destroy(handle, waiting=True)

    def destroy_stream_force(self, handle: int) -> int:
        """Drops its work."""
        return self._destroy(handle, waiting=False)

    def _destroy(self, handle: int, *, waiting: bool) -> int:
        stream = self._m.stream(handle)
        if isinstance(stream, int):
            return stream
        if handle == 0:
            return codes.RT_PARAM_INVALID
        if waiting and not stream.owner.device.lost:
            self._m.wait_for([(stream, stream.submitted)], NEVER, holding=True)
        self._m.timeline.drop(stream, self._m.clock.now_ns())
        self._m.clock.changed()
        del stream.owner.streams[handle], self._m.objects[handle]
        return codes.SUCCESS

    def synchronize_stream(self, handle: int) -> int:
        """Errors of its work are told here."""
        return self._synchronize(handle, NEVER)

    def synchronize_stream_with_timeout(self, handle: int, timeout_ms: int) -> int:
        """-1 is for ever."""
        return codes.RT_PARAM_INVALID if timeout_ms < -1 else self._synchronize(handle, timeout_ns_of(timeout_ms))

    def _synchronize(self, handle: int, timeout_ns: int) -> int:
        stream = self._m.stream(handle)
        if isinstance(stream, int):
            return stream
        if not self._m.wait_for([(stream, stream.submitted)], timeout_ns, holding=False):
            return codes.RT_STREAM_SYNC_TIMEOUT if timeout_ns < NEVER else codes.RT_WAIT_TIMEOUT
        return self._m.code_of(stream)

    def stream_query(self, handle: int) -> tuple[int, int]:
        """0 when all is over."""
        stream = self._m.stream(handle)
        if isinstance(stream, int):
            return 0, stream
        if stream.unsettled and not self._m.seems_over(stream.unsettled[-1], handle or id(stream)):
            return codes.QUERY_NOT_READY, codes.SUCCESS
        self._m.settle(stream, stream.submitted)
        return codes.QUERY_COMPLETE, self._m.code_of(stream)

    def set_stream_failure_mode(self, handle: int, mode: int) -> int:
        """Stopping holds for all streams of the context."""
        stream = self._m.stream(handle)
        if isinstance(stream, int):
            return stream
        if handle == 0 or mode not in (0, 1):
            return codes.RT_PARAM_INVALID
        if mode == codes.STOP_ON_FAILURE:
            stream.owner.stops_on_failure = True
        return codes.SUCCESS

    def stream_abort(self, handle: int) -> int:
        """Not on this product."""
        del handle
        return codes.RT_FEATURE_NOT_SUPPORT

    def stream_get_id(self, handle: int) -> tuple[int, int]:
        """A small number."""
        stream = self._m.stream(handle)
        return (0, stream) if isinstance(stream, int) else (handle >> 6 & 0xFFFF, codes.SUCCESS)


class EventCalls:
    """``acl.rt``: events."""

    def __init__(self, machine: Machine) -> None:
        self._m = machine

    def create_event(self) -> tuple[int, int]:
        """For waits and times; its hardware is taken when it is recorded."""
        return self._create("plain", codes.EVENT_SYNC | codes.EVENT_TIME_LINE)

    def create_event_with_flag(self, flag: int) -> tuple[int, int]:
        """With the SYNC flag it is a bit that must be reset."""
        return self._create("flag", flag)

    def create_event_ex_with_flag(self, flag: int) -> tuple[int, int]:
        """May be recorded again and again."""
        return self._create("ex", flag)

    def _create(self, kind: str, flags: int) -> tuple[int, int]:
        context = self._m.context()
        if context is None:
            return 0, codes.RT_CONTEXT_NULL
        if not flags or flags & ~0x7B:
            return 0, codes.RT_PARAM_INVALID
        if kind == "flag" and self._taken(context.device) >= MOST_EVENTS:
            return 0, codes.RT_NO_EVENT_RESOURCE
        flagged = kind == "flag" and bool(flags & codes.EVENT_SYNC)
        event = EventHandle(self._m.new_handle(), kind, flags, context.device, Event(flagged))
        self._m.objects[event.handle] = event
        return event.handle, codes.SUCCESS

    def _taken(self, device: Any) -> int:
        events = [e for e in self._m.objects.values() if isinstance(e, EventHandle)]
        return sum(e.kind == "flag" and e.device is device for e in events)

    def destroy_event(self, handle: int) -> int:
        """Also before it is over."""
        if self._m.find(handle, EventHandle) is None:
            return codes.RT_INVALID_HANDLE if handle else codes.INVALID_PARAM
        del self._m.objects[handle]
        return codes.SUCCESS

    def _queue(self, kind: int, event_handle: int, stream_handle: int) -> int:
        event = self._m.find(event_handle, EventHandle)
        if event is None:
            return codes.RT_INVALID_HANDLE if event_handle else codes.INVALID_PARAM
        stream = self._m.stream(stream_handle)
        if isinstance(stream, int):
            return stream
        if kind != RECORD and not event.waitable:
            return codes.RT_PARAM_INVALID
        task = Task(kind)
        task.event = event.state
        if kind == RECORD:
            event.recorded_ever = True
        return self._m.queue(stream, task)

    def record_event(self, event: int, stream: int) -> int:
        """After everything queued so far."""
        return self._queue(RECORD, event, stream)

    def reset_event(self, event: int, stream: int) -> int:
        """Queued as well."""
        found = self._m.find(event, EventHandle)
        if found is not None and found.kind == "ex":
            return codes.RT_PARAM_INVALID
        return self._queue(RESET, event, stream)

    def stream_wait_event(self, stream: int, event: int) -> int:
        """What is queued from now on waits."""
        return self._queue(WAIT, event, stream)

    def query_event_status(self, handle: int) -> tuple[int, int]:
        """1 when it is over."""
        event = self._m.find(handle, EventHandle)
        if event is None:
            return 0, codes.RT_INVALID_HANDLE if handle else codes.INVALID_PARAM
        done, code = self._over(event)
        return (codes.EVENT_STATUS_COMPLETE if done else codes.EVENT_STATUS_NOT_READY), code

    def query_event(self, handle: int) -> tuple[int, int]:
        """0 when it is over."""
        event = self._m.find(handle, EventHandle)
        if event is None or event.kind == "ex":
            return 0, codes.RT_PARAM_INVALID
        done, code = self._over(event)
        return (codes.QUERY_COMPLETE if done else codes.QUERY_NOT_READY), code

    def query_event_wait_status(self, handle: int) -> tuple[int, int]:
        """0 when no stream waits for it any more."""
        event = self._m.find(handle, EventHandle)
        if event is None or event.kind == "ex":
            return 0, codes.RT_PARAM_INVALID
        if event.state.blocked:
            self._m.clock.polled(handle)
            return codes.QUERY_NOT_READY, codes.SUCCESS
        return codes.QUERY_COMPLETE, codes.SUCCESS

    def _over(self, event: EventHandle) -> tuple[bool, int]:
        record = event.state.latest
        if record is None:  # only `ex` is documented to count as over; the others are taken to be not
            return event.kind == "ex", codes.SUCCESS
        if not self._m.seems_over(record, event.handle):
            return False, codes.SUCCESS
        self._m.settle(record.stream, record.tick)
        return True, self._code(record)

    def _code(self, record: Task) -> int:
        """What the recorded stream left behind up to the record."""
        return self._m.code_of(record.stream)

    def synchronize_event(self, handle: int) -> int:
        """Until its last record is over."""
        return self._synchronize(handle, NEVER)

    def synchronize_event_with_timeout(self, handle: int, timeout_ms: int) -> int:
        """-1 is for ever."""
        return codes.RT_PARAM_INVALID if timeout_ms < -1 else self._synchronize(handle, timeout_ns_of(timeout_ms))

    def _synchronize(self, handle: int, timeout_ns: int) -> int:
        event = self._m.find(handle, EventHandle)
        if event is None:
            return codes.RT_INVALID_HANDLE if handle else codes.INVALID_PARAM
        if self._m.context() is None:
            return codes.RT_CONTEXT_NULL
        record = event.state.latest
        if record is None:
            return codes.SUCCESS if event.kind == "ex" else codes.RT_PARAM_INVALID
        if not self._m.wait_for([(record.stream, record.tick)], timeout_ns, holding=False):
            return codes.RT_EVENT_SYNC_TIMEOUT if timeout_ns < NEVER else codes.RT_WAIT_TIMEOUT
        return self._code(record)

    def event_elapsed_time(self, start: int, end: int) -> tuple[float, int]:
        """Milliseconds between two records in one stream."""
        first, last = self._m.find(start, EventHandle), self._m.find(end, EventHandle)
        if first is None or last is None:
            return 0.0, codes.RT_INVALID_HANDLE
        a, b = first.state.latest, last.state.latest
        if a is None or b is None or not (first.timed and last.timed) or a.stream is not b.stream:
            return 0.0, codes.RT_EVENT_TIMESTAMP_INVALID
        if a.end_ns < 0 or b.end_ns < 0:
            return 0.0, codes.RT_EVENT_NOT_COMPLETE
        if b.tick < a.tick:
            return 0.0, codes.RT_EVENT_TIMESTAMP_REVERSAL
        return (b.end_ns - a.end_ns) / 1e6, codes.SUCCESS

    def event_get_timestamp(self, handle: int) -> tuple[int, int]:
        """Microseconds at which it was over."""
        event = self._m.find(handle, EventHandle)
        if event is None:
            return 0, codes.RT_INVALID_HANDLE
        record = event.state.latest
        if record is None or record.end_ns < 0:
            return 0, codes.RT_EVENT_NOT_COMPLETE
        return record.end_ns // 1000, codes.SUCCESS

    def get_event_avail_num(self) -> tuple[int, int]:
        """How many more the device has."""
        context = self._m.context()
        if context is None:
            return 0, codes.RT_CONTEXT_NULL
        return MOST_EVENTS - self._taken(context.device), codes.SUCCESS

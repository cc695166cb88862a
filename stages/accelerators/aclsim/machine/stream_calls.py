"""Owns the calls of streams, events and callbacks, as the vendor's module answers them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.machine.device import MOST_EVENTS, MOST_STREAMS, EventHandle
from stages.accelerators.aclsim.machine.machine import WATCHDOG_NS, Machine
from stages.accelerators.aclsim.machine.timeline import GATE, NEVER, RECORD, RESET, WAIT, Event, Stream, Task


def _timeout_ns(timeout_ms: int) -> int:
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
        return codes.RT_PARAM_INVALID if timeout_ms < -1 else self._synchronize(handle, _timeout_ns(timeout_ms))

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
        return codes.RT_PARAM_INVALID if timeout_ms < -1 else self._synchronize(handle, _timeout_ns(timeout_ms))

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


@dataclass(slots=True)
class _Reporter:
    """A thread that runs callbacks."""

    streams: set[int] = field(default_factory=set)
    ready: deque[tuple[Callable[[Any], Any], Any, Task]] = field(default_factory=deque)


class CallbackCalls:
    """``acl.rt``: callbacks, errors, limits."""

    def __init__(self, machine: Machine) -> None:
        self._m = machine
        self._reporters: dict[int, _Reporter] = {}

    def subscribe_report(self, thread: int, stream: int) -> int:
        """That thread runs the callbacks of this stream."""
        found = self._m.stream(stream)
        if isinstance(found, int):
            return found
        if any(found.handle in r.streams for r in self._reporters.values()):
            return codes.RT_STREAM_SUBSCRIBE
        self._reporters.setdefault(thread, _Reporter()).streams.add(found.handle)
        return codes.SUCCESS

    def unsubscribe_report(self, thread: int, stream: int) -> int:
        """No longer."""
        reporter = self._reporters.get(thread)
        if reporter is None:
            return codes.RT_THREAD_SUBSCRIBE
        if stream not in reporter.streams:
            return codes.RT_STREAM_SUBSCRIBE
        reporter.streams.discard(stream)
        if not reporter.streams:
            del self._reporters[thread]
        return codes.SUCCESS

    def launch_callback(self, function: Callable[[Any], Any], user_data: Any, block: int, stream: int) -> int:
        """Runs when the stream gets there, and when it blocks the stream waits for it."""
        if not callable(function):
            raise TypeError("rt.launch_callback(): function must be callable")
        found = self._m.stream(stream)
        if isinstance(found, int):
            return found
        reporter = next((r for r in self._reporters.values() if found.handle in r.streams), None)
        if reporter is None:
            return codes.RT_STREAM_NO_CB_REG
        task = Task(GATE)

        def arrived() -> None:
            reporter.ready.append((function, user_data, task))
            if block == codes.CALLBACK_NO_BLOCK:
                self._m.timeline.schedule(task, task.start_ns)

        task.effect = arrived
        return self._m.queue(found, task)

    def process_report(self, timeout_ms: int) -> int:
        """Runs the callbacks that are due, without the machine's lock: they may wait for other threads."""
        with self._m.lock:
            thread = self._m.threads.current()
            reporter = self._reporters.setdefault(thread.ident, _Reporter())
            if not self._m.clock.wait(lambda: bool(reporter.ready), _timeout_ns(timeout_ms), False):
                return codes.RT_REPORT_TIMEOUT
            due = list(reporter.ready)
            reporter.ready.clear()
            for _, _, task in due:
                self._m.settle(task.stream, task.tick - 1)
        for function, user_data, task in due:
            function(user_data)
            with self._m.lock:
                if task.end_ns < 0 and task.stream.queue and task.stream.queue[0] is task:
                    self._m.timeline.finish(task, max(self._m.clock.now_ns(), task.start_ns))
                    self._m.clock.changed()
        return codes.SUCCESS

    def set_exception_info_callback(self, function: Callable[[int], Any] | None) -> int:
        """Called when a task fails."""
        self._m.exception_callback = function
        return codes.SUCCESS

    def _info(self, info: int, index: int) -> int:
        return self._m.exception_infos.get(info, (0, 0, 0, 0, 0))[index]

    def get_task_id_from_exception_info(self, info: int) -> int:
        """Inside the callback only."""
        return self._info(info, 0)

    def get_stream_id_from_exception_info(self, info: int) -> int:
        """Inside the callback only."""
        return self._info(info, 1)

    def get_thread_id_from_exception_info(self, info: int) -> int:
        """Inside the callback only."""
        return self._info(info, 2)

    def get_device_id_from_exception_info(self, info: int) -> int:
        """Inside the callback only."""
        return self._info(info, 3)

    def get_error_code_from_exception_info(self, info: int) -> int:
        """Inside the callback only."""
        return self._info(info, 4)

    def set_op_wait_timeout(self, seconds: int) -> int:
        """Of waits for events; 0: none."""
        self._m.timeline.wait_timeout_ns = seconds * 1_000_000_000
        self._m.timeline.wait_timeout_code = codes.RT_WAIT_TIMEOUT
        return codes.SUCCESS

    def set_op_execute_timeout(self, seconds: int) -> int:
        """Of operators; 0: as long as the watchdog allows."""
        self._m.watchdog_ns = min(seconds * 1_000_000_000, WATCHDOG_NS) or WATCHDOG_NS
        return codes.SUCCESS

    def peek_at_last_error(self, level: int) -> int:
        """Of the thread."""
        del level
        return self._m.threads.current().last_error

    def get_last_error(self, level: int) -> int:
        """Of the thread, told once."""
        code = self.peek_at_last_error(level)
        self._m.threads.current().last_error = 0
        return code

"""Owns the calls of callbacks, errors and limits, as the vendor's module answers them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.machine.machine import WATCHDOG_NS, Machine
from stages.accelerators.aclsim.machine.stream_calls import timeout_ns_of
from stages.accelerators.aclsim.machine.timeline import GATE, Task

IDLE_S = 0.001  # real time of an idle report on the virtual clock: its loop must not take a whole core


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
            expired = False
            if not self._m.clock.wait(lambda: bool(reporter.ready), timeout_ns_of(timeout_ms), False):
                expired = True
            due = list(reporter.ready)
            reporter.ready.clear()
            for _, _, task in due:
                self._m.settle(task.stream, task.tick - 1)
        if expired:
            if self._m.clock.virtual:
                time.sleep(IDLE_S)
            return codes.RT_REPORT_TIMEOUT
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

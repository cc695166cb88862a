"""Owns the rules of streams, events and callbacks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.checker.order import Point
from stages.accelerators.aclsim.checker.shadows import ContextShadow, StreamShadow
from stages.accelerators.aclsim.checker.sites import held_locks
from stages.accelerators.aclsim.checker.state import State
from stages.accelerators.aclsim.violations import (
    DestroyedInUse,
    UnorderedStreamUse,
)

TIMEOUTS = (codes.RT_STREAM_SYNC_TIMEOUT, codes.RT_EVENT_SYNC_TIMEOUT, codes.RT_WAIT_TIMEOUT)


# A thread that has handed its stream on, by a queue that is not seen here, and ends, may not have ended yet.
GRACE_S = 0.02


def _ends(thread: threading.Thread) -> bool:
    """Whether a thread has ended, or does within a moment."""
    if isinstance(thread, threading._DummyThread):  # not started by Python: seems to live for ever
        return thread.ident not in sys._current_frames()
    if thread is not threading.main_thread():
        thread.join(GRACE_S)
    return not thread.is_alive()


class StreamRules:
    """Hooks are named ``before_`` and ``after_`` the call; those after get what the call returned first."""

    def __init__(self, state: State) -> None:
        self._s = state

    # ---- streams ---------------------------------------------------------------------------------------------------

    def queued(self, handle: int) -> StreamShadow | None:
        """The stream that a task is queued on now, its clock one further."""
        state = self._s
        stream = state.stream(handle)
        if stream is None:
            return None
        if state.me.in_callback:
            state.check_callback()
        thread = state.me.thread
        if stream.thread is not thread or stream.shared:
            self._check_thread(stream, thread)
        stream.thread = thread
        stream.thread_site = state.site
        stream.clock.tick += 1
        state.submissions += 1
        return stream

    def refused(self) -> None:
        """The module did not take what was noted as queued."""
        stream: StreamShadow | None = self._s.me.token
        if stream is not None and stream.clock.done == stream.clock.tick - 1:
            self._s.learn(Point(stream.clock, stream.clock.tick, {}), compare=False)

    def _check_thread(self, stream: StreamShadow, thread: threading.Thread) -> None:
        last, clock = stream.thread, stream.clock
        if (last is None or last is thread) and not stream.shared:
            return
        locks = held_locks(self._s.me.frame)
        before, stream.locks = stream.locks, locks
        stream.shared = True
        if last is None or last is thread or clock.tick <= clock.done:
            return  # nothing of another one is pending
        common = locks if before is None else locks & before  # before the second thread came, nobody looked
        if not common and not _ends(last):
            self._s.tell(
                UnorderedStreamUse,
                f"{stream} was used last by another thread, whose work is pending, and no lock that both hold is known",
                stream.thread_site,
                "give each thread a stream of its own, or hold one lock over each whole sequence",
            )

    def before_create_stream(self) -> None:
        """In a context."""
        self._s.check_callback()
        self._s.context()

    def after_create_stream(self, result: tuple[int, int], *_: int) -> None:
        """A stream lives."""
        handle, code = result
        context = self._s.me.context
        if code == codes.SUCCESS and context is not None:
            self._s.add(StreamShadow(handle, self._s.site, context))

    def before_create_stream_with_config(self, priority: int, flag: int) -> None:
        """In a context."""
        self.before_create_stream()

    after_create_stream_with_config = after_create_stream

    def before_destroy_stream(self, handle: int) -> None:
        """Nothing may be pending."""
        self._s.check_callback()
        stream = self._s.stream(handle)
        if stream is None:
            return
        clock = stream.clock
        if clock.tick > clock.done and not stream.context.device.lost:
            self._s.tell(
                DestroyedInUse,
                f"{stream} is destroyed with work in it that is not known to be over",
                stream.thread_site,
                "synchronise it first; rt.destroy_stream_force drops its work",
            )

    def after_destroy_stream(self, code: int, handle: int) -> None:
        """It is gone, after its work."""
        stream = self._s.handles.get(handle)
        if not isinstance(stream, StreamShadow):
            return
        if code == codes.SUCCESS:
            self._s.remove(stream)
            self._s.learn(stream.clock.point(), compare=False)
        else:
            stream.refused = code

    def before_destroy_stream_force(self, handle: int) -> None:
        """Work may be pending: it is dropped."""
        self._s.check_callback()
        self._s.stream(handle)

    after_destroy_stream_force = after_destroy_stream

    def before_synchronize_stream(self, handle: int) -> Point | None:
        """What is queued now will be over."""
        self._s.check_callback()
        stream = self._s.stream(handle)
        return stream.clock.point() if stream is not None else None

    def after_synchronize_stream(self, code: int, handle: int) -> None:
        """It is over, whether it failed or not."""
        point: Point | None = self._s.me.token
        if point is not None and code not in TIMEOUTS and code != codes.RT_CONTEXT_NULL:
            self._s.learn(point, compare=code == codes.SUCCESS)

    def before_synchronize_stream_with_timeout(self, handle: int, timeout_ms: int) -> Point | None:
        """What is queued now will be over."""
        return self.before_synchronize_stream(handle)

    def after_synchronize_stream_with_timeout(self, code: int, handle: int, timeout_ms: int) -> None:
        """It is over, but for a timeout."""
        self.after_synchronize_stream(code, handle)

    def before_synchronize_device(self, *_: int) -> list[Point]:
        """What is queued on all its streams now will be over."""
        self._s.check_callback()
        context = self._s.context()
        if context is None:
            return []
        streams = [s for s in self._s.handles.values() if isinstance(s, StreamShadow)]
        contexts = {id(s.context): s.context for s in streams if s.context.device is context.device}
        contexts[id(context)] = context
        found = [s.clock.point() for s in streams if s.context.device is context.device]
        return found + [c.default_stream.clock.point() for c in contexts.values()]

    def after_synchronize_device(self, code: int, *_: int) -> None:
        """It is over, but for a timeout."""
        if code not in TIMEOUTS:
            for point in self._s.me.token or ():
                self._s.learn(point, compare=code == codes.SUCCESS)

    before_synchronize_device_with_timeout = before_synchronize_device
    after_synchronize_device_with_timeout = after_synchronize_device

    def before_stream_query(self, handle: int) -> Point | None:
        """What is queued now may be over."""
        stream = self._s.stream(handle)
        return stream.clock.point() if stream is not None else None

    def after_stream_query(self, result: tuple[int, int], handle: int) -> None:
        """It is over when the module says so."""
        point: Point | None = self._s.me.token
        if point is not None and result[0] == codes.QUERY_COMPLETE:
            self._s.learn(point)

    # ---- callbacks -------------------------------------------------------------------------------------------------

    def before_launch_callback(self, function: Any, data: Any, block: int, handle: int) -> StreamShadow | None:
        """Queued like work."""
        return self.queued(handle)

    def after_launch_callback(self, code: int, *_: Any) -> None:
        """Queued, or not."""
        if code != codes.SUCCESS:
            self.refused()

    def wrapped(self, function: Callable[[Any], Any], handle: int) -> Callable[[Any], Any]:
        """The user's callback: what came before it is over when it runs, and it may do little."""
        context = self._s.me.context
        stream = self._s.handles.get(handle) if handle else None
        clock = None
        if isinstance(stream, StreamShadow):
            clock = stream.clock
        elif isinstance(context, ContextShadow):
            clock = context.default_stream.clock
        point = clock.point() if clock is not None else None

        def callback(data: Any) -> Any:
            if point is not None:
                with self._s.lock:
                    self._s.learn(point)
            return restricted(data)

        restricted = self.restricted(function)
        return callback

    def restricted(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A function of the user's that may do little while it runs."""

        def callback(data: Any) -> Any:
            self._s.me.in_callback += 1
            try:
                return function(data)
            finally:
                self._s.me.in_callback -= 1

        return callback

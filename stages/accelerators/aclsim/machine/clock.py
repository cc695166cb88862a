"""Owns when time passes: on the virtual clock while hosts wait, on the real clock by itself. Does not own the timeline.

Virtual time stands still while any host thread might still submit work: while one that has a context is neither in a
waiting call of the module, nor asleep elsewhere (a queue, a poll: see ``threads``). When all are, time goes on to the
first moment at which one of the waiting calls is over; that thread counts as running from then on. So eight threads
that wait and submit again keep a device as busy as it can be, however the system schedules them. A query that is
asked twice in vain, with no other call between, counts as a wait for the next task to end. Calls that hold the
interpreter's lock move time on at once: nobody else could submit meanwhile.

Nothing is computed or copied when its time comes on the virtual clock: what a completed wait depends on, and nothing
else, has happened when it returns (``Machine.settle``).
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Protocol

from stages.accelerators.aclsim.machine.threads import SECOND_LOOK_S, HostThreads
from stages.accelerators.aclsim.machine.timeline import NEVER, Timeline

PATIENCE_S = 1.0  # of real time, for a wait that nothing can end any more
_holding = ctypes.PyDLL(None)  # its functions are called with the interpreter's lock held


class Waiter:
    """One waiting call."""

    def __init__(self, done: Callable[[], bool], deadline_ns: int) -> None:
        self.done = done
        self.deadline_ns = deadline_ns
        self.released = False
        self.met = False

    def look(self, now_ns: int) -> bool:
        """Release the call when it is over; whether it is."""
        if not self.released:
            self.met = self.done()
            self.released = self.met or now_ns >= self.deadline_ns
        return self.released


class Clock(Protocol):
    """What the machine asks of time. All calls are made with the machine's lock held."""

    virtual: bool

    def now_ns(self) -> int:
        """Nanoseconds since the start."""

    def submitted(self) -> int:
        """The host has submitted something: its cost passes; what is over has ended. The time."""

    def wait(self, done: Callable[[], bool], timeout_ns: int, holding: bool) -> bool:
        """Until ``done()`` or the timeout. ``holding``: the interpreter's lock is not released. False: timeout."""

    def polled(self, target: int) -> None:
        """The host asked in vain whether ``target`` is over."""

    def sleep(self, duration_ns: int) -> None:
        """The calling thread is busy in the runtime, holding the interpreter's lock."""

    def changed(self) -> None:
        """Something was submitted, dropped or finished from outside."""

    def close(self) -> None:
        """End what runs; may be called twice."""


class VirtualClock:
    """See the module."""

    virtual = True

    def __init__(self, lock: threading.RLock, timeline: Timeline, threads: HostThreads, launch_ns: int) -> None:
        self._changed = threading.Condition(lock)
        self._timeline = timeline
        self._threads = threads
        self._launch_ns = launch_ns
        self._now_ns = 0
        self._waiters: list[Waiter] = []
        self._driver: Waiter | None = None
        self._closed = False

    def now_ns(self) -> int:
        """See Clock."""
        return self._now_ns

    def submitted(self) -> int:
        """See Clock."""
        self._now_ns += self._launch_ns
        timeline = self._timeline
        while timeline.next_ns <= self._now_ns:
            timeline.step()
        self._threads.current().polled.clear()
        return self._now_ns

    def sleep(self, duration_ns: int) -> None:
        """See Clock."""
        self._pass_until(self._now_ns + duration_ns)

    def changed(self) -> None:
        """See Clock."""
        if self._waiters:
            self._look()
            self._changed.notify_all()

    def polled(self, target: int) -> None:
        """See Clock."""
        me = self._threads.current()
        if target not in me.polled:
            me.polled.add(target)
            return
        me.polled.clear()
        if self._timeline.next_ns < NEVER and self._threads.others_rest(me):
            self._pass_until(min(self._timeline.next_ns, self._first_deadline()))

    def wait(self, done: Callable[[], bool], timeout_ns: int, holding: bool) -> bool:
        """See Clock."""
        me = self._threads.current()
        me.polled.clear()
        deadline_ns = self._now_ns + timeout_ns if timeout_ns < NEVER else NEVER
        waiter = Waiter(done, deadline_ns)
        if waiter.look(self._now_ns):
            return waiter.met
        self._waiters.append(waiter)
        me.waiter = waiter
        try:
            if holding or all(t is me or t.context is None for t in self._threads.known):
                while not waiter.released and self._pass_to_next_release():
                    pass
            self._wait_with_others(waiter)
        finally:
            me.waiter = None
            self._waiters.remove(waiter)
            if self._driver is waiter:
                self._driver = None
            if self._waiters:
                self._changed.notify_all()
        return waiter.met

    def close(self) -> None:
        """See Clock. Called without the machine's lock."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait_with_others(self, waiter: Waiter) -> None:
        stuck_since_s: float | None = None
        while not waiter.released and not self._closed:
            if self._driver not in (None, waiter):
                self._changed.wait(0.05)
                continue
            self._driver = waiter
            if not self._threads.others_rest(self._threads.current()):
                stuck_since_s = None
                self._changed.wait(SECOND_LOOK_S)
            elif not self._pass_to_next_release():
                stuck_since_s = stuck_since_s or time.monotonic()
                if time.monotonic() - stuck_since_s > PATIENCE_S:
                    return
                self._changed.wait(0.001)

    def _pass_to_next_release(self) -> bool:
        """Let time pass until one more waiting call is over; False when nothing would end one."""
        timeline = self._timeline
        while not self._look():
            at_ns = min(timeline.next_ns, self._first_deadline())
            if at_ns >= NEVER:
                return False
            self._now_ns = max(self._now_ns, at_ns)
            while timeline.next_ns <= at_ns:
                timeline.step()
        if len(self._waiters) > 1:
            self._changed.notify_all()
        return True

    def _look(self) -> bool:
        """Release the calls that are over; whether there are new ones."""
        released = False
        for waiter in self._waiters:
            if not waiter.released and waiter.look(self._now_ns):
                released = True
        return released

    def _first_deadline(self) -> int:
        return min((w.deadline_ns for w in self._waiters if not w.released), default=NEVER)

    def _pass_until(self, until_ns: int) -> None:
        timeline = self._timeline
        while timeline.next_ns <= until_ns:
            timeline.step()
        self._now_ns = max(self._now_ns, until_ns)
        self.changed()


class RealClock:
    """Time as it is. One thread sleeps until the next task is over; it takes no CPU time meanwhile."""

    virtual = False

    def __init__(self, lock: threading.RLock, timeline: Timeline, launch_ns: int) -> None:
        self._changed = threading.Condition(lock)
        self._ended = threading.Condition(lock)
        self._timeline = timeline
        self._launch_ns = launch_ns
        self._start_ns = time.monotonic_ns()
        self._waiters: list[Waiter] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def now_ns(self) -> int:
        """See Clock."""
        return time.monotonic_ns() - self._start_ns

    def submitted(self) -> int:
        """See Clock."""
        if self._launch_ns >= 50_000:  # shorter sleeps than the kernel's slack are not worth having
            self.sleep(self._launch_ns)
        return self._pass()

    def sleep(self, duration_ns: int) -> None:
        """See Clock."""
        if duration_ns >= 1000:
            _holding.usleep(min(duration_ns // 1000, 999_999))

    def changed(self) -> None:
        """See Clock."""
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="aclsim-device", daemon=True)
            self._thread.start()
        self._changed.notify()

    def polled(self, target: int) -> None:
        """See Clock."""
        del target
        self._pass()

    def wait(self, done: Callable[[], bool], timeout_ns: int, holding: bool) -> bool:
        """See Clock."""
        now_ns = self._pass()
        waiter = Waiter(done, now_ns + timeout_ns if timeout_ns < NEVER else NEVER)
        if waiter.look(now_ns):
            return waiter.met
        self._waiters.append(waiter)
        try:
            while not waiter.look(self._pass()) and not self._closed:
                if holding and self._timeline.next_ns < NEVER:
                    self.sleep(max(1000, min(self._timeline.next_ns, waiter.deadline_ns) - self.now_ns()))
                elif waiter.deadline_ns < NEVER:
                    self._ended.wait(max(0.0, (waiter.deadline_ns - self.now_ns()) / 1e9))
                else:
                    self._ended.wait()
        finally:
            self._waiters.remove(waiter)
        return waiter.met

    def close(self) -> None:
        """See Clock. Called without the machine's lock."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._ended.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _pass(self) -> int:
        """Let end what is over; the time."""
        timeline, now_ns, ended = self._timeline, self.now_ns(), False
        while timeline.next_ns <= now_ns:
            timeline.step()
            ended = True
        if ended and self._look(now_ns):
            self._ended.notify_all()
        return now_ns

    def _look(self, now_ns: int) -> bool:
        """Release the calls that are over; whether there are any."""
        released = False
        for waiter in self._waiters:
            released = waiter.look(now_ns) or released
        return released

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                now_ns = self._pass()
                if self._look(now_ns):
                    self._ended.notify_all()
                next_ns = self._timeline.next_ns
                self._changed.wait(None if next_ns >= NEVER else max(0.0, (next_ns - self.now_ns()) / 1e9))

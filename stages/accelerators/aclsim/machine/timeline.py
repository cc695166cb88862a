"""Owns when queued work starts and ends: streams in order, events between them, engines one task at a time. Moves no
bytes and knows no real time.

A task is ready when everything before it in its stream is over. Copies and runs then take an engine of their device
(upload, download, compute), first ready first served; records, waits and resets take no time. All of this follows from
the moments of submission alone: the same submissions give the same times.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

RECORD, WAIT, RESET, WORK, GATE = range(5)  # kinds of tasks; a GATE ends when the host says so (blocking callbacks)
NEVER = 1 << 62


class Engine:
    """One part of a device that does one task at a time."""

    __slots__ = ("busy", "name", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.busy: Task | None = None
        self.waiting: deque[Task] = deque()


class Event:
    """An event as the device sees it.

    ``flag``: a bit that a record sets, a reset clears and a wait looks at (``create_event_with_flag``). Otherwise a
    wait is for the last record that was submitted before it.
    """

    __slots__ = ("blocked", "flag", "latest", "raised")

    def __init__(self, flag: bool = False) -> None:
        self.flag = flag
        self.latest: Task | None = None  # the record that was submitted last, and not reset since
        self.raised: Task | None = None  # the record that set the bit
        self.blocked: list[Task] = []  # waits at the head of their stream


class Task:
    """One entry of a stream: ``effect`` is what it does to memory, run by others than the timeline."""

    __slots__ = (
        "asked",
        "cause",
        "duration_ns",
        "effect",
        "end_ns",
        "engine",
        "error",
        "event",
        "kind",
        "label",
        "start_ns",
        "stream",
        "submitted_ns",
        "tick",
    )

    def __init__(self, kind: int, engine: Engine | None = None, duration_ns: int | None = 0) -> None:
        self.kind = kind
        self.engine = engine
        self.duration_ns = duration_ns  # None: over when Timeline.finish says so
        self.event: Event | None = None
        self.cause: Task | None = None  # the record that a wait waited for
        self.effect: Callable[[], None] | None = None
        self.error = 0  # the code that it leaves behind
        self.label: Any = None
        self.asked = False  # whether a query asked for it
        self.stream: Stream
        self.tick = 0
        self.submitted_ns = 0
        self.start_ns = self.end_ns = -1  # until it starts, until it is over


class Stream:
    """An in-order queue. ``ended`` is the tick of the last task that is over, ``settled`` whose effect has happened."""

    __slots__ = ("ended", "error", "handle", "owner", "queue", "settled", "submitted", "unsettled")

    def __init__(self, handle: int = 0, owner: Any = None) -> None:
        self.handle = handle
        self.owner = owner
        self.queue: deque[Task] = deque()
        self.unsettled: deque[Task] = deque()
        self.submitted = self.ended = self.settled = 0
        self.error = 0  # the first code that a task left behind and nobody was told yet


class Timeline:
    """See the module. ``on_start`` hears of work that takes its engine, ``on_end`` of every task that is over."""

    def __init__(self, on_start: Callable[[Task], None], on_end: Callable[[Task], None]) -> None:
        self._on_start = on_start
        self._on_end = on_end
        self._heap: list[tuple[int, int, Task]] = []
        self._numbered = 0
        self._movable: deque[tuple[Stream, int]] = deque()  # streams whose head may go on, and since when
        self._moving = False
        self.wait_timeout_ns = 0  # of waits for an event; 0: none
        self.wait_timeout_code = 0

    @property
    def next_ns(self) -> int:
        """When the next task will be over, NEVER when none is running."""
        heap = self._heap
        while heap and heap[0][2].end_ns >= 0:  # dropped, or a wait that was answered before its timeout
            heapq.heappop(heap)
        return heap[0][0] if heap else NEVER

    def submit(self, stream: Stream, task: Task, now_ns: int) -> None:
        """Append a task. Everything that ends before ``now_ns`` must have been let pass."""
        stream.submitted += 1
        task.stream, task.tick, task.submitted_ns = stream, stream.submitted, now_ns
        event = task.event
        if event is not None:
            if task.kind == WAIT and not event.flag:
                task.cause = event.latest
            elif task.kind == RECORD:
                event.latest = task
            elif task.kind == RESET:
                event.latest = None
        stream.queue.append(task)
        stream.unsettled.append(task)
        if len(stream.queue) == 1:
            self._move(stream, now_ns)

    def step(self) -> int:
        """Let the next task end; when that is. Only while ``next_ns`` is below NEVER."""
        at_ns, _, task = heapq.heappop(self._heap)
        if task.end_ns < 0:
            if task.kind == WAIT:
                assert task.event is not None
                task.event.blocked.remove(task)
                task.error = self.wait_timeout_code
            self.finish(task, at_ns)
        return at_ns

    def schedule(self, task: Task, at_ns: int) -> None:
        """A started task without a duration will be over at this time."""
        self._numbered += 1
        heapq.heappush(self._heap, (at_ns, self._numbered, task))

    def finish(self, task: Task, at_ns: int) -> None:
        """The task at the head of its stream is over."""
        self._end(task, at_ns)
        self._move(task.stream, at_ns)

    def drop(self, stream: Stream, at_ns: int, code: int = 0) -> None:
        """Everything queued is over without having had an effect, leaving ``code`` behind."""
        while stream.queue:
            task = stream.queue[0]
            task.effect = None
            task.error = task.error or code
            if task.event is not None and task in task.event.blocked:
                task.event.blocked.remove(task)
            if task.engine is not None and task in task.engine.waiting:
                task.engine.waiting.remove(task)
            self._end(task, at_ns)
        self._move(stream, at_ns)

    def _move(self, stream: Stream, at_ns: int) -> None:
        self._movable.append((stream, at_ns))
        if self._moving:
            return  # the loop below is under way: no recursion, however long a chain of events is
        self._moving = True
        try:
            while self._movable:
                self._advance(*self._movable.popleft())
        finally:
            self._moving = False

    def _advance(self, stream: Stream, now_ns: int) -> None:
        queue = stream.queue
        while queue:
            task = queue[0]
            if task.start_ns >= 0:
                return  # it has been looked at: it runs, waits for its engine or is blocked
            now_ns = max(now_ns, task.submitted_ns)
            task.start_ns = now_ns
            kind = task.kind
            if kind == WORK:
                self._take_engine(task, now_ns)
                return
            if kind == GATE:
                self._on_start(task)
                return
            if kind == WAIT and self._blocks(task, now_ns):
                return
            self._end(task, now_ns)

    def _blocks(self, task: Task, now_ns: int) -> bool:
        event = task.event
        assert event is not None
        if event.flag:
            task.cause = event.raised
        if task.cause is not None and task.cause.end_ns >= 0:
            return False
        if task.cause is None and not event.flag:
            return False  # never recorded: complete
        event.blocked.append(task)
        if self.wait_timeout_ns:
            self.schedule(task, now_ns + self.wait_timeout_ns)
        return True

    def _take_engine(self, task: Task, now_ns: int) -> None:
        engine = task.engine
        if engine is not None:
            if engine.busy is not None:
                engine.waiting.append(task)
                return
            engine.busy = task
        task.start_ns = now_ns
        if task.duration_ns is not None:
            self.schedule(task, now_ns + task.duration_ns)
        self._on_start(task)

    def _end(self, task: Task, at_ns: int) -> None:
        stream = task.stream
        task.end_ns = at_ns
        stream.queue.popleft()
        stream.ended = task.tick
        if task.error and not stream.error:
            stream.error = task.error
        event = task.event
        if event is not None:
            if task.kind == RECORD:
                self._raise(event, task, at_ns)
            elif task.kind == RESET:
                event.raised = None
        engine = task.engine
        if engine is not None and engine.busy is task:
            engine.busy = None
            if engine.waiting:
                self._take_engine(engine.waiting.popleft(), at_ns)
        self._on_end(task)

    def _raise(self, event: Event, record: Task, at_ns: int) -> None:
        if event.raised is None or not event.flag:
            event.raised = record  # a bit that is set already is not set anew: waits are behind the first record only
        if event.blocked:
            for wait in [w for w in event.blocked if event.flag or w.cause is record]:
                event.blocked.remove(wait)
                wait.cause = record
                self._end(wait, at_ns)
                self._move(wait.stream, at_ns)

"""Owns the state of one simulated machine: clock, timeline, memory, handles, devices, threads. Does not own calls."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.machine.clock import Clock, RealClock, VirtualClock
from stages.accelerators.aclsim.machine.compute import Computer
from stages.accelerators.aclsim.machine.device import Context, Device
from stages.accelerators.aclsim.machine.faults import Faults, Verdict
from stages.accelerators.aclsim.machine.kept import Kept
from stages.accelerators.aclsim.machine.memory import AddressBook, Block, is_device, poison
from stages.accelerators.aclsim.machine.threads import HostThreads
from stages.accelerators.aclsim.machine.timeline import GATE, NEVER, WORK, Engine, Stream, Task, Timeline
from stages.accelerators.aclsim.machine.trace import Label, Trace
from stages.accelerators.aclsim.options import SimOptions

_HANDLES = 0x00E0_0000_0000_0000  # like device addresses: nothing that a CPU could read
WATCHDOG_NS = 547_000_000_000  # after which a hanging AI Core operator is ended, on the 310P
MAX_TIMEOUT_MS = 1 << 40

T = TypeVar("T")


class Machine:
    """One simulated machine, as one process sees it.

    ``clock``, ``trace``, ``faults`` and ``devices`` are for whoever made it; everything else is for the calls.
    """

    def __init__(self, options: SimOptions) -> None:
        self.options = options
        self.lock = threading.RLock()
        self.threads = HostThreads()
        self.timeline = Timeline(self._started, self._ended)
        launch_ns = int(options.launch_us * 1000)
        self.clock: Clock = (
            VirtualClock(self.lock, self.timeline, self.threads, launch_ns)
            if options.clock == "virtual"
            else RealClock(self.lock, self.timeline, launch_ns)
        )
        self.trace = Trace(options.trace_intervals)
        self.faults = Faults(options.faults, options.state_path)
        self.computer = Computer(options, self.compute_over)
        self.book = AddressBook()
        self.kept = Kept(options)
        self.devices = [Device(i, physical, options) for i, physical in enumerate(visible(options.devices))]
        for device in self.devices:
            device.kept_bytes = self.kept.bytes_of(device.physical)
        self.objects: dict[int, Any] = {}
        self.models: dict[int, Any] = {}
        self.initialised = 0
        self.finalised = False
        self.watchdog_ns = WATCHDOG_NS
        self.verdict: Verdict | None = None  # of the call that is under way
        self.callbacks: dict[int, Any] = {}
        self.exception_callback: Callable[[int], Any] | None = None
        self.exception_infos: dict[int, tuple[int, ...]] = {}
        self.exceptions_due: deque[tuple[int, ...]] = deque()
        self.uploads: dict[int, Label] = {}  # by destination, until a run reads it
        self.written_by: dict[int, int] = {}  # device address -> number of the run that wrote it
        self._numbered = 0
        self._models_numbered = 0
        self.closed = False

    # ---- handles ---------------------------------------------------------------------------------------------------

    def new_handle(self) -> int:
        """A number that was never given out."""
        self._numbered += 1
        return _HANDLES + 64 * self._numbered

    def new_model_id(self) -> int:
        """Models are numbered from 1."""
        self._models_numbered += 1
        return self._models_numbered

    def find(self, handle: int, kind: type[T]) -> T | None:
        """The living object of this kind."""
        found = self.objects.get(handle)
        return found if isinstance(found, kind) else None

    # ---- contexts and streams --------------------------------------------------------------------------------------

    def context(self) -> Context | None:
        """The calling thread's, None when it has none or its device was reset."""
        context: Context | None = self.threads.current().context
        return context if context is not None and context.alive else None

    def stream(self, handle: int) -> Stream | int:
        """A stream of the current context, or the code of what is wrong. 0 is the default stream."""
        context = self.context()
        if context is None:
            return codes.RT_CONTEXT_NULL
        if handle == 0:
            return context.default_stream
        found = context.streams.get(handle)
        if found is not None:
            return found
        return codes.RT_STREAM_CONTEXT if isinstance(self.objects.get(handle), Stream) else codes.RT_INVALID_HANDLE

    def open_context(self, device: Device, *, default: bool) -> Context | None:
        """A new context; None when the device has no streams left."""
        if device.stream_count + 2 > 1024:
            return None
        context = Context(device, self.new_handle(), default=default)
        device.contexts[context.handle] = context
        self.objects[context.handle] = context
        return context

    def close_context(self, context: Context, *, waiting: bool = True) -> None:
        """Its streams go with it, after their work or without."""
        for stream in context.all_streams():
            if waiting:
                self.wait_for([(stream, stream.submitted)], NEVER, holding=True)
            self.timeline.drop(stream, self.clock.now_ns())
            self.objects.pop(stream.handle, None)
        context.alive = False
        context.streams.clear()
        context.device.contexts.pop(context.handle, None)
        self.objects.pop(context.handle, None)
        for thread in self.threads.known:
            if thread.context is context:
                thread.context = None
        self.clock.changed()

    # ---- work ------------------------------------------------------------------------------------------------------

    def queue(self, stream: Stream, task: Task) -> int:
        """Submit a task; 0 or the code with which the device refuses it."""
        context = stream.owner
        code: int = context.device.lost or context.failed
        if code:
            return code
        verdict = self.verdict
        if verdict is not None:
            self.verdict = None
            verdict.apply(task, self.watchdog_ns)
        self.timeline.submit(stream, task, self.clock.submitted())
        if not self.clock.virtual:
            self.clock.changed()
        return 0

    def run_now(self, task: Task) -> int:
        """Do a task of its own, without regard to streams, holding the interpreter's lock; its code."""
        context = self.context()
        if context is None:
            return codes.RT_CONTEXT_NULL
        stream = context.own_stream
        code = self.queue(stream, task)
        if code == 0:
            self.wait_for([(stream, task.tick)], NEVER, holding=True)
            code, stream.error = task.error, 0
        return code

    def wait_for(self, points: list[tuple[Stream, int]], timeout_ns: int, *, holding: bool) -> bool:
        """Until all of these (stream, tick) are over and have had their effect; False when it is too late."""
        met = self.clock.wait(lambda: all(s.ended >= tick for s, tick in points), timeout_ns, holding)
        if met:
            for stream, tick in points:
                self.settle(stream, tick)
        return met

    def settle(self, stream: Stream, tick: int) -> None:
        """Let happen what these tasks do, with everything that they come after, and nothing else."""
        if stream.settled >= tick:
            return
        path = [(stream, tick)]
        while path:
            stream, tick = path[-1]
            if stream.settled >= tick:
                path.pop()
                continue
            task = stream.unsettled[0]
            cause = task.cause
            if cause is not None and cause.stream.settled < cause.tick:
                path.append((cause.stream, cause.tick))
                continue
            self._settle_one(task)

    def seems_over(self, task: Task, target: int) -> bool:
        """What a query of ``target`` answers: not yet, the first time, on the virtual clock, whatever is the case."""
        if task.stream.settled >= task.tick:
            return True
        if self.clock.virtual and not task.asked:
            task.asked = True
            return False
        if task.end_ns < 0:
            self.clock.polled(target)
        return task.end_ns >= 0

    def tell_exceptions(self) -> None:
        """Call the exception callback for what failed, without the machine's lock."""
        while self.exceptions_due and self.exception_callback is not None:
            info = self.new_handle()
            self.exception_infos[info] = self.exceptions_due.popleft()
            try:
                self.exception_callback(info)
            finally:
                del self.exception_infos[info]

    def code_of(self, stream: Stream) -> int:
        """What the stream's work left behind; told once, for ever when the device is lost."""
        code: int = stream.owner.device.lost or stream.error
        stream.error = 0
        return code

    # ---- memory ----------------------------------------------------------------------------------------------------

    def take(self, device: Device, size: int, policy: int, kind: str) -> Block | None:
        """Device memory; None when there is not enough."""
        got = device.allocator.take(size, policy)
        if got is None:
            return None
        if device.allocator.used + device.lost_bytes + device.kept_bytes > device.total_bytes:
            device.allocator.give(*got)
            return None
        block = Block(got[0], size, kind, device=device.index, takes=got[1], poisoned=self.options.poisons)
        self.book.add(block)
        self.kept.note(device.physical, device.used_bytes)
        return block

    def give(self, block: Block) -> None:
        """Device memory is free again."""
        device = self.devices[block.device]
        self.book.remove(block)
        device.allocator.give(block.address, block.takes)
        self.kept.note(device.physical, device.used_bytes)

    def release_device(self, device: Device, *, waiting: bool) -> None:
        """All contexts go, with everything that the process holds on the device."""
        for context in list(device.contexts.values()):
            self.close_context(context, waiting=waiting and not device.lost)
        device.default_context = None
        device.set_count = 0
        device.lost = 0
        for model in [m for m in self.models.values() if m.context.device is device]:
            model.release()
        for block in [b for b in self.book.blocks() if b.device == device.index]:
            self.give(block)

    def close(self) -> None:
        """The process is over: what it holds is released, or kept (``keep_after_exit``). May be called twice."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            for device in self.devices:
                self.kept.close(device.physical, device.used_bytes)
        self.clock.close()
        self.computer.close()
        self.threads.close()

    # ---- what the timeline tells -----------------------------------------------------------------------------------

    def _started(self, task: Task) -> None:
        if task.kind == GATE:
            if task.effect is not None:
                task.effect()
        elif task.duration_ns is None:
            self.computer.start(task)

    def compute_over(self, task: Task, error: int) -> None:
        """A run that took as long as it took on the real clock is over."""
        with self.lock:
            if task.end_ns < 0:
                task.error = task.error or error
                self.timeline.finish(task, self.clock.now_ns())
                self.clock.changed()

    def _ended(self, task: Task) -> None:
        if task.kind == WORK:
            if isinstance(task.label, Label):
                self.trace.add(task)
            if task.error:
                self._failed(task)
        if not self.clock.virtual:
            self._settle_one(task)

    def _settle_one(self, task: Task) -> None:
        stream = task.stream
        stream.unsettled.popleft()
        stream.settled = task.tick
        effect = task.effect
        if effect is not None and task.kind != GATE:
            task.effect = None
            effect()

    def _failed(self, task: Task) -> None:
        context = task.stream.owner
        if self.exception_callback is not None:
            thread = threading.get_ident() & 0xFFFFFFFF
            self.exceptions_due.append((task.tick, task.stream.handle, thread, context.device.index, task.error))
        if task.error in codes.CONTEXT_LOST:
            context.device.lost = task.error
        if context.stops_on_failure and not context.failed:
            context.failed = task.error
            for stream in context.all_streams():
                if stream is not task.stream:
                    self.timeline.drop(stream, task.end_ns, task.error)


def visible(devices: int) -> list[int]:
    """Physical numbers of the devices that ASCEND_RT_VISIBLE_DEVICES leaves visible, in the order of their indices.

    As the vendor's runtime reads it: the first entry that is no device, or the same again, ends the list.
    """
    text = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if text is None:
        return list(range(devices))
    found: list[int] = []
    for entry in text.split(","):
        if not entry.strip().isdecimal() or int(entry) >= devices or int(entry) in found:
            break
        found.append(int(entry))
    return found


def engine_of(device: Device, source: int, destination: int) -> Engine | None:
    """What moves bytes between these addresses; None for a move inside the host."""
    if is_device(destination):
        return device.engines["compute" if is_device(source) else "upload"]
    return device.engines["download"] if is_device(source) else None


def poison_destination(blocks: Iterable[tuple[Block, int, int]]) -> None:
    """Fill pinned destinations of queued copies, unless other queued copies use these bytes."""
    for block, start, end in blocks:
        if all(end <= s or e <= start for s, e, task in block.pending if task.stream.settled < task.tick):
            poison(block.view(start, end - start))

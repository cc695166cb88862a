"""Owns a run in this one process: the same dispatcher and the same stages, without workers, sockets or shared memory.

For debugging (breakpoints work in every stage) and for users' own tests. The twin of ``engine``.
"""

from __future__ import annotations

import contextlib
import random
import select
import time
from collections import deque
from collections.abc import Callable, Sequence

from pipeline.observe.snapshot import EngineSnapshot
from pipeline.plan import NMS_CAPACITY, RunPlan
from pipeline.report import RunReport
from pipeline.reporting import make_report
from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.gauge import Gauge
from pipeline.runtime.link_log import LinkLog
from pipeline.runtime.outlet import Outlet
from pipeline.runtime.rings import Rings
from stages.accelerators.accelerator import Device
from stages.accelerators.registry import open_device
from stages.decode.choose import stage_of
from stages.decode.live import LiveDecode
from stages.decode.stage import Decode
from stages.errors import UserError
from stages.frames import HeapRing
from stages.infer import Executor
from stages.messages import BatchReady, InternalMessage, LinkChanged, PostTask, SlotsFreed, Stop
from stages.postprocess.stage import Postprocess
from stages.sinks.sink import Sink

IDLE_NS = 20_000_000  # longest sleep when nothing is due


class InProcessEngine:
    """One run of a plan in the calling thread. Same interface as ``engine.Engine``."""

    def __init__(
        self,
        plan: RunPlan,
        sinks: Sequence[Sink] = (),
        on_snapshot: Callable[[EngineSnapshot], None] | None = None,
        snapshot_every_ms: int = 500,
    ) -> None:
        self.plan = plan
        self.dispatcher = Dispatcher(plan, time.time_ns)
        self._outlet = Outlet(sinks, plan.publish.heartbeat_ms if plan.publish else 1000)
        self._on_snapshot = on_snapshot
        self._snapshot_every_ns = snapshot_every_ms * 1_000_000
        self._next_snapshot_ns = 0
        self._stop_reasons: list[str] = []
        self._decoders: dict[str, Decode | LiveDecode] = {}
        self._link_log = LinkLog()
        self._devices: list[Device] = []
        self._executors: dict[str, Executor] = {}
        self._nms: Postprocess | None = None
        self._gauge = Gauge(0, 0)

    def request_stop(self, reason: str) -> None:
        """First call: end the sources, finish what is under way. Second call: at once."""
        self._stop_reasons.append(reason)

    def run(self) -> RunReport:
        """Run to the end of all sources. Raises UserError when something refuses to start."""
        began_ns = time.monotonic_ns()
        cpu_ns = time.process_time_ns()
        problems: list[str] = []
        self._gauge = Gauge(began_ns, 0)
        try:
            self._outlet.open(began_ns)
            with Rings(self.plan, HeapRing) as rings:
                try:
                    self._open(rings)
                    ready_ns = time.monotonic_ns()
                    self.dispatcher.open_gates()
                    self._running()
                    ended_ns = time.monotonic_ns()
                finally:
                    self._close()
            linger_ms = self.plan.publish.linger_ms if self.plan.publish else 1000
            problems += self._outlet.close(time.monotonic_ns() + linger_ms * 1_000_000)
        finally:
            self._outlet.close(0)
        return make_report(
            self.dispatcher,
            (),
            engine_cpu_s=(time.process_time_ns() - cpu_ns) / 1e9,
            wall_s=(ended_ns - ready_ns) / 1e9,
            start_s=(ready_ns - began_ns) / 1e9,
            shared_memory_bytes=0,
            stopped_by=", ".join(self._stop_reasons),
            lost_messages=self._outlet.lost_messages,
            problems=[*problems, *self._outlet.problems],
        )

    def _open(self, rings: Rings[HeapRing]) -> None:
        models = {model.name: model for model in self.plan.models}
        max_batch = {name: batch.max_batch for name, batch in self.plan.batch.items()}
        refusals: list[str] = []
        for spec in self.plan.cameras:
            decode = stage_of(
                spec,
                models[spec.model],
                rings.frames[spec.name],
                time.monotonic_ns,
                None,
                wall_ns=time.time_ns,
                draw=random.random,
            )
            self._decoders[spec.name] = decode
            try:
                for message in decode.open():
                    self.dispatcher.receive(f"decode/{spec.name}", message)
            except UserError as error:
                refusals += error.problems
        if refusals:
            raise UserError.of(refusals)
        for spec in self.plan.cameras:
            self.dispatcher.worker_ready(f"decode/{spec.name}", "decode", self.plan.frame_slots[spec.name])
        self._nms = Postprocess(self.plan.models, self.plan.cameras, rings.outputs, max_batch, time.monotonic_ns)
        self._nms.open()
        self.dispatcher.worker_ready("nms/0", "nms", NMS_CAPACITY)
        for plan in self.plan.devices:
            device = open_device(plan.device, plan.threads, plan.options, executors=plan.executors, lanes=plan.lanes)
            self._devices.append(device)
            device.open()
            for model in models.values():
                device.load(model, max_batch[model.name])
            for index in range(plan.executors):
                executor = Executor(
                    device, models, rings.frames, rings.outputs, max_batch, plan.lanes, time.monotonic_ns
                )
                name = f"executor/{plan.device}/{index}"
                self._executors[name] = executor
                executor.open()
                self.dispatcher.worker_ready(name, "executor", plan.lanes)

    def _running(self) -> None:
        stopping = False
        while not self.dispatcher.drained:
            if self._stop_reasons and not stopping:
                stopping = True
                self.dispatcher.stop_sources()
            if len(self._stop_reasons) > 1:
                self.dispatcher.abandon("stopped")
                self.dispatcher.pump(time.monotonic_ns())
                self._outlet.deliver(self.dispatcher)
                self.dispatcher.discard_outbound("stopped")
                return
            if self._outlet.dead():
                self.dispatcher.abandon("stage_failed")
                self.dispatcher.pump(time.monotonic_ns())  # results that waited for their turn leave, to be counted
                self.dispatcher.discard_outbound("stage_failed")
                return
            moved = self._step()
            now_ns = time.monotonic_ns()
            self.dispatcher.pump(now_ns)
            self._carry()
            self._outlet.deliver(self.dispatcher)
            self._outlet.service(self.dispatcher, now_ns, time.time_ns())
            if self._on_snapshot and now_ns >= self._next_snapshot_ns:
                self._next_snapshot_ns = now_ns + self._snapshot_every_ns
                sinks = self._outlet.states
                self._on_snapshot(self._gauge.read(self.dispatcher, (), now_ns, stopping=stopping, sinks=sinks))
            if not moved and not self.dispatcher.outbox:
                self._sleep()

    def _step(self) -> bool:
        """Let every source and executor do one thing; True when any did."""
        moved = False
        for name, decode in self._decoders.items():
            if not decode.done and decode.wait_ns() == 0:
                moved = True
                for message in decode.step():
                    if isinstance(message, LinkChanged):
                        self._link_log.note(message)
                    self.dispatcher.receive(f"decode/{name}", message)
        for name, executor in self._executors.items():
            for raw in executor.finished():
                moved = True
                self.dispatcher.receive(name, raw)
        return moved

    def _carry(self) -> None:
        """Bring what the dispatcher wants sent to the stages."""
        answers: deque[tuple[str, InternalMessage]] = deque()
        while self.dispatcher.outbox:
            name, message = self.dispatcher.outbox.popleft()
            match message:
                case SlotsFreed():
                    self._decoders[name.removeprefix("decode/")].grant(message.slots)
                case BatchReady():
                    answers.extend((name, raw) for raw in self._executors[name].submit(message))
                case PostTask() if self._nms is not None:
                    answers.extend((name, done) for done in self._nms.step(message))
                case Stop():
                    answers.extend((name, last) for last in self._decoders[name.removeprefix("decode/")].stop())
                case _:
                    pass
        for name, message in answers:
            self.dispatcher.receive(name, message)

    def _sleep(self) -> None:
        now_ns = time.monotonic_ns()
        waits = [decode.wait_ns() for decode in self._decoders.values() if not decode.done]
        dues = [self._outlet.next_due_ns(now_ns), self.dispatcher.next_due_ns(), now_ns + IDLE_NS]
        dues += [now_ns + wait for wait in waits if wait is not None]
        until_ns = min(due for due in dues if due is not None)
        descriptors = [executor.wake_fd for executor in self._executors.values()]
        descriptors += [decode.wake_fd for decode in self._decoders.values() if decode.wake_fd >= 0]
        timeout_s = max(0, until_ns - now_ns) / 1e9
        if None in descriptors:
            timeout_s = min(timeout_s, 0.0005)
        select.select([fd for fd in descriptors if fd is not None], [], [], timeout_s)

    def _close(self) -> None:
        with contextlib.ExitStack() as stack:  # one that fails to close keeps none of the others from it
            for device in self._devices:
                stack.callback(device.close)
            for executor in self._executors.values():
                stack.callback(executor.close)
            for decode in self._decoders.values():
                stack.callback(decode.close)
            if self._nms is not None:
                stack.callback(self._nms.close)


def run(plan: RunPlan, sinks: Sequence[Sink] = ()) -> RunReport:
    """Run a plan in this process and give its report."""
    return InProcessEngine(plan, sinks).run()

"""Owns a run in processes: one loop around the dispatcher, the workers' socket, their sentinels and the sinks.

The loop only moves messages; what to do with them is decided in ``runtime.dispatch``, when to restart in
``runtime.policy``. States: starting → running → draining → leaving, each with a deadline from ``plan.limits``.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import zmq

from pipeline.control.desk import ControlDesk
from pipeline.observe.logs import redact
from pipeline.observe.snapshot import EngineSnapshot
from pipeline.plan import RunPlan
from pipeline.report import RunReport
from pipeline.reporting import make_report
from pipeline.runtime.crew import crew
from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.fleet import Fleet
from pipeline.runtime.gauge import Gauge
from pipeline.runtime.link_log import LinkLog
from pipeline.runtime.losses import Losses
from pipeline.runtime.outlet import Outlet
from pipeline.runtime.quarantine import Quarantine
from pipeline.runtime.rings import Rings, shared_memory_bytes
from pipeline.runtime.supervisor import LOOK_NS, Supervisor
from pipeline.runtime.waiting import Waiting
from pipeline.runtime.worker_process import WorkerProcess
from pipeline.transport.arena import SharedRing
from pipeline.transport.channel import EngineChannel, endpoint, run_folder
from stages.errors import UserError
from stages.messages import (
    Figures,
    FrameReady,
    Goodbye,
    Hello,
    InternalMessage,
    LinkChanged,
    PostDone,
    RawOutput,
    Ready,
    Refused,
    Stop,
    WorkerFailed,
    WorkerStats,
)
from stages.sinks.sink import Sink

OF_EVERY_FRAME = frozenset({FrameReady, RawOutput, PostDone})
LOG = logging.getLogger("campipe.engine")
MESSAGES_PER_TURN = 2000  # then the sinks and timers get their turn
LEAVE_NS = 3_000_000_000  # how long workers may take to say Goodbye
IDLE_CHORES_NS = 30_000_000  # and, when no message comes, this much later
CHORES_NS = 20_000_000  # restarts, hangs, subscribers, heartbeat: looked at this often, not with every message
LAST_WORDS_NS = 30_000_000  # for what a dead worker sent to arrive
RESULT_HANGS = 3  # work that is not done after so many times limits.hang_ms will never be; mostly less is enough
REFUSAL_NS = 3_000_000_000  # once one worker has refused, how long the others may take to tell their problems too


class Engine:
    """One run of a plan. ``run`` blocks; ``request_stop`` may be called from a signal handler or another thread.

    With a ``desk`` its cameras can be changed while it runs.
    """

    def __init__(
        self,
        plan: RunPlan,
        sinks: Sequence[Sink] = (),
        on_snapshot: Callable[[EngineSnapshot], None] | None = None,
        snapshot_every_ms: int = 500,
        desk: ControlDesk | None = None,
    ) -> None:
        self.plan = plan
        self.dispatcher = Dispatcher(plan, time.time_ns)
        self._outlet = Outlet(sinks, plan.publish.heartbeat_ms if plan.publish else 1000)
        self._on_snapshot = on_snapshot
        self._snapshot_every_ns = snapshot_every_ms * 1_000_000
        self._next_snapshot_ns = 0
        self._next_chores_ns = 0
        self._losses = Losses(self.dispatcher)
        self._stop_reasons: list[str] = []
        self._strays = 0
        self._desk = desk
        self._waiting = Waiting()
        self._link_log = LinkLog()
        self._channel: EngineChannel
        self._supervisor: Supervisor
        self._gauge: Gauge
        self._fleet: Fleet
        self._token = secrets.token_hex(16)

    def request_stop(self, reason: str) -> None:
        """First call: end the sources, finish what is under way. Second call: at once."""
        self._stop_reasons.append(reason)
        self._waiting.wake()

    # --- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> RunReport:
        """Run to the end of all sources, or until stopped. Raises UserError when something refuses to start."""
        began_ns = time.monotonic_ns()
        with contextlib.ExitStack() as stack:
            stack.callback(_raise_descriptors())
            folder = stack.enter_context(run_folder())
            self._outlet.open(began_ns)
            stack.callback(self._outlet.close, began_ns)
            rings = stack.enter_context(Rings(self.plan, SharedRing.create))
            self._open(stack, folder, rings, began_ns)
            self._starting(began_ns)
            ready_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
            self._running()
            ended_ns = time.monotonic_ns()
            self._leaving()
            self._losses.problems += self._outlet.close(time.monotonic_ns() + self._linger_ns)
            return make_report(
                self.dispatcher,
                [*self._supervisor.workers.values(), *self._supervisor.departed.values()],
                engine_cpu_s=(time.process_time_ns() - cpu_ns) / 1e9,
                wall_s=(ended_ns - ready_ns) / 1e9,
                start_s=(ready_ns - began_ns) / 1e9,
                shared_memory_bytes=self._fleet.shared_bytes,
                stopped_by=", ".join(self._stop_reasons),
                lost_messages=self._outlet.lost_messages,
                problems=[*self._losses.problems, *self._losses.failed_cameras, *self._outlet.problems],
            )

    @property
    def _linger_ns(self) -> int:
        if len(self._stop_reasons) > 1:
            return 0
        return (self.plan.publish.linger_ms if self.plan.publish else 1000) * 1_000_000

    def _open(self, stack: contextlib.ExitStack, folder: Path, rings: Rings[SharedRing], now_ns: int) -> None:
        self._waiting.open()
        stack.callback(self._waiting.close)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stack.callback(context.term)
        self._channel = EngineChannel(context, endpoint(folder))
        stack.callback(self._channel.close)
        self._channel.open()
        self._fleet = Fleet(self.plan, self.dispatcher, rings, self._outlet, self._tell)
        stack.callback(self._fleet.close)
        self._supervisor = Supervisor(
            endpoint(folder),
            str(folder),
            self._token,
            hang_ns=self.plan.limits.hang_ms * 1_000_000,
            start_ns=self.plan.limits.start_ms * 1_000_000,
            needed=self._losses.needed,
            on_lost=self._losses.lost,
            on_given_up=self._given_up,
            on_gone=self._gone,
            on_start=self._fleet.starting,
            wake=self._waiting.wake,
        )
        stack.callback(self._supervisor.close)
        self._supervisor.open()
        self._fleet.attend(self._supervisor)
        if self._desk is not None:
            self.dispatcher.changes.stay = True
            self._desk.open(folder)
            stack.callback(self._desk.close)
        self._gauge = Gauge(now_ns, sum(shared_memory_bytes(self.plan).values()))
        self.dispatcher.on_quarantine = Quarantine(self.plan.limits.quarantine, self.dispatcher.cameras, rings).keep
        for worker in crew(self.plan, rings):
            self._supervisor.add(worker, now_ns)

    def _starting(self, began_ns: int) -> None:
        """Until every worker is ready. Sources wait for the gates, so no frame is decoded before."""
        deadline_ns = began_ns + self.plan.limits.start_ms * 1_000_000
        while True:
            self._turn(deadline_ns)
            now_ns = time.monotonic_ns()
            waiting = [w for w in self._supervisor.workers.values() if w.state in {"starting", "restarting"}]
            if self._losses.refused_ns is not None and (not waiting or now_ns > self._losses.refused_ns + REFUSAL_NS):
                raise UserError.of(sorted(set(self._losses.refusals)))
            if not waiting or self._stop_reasons or self._losses.problems:
                break
            if now_ns > deadline_ns:
                names = ", ".join(f"{w.name} ({w.last_why})" if w.last_why else w.name for w in waiting)
                self._losses.problem(
                    f"{names}: not ready within {self.plan.limits.start_ms / 1000:g} s; see limits.start_ms"
                )
                break
        if self._losses.problems or self._stop_reasons:
            return
        self.dispatcher.open_gates()
        self._supervisor.begun = True

    def _running(self) -> None:
        """Until every camera has ended and everything is told, or the deadline of a stop has passed."""
        deadline_ns: int | None = None
        while not self.dispatcher.drained:
            if self._stop_reasons and deadline_ns is None:
                LOG.info("stopping: %s; finishing what is under way", self._stop_reasons[0])
                deadline_ns = time.monotonic_ns() + self.plan.limits.stop_ms * 1_000_000
                self._supervisor.phase = "draining"
                self.dispatcher.stop_sources()
            at_once = len(self._stop_reasons) > 1 or bool(self._losses.problems) or self._outlet.dead()
            late = deadline_ns is not None and time.monotonic_ns() > deadline_ns
            if at_once or late:
                if late:
                    self._losses.problem(
                        f"not drained within {self.plan.limits.stop_ms / 1000:g} s; see limits.stop_ms"
                    )
                self._abandon()
                return
            self._turn(deadline_ns)

    def _abandon(self) -> None:
        broken = bool(self._losses.problems) or self._outlet.dead()
        self.dispatcher.abandon("stage_failed" if broken and not self._stop_reasons else "stopped")
        self.dispatcher.pump(time.monotonic_ns())
        self._outlet.deliver(self.dispatcher)
        left = self.dispatcher.discard_outbound("stage_failed" if broken else "stopped")
        if left:
            LOG.warning("%d messages were not taken by the sinks any more", left)

    def _leaving(self) -> None:
        """Ask the workers to leave, then kill. (They ignore SIGTERM: sent to a whole group, it is meant for us.)"""
        self._supervisor.phase = "leaving"
        at_once = len(self._stop_reasons) > 1
        self._supervisor.end_starting()
        for worker in self._supervisor.alive:
            for name in worker.endpoints:
                self._channel.send(worker.address(name), Stop())
        deadline_ns = time.monotonic_ns() + (0 if at_once else LEAVE_NS)
        while self._supervisor.alive and time.monotonic_ns() < deadline_ns:
            self._turn(deadline_ns)
        self._supervisor.end_all(signal.SIGKILL)
        self._snapshot(time.monotonic_ns(), last=True)

    # --- one turn of the loop -----------------------------------------------------------------------------------------

    def _turn(self, deadline_ns: int | None) -> None:
        self._wait(deadline_ns)
        self._receive()
        now_ns = time.monotonic_ns()
        if now_ns >= self._next_chores_ns:
            self._next_chores_ns = now_ns + CHORES_NS
            self._supervisor.tick(now_ns)
            ceiling_ns = RESULT_HANGS * self._supervisor.hang_ns
            for name in self.dispatcher.overdue(now_ns, ceiling_ns, self._supervisor.awake_since_ns):
                self._supervisor.kill_for_hang(self._supervisor.by_endpoint[name], now_ns)
            self._outlet.service(self.dispatcher, now_ns, time.time_ns())
            if self._supervisor.begun and self._supervisor.phase == "running":
                self._change(now_ns)
        self.dispatcher.start(now_ns)
        self._send()  # workers begin while results are made ready to leave
        self.dispatcher.settle(now_ns)
        waited = self.dispatcher.waits_for_sinks
        if self._outlet.deliver(self.dispatcher) and waited:
            self.dispatcher.pump(now_ns)  # batches that waited for slow sinks may start
        self._send()
        self._snapshot(now_ns)

    def _change(self, now_ns: int) -> None:
        """Whatever is asked of the cameras, and what earlier changes have been waiting for."""
        if self._desk is not None:
            self._desk.service(self._fleet, now_ns, self._read_gauge)
        self._fleet.step(now_ns)
        self._link_log.keep(self.dispatcher.cameras)

    def _wait(self, deadline_ns: int | None) -> None:
        now_ns = time.monotonic_ns()
        supervisor_ns = self._supervisor.next_due_ns(now_ns)
        dues = [
            self._outlet.next_due_ns(now_ns) if self._outlet.blocked else self._next_chores_ns + IDLE_CHORES_NS,
            self.dispatcher.next_due_ns(),
            None if supervisor_ns is None else max(supervisor_ns, now_ns + LOOK_NS),
            deadline_ns,
            self._next_snapshot_ns if self._on_snapshot or self.plan.observe else None,
        ]
        due_ns = min(due for due in dues if due is not None)
        readable = self._waiting.wait(self._channel.socket, self._supervisor, max(0, due_ns - now_ns))
        dead = self._supervisor.attend(readable, time.monotonic_ns())
        if dead:
            self._last_words(dead)
            for worker in dead:
                self._supervisor.buried(worker, time.monotonic_ns())

    def _last_words(self, dead: list[WorkerProcess]) -> None:
        """Take in what the dead said before: a process's end is seen sooner than the last bytes on its socket."""
        assert self._channel.socket is not None
        self._receive()
        until_ns = time.monotonic_ns() + LAST_WORDS_NS
        while not all(worker.said_goodbye or worker.last_words or worker.state == "refused" for worker in dead):
            left_ms = (until_ns - time.monotonic_ns()) // 1_000_000
            if left_ms <= 0 or not self._channel.socket.poll(left_ms):
                return
            self._receive()

    def _receive(self) -> None:
        for _ in range(MESSAGES_PER_TURN):
            try:
                received = self._channel.receive()
            except (msgspec.DecodeError, ValueError) as error:
                self._strays += 1
                if str(self._strays).strip("0") == "1":  # the 1st, 10th, 100th: whoever sends them may send many
                    LOG.error("a message that is none was ignored (number %d): %s", self._strays, error)
                continue
            if received is None:
                return
            found = self._supervisor.find(received[0])
            if found is not None:
                self._handle(*found, received[1])

    def _handle(self, worker: WorkerProcess, name: str, message: InternalMessage) -> None:
        worker.heard_ns[name] = time.monotonic_ns()
        if type(message) in OF_EVERY_FRAME and name in worker.greeted:  # most are: held against no others first
            self.dispatcher.receive(name, message)
            return
        if isinstance(message, Hello):
            if secrets.compare_digest(message.token, self._token):
                worker.greeted.add(name)
                self._fleet.hear()
                begin = self._fleet.begin(name.removeprefix("decode/"), worker.heard_ns[name])
                if worker.kind == "decode" and begin is not None:
                    self._tell(worker, name, begin)
            return
        if name not in worker.greeted:
            return
        match message:
            case Ready():
                worker.ready.add(name)
                if worker.kind == "observe":
                    LOG.info("figures at http://%s/metrics, health at /healthz", message.detail.get("address"))
                self.dispatcher.worker_ready(name, worker.kind, message.capacity)
                if len(worker.ready) == len(worker.endpoints):
                    worker.state = "ready"
                if self._supervisor.phase == "draining" and worker.kind == "decode":
                    self._tell(worker, name, Stop())
            case WorkerStats():
                worker.stats[name] = message
            case Goodbye():
                worker.said_goodbye = True
            case WorkerFailed():
                worker.last_words = redact(message.error)
                LOG.error("%s: %s", worker.name, message.error, extra=self._losses.about(worker))
                LOG.debug("%s", message.traceback, extra=self._losses.about(worker))
            case Refused():
                self._losses.refused(worker, message, self._supervisor.workers.values())
            case _:
                if isinstance(message, LinkChanged):
                    self._link_log.note(message)
                self.dispatcher.receive(name, message)

    def _tell(self, worker: WorkerProcess, name: str, message: InternalMessage) -> None:
        self._channel.send(worker.address(name), message)

    def _send(self) -> None:
        self._fleet.tell()  # before any work that needs it
        while self.dispatcher.outbox:
            name, message = self.dispatcher.outbox.popleft()
            if (worker := self._supervisor.by_endpoint.get(name)) is not None:
                self._tell(worker, name, message)

    def _snapshot(self, now_ns: int, *, last: bool = False) -> None:
        exporter = self._supervisor.workers.get("observe")
        if (self._on_snapshot is None and exporter is None) or (now_ns < self._next_snapshot_ns and not last):
            return
        self._next_snapshot_ns = now_ns + self._snapshot_every_ns
        snapshot = self._read_gauge(now_ns)
        if self._on_snapshot is not None:
            self._on_snapshot(snapshot)
        if exporter is not None and exporter.state == "ready":
            self._channel.send(exporter.address("observe"), Figures(msgspec.msgpack.encode(snapshot)))

    def _read_gauge(self, now_ns: int) -> EngineSnapshot:
        return self._gauge.read(
            self.dispatcher,
            self._supervisor.workers.values(),
            now_ns,
            shared_memory_bytes=self._fleet.shared_bytes,
            subscribers=self._outlet.subscribers,
            lost_messages=self._outlet.lost_messages,
            stopping=bool(self._stop_reasons),
            sinks=self._outlet.states,
        )

    def _gone(self, worker: WorkerProcess) -> None:
        if worker.kind == "decode":
            self._fleet.gone(worker, time.monotonic_ns())

    def _given_up(self, worker: WorkerProcess, why: str) -> None:
        self._losses.given_up(worker, why, self._supervisor.workers.values())


def _raise_descriptors() -> Callable[[], None]:
    """Let this process open as many files as it is allowed to (the soft limit is often 1024); gives the way back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

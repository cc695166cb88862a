"""Owns the worker processes: starting, noticing death and silence, restarting within a budget, ending. Moves no frames.

Decode and NMS workers come from a forkserver that has the heavy modules loaded already (a restart then takes
milliseconds and most pages are shared). Whatever opens a device is spawned: no vendor runtime survives a fork.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess

from pipeline.observe import logs
from pipeline.runtime.policy import RestartPolicy
from pipeline.runtime.starting import RunForkServer, environment, starting_processes, stop_server
from pipeline.runtime.work import Work, WorkerStart
from pipeline.runtime.worker import main as worker_main
from stages.messages import WorkerStats

PRELOAD = ["pipeline.runtime.worker", "stages.decode.stage", "stages.postprocess.stage", "cv2", "av"]
# Thread pools of numeric libraries would multiply with the workers; each worker is one thread by design.
WORKER_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
LEAVE_NS = 3_000_000_000  # for a worker that was told to leave
KILLED_WITHIN_S = 5.0  # SIGKILL is quick unless the process waits for a device in the kernel
CRASH_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})


@dataclass(slots=True)
class WorkerProcess:
    """One worker over all its incarnations."""

    name: str
    kind: str  # decode | executor | nms
    endpoints: tuple[str, ...]
    work: Work
    policy: RestartPolicy
    spawned: bool  # spawn instead of forkserver
    number: int = 0  # unlike any other's of this run
    wanted: bool = True  # False: it was told to leave and is not started again
    leave_by_ns: int = 0  # when one that is not wanted is killed
    state: str = "starting"  # starting | ready | restarting | refused | failed | gone
    incarnation: int = 0
    process: BaseProcess | None = None
    pid: int = 0
    greeted: set[str] = field(default_factory=set)  # endpoints that said Hello with the right token
    ready: set[str] = field(default_factory=set)
    pid_descriptor: int = -1
    restart_at_ns: int = 0
    started_ns: int = 0
    heard_ns: dict[str, int] = field(default_factory=dict)  # by endpoint
    deaths: int = 0
    killed_for_hang: bool = False
    last_words: str = ""
    said_goodbye: bool = False
    stats: dict[str, WorkerStats] = field(default_factory=dict)
    past_cpu_ns: int = 0
    past_busy_ns: int = 0
    past_items: int = 0
    largest_private_bytes: int = 0

    def address(self, endpoint: str) -> str:
        """Address of this incarnation on the engine's socket."""
        return f"{endpoint}#{self.incarnation}"

    @property
    def cpu_ns(self) -> int:
        """CPU time of all incarnations."""
        return self.past_cpu_ns + sum(stats.cpu_ns for stats in self.stats.values())

    @property
    def busy_ns(self) -> int:
        """Busy time of all incarnations and threads."""
        return self.past_busy_ns + sum(stats.busy_ns for stats in self.stats.values())

    @property
    def items(self) -> int:
        """Frames worked on by all incarnations."""
        return self.past_items + sum(stats.items for stats in self.stats.values())

    @property
    def private_bytes(self) -> int:
        """Private memory of the present incarnation."""
        return max((stats.private_bytes for stats in self.stats.values()), default=0)

    def settle_stats(self) -> None:
        """Add the counters of an incarnation that is over to the past."""
        self.largest_private_bytes = max(self.largest_private_bytes, self.private_bytes)
        self.past_cpu_ns, self.past_busy_ns, self.past_items = self.cpu_ns, self.busy_ns, self.items
        self.stats.clear()


class Supervisor:
    """All workers of a run. Calls ``on_lost(worker, why, blame)`` when one died, ``on_given_up(worker, why)`` for good,
    ``on_gone(worker)`` when one left in order, ``on_start(worker)`` before each start: it may renew the worker's work.

    ``phase``: *running*; *draining*: a decode worker that dies is not started again; *leaving*: none is.
    """

    def __init__(
        self,
        where: str,
        run_folder: str,
        token: str,
        *,
        hang_ns: int,
        start_ns: int,
        needed: Callable[[WorkerProcess], bool],
        on_lost: Callable[[WorkerProcess, str, bool], None],
        on_given_up: Callable[[WorkerProcess, str], None],
        on_gone: Callable[[WorkerProcess], None],
        on_start: Callable[[WorkerProcess], None],
    ) -> None:
        self.workers: dict[str, WorkerProcess] = {}
        self.departed: dict[str, WorkerProcess] = {}  # by kind: what those did that were forgotten
        self.begun = False  # all that the run began with was ready
        self._numbers = 0
        self._on_gone = on_gone
        self._on_start = on_start
        self.phase = "running"
        self.changes = 0
        self.by_endpoint: dict[str, WorkerProcess] = {}
        self._where = where
        self._run_folder = run_folder
        self._token = token
        self.hang_ns = hang_ns
        self._start_ns = start_ns
        self._needed = needed
        self._on_lost = on_lost
        self._on_given_up = on_given_up
        self._forkserver: ForkServerContext = multiprocessing.get_context("forkserver")
        self._spawn: SpawnContext = multiprocessing.get_context("spawn")
        self._parent_read: Connection | None = None
        self._parent_write: Connection | None = None
        self._server: RunForkServer | None = None
        self._last_tick_ns = 0

    def open(self) -> None:
        """Prepare; starts nothing."""
        # The write end stays in this process only: when it dies, however it dies, every worker reads end-of-file.
        self._parent_read, self._parent_write = multiprocessing.Pipe(duplex=False)
        self._server = RunForkServer(self._run_folder)
        self._server.open()
        self._forkserver.set_forkserver_preload(PRELOAD)

    def add(self, worker: WorkerProcess, now_ns: int) -> None:
        """Take a worker on and start it."""
        self._numbers += 1
        worker.number = self._numbers
        self.workers[worker.name] = worker
        self.by_endpoint.update(dict.fromkeys(worker.endpoints, worker))
        self._start(worker, now_ns)

    def door(self, worker: WorkerProcess) -> str:
        """Where rings are handed to the worker while it runs."""
        return f"{self._run_folder}/rings-{worker.number}"

    def let_go(self, worker: WorkerProcess, now_ns: int) -> bool:
        """The worker is not wanted any more; True when it listens, and is to be told to stop."""
        worker.wanted = False
        worker.leave_by_ns = now_ns + LEAVE_NS
        if worker.process is None:
            worker.state = "gone"
            return False
        if worker.state == "starting":
            worker.process.kill()  # it holds nothing, and may not listen yet
            return False
        return True

    def take_up(self, worker: WorkerProcess, now_ns: int) -> None:
        """Start a worker again that has left, with its whole budget of restarts."""
        worker.wanted = True
        worker.policy = RestartPolicy(worker.policy.budget, worker.policy.window_ns)
        self._start(worker, now_ns)

    def forget(self, worker: WorkerProcess) -> None:
        """Drop a worker that has left for good; what it did is still counted."""
        worker.settle_stats()
        total = self.departed.get(worker.kind)
        if total is None:
            total = WorkerProcess(f"{worker.kind}/departed", worker.kind, (), worker.work, worker.policy, False)
            total.state = "departed"
            self.departed[worker.kind] = total
        total.past_cpu_ns += worker.past_cpu_ns
        total.past_busy_ns += worker.past_busy_ns
        total.past_items += worker.past_items
        total.deaths += worker.deaths
        total.largest_private_bytes = max(total.largest_private_bytes, worker.largest_private_bytes)
        self.workers.pop(worker.name, None)
        for endpoint in worker.endpoints:
            self.by_endpoint.pop(endpoint, None)
        self.changes += 1

    def _start(self, worker: WorkerProcess, now_ns: int) -> None:
        self._on_start(worker)
        worker.incarnation += 1
        worker.state = "starting"
        worker.ready.clear()
        worker.greeted.clear()
        worker.last_words = ""
        worker.killed_for_hang = worker.said_goodbye = False
        worker.heard_ns = dict.fromkeys(worker.endpoints, now_ns)
        worker.started_ns = now_ns
        addresses = tuple(worker.address(endpoint) for endpoint in worker.endpoints)
        assert self._parent_read is not None
        start = WorkerStart(
            worker.name,
            addresses,
            self._where,
            self._run_folder,
            self._token,
            self.door(worker),
            self._parent_read,
            worker.work,
            logs.settings(),
        )
        context = self._spawn if worker.spawned else self._forkserver
        for attempt in (1, 2):
            process = context.Process(target=worker_main, args=(start,), name=f"campipe {worker.name}", daemon=True)
            try:
                with starting_processes(), environment(WORKER_ENVIRONMENT):
                    process.start()
                break
            except (EOFError, OSError) as error:
                if attempt == 1 and isinstance(error, EOFError | ConnectionError | FileNotFoundError):
                    with contextlib.suppress(OSError):
                        stop_server(forkserver._forkserver)  # it died just now; the next start makes a new one
                    continue
                worker.state = "failed"
                self._on_given_up(worker, f"{worker.name} can't be started: {error or type(error).__name__}")
                return
        worker.process = process
        worker.pid = process.pid or 0
        with contextlib.suppress(OSError):  # it is dead already, or the kernel is older than 5.3
            worker.pid_descriptor = os.pidfd_open(worker.pid)
        self.changes += 1

    @property
    def sentinels(self) -> dict[int, WorkerProcess]:
        """Descriptors that become readable when a worker dies; another set each time that ``changes`` grows."""
        return {w.process.sentinel: w for w in self.workers.values() if w.process is not None}

    @staticmethod
    def _make_sure(worker: WorkerProcess) -> None:
        """See to it that the process is really gone before its slots are given to another.

        The sentinel of a worker from the forkserver tells the death of either of them.
        """
        descriptor, worker.pid_descriptor = worker.pid_descriptor, -1
        if descriptor < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            gone = select.poll()
            gone.register(descriptor, select.POLLIN)
            gone.poll(int(KILLED_WITHIN_S * 1000))
        os.close(descriptor)

    def find(self, address: str) -> tuple[WorkerProcess, str] | None:
        """The worker and endpoint that an address belongs to; None for strangers and past incarnations."""
        endpoint, _, incarnation = address.rpartition("#")
        worker = self.by_endpoint.get(endpoint)
        if worker is None or worker.process is None or incarnation != str(worker.incarnation):
            return None
        return worker, endpoint

    def buried(self, worker: WorkerProcess, now_ns: int) -> None:
        """A worker's process has ended: tell, and plan the next incarnation unless its end was in order."""
        process, worker.process = worker.process, None
        if process is None:
            return
        self.changes += 1
        self._make_sure(worker)
        exit_code = self._reap(process)
        worker.settle_stats()
        if worker.state == "refused":
            self._on_gone(worker)
            return
        if self.phase == "leaving" or worker.said_goodbye or not worker.wanted or not self._needed(worker):
            worker.state = "gone"
            self._on_gone(worker)
            return
        worker.deaths += 1
        crashed = exit_code < 0 and -exit_code in CRASH_SIGNALS
        raised = bool(worker.last_words) and not worker.last_words.startswith("DeviceFailed")
        blame = worker.state == "ready" and (crashed or raised or worker.killed_for_hang)
        why = self.why(worker, exit_code)
        if self.phase == "draining" and worker.kind == "decode":
            worker.state = "gone"
            self._on_lost(worker, why, blame)
            return
        delay_ns = worker.policy.died(now_ns)
        worker.state = "failed" if delay_ns is None else "restarting"
        worker.restart_at_ns = now_ns + (delay_ns or 0)
        self._on_lost(worker, why, blame)
        if delay_ns is None:
            self._on_given_up(worker, f"{why}; its budget of restarts is spent")

    @staticmethod
    def _reap(process: BaseProcess) -> int:
        """Its exit code; a process that can't be reaped (it waits for a device in the kernel) is left to init."""
        process.join(KILLED_WITHIN_S)
        exit_code = process.exitcode
        if exit_code is not None:
            process.close()
        return exit_code or 0

    @staticmethod
    def why(worker: WorkerProcess, exit_code: int) -> str:
        """One sentence on how a worker ended."""
        if worker.killed_for_hang:
            return f"{worker.name} was silent for too long and was killed"
        if worker.last_words:
            return f"{worker.name} failed: {worker.last_words}"
        if exit_code < 0:
            with contextlib.suppress(ValueError):
                return f"{worker.name} was ended by {signal.Signals(-exit_code).name}"
        return f"{worker.name} ended with status {exit_code}"

    def tick(self, now_ns: int) -> None:
        """Start what is due, and kill what has been silent for too long."""
        if now_ns - self._last_tick_ns > self.hang_ns // 4:
            for worker in self.workers.values():  # we ourselves were stopped or asleep: nobody could be heard
                worker.heard_ns = dict.fromkeys(worker.endpoints, now_ns)
        self._last_tick_ns = now_ns
        if self.phase == "leaving":
            return
        for worker in self.workers.values():
            if worker.state == "restarting" and now_ns >= worker.restart_at_ns:
                if self.phase == "draining" and worker.kind == "decode":
                    worker.state = "gone"
                    self._on_lost(worker, f"{worker.name} is not started again: stopping", False)
                else:
                    self._start(worker, now_ns)
            elif not worker.wanted:
                if worker.process is not None and now_ns > worker.leave_by_ns:
                    worker.process.kill()
            elif (
                worker.state == "starting"
                and (self.begun or worker.incarnation > 1)
                and now_ns - worker.started_ns > self._start_ns
            ):
                self.kill_for_hang(worker, now_ns)  # the run's own start has its deadline in the engine
            elif worker.state == "ready" and now_ns - min(worker.heard_ns.values()) > self.hang_ns:
                self.kill_for_hang(worker, now_ns)

    @staticmethod
    def kill_for_hang(worker: WorkerProcess, now_ns: int) -> None:
        """End a worker that gives no sign, or no result."""
        worker.killed_for_hang = True
        worker.heard_ns = dict.fromkeys(worker.endpoints, now_ns)
        Supervisor._signal(worker, signal.SIGKILL)

    @staticmethod
    def _signal(worker: WorkerProcess, signal_number: int) -> None:
        """By its descriptor: the forkserver reaps its children, so the number of a dead one may be somebody else's."""
        with contextlib.suppress(ProcessLookupError):
            if worker.pid_descriptor >= 0:
                signal.pidfd_send_signal(worker.pid_descriptor, signal_number)
            elif worker.process is not None and worker.process.pid is not None:
                os.kill(worker.process.pid, signal_number)

    def next_due_ns(self) -> int | None:
        """When ``tick`` has a restart to do."""
        return min((w.restart_at_ns for w in self.workers.values() if w.state == "restarting"), default=None)

    @property
    def alive(self) -> list[WorkerProcess]:
        """Workers that have a process."""
        return [worker for worker in self.workers.values() if worker.process is not None]

    def end_all(self, signal_number: int) -> None:
        """Send a signal to every worker that still has a process."""
        for worker in self.alive:
            self._signal(worker, signal_number)

    def close(self) -> None:
        """Kill what is left, reap it, let go of the pipe; may be called twice."""
        self.end_all(signal.SIGKILL)
        for worker in self.alive:
            process, worker.process = worker.process, None
            if process is not None:
                self._make_sure(worker)
                self._reap(process)
        if self._server is not None:
            self._server.close()
            self._server = None
        for end in (self._parent_write, self._parent_read):
            if end is not None:
                end.close()
        self._parent_read = self._parent_write = None

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
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Final

from pipeline.observe import logs
from pipeline.runtime.launching import Launched, Launcher
from pipeline.runtime.policy import RestartPolicy
from pipeline.runtime.run_forkserver import RunForkServer
from pipeline.runtime.work import WorkerStart
from pipeline.runtime.worker_process import WorkerProcess

PRELOAD: Final = [
    "pipeline.runtime.forkserver_tie",
    *("pipeline.runtime.worker", "stages.decode.choose", "stages.postprocess.stage"),
    *("cv2", "av", "av.subtitles.stream"),
    "pipeline.runtime.forkserver_heap",  # the last one
]
LEAVE_NS: Final = 3_000_000_000  # for a worker that was told to leave
KILLED_WITHIN_NS: Final = 5_000_000_000  # SIGKILL is quick unless the process waits for a device in the kernel
EXIT_CODE_WITHIN_NS: Final = 1_000_000_000  # the forkserver tells it, which may be stopped
LOOK_NS: Final = 5_000_000  # whether an end is complete
AWAKE_NS: Final = 1_000_000_000  # a loop that did nothing for so long was stopped, or its machine was
CRASH_SIGNALS: Final = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})


class Supervisor:
    """All workers of a run. Calls ``on_lost(worker, why, blame)`` when one died, ``on_given_up(worker, why)`` for good,
    ``on_gone(worker)`` when one left in order, ``on_start(worker)`` before each start: it may renew the worker's work.
    Calls ``wake`` from a thread when ``attend`` has something to do. No method waits, but for ``close``.

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
        wake: Callable[[], None],
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
        self._server = RunForkServer(run_folder, PRELOAD)
        self._launcher = Launcher(self._server, start_ns, wake)
        self._ending: list[WorkerProcess] = []
        self.awake_since_ns = 0  # since when this loop has had its turns without a long pause
        self._parent_read: Connection | None = None
        self._parent_write: Connection | None = None
        self._last_tick_ns = 0

    def open(self) -> None:
        """Prepare; starts nothing."""
        # The write end stays in this process only: when it dies, however it dies, every worker reads end-of-file.
        self._parent_read, self._parent_write = multiprocessing.Pipe(duplex=False)
        self._launcher.open()

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
        if not worker.running:
            worker.state = "gone"
            return False
        if worker.state == "starting":
            self._signal(worker, signal.SIGKILL)  # it holds nothing, and may not listen yet
            return False
        return True

    def take_up(self, worker: WorkerProcess, now_ns: int) -> None:
        """Start a worker again that has left, with its whole budget of restarts."""
        worker.wanted = True
        worker.policy = RestartPolicy(worker.policy.budget, worker.policy.window_ns)
        self._start(worker, now_ns)

    def forget(self, worker: WorkerProcess) -> None:
        """Drop a worker that has left for good; what it did is still counted."""
        total = self.departed.get(worker.kind)
        if total is None:
            total = WorkerProcess(f"{worker.kind}/departed", worker.kind, (), worker.work, worker.policy, False)
            total.state = "departed"
            self.departed[worker.kind] = total
        total.absorb(worker)
        self.workers.pop(worker.name, None)
        for endpoint in worker.endpoints:
            self.by_endpoint.pop(endpoint, None)
        self.changes += 1

    def _start(self, worker: WorkerProcess, now_ns: int) -> None:
        self._on_start(worker)
        worker.begin_incarnation(now_ns)
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
        self._launcher.ask(worker, start)

    @property
    def launching(self) -> bool:
        """Whether a process is being started: what it is given must not be closed meanwhile."""
        return any(worker.launching for worker in self.workers.values())

    def _launched(self, launched: Launched, now_ns: int) -> None:
        worker = launched.worker
        worker.launching = False
        self.changes += 1
        if launched.process is None:
            self._not_started(worker, launched.error, now_ns)
            return
        worker.process, worker.pid_descriptor = launched.process, launched.pid_descriptor
        worker.pid = launched.process.pid or 0
        if not worker.greeted:
            worker.hear(now_ns)
        if self.phase == "leaving" or not worker.wanted:
            self._signal(worker, signal.SIGKILL)

    def _not_started(self, worker: WorkerProcess, error: str, now_ns: int) -> None:
        """The machine would not give a process: want of memory or of numbers passes, so it is asked again."""
        if self.phase == "leaving" or not worker.wanted or not self._needed(worker):
            worker.state = "gone"
            self._on_gone(worker)
            return
        self._plan(worker, f"{worker.name} can't be started: {error}", worker.policy.not_started(now_ns), now_ns)

    def _plan(self, worker: WorkerProcess, why: str, delay_ns: int | None, now_ns: int, *, blame: bool = False) -> None:
        worker.state = "failed" if delay_ns is None else "restarting"
        worker.restart_at_ns = now_ns + (delay_ns or 0)
        worker.last_why = why
        self._on_lost(worker, why, blame)
        if delay_ns is None:
            self._on_given_up(worker, f"{why}; its budget of restarts is spent")

    @property
    def sentinels(self) -> dict[int, WorkerProcess]:
        """Descriptors that become readable when a worker dies; another set each time that ``changes`` grows.

        The process's own tells its death alone; that from the forkserver tells the death of either, and only while the
        forkserver has its turns.
        """
        found = {w.process.sentinel: w for w in self.workers.values() if w.process is not None and not w.ending_ns}
        return found | {w.pid_descriptor: w for w in found.values() if w.pid_descriptor >= 0}

    def attend(self, readable: Iterable[WorkerProcess], now_ns: int) -> list[WorkerProcess]:
        """Take in processes that were started, and those of workers whose sentinels are ``readable``.

        Gives the workers that are to be ``buried``: their process is really gone, so that no other can be given its
        slots while it writes there; and how it ended is known, or will not be told any more.
        """
        for launched in self._launcher.take():
            self._launched(launched, now_ns)
        for worker in readable:
            self._ends(worker, now_ns)
        dead = [worker for worker in self._ending if self._is_over(worker, now_ns)]
        if dead:
            self._ending = [worker for worker in self._ending if worker not in dead]
        return dead

    def _ends(self, worker: WorkerProcess, now_ns: int) -> None:
        if worker.process is not None and not worker.ending_ns:
            worker.ending_ns = now_ns
            self._ending.append(worker)
            self._signal(worker, signal.SIGKILL)  # it may be the forkserver that has died, and not the worker
            self.changes += 1

    @staticmethod
    def _is_over(worker: WorkerProcess, now_ns: int) -> bool:
        assert worker.process is not None
        waited_ns = now_ns - worker.ending_ns
        if waited_ns > KILLED_WITHIN_NS:
            return True  # it is in the kernel, with a SIGKILL to come: it never gets to touch its memory again
        if worker.pid_descriptor < 0:
            return worker.process.exitcode is not None
        gone = select.poll()
        gone.register(worker.pid_descriptor, select.POLLIN)
        return bool(gone.poll(0)) and (worker.process.exitcode is not None or waited_ns > EXIT_CODE_WITHIN_NS)

    def find(self, address: str) -> tuple[WorkerProcess, str] | None:
        """The worker and endpoint that an address belongs to; None for strangers and past incarnations."""
        endpoint, _, incarnation = address.rpartition("#")
        worker = self.by_endpoint.get(endpoint)
        if worker is None or not worker.running or incarnation != str(worker.incarnation):
            return None
        return worker, endpoint

    def buried(self, worker: WorkerProcess, now_ns: int) -> None:
        """A worker's process has ended: tell, and plan the next incarnation unless its end was in order."""
        process, worker.process = worker.process, None
        if process is None:
            return
        self.changes += 1
        exit_code = self._reap(worker, process)
        worker.settle_stats()
        if worker.state == "refused":
            self._on_gone(worker)
            return
        if self.phase == "leaving" or worker.said_goodbye or not worker.wanted or not self._needed(worker):
            worker.state = "gone"
            self._on_gone(worker)
            return
        worker.deaths += 1
        crashed = exit_code is not None and -exit_code in CRASH_SIGNALS
        raised = bool(worker.last_words) and not worker.last_words.startswith("DeviceFailed")
        blame = worker.state == "ready" and (crashed or raised or worker.killed_for_hang)
        why = self.why(worker, exit_code)
        if self.phase == "draining" and worker.kind == "decode":
            worker.state = "gone"
            self._on_lost(worker, why, blame)
            return
        self._plan(worker, why, worker.policy.died(now_ns), now_ns, blame=blame)

    @staticmethod
    def _reap(worker: WorkerProcess, process: BaseProcess) -> int | None:
        """Its exit code. None: it is not known; one that is still there is left to init."""
        descriptor, worker.pid_descriptor = worker.pid_descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        exit_code = process.exitcode
        if exit_code is not None:
            process.close()
        return exit_code

    @staticmethod
    def why(worker: WorkerProcess, exit_code: int | None) -> str:
        """One sentence on how a worker ended."""
        if worker.killed_for_hang:
            return f"{worker.name} was silent for too long and was killed"
        if worker.last_words:
            return f"{worker.name} failed: {worker.last_words}"
        if exit_code is None:
            return f"{worker.name} has ended, nobody can tell how"
        if exit_code < 0:
            with contextlib.suppress(ValueError):
                return f"{worker.name} was ended by {signal.Signals(-exit_code).name}"
        return f"{worker.name} ended with status {exit_code}"

    def tick(self, now_ns: int) -> None:
        """Start what is due, and kill what has been silent for too long."""
        if now_ns - self._last_tick_ns > AWAKE_NS:
            self.awake_since_ns = now_ns
        if now_ns - self._last_tick_ns > self.hang_ns // 4:
            for worker in self.workers.values():  # we ourselves were stopped or asleep: nobody could be heard
                worker.heard_ns = dict.fromkeys(worker.endpoints, now_ns)
        self._last_tick_ns = now_ns
        self._launcher.look(now_ns)
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
                if now_ns > worker.leave_by_ns:
                    self._ends(worker, now_ns)
            elif (
                worker.state == "starting"
                and worker.process is not None
                and (self.begun or worker.incarnation > 1)
                and now_ns - worker.started_ns > self._start_ns
            ):
                self.kill_for_hang(worker, now_ns)  # the run's own start has its deadline in the engine
            elif worker.state == "ready" and now_ns - min(worker.heard_ns.values()) > self.hang_ns:
                self.kill_for_hang(worker, now_ns)

    def kill_for_hang(self, worker: WorkerProcess, now_ns: int) -> None:
        """End a worker that gives no sign, or no result."""
        if worker.process is not None and not worker.ending_ns:
            worker.killed_for_hang = True
            self._ends(worker, now_ns)

    @staticmethod
    def _signal(worker: WorkerProcess, signal_number: int) -> None:
        """By its descriptor: the forkserver reaps its children, so the number of a dead one may be somebody else's."""
        with contextlib.suppress(ProcessLookupError):
            if worker.pid_descriptor >= 0:
                signal.pidfd_send_signal(worker.pid_descriptor, signal_number)
            elif worker.process is not None and worker.process.pid is not None:
                os.kill(worker.process.pid, signal_number)

    def next_due_ns(self, now_ns: int) -> int | None:
        """When ``tick`` has a restart to do, or ``attend`` a death to look at."""
        if self._ending:
            return now_ns
        return min((w.restart_at_ns for w in self.workers.values() if w.state == "restarting"), default=None)

    @property
    def alive(self) -> list[WorkerProcess]:
        """Workers that have a process, or are about to have one."""
        return [worker for worker in self.workers.values() if worker.running]

    def end_starting(self) -> None:
        """Kill those that have not begun to listen yet; they hold nothing."""
        for worker in self.alive:
            if worker.state == "starting":
                self._signal(worker, signal.SIGKILL)

    def end_all(self, signal_number: int) -> None:
        """Send a signal to every worker that still has a process."""
        for worker in self.alive:
            self._signal(worker, signal_number)

    def close(self) -> None:
        """Kill what is left, reap it, let go of the pipe; may be called twice."""
        self.phase = "leaving"
        self._launcher.close()
        now_ns = time.monotonic_ns()
        until_ns = now_ns + KILLED_WITHIN_NS
        self.attend([], now_ns)
        for worker in self.alive:
            worker.launching = False
            self._ends(worker, now_ns)
        for worker in self.alive:
            assert worker.process is not None
            while not self._is_over(worker, now_ns) and now_ns < until_ns:
                time.sleep(LOOK_NS / 1e9)
                now_ns = time.monotonic_ns()
            process, worker.process = worker.process, None
            self._reap(worker, process)
        self._server.stop()
        for end in (self._parent_write, self._parent_read):
            if end is not None:
                end.close()
        self._parent_read = self._parent_write = None

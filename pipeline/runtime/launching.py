"""Owns the thread that starts worker processes, so that nothing that hangs there holds up the engine's loop.

To start one is to wait for the forkserver's answer: one that is stopped never gives it, one that is new loads modules
for seconds. Decides nothing about restarts (``policy``).
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import process
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from pipeline.runtime.run_forkserver import RunForkServer
from pipeline.runtime.starting import environment, starting_processes, worker_environment
from pipeline.runtime.work import WorkerStart
from pipeline.runtime.worker import main as worker_main
from pipeline.runtime.worker_process import WorkerProcess

LOG = logging.getLogger("campipe.engine")
STOPPED_NS: Final = 300_000_000  # a forkserver that has not answered for so long is looked at
CLOSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Launched:
    """A process that was started for an incarnation of a worker; or None, and why it could not be."""

    worker: WorkerProcess
    incarnation: int
    process: BaseProcess | None
    pid_descriptor: int = -1
    error: str = ""


class Launcher:
    """``ask`` and ``look`` never wait; ``wake`` is called, by the thread, when there is something to ``take``.

    ``silent_ns``: a forkserver that has not answered for so long is killed, and a new one made. One that is stopped is
    killed at once: nobody could see it end by itself.
    """

    def __init__(self, server: RunForkServer, silent_ns: int, wake: Callable[[], None]) -> None:
        self._silent_ns = silent_ns
        self._wake = wake
        self._server = server
        self._spawn: SpawnContext = multiprocessing.get_context("spawn")
        self._asked: queue.SimpleQueue[tuple[WorkerProcess, WorkerStart] | None] = queue.SimpleQueue()
        self._launched: queue.SimpleQueue[Launched] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._waiting_ns = 0  # since when the forkserver has been waited for; 0: it is not

    def open(self) -> None:
        """Start the thread. It lives as long as any worker may: spawned ones are killed by the kernel when it ends."""
        self._thread = threading.Thread(target=self._run, name="campipe-launch", daemon=True)
        self._thread.start()

    def ask(self, worker: WorkerProcess, start: WorkerStart) -> None:
        """Start a process for this incarnation of the worker."""
        self._asked.put((worker, start))

    def take(self) -> list[Launched]:
        """What has become of what was asked for since the last call."""
        found: list[Launched] = []
        if self._launched.empty():  # asked in each turn of the engine: an exception costs ten times as much
            return found
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._launched.get_nowait())
        return found

    def look(self, now_ns: int) -> None:
        """See to it that no start waits for ever."""
        since_ns = self._waiting_ns
        if since_ns and now_ns - since_ns > STOPPED_NS:
            pid = self._server.pid
            if pid is not None and (is_stopped(pid) or now_ns - since_ns > self._silent_ns):
                LOG.warning("the process that starts workers does not answer; it is replaced, and its workers with it")
                self._waiting_ns = now_ns
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End the thread, without what it was asked for and has not begun; may be called twice."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with contextlib.suppress(queue.Empty):
            while True:
                self._asked.get_nowait()
        self._asked.put(None)
        until_s = time.monotonic() + CLOSE_S
        while thread.is_alive() and time.monotonic() < until_s:
            thread.join(STOPPED_NS / 1e9)
            self.look(time.monotonic_ns())

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            self._launched.put(self._launch(*asked))
            self._wake()

    def _launch(self, worker: WorkerProcess, start: WorkerStart) -> Launched:
        incarnation = worker.incarnation
        for last in (False, True):
            started = self._process(worker, start)
            try:
                with starting_processes(), environment(worker_environment()):
                    # not before: another run in this program may hold up this thread, and not our forkserver
                    self._waiting_ns = 0 if worker.spawned else time.monotonic_ns()
                    started.start()
            except (EOFError, ConnectionError, FileNotFoundError) as error:
                if last:
                    return Launched(worker, incarnation, None, error=f"{error or type(error).__name__}")
                self._server.stop()  # it died just now; the next start makes a new one
            except Exception as error:  # noqa: BLE001  a thread that ends would start nobody ever again
                return Launched(worker, incarnation, None, error=f"{error or type(error).__name__}")
            else:
                # multiprocessing reads exit codes of all children whenever it starts one; two readers would meet there.
                getattr(process, "_children", set()).discard(started)
                descriptor = -1
                with contextlib.suppress(OSError):  # it is dead already, or the kernel is older than 5.3
                    descriptor = os.pidfd_open(started.pid or 0)
                return Launched(worker, incarnation, started, descriptor)
            finally:
                self._waiting_ns = 0
        raise AssertionError("unreachable")

    def _process(self, worker: WorkerProcess, start: WorkerStart) -> BaseProcess:
        name = f"campipe {worker.name}"
        if worker.spawned:
            return self._spawn.Process(target=worker_main, args=(start,), name=name, daemon=True)
        return self._server.process(worker_main, (start,), name)


def is_stopped(pid: int) -> bool:
    """Whether that process was stopped, by a signal or a debugger."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return status.rpartition(b")")[2].split()[0] in {b"T", b"t"}

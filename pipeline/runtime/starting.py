"""Owns how worker processes come into being: environment, signals and modules. Supervises none.

The forkserver of a run is ``run_forkserver``'s.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker

_starting = threading.RLock()
# Thread pools of numeric libraries would multiply with the workers; each worker is one thread by design.
WORKER_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
TRACKER_VARIABLE = "CAMPIPE_RESOURCE_TRACKER"  # tells the forkserver the tracker's number
STOP_S = 1.5  # for a forkserver that is asked to leave; longer than it waits for its children


@contextlib.contextmanager
def starting_processes() -> Iterator[None]:
    """Around ``process.start()``: workers know nothing of the caller's main module, and stop signals do not hit them.

    multiprocessing would import the main module in every worker: they need nothing of it, it costs memory and time, and
    a script without ``if __name__ == '__main__'`` would start itself again. And until a worker has set its own handler,
    a Ctrl-C, which goes to the whole group, would end it with a traceback; a SIGTERM to the group would end workers
    and forkserver in the middle of a drain. They are born with both blocked: the engine alone decides when they end.
    """
    resource_tracker.ensure_running()  # unblocks SIGINT when it starts its process: so before it is blocked
    with _starting:
        main_module = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            yield
        finally:
            sys.modules["__main__"] = main_module
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextlib.contextmanager
def environment(settings: dict[str, str]) -> Iterator[None]:
    """These variables while the block runs, for processes started in it."""
    before = {key: os.environ.get(key) for key in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def worker_environment() -> dict[str, str]:
    """Variables of processes that are started in ``starting_processes``."""
    return {
        **WORKER_ENVIRONMENT,
        TRACKER_VARIABLE: str(getattr(resource_tracker._resource_tracker, "_pid", None) or ""),
    }


def let_forkserver_go() -> None:
    """In a worker: do not keep the forkserver alive, which otherwise leaves only after all its children."""
    descriptor = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)
    if descriptor is not None:
        forkserver._forkserver._forkserver_alive_fd = None  # type: ignore[attr-defined]
        os.close(descriptor)


def stop_server(server: object) -> None:
    """Stop one of multiprocessing's helper processes; there is no public way to. One that does not leave is killed."""
    stop = getattr(server, "_stop", None)
    if stop is None:
        return
    # a process that was started meanwhile, and lives, may keep the other end of what tells them to leave
    pid = getattr(server, "_forkserver_pid", None) or getattr(server, "_pid", None)
    late = threading.Timer(STOP_S, _kill, (pid,)) if isinstance(pid, int) else None
    if late is not None:
        late.start()
    try:
        stop()
    finally:
        if late is not None:
            late.cancel()
            late.join()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def stop_forkserver() -> None:
    """End multiprocessing's forkserver and resource tracker of this process; a later run starts them again.

    They end by themselves with this process. Programs that embed the engine and count their children may call this.
    """
    for server in (forkserver._forkserver, resource_tracker._resource_tracker):
        with contextlib.suppress(OSError):  # its socket may be gone with its folder
            stop_server(server)

"""Owns the life of a worker process: its start, which loop it runs, its last words. Decides nothing."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from pipeline.observe.logs import redact, register_secret
from pipeline.observe.subject import about_worker
from pipeline.runtime.decode_loop import run_decode
from pipeline.runtime.executor_loop import EXIT_FAILED, run_executors
from pipeline.runtime.nms_loop import run_nms
from pipeline.runtime.parent_death import show_as, signal_at_parents_death
from pipeline.runtime.starting import let_forkserver_go
from pipeline.runtime.work import DecodeWork, ExecutorWork, ExporterWork, NmsWork, WorkerStart
from pipeline.transport.channel import WorkerChannel, remove_run_folder
from pipeline.transport.ring_door import RingDoor
from stages.errors import DeviceFailed, SourceRefused, UserError
from stages.messages import Hello, Refused, WorkerFailed

LOG = logging.getLogger("campipe.worker")
EXIT_ORPHANED = 3
ENGINE_GONE = (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, BrokenPipeError)


def main(start: WorkerStart) -> None:
    """Entry point of every worker process."""
    # Ctrl-C, a closed terminal and systemd's SIGTERM reach the whole group; only the engine decides when a worker ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # A parent that has ended before this is noticed all the same: the engine's end by the pipe, the forkserver's by the
    # engine.
    signal_at_parents_death(signal.SIGKILL)
    show_as(start.name)
    let_forkserver_go()
    faulthandler.enable()
    if start.logs is not None:
        start.logs.apply(about_worker(start.name))
    if isinstance(start.work, DecodeWork):
        register_secret(start.work.camera.password or "")  # also where whoever embeds the engine has set up no logging
    threading.Thread(target=_die_with_parent, args=(start.parent, start.run_folder), daemon=True).start()
    channel = _connected(start)
    door = RingDoor(start.door)
    failed = False
    try:
        if isinstance(start.work, ExecutorWork):
            door.open()
        channel.send(Hello(start.token, os.getpid()))
        match start.work:
            case DecodeWork():
                run_decode(channel, start.work)
            case ExecutorWork():
                run_executors(channel, start, start.work, last_words=_last_words, door=door)
            case NmsWork():
                run_nms(channel, start.work)
            case ExporterWork():
                from pipeline.runtime.exporter_loop import run_exporter

                run_exporter(channel, start.work)
    except UserError as error:
        cause = error.cause if isinstance(error, SourceRefused) else "refused"
        channel.send(Refused(cause, [redact(problem) for problem in error.problems]))
    except Exception as error:  # noqa: BLE001  whatever it is, the engine must hear of it
        channel.send(_last_words(error))
        failed = True
    finally:
        door.close()
        channel.close()
    sys.stdout.flush()
    if failed:
        os._exit(EXIT_FAILED)  # threads of a vendor runtime may never join


def _connected(start: WorkerStart) -> WorkerChannel:
    """The connection to the engine. Ends this process when there is none, and tells why unless the engine has ended."""
    try:
        return WorkerChannel(start.where, start.addresses[0])
    except ENGINE_GONE:
        os._exit(EXIT_ORPHANED)
    except (OSError, ValueError) as error:
        LOG.error("%s: no connection to the engine: %s: %s", start.name, type(error).__name__, error)
        os._exit(EXIT_FAILED)


def _last_words(error: BaseException) -> WorkerFailed:
    trace = "".join(traceback.format_exception(error))
    # by this word the supervisor knows that no frame is to blame (``Supervisor.buried``), whatever the device's own is
    kind = DeviceFailed if isinstance(error, DeviceFailed) and not error.by_work else type(error)
    return WorkerFailed(redact(f"{kind.__name__}: {error}"), redact(trace))


def _die_with_parent(parent: Connection, run_folder: str) -> None:
    with contextlib.suppress(EOFError, OSError):
        parent.recv_bytes()
    remove_run_folder(Path(run_folder))
    os._exit(EXIT_ORPHANED)

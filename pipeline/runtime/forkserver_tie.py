"""Owns that the forkserver ends with the engine. Preloaded by it, imported by nobody else: to import it is to tie it.

The chain: the engine ends, however it does; the kernel wakes the forkserver if that is stopped; it finds nobody left at
its pipe, gives its workers a moment to leave by themselves, and ends; the kernel kills those that have not.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import Final

from pipeline.runtime.parent_death import signal_at_parents_death
from pipeline.runtime.starting import TRACKER_VARIABLE
from pipeline.transport.channel import remove_run_folder

GRACE_S: Final = 1.0
LOOK_S: Final = 0.01

_engine = os.getppid()


def _leave() -> None:
    until_s = time.monotonic() + GRACE_S
    with contextlib.suppress(ChildProcessError):  # none is left
        while time.monotonic() < until_s:
            child, _ = os.waitpid(-1, os.WNOHANG)
            if not child:
                time.sleep(LOOK_S)
    if os.getppid() == _engine:
        return
    address = getattr(forkserver._forkserver, "_forkserver_address", None)
    if isinstance(address, str) and Path(address).parent.name.startswith("campipe-"):
        remove_run_folder(Path(address).parent)  # its workers would have, unless all of them were stopped
    _wake_tracker()


def _wake_tracker() -> None:
    """multiprocessing's resource tracker ends when everybody else has; if it is stopped, only once it goes on."""
    tracker = os.environ.get(TRACKER_VARIABLE, "")
    with contextlib.suppress(OSError):
        if tracker and b"resource_tracker" in Path(f"/proc/{int(tracker)}/cmdline").read_bytes():
            os.kill(int(tracker), signal.SIGCONT)


signal_at_parents_death(signal.SIGCONT)
atexit.register(_leave)

"""Owns what the kernel is asked about this process: a signal when its parent ends, the name it is shown by."""

from __future__ import annotations

import ctypes
from signal import Signals
from typing import Final

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_PR_SET_NAME: Final = 15
_NAME_BYTES: Final = 15


def signal_at_parents_death(number: Signals) -> None:
    """From now on ``number`` comes when the thread that started this process ends.

    It comes even when this process is stopped, or hangs where no thread of Python's gets its turn: SIGKILL and SIGCONT
    have their effect then too. A parent that ended before the call is not told of: whoever calls has another sign of
    that. Without effect on a kernel that has no such thing.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        library.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def show_as(name: str) -> None:
    """From now on ``top`` and ``ps -o comm`` show this process by ``name``, cut to 15 bytes."""
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        shown = name if len(name.encode()) <= _NAME_BYTES else name.replace("decode/", "d/").replace("executor/", "x/")
        library.prctl(_PR_SET_NAME, shown.encode()[:_NAME_BYTES], 0, 0, 0)

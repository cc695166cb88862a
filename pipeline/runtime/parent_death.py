"""Owns which signal the kernel sends this process when its parent ends. Does not own what is done about it."""

from __future__ import annotations

import ctypes
from signal import Signals
from typing import Final

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def signal_at_parents_death(number: Signals) -> None:
    """From now on ``number`` comes when the thread that started this process ends.

    It comes even when this process is stopped, or hangs where no thread of Python's gets its turn: SIGKILL and SIGCONT
    have their effect then too. A parent that ended before the call is not told of: whoever calls has another sign of
    that. Without effect on a kernel that has no such thing.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        library.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)

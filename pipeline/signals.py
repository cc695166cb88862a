"""Owns what a signal means to a run: drain, stop at once, end this process. Does not own the run."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Final, Protocol

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # SIGHUP: the terminal has been closed


class Stoppable(Protocol):
    """What a signal needs of an engine."""

    def request_stop(self, reason: str) -> None:
        """The first time: drain; the second time: at once."""


@contextlib.contextmanager
def stop_on_signals(engine: Stoppable) -> Iterator[None]:
    """The first of ``STOP_SIGNALS`` drains, the second stops at once, the third ends this process where it stands.

    SIGHUP is left alone where it was ignored before (``nohup``): such a run is to outlive its terminal.
    The third is for the case that the engine itself no longer answers; workers leave when their parent is gone.
    """
    seen = 0

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        if seen <= 2:
            engine.request_stop(signal.Signals(number).name)
            return
        _show_cursor()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    numbers = [n for n in STOP_SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _show_cursor() -> None:
    from pipeline.observe.live import SHOW_CURSOR

    # Straight to the descriptor: a signal may have come in the middle of a write to the stream.
    with contextlib.suppress(OSError, ValueError):
        if os.isatty(1):
            os.write(1, SHOW_CURSOR)

"""Owns what is done to a command's standard streams so that no state of theirs ends it. Writes nothing to them."""

from __future__ import annotations

import contextlib
import io
import os
import sys


def discard_stdout() -> None:
    """Let what is still buffered, and what is yet to come, go nowhere instead of raising again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def open_closed_streams() -> None:
    """Give closed standard streams (``>&-``) something to lead to.

    Their numbers would go to the next sockets and files to be opened, and what workers print would end up in those.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            os.set_inheritable(opened, True)  # workers have the same need
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def show_what_can_be_shown() -> None:
    """Let characters that the terminal has not, and file names that are no text, be shown as escapes, not raise."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

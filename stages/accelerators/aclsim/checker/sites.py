"""Owns call sites: which line of the user's code a call came from, and which locks it holds. Does not own reports."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from stages.accelerators.aclsim.checker.order import Site

_LOCK = type(threading.Lock())
_RLOCK = type(threading.RLock())
_FRAMES = 6  # callers that are looked at for locks
_LIVES: Site = ("", 0)


def text(site: Site | None) -> str:
    """``file:line``, "" for none."""
    return f"{site[0]}:{site[1]}" if site and site[0] else ""


def site_of(frame: FrameType | None, hidden: tuple[str, ...]) -> Site:
    """The innermost frame outside of hidden files."""
    while frame is not None and hidden and frame.f_code.co_filename.endswith(hidden):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else _LIVES


def stack_of(frame: FrameType | None, hidden: tuple[str, ...], most: int = 4) -> list[str]:
    """The callers, innermost first."""
    found: list[str] = []
    while frame is not None and len(found) < most:
        if not (hidden and frame.f_code.co_filename.endswith(hidden)):
            found.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
        frame = frame.f_back
    return found


def held_locks(frame: FrameType | None) -> frozenset[int]:
    """Locks that callers can name and that are held now: of locals, globals and attributes of ``self``.

    Whether this thread holds them is not known of plain locks: a guess in favour of the program.
    """
    found: set[int] = set()
    for _ in range(_FRAMES):
        if frame is None:
            break
        if frame.f_code.co_filename == threading.__file__:
            break  # a thread's own machinery has locks of its own
        variables = frame.f_locals
        found.update(_held(variables.values()))
        found.update(_held(frame.f_globals.values()))
        own = getattr(variables.get("self"), "__dict__", None)
        if own:
            found.update(_held(own.values()))
        frame = frame.f_back
    return frozenset(found)


def _held(values: Any) -> Iterator[int]:
    for value in list(values):
        lock = getattr(value, "_lock", None) if isinstance(value, threading.Condition) else value
        if isinstance(lock, _LOCK):
            if lock.locked():
                yield id(lock)
        elif isinstance(lock, _RLOCK) and getattr(lock, "_is_owned", bool)():
            yield id(lock)

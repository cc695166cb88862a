"""Owns finding where the backend calls the module, and failing one such call. Does not own what must happen then."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, SimpleNamespace
from typing import Any

BACKEND = "stages/accelerators/ascend"
GROUPS = ("rt", "mdl", "util", "media")
PLUMBING = ("calls.py",)  # checks codes; not a place of a call


@dataclass(frozen=True, slots=True)
class Site:
    """A place of a call: the function's name, and the backend's frames from the innermost outwards."""

    call: str
    frames: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.call}@{'<'.join(self.frames)}"


class Recorder:
    """Stands between the backend and the module; notes each new place of a call and its number among calls of the name.

    ``strike``: name and number of the call that raises ``error`` instead of being made.
    """

    def __init__(self, strike: tuple[str, int] | None = None, error: BaseException | None = None) -> None:
        self.sites: dict[Site, int] = {}
        self.counts: Counter[str] = Counter()
        self.struck = False
        self._strike = strike
        self._error = error

    def around(self, acl: Any) -> Any:
        """A module-like object with the functions of ``acl``."""
        return _Part(self, acl, "")

    def call(self, name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self.counts[name] += 1
        if self._strike is None:
            self.sites.setdefault(Site(name, frames()), self.counts[name])
        elif self._strike == (name, self.counts[name]) and self._error is not None:
            self.struck = True
            raise self._error
        return function(*args)


class _Part(SimpleNamespace):
    def __init__(self, recorder: Recorder, owner: Any, prefix: str) -> None:
        super().__init__()
        self.__dict__.update(_recorder=recorder, _owner=owner, _prefix=prefix)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._owner, name)
        if name in GROUPS:
            made: Any = _Part(self._recorder, found, f"{name}.")
        else:
            full, recorder = self._prefix + name, self._recorder

            def made(*args: Any) -> Any:
                __tracebackhide__ = True
                return recorder.call(full, found, args)

        self.__dict__[name] = made
        return made


def frames() -> tuple[str, ...]:
    """The backend's frames of the calling thread, innermost first."""
    found = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        folder, _, name = frame.f_code.co_filename.rpartition("/")
        if folder.endswith(BACKEND) and name not in PLUMBING:
            found.append(f"{name.removesuffix('.py')}.{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(found)

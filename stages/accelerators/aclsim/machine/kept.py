"""Owns memory that stays taken on a device after its process is over (``keep_after_exit``). Does not own allocations.

Real devices release it; some articles say they do not, and a device in a fault state may not. Within a process it
outlives ``Simulation`` objects; with ``state_path`` it is a file and outlives the process too, however that ended.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from stages.accelerators.aclsim.options import SimOptions

_KEPT: dict[int, int] = {}  # physical device -> bytes


class Kept:
    """What earlier simulations left behind, and what this one will."""

    def __init__(self, options: SimOptions) -> None:
        self._on = options.keep_after_exit
        self._path = Path(options.state_path) if options.keep_after_exit and options.state_path else None
        self._mine: dict[int, int] = {}

    def bytes_of(self, device: int) -> int:
        """Taken by those before."""
        if not self._on:
            return 0
        if self._path is None:
            return _KEPT.get(device, 0)
        owner = str(os.getpid())
        return sum(held.get(str(device), 0) for pid, held in self._read().items() if pid != owner)

    def note(self, device: int, used_bytes: int) -> None:
        """This process holds so much now."""
        if self._path is not None and self._mine.get(device) != used_bytes:
            self._mine[device] = used_bytes
            state = self._read()
            state[str(os.getpid())] = {str(d): held for d, held in self._mine.items() if held}
            self._write(state)

    def close(self, device: int, used_bytes: int) -> None:
        """This simulation is over and holds so much."""
        if self._on and self._path is None:
            _KEPT[device] = _KEPT.get(device, 0) + used_bytes

    def forget(self, device: int) -> None:
        """The device was reset by force."""
        _KEPT.pop(device, None)
        if self._path is not None:
            state = self._read()
            for held in state.values():
                held.pop(str(device), None)
            self._write(state)

    def _read(self) -> dict[str, dict[str, int]]:
        assert self._path is not None
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        kept = content.get("kept", {})
        return kept if isinstance(kept, dict) else {}

    def _write(self, kept: dict[str, dict[str, int]]) -> None:
        assert self._path is not None
        update_state(self._path, "kept", kept)


def update_state(path: Path, part: str, value: object) -> None:
    """Replace one part of the state file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        content = {}
    content[part] = value
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(content), encoding="utf-8")
    fresh.replace(path)


def forget_kept() -> None:
    """Reset all devices of this process by hand: nothing is left behind."""
    _KEPT.clear()

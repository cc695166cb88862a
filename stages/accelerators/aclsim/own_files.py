"""Owns which files of a user's the simulator may replace: its own of an earlier run, no others. Writes none itself."""

from __future__ import annotations

import json
from pathlib import Path

from stages.errors import UserError

TRACE_STARTS = b'{"traceEvents"'


def check_trace(path: str, option: str) -> None:
    """Raise UserError when a trace at ``path`` would replace something that is none, or can't be written."""
    _check_place(path, option)
    file = Path(path)
    if file.exists() and file.stat().st_size:
        with file.open("rb") as opened:
            if opened.read(len(TRACE_STARTS)) != TRACE_STARTS:
                raise UserError(f"{option}: {path} is there and is no trace; name a file that may be replaced")


def check_state(path: str, option: str) -> None:
    """Raise UserError when a state file at ``path`` would replace something that is none, or can't be written."""
    _check_place(path, option)
    file = Path(path)
    if file.exists() and file.stat().st_size:
        try:
            kept = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            kept = None
        if not isinstance(kept, dict) or not set(kept) <= {"spent", "kept"}:
            problem = "is there and is no state of a simulation; name a file that may be replaced"
            raise UserError(f"{option}: {path} {problem}")


def _check_place(path: str, option: str) -> None:
    file = Path(path)
    try:
        if file.exists() and not file.is_file():
            raise UserError(f"{option}: {path} is no regular file; name a file")
        if not file.parent.is_dir():
            raise UserError(f"{option}: {path}: there is no folder {file.parent}; make it, or name another file")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise UserError(f"{option}: {path} can't be used ({reason}); name another file") from None

"""Owns the file that ``--report`` names: refused before the run if it can't be written, then whole or not at all.

Does not own what is in the report.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.errors import UserError


class ReportFile:
    """A JSON file; ``check`` before the run, ``write`` after it."""

    def __init__(self, path: str) -> None:
        self._given = path

    def check(self) -> None:
        """Raise UserError if ``write`` could not succeed. What the path names now stays as it is."""
        try:
            if self._special():
                if not os.access(self._given, os.W_OK):
                    raise UserError(f"--report {self._given}: no permission to write to it; name another file")
                return
            path = self._path()
            if path.is_dir():
                raise UserError(f"--report {self._given}: that is a folder; name a file in it")
            if not path.parent.is_dir():
                raise UserError(f"--report {self._given}: there is no folder {path.parent}; create it, or name another")
            # Tried, not asked: permissions, read-only and full file systems, quotas all show alike.
            scratch = self._scratch(path)
            scratch.open("w").close()
            scratch.unlink()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise UserError(f"--report {self._given[:200]} can't be written: {why}; name another file") from None

    def _special(self) -> bool:
        """Whether it is a pipe or device: written to, not replaced. Raises OSError for names that no file can have."""
        try:
            mode = Path(self._given).stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return False
        return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)

    def _path(self) -> Path:
        return Path(os.path.realpath(self._given))  # a symbolic link stays one, what it names is replaced

    @staticmethod
    def _scratch(path: Path) -> Path:
        return path.with_name(f".{path.name[:60]}.{os.getpid()}.part")

    def write(self, report: Mapping[str, Any]) -> None:
        """Write it: readers see the old file or the whole new one. Raises OSError."""
        text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        if self._special():
            Path(self._given).write_text(text, encoding="utf-8")
            return
        path = self._path()
        scratch = self._scratch(path)
        try:
            # Not tempfile: its files are private to the user, a report has the permissions of any other new file.
            with scratch.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                scratch.unlink()
            raise

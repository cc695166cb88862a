"""Owns the file that ``--report`` names: refused before the run if it can't be written, then whole or not at all.

Does not own what is in the report.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pipeline.commands.outputs import foreign
from stages.errors import UserError

READER_MS: Final = 10_000  # how long the reader of a pipe may take for the whole report
BEGINNING_BYTES: Final = 4096


class ReportFile:
    """A JSON file; ``check`` before the run, ``write`` after it, ``close`` in any case."""

    def __init__(self, path: str) -> None:
        self._given = path
        self._fd = -1  # of a pipe or device, from ``check`` on: the reader of a pipe would leave if it were closed

    def check(self) -> None:
        """Raise UserError if ``write`` could not succeed. What the path names now stays as it is."""
        try:
            if self._special():
                self._open_special()
                return
            path = self._path()
            if path.is_dir():
                raise UserError(f"--report {self._given}: that is a folder; name a file in it")
            if not path.parent.is_dir():
                raise UserError(f"--report {self._given}: there is no folder {path.parent}; create it, or name another")
            if problem := foreign(path):
                raise UserError(f"--report {self._given}: {problem}")
            # Tried, not asked: permissions, read-only and full file systems, quotas all show alike.
            scratch = self._scratch(path)
            scratch.open("w").close()
            scratch.unlink()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise UserError(f"--report {self._given[:200]} can't be written: {why}; name another file") from None

    @property
    def replaces_nothing_else(self) -> bool:
        """Whether at most an earlier report is lost by ``write``, so that it may tell of a run that never was."""
        try:
            if self._special():
                return True
            with self._path().open("rb") as file:
                beginning = file.read(BEGINNING_BYTES)
        except FileNotFoundError:
            return True
        except (OSError, ValueError):
            return False
        return not beginning or b'"exit_status"' in beginning

    def _special(self) -> bool:
        """Whether it is a pipe or device: written to, not replaced. Raises OSError for names that no file can have."""
        try:
            mode = Path(self._given).stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return False
        return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)

    def _open_special(self) -> None:
        if self._fd >= 0:
            return
        try:
            self._fd = os.open(self._given, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except PermissionError:
            raise UserError(f"--report {self._given}: no permission to write to it; name another file") from None
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            # Opening in any other way would wait for a reader, for ever if there is none.
            remedy = "start what is to read it first, or name another file"
            raise UserError(f"--report {self._given}: nobody reads from that pipe; {remedy}") from None

    def _path(self) -> Path:
        return Path(os.path.realpath(self._given))  # a symbolic link stays one, what it names is replaced

    @staticmethod
    def _scratch(path: Path) -> Path:
        return path.with_name(f".{path.name[:60]}.{os.getpid()}.part")

    def write(self, report: Mapping[str, Any]) -> None:
        """Write it: readers see the old file or the whole new one. Raises OSError."""
        text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        # A name that is not UTF-8 has lone surrogates here; this writes them as JSON's own escape for them.
        data = text.encode("utf-8", errors="backslashreplace")
        if self._fd >= 0 or self._special():
            self._write_special(data)
            return
        path = self._path()
        scratch = self._scratch(path)
        try:
            # Not tempfile: its files are private to the user, a report has the permissions of any other new file.
            with scratch.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                scratch.unlink()
            raise

    def _write_special(self, data: bytes) -> None:
        try:
            self._open_special()
        except UserError as error:
            raise OSError(errno.ENXIO, error.problems[0]) from None
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        deadline_ns = time.monotonic_ns() + READER_MS * 1_000_000
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:
                left_ms = (deadline_ns - time.monotonic_ns()) // 1_000_000
                if left_ms <= 0 or not poller.poll(left_ms):
                    raise TimeoutError(errno.ETIMEDOUT, "its reader takes nothing", self._given) from None

    def close(self) -> None:
        """Let go of a pipe or device."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

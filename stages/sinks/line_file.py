"""Owns a file of whole lines: opening, flushing, rotation by size, a full disk. Does not own what is in the lines."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import stat
from pathlib import Path

from stages.errors import StageDead, UserError
from stages.sinks.file_refusal import explain, lock, try_to_write
from stages.sinks.sink import Occupied

BUFFER_BYTES = 64 * 1024
# O_NONBLOCK: a pipe without reader, or a full one, must not stop the run. It means nothing for files.
_THERE = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
_FRESH = _THERE | os.O_CREAT


class LineFile:
    """Appends lines; nobody ever sees a torn one at a place where the writing has stopped.

    What is there is kept until ``begin`` or the first line: a run that is refused for another reason changes nothing.
    Then a file of that name is begun anew, or with ``append`` gone on with (less a line that a crash has torn off at
    its end). With ``rotate_bytes`` nothing is ever overwritten: what is there at the start, and later each file that
    the next line would make larger than that, is renamed: ``out.jsonl`` to ``out.1.jsonl``, the next one to
    ``out.2.jsonl`` and so on, so the numbers count up with time.

    Pipes and devices can be written too (``/dev/stdout``), unless ``only_files``; they are not rotated. What was a file
    goes on in files alone.
    """

    def __init__(
        self, path: Path, *, rotate_bytes: int | None = None, append: bool = False, only_files: bool = False
    ) -> None:
        self.path = path
        self._only_files = only_files
        self._rotate_bytes = rotate_bytes
        self._append = append
        self._fd = -1
        self._regular = True
        self._created = False
        self._begun = False
        self._size = 0  # of the file as far as it is written
        self._number = 0  # of the last file rotated away
        self._buffer = bytearray()
        self.written = 0  # lines that are in the file whole, since ``open``

    def open(self) -> None:
        """Open, so that a mistake shows at the start; raises UserError."""
        if self._fd >= 0:
            return
        try:
            self._open()
        except OSError as error:
            self.abandon()
            raise UserError(f"can't write to {self.path}: {explain(error, self.path)}") from None
        except ValueError:
            raise self._bad_name() from None

    def check(self, *, with_folders: bool = False) -> None:
        """Raise what ``open`` would, changing nothing; ``with_folders``: missing folders will be created before.

        Raises Occupied when nothing but another run is in the way.
        """
        try:
            try_to_write(self.path, with_folders=with_folders)
        except OSError as error:
            refusal = Occupied if error.errno == errno.ETXTBSY else UserError
            raise refusal(f"can't write to {self.path}: {explain(error, self.path)}") from None
        except ValueError:
            raise self._bad_name() from None

    def _open(self) -> None:
        self._begun = self._created = False
        self.written = 0
        try:
            self._fd = os.open(self.path, _THERE)
        except FileNotFoundError:
            self._fd = os.open(self.path, _FRESH, 0o666)
            self._created = True
        self._regular = stat.S_ISREG(os.fstat(self._fd).st_mode)
        if self._regular:
            self.path = self.path.resolve()  # a symbolic link stays one, what it names is rotated
            lock(self._fd)
        elif self._only_files:
            raise _no_file()

    def begin(self) -> None:
        """Make room for the first line. Raises StageDead."""
        if self._begun or self._fd < 0:
            return
        self._begun = True
        if not self._regular:
            return
        try:
            self._size = os.fstat(self._fd).st_size
            if self._rotate_bytes is not None:
                self._number = self._last_number()
                if self._size:
                    self._rotate()
            elif self._append:
                self._cut_torn_line()
            else:
                os.ftruncate(self._fd, 0)
                self._size = 0
        except OSError as error:
            raise self._dead(error) from error

    @property
    def folder(self) -> Path | None:
        """Where files that belong to it may stand; None when it is a pipe or device."""
        return self.path.parent if self._regular else None

    @property
    def ready(self) -> bool:
        """Whether another line can be taken without blocking. Files always can."""
        return len(self._buffer) < BUFFER_BYTES or self.flush()

    def append(self, line: bytes) -> None:
        """Take a line, its end included. Raises StageDead when the file can't be written any more.

        How many lines are missing then is for the caller to tell, from ``written``: it may hold some too.
        """
        self.begin()
        if self._must_rotate(len(line)):
            self.flush()
            try:
                self._rotate()
            except OSError as error:
                raise self._dead(error) from error
        self._buffer += line
        if len(self._buffer) >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> bool:
        """Write what is held; False when not all could be written without blocking. Raises StageDead."""
        if not self._buffer or self._fd < 0:
            return True
        written = 0  # bytes
        try:
            while written < len(self._buffer):
                with memoryview(self._buffer) as view:
                    written += os.write(self._fd, view[written:])
        except BlockingIOError:
            self._settle(written)
            return False
        except OSError as error:
            raise self._failed(error, written) from error
        self._settle(written)
        return True

    def follow(self) -> bool:
        """Go on in a new file when this one was renamed or removed by somebody else; whether it did.

        That is how logrotate and a tidy operator work: else all that comes would go where nobody looks, or be gone.
        Raises StageDead when no new file can be made.
        """
        if self._fd < 0 or not self._regular or not self._begun:
            return False
        ours = os.fstat(self._fd)
        with contextlib.suppress(FileNotFoundError):
            there = self.path.stat()
            if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                return False
        self.flush()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh = os.open(self.path, _FRESH, 0o666)
            os.close(self._fd)
            self._fd, now = fresh, os.fstat(fresh)
            if not stat.S_ISREG(now.st_mode):
                raise _no_file()
            self._size = now.st_size
            lock(self._fd)
        except OSError as error:
            self.abandon()
            raise self._dead(error) from error
        return True

    def writable(self, wait_ms: int) -> bool:
        """Whether a slow reader of a pipe takes anything within ``wait_ms``."""
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        return bool(poller.poll(wait_ms))

    def close(self, wait_ms: int = 0) -> int:
        """Write what is held, for at most ``wait_ms`` if the reader of a pipe is slow; number of lines lost."""
        if self._fd < 0:
            return 0
        try:
            while not self.flush() and self.writable(wait_ms):
                pass
            return self._buffer.count(b"\n")
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release the file; what is held is forgotten, and a file that was made for nothing removed."""
        self._buffer.clear()
        if self._created and not self._begun:
            self.path.unlink(missing_ok=True)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _bad_name(self) -> UserError:
        return UserError(
            f"can't write to {str(self.path)!r}: no file can have that name; choose another"
        )  # a zero byte

    def _settle(self, written: int) -> None:
        self.written += self._buffer.count(b"\n", 0, written)
        del self._buffer[:written]
        self._size += written

    def _failed(self, error: OSError, written: int) -> StageDead:
        """Take back the part of a line that was written, so that the file stays readable to its end."""
        self.written += self._buffer.count(b"\n", 0, written)
        whole = self._buffer.rfind(b"\n", 0, written) + 1
        if self._regular and whole < written:
            with contextlib.suppress(OSError):  # the torn line stays; nothing more can be done on a broken disk
                os.ftruncate(self._fd, self._size + whole)
        self.abandon()
        return self._dead(error)

    def _dead(self, error: OSError) -> StageDead:
        what = "nobody reads it any more" if error.errno == errno.EPIPE else explain(error, self.path)
        return StageDead(f"can't go on writing to {self.path}: {what}")

    def _must_rotate(self, more: int) -> bool:
        held = self._size + len(self._buffer)
        return self._regular and self._rotate_bytes is not None and held > 0 and held + more > self._rotate_bytes

    def _rotate(self) -> None:
        self._number += 1
        self.path.rename(self._numbered(self._number))
        fresh = os.open(self.path, _FRESH | os.O_EXCL, 0o666)
        os.close(self._fd)
        self._fd, self._size = fresh, 0
        lock(self._fd)

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.stem}.{number}{self.path.suffix}")

    def _last_number(self) -> int:
        pattern = re.compile(re.escape(self.path.stem) + r"\.([0-9]{1,9})" + re.escape(self.path.suffix))
        found = (pattern.fullmatch(sibling.name) for sibling in self.path.parent.iterdir())
        return max((int(match[1]) for match in found if match), default=0)

    def _cut_torn_line(self) -> None:
        with self.path.open("rb") as file:
            end = self._size
            while end > 0:
                start = max(0, end - BUFFER_BYTES)
                file.seek(start)
                at = file.read(end - start).rfind(b"\n")
                if at >= 0:
                    end = start + at + 1
                    break
                end = start
        if end < self._size:
            os.ftruncate(self._fd, end)
            self._size = end


def _no_file() -> OSError:
    return OSError(errno.ENODEV, os.strerror(errno.ENODEV))

"""Owns a queue of lines that holds few of them in memory, however long it is. Does not own what is queued, or why."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, TypeAlias

from stages.errors import StageDead
from stages.sinks.file_refusal import explain

BLOCK_LINES: Final = 500
BLOCK_BYTES: Final = 256 * 1024
FILE_BYTES: Final = 64 * 1024 * 1024  # from here on a file of which half is read is followed by a new one

Entry: TypeAlias = tuple[int, int, bytes]  # epoch, presentation time in ns, line

_ENTRY: Final = struct.Struct("<qqI")
_BLOCK: Final = struct.Struct("<I")


class Spool:
    """First in, first out. The oldest and the newest lines are in memory, at most ``block_lines`` of each, or of each
    as many as it takes to make ``block_bytes``; those between them are in unnamed files in ``folder``.

    Such files have no name, or lose it at once, so nothing is left behind when the run crashes. At most two exist:
    a new one is begun when half of a large one has been read, so that the disk used follows what is queued. When
    ``folder`` is None or can't have such files, the folder of temporary files (TMPDIR) is used.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        block_lines: int = BLOCK_LINES,
        block_bytes: int = BLOCK_BYTES,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self._folder = folder
        self._used = folder  # where the last file is
        self._block_lines = block_lines
        self._block_bytes = block_bytes
        self._file_bytes = file_bytes
        self._oldest: deque[Entry] = deque()
        self._files: deque[_BlockFile] = deque()
        self._newest: list[Entry] = []
        self._newest_bytes = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def in_memory(self) -> int:
        """Number of lines that are held in memory."""
        return len(self._oldest) + len(self._newest)

    @property
    def on_disk_bytes(self) -> int:
        """Size of the unnamed files."""
        return sum(file.size for file in self._files)

    def append(self, entry: Entry, /) -> None:
        """Queue ``entry``. Raises StageDead when the disk is full."""
        self._newest.append(entry)
        self._newest_bytes += len(entry[2])
        self._length += 1
        if len(self._newest) < self._block_lines and self._newest_bytes < self._block_bytes:
            return
        if self._oldest or self._files:
            self._spill()
        else:
            self._oldest.extend(self._newest)
        self._newest.clear()
        self._newest_bytes = 0

    def popleft(self) -> Entry:
        """The oldest entry, removed. Raises IndexError when there is none, StageDead when the disk is broken."""
        if not self._oldest:
            if self._files:
                self._fetch()
            else:
                self._oldest.extend(self._newest)
                self._newest.clear()
                self._newest_bytes = 0
        entry = self._oldest.popleft()
        self._length -= 1
        return entry

    def close(self) -> None:
        """Forget everything; the files are gone then."""
        for file in self._files:
            file.close()
        self._files.clear()
        self._oldest.clear()
        self._newest.clear()
        self._newest_bytes = self._length = 0

    def _spill(self) -> None:
        try:
            if not self._files or (
                len(self._files) == 1
                and self._files[0].size >= self._file_bytes
                and self._files[0].read_to >= self._files[0].size // 2
            ):
                self._files.append(_BlockFile(self._unnamed()))
            self._files[-1].write(b"".join(_packed(self._newest)))
        except OSError as error:
            trouble = explain(error, (self._used or Path()) / "-")
            raise StageDead(
                f"no room in {self._used} for the lines that wait for cameras that are behind: {trouble}, or write one "
                "file per camera (a path with {camera} in it)"
            ) from error

    def _fetch(self) -> None:
        file = self._files[0]
        try:
            self._oldest.extend(_unpacked(file.read()))
        except OSError as error:
            raise StageDead(
                f"the lines that waited in {self._used} can't be read again: {error.strerror or error}"
            ) from error
        if file.read_to == file.size:
            self._files.popleft().close()

    def _unnamed(self) -> IO[bytes]:
        self._used = self._folder
        if self._folder is not None:
            with contextlib.suppress(OSError):
                return tempfile.TemporaryFile(dir=self._folder, buffering=0, prefix=".campipe-")
        self._used = Path(tempfile.gettempdir())
        return tempfile.TemporaryFile(dir=self._used, buffering=0, prefix="campipe-")


class _BlockFile:
    """Blocks of bytes with their sizes, read in the order in which they were written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = 0
        self.read_to = 0

    def write(self, block: bytes) -> None:
        data = memoryview(_BLOCK.pack(len(block)) + block)
        done = 0
        while done < len(data):
            done += os.pwrite(self._file.fileno(), data[done:], self.size + done)
        self.size += len(data)

    def read(self) -> bytes:
        (length,) = _BLOCK.unpack(self._piece(_BLOCK.size))
        return self._piece(length)

    def close(self) -> None:
        self._file.close()

    def _piece(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            piece = os.pread(self._file.fileno(), length - len(data), self.read_to + len(data))
            if not piece:
                raise OSError(errno.EIO, "the file is shorter than it was")
            data += piece
        self.read_to += length
        return bytes(data)


def _packed(entries: list[Entry]) -> Iterator[bytes]:
    for epoch, pts_ns, line in entries:
        yield _ENTRY.pack(epoch, pts_ns, len(line))
        yield line


def _unpacked(block: bytes) -> Iterator[Entry]:
    at = 0
    while at < len(block):
        epoch, pts_ns, length = _ENTRY.unpack_from(block, at)
        at += _ENTRY.size
        yield epoch, pts_ns, block[at : at + length]
        at += length

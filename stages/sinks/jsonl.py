"""Owns the JSON Lines sink: which message goes to which file, in what order. Does not own the files or the encoding.

One object a line, the same content as the published messages but without ``trace``. Detections of a recording hold no
reading of any clock of this machine, so the same input gives the same bytes; statuses do (``time_ns``), and are left
out unless asked for. Lines are handed to the system at most 100 ms after they were taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from stages.errors import StageDead, UserError
from stages.messages import ExternalMessage, Heartbeat, Status
from stages.sinks.encode import Packer
from stages.sinks.line_file import LineFile
from stages.sinks.merge import Merge

CAMERA = "{camera}"
NS_PER_MS = 1_000_000


class JsonlSink:
    """Writes JSON lines.

    ``path`` may hold ``{camera}``: then each camera has a file of its own (folders whose name holds it are created).
    ``merged``: one file whose order does not depend on timing (see ``Merge`` for what is held in memory meanwhile);
    otherwise lines are in the order in which messages come. ``rotate_bytes``, ``append``: see ``LineFile``.
    """

    def __init__(
        self,
        path: str,
        *,
        cameras: Sequence[str],
        clock_ns: Callable[[], int],
        merged: bool = False,
        status: bool = False,
        rotate_bytes: int | None = None,
        append: bool = False,
    ) -> None:
        self._path = path
        self._cameras = tuple(cameras)
        self._clock_ns = clock_ns
        self._merged = merged
        self._status = status
        self._rotate_bytes = rotate_bytes
        self._append = append
        self._packer = Packer()
        self._files: dict[str, LineFile] = {}  # by camera; one file is under "" when all share it
        self._merge: Merge[bytes] | None = None
        self._dead = ""

    @property
    def name(self) -> str:
        """For people."""
        return f"jsonl {self._path}"

    def open(self) -> None:
        """Open every file; raises UserError that names all of those that can't be written."""
        if self._merged and CAMERA in self._path:
            raise UserError(
                f"{self._path}: with {CAMERA} in the path each camera has a file of its own, so there is nothing to "
                f"merge; leave out {CAMERA}, or merged"
            )
        problems: list[str] = []
        for camera in self._cameras if CAMERA in self._path else ("",):
            try:
                self._file(camera)
            except UserError as error:
                problems += error.problems
        if problems:
            for file in self._files.values():
                file.abandon()
            self._files.clear()
            raise UserError.of(list(dict.fromkeys(problems)))
        self._merge = Merge(self._cameras) if self._merged else None
        self._dead = ""

    def take(self, message: ExternalMessage) -> bool:
        """Write the message, or give False while the reader of a pipe is slow. Raises StageDead on a full disk."""
        if self._dead:
            raise StageDead(self._dead)
        if isinstance(message, Heartbeat):
            return True
        wanted = self._status or not isinstance(message, Status)
        try:
            if self._merge is not None:
                if not self._file("").ready:
                    return False
                self._merge.put(message, self._packer.line(message) if wanted else None)
                for line in self._merge.ready():
                    self._file("").append(line)
            elif wanted:
                file = self._file(message.camera if CAMERA in self._path else "")
                if not file.ready:
                    return False
                file.append(self._packer.line(message))
        except (StageDead, UserError) as error:
            self._dead = str(error)
            raise StageDead(self._dead) from error
        return True

    def service(self) -> None:
        """Write what is held back for the sake of fewer writes. Raises StageDead on a full disk."""
        if self._dead:
            return  # told by the call that met it
        try:
            for file in self._files.values():
                file.begin()
                file.flush()
        except StageDead as error:
            self._dead = str(error)
            raise

    def close(self, deadline_ns: int) -> str:
        """Write everything, merged lines of cameras that have not ended included."""
        problems: list[str] = []
        if self._merge is not None and not self._dead:
            try:
                for line in self._merge.rest():
                    self._file("").append(line)
            except StageDead as error:
                problems.append(str(error))
        self._merge = None
        for file in self._files.values():
            try:
                lost = file.close(max(0, (deadline_ns - self._clock_ns()) // NS_PER_MS))
            except StageDead as error:
                problems.append(str(error))
            else:
                if lost:
                    problems.append(f"{self.name}: {lost} lines were not read in time")
        self._files.clear()
        return "; ".join(problems)

    def _file(self, camera: str) -> LineFile:
        file = self._files.get(camera)
        if file is not None:
            return file
        if camera and ("/" in camera or camera in {".", ".."}):
            raise UserError(f"{self.name}: {camera!r} can't be part of a path; rename the camera")
        path = Path(self._path.replace(CAMERA, camera))
        if CAMERA in str(Path(self._path).parent):
            self._create(path.parent)
        file = LineFile(path, rotate_bytes=self._rotate_bytes, append=self._append)
        file.open()
        self._files[camera] = file
        return file

    @staticmethod
    def _create(folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"can't create the folder {folder}: {error.strerror}; choose another path") from None

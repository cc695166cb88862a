"""Owns the JSON Lines sink: which message goes to which file, in what order. Does not own the files or the encoding.

One object a line, the same content as the published messages but without ``trace``. Detections of a recording hold no
reading of any clock of this machine, so the same input gives the same bytes; statuses do (``time_ns``), and are left
out unless asked for. Lines are handed to the system at most 100 ms after they were taken.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from stages.errors import StageDead, UserError
from stages.messages import ExternalMessage, Heartbeat, Status
from stages.sinks.again import Again
from stages.sinks.encode import Packer
from stages.sinks.line_file import LineFile
from stages.sinks.merge import Merge
from stages.sinks.sink import Occupied
from stages.sinks.spool import Spool

CAMERA = "{camera}"
NS_PER_MS = 1_000_000
LOOK_EVERY_NS = 1000 * NS_PER_MS  # for files that were moved or removed
LOG = logging.getLogger("campipe.jsonl")
DRAIN_LINES = 1000  # merged lines written at a time: a camera's end may free any number, and others wait meanwhile


class JsonlSink:
    """Writes JSON lines.

    ``path`` may hold ``{camera}``: then each camera has a file of its own. Missing folders are created where a name
    holds ``{camera}``; otherwise only the last one is, because more of them missing is rather a typing mistake.
    Folders that were created for nothing are removed again.
    ``merged``: one file whose order does not depend on timing. What has to wait for cameras that are behind is held in
    memory up to some hundred lines per camera, in unnamed files beyond (see ``Merge``, ``Spool``).
    Otherwise lines are in the order in which messages come. ``rotate_bytes``, ``append``: see ``LineFile``. ``live``:
    cameras whose files are gone on with (``append``) where each has one of its own; a file for all is, if any of them
    is live when the run begins.

    Where there are live cameras a file that can't be written (a full disk) is tried again for ever, after 1 to 30 s;
    what comes meanwhile is ``missed``, which is logged at the begin and at the end of the ``trouble``. Otherwise
    StageDead is raised: the result of a recording would have a hole.
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
        live: Collection[str] = (),
    ) -> None:
        self._path = path
        self._cameras = tuple(cameras)
        self._clock_ns = clock_ns
        self._merged = merged
        self._status = status
        self._rotate_bytes = rotate_bytes
        self._append = append
        self._live = set(live)
        self._append_shared = append or bool(self._live)
        self._closed_lines = 0  # in files that were closed
        self._left: set[str] = set()  # cameras whose files this run has begun, and closed
        self._packer = Packer()
        self._files: dict[str, LineFile] = {}  # by camera; one file is under "" when all share it
        self._created: list[Path] = []  # folders
        self._merge: Merge[bytes] | None = None
        self._spools: list[Spool] = []
        self._handed = 0  # lines, since ``open``
        self._dead = ""
        self._next_look_ns = 0
        self._again = Again()

    @property
    def name(self) -> str:
        """For people."""
        return f"jsonl {self._path}"

    @property
    def trouble(self) -> str:
        """Why nothing is written just now; empty when all is well."""
        return self._again.why

    @property
    def missed(self) -> int:
        """Lines that could not be written in this trouble, as far as is known."""
        return self._missing - self._again.missing_before if self._again.why else 0

    @property
    def _missing(self) -> int:
        return self._handed - self._closed_lines - sum(file.written for file in self._files.values())

    def check(self) -> None:
        """Raise what ``open`` would, changing nothing; Occupied when only another run is in the way."""
        self._check_merged()
        problems: list[str] = []
        occupied: list[str] = []
        for camera in self._opened_first:
            try:
                path = self._path_of(camera)
                LineFile(path).check(with_folders=bool(self._missing_folders(path)))
            except Occupied as error:
                occupied += error.problems
            except UserError as error:
                problems += error.problems
        if problems:
            raise UserError.of(list(dict.fromkeys(problems)))
        if occupied:
            raise Occupied(*dict.fromkeys(occupied))

    def open(self) -> None:
        """Open every file; raises UserError that names all of those that can't be written."""
        self._check_merged()
        problems: list[str] = []
        for camera in self._opened_first:
            try:
                self._file(camera)
            except UserError as error:
                problems += error.problems
        if problems:
            for file in self._files.values():
                file.abandon()
            self._files.clear()
            self._remove_folders()
            raise UserError.of(list(dict.fromkeys(problems)))
        self._merge = Merge(self._cameras, self._spool) if self._merged else None
        self._handed = self._closed_lines = 0
        self._left.clear()
        self._dead = ""
        self._again = Again()

    def take(self, message: ExternalMessage) -> bool:
        """Write the message, or give False while the reader of a pipe is slow. Raises StageDead on a full disk.

        What is raised tells how many of the lines handed over so far, this one included, are in no file.
        """
        if self._dead:
            raise StageDead(self._dead)
        if isinstance(message, Heartbeat):
            return True
        wanted = self._status or not isinstance(message, Status)
        self._handed += wanted
        if self._again.waits:
            return True
        try:
            if self._merge is not None:
                if not self._file("").ready:
                    self._handed -= wanted
                    return False
                self._merge.put(message, self._packer.line(message) if wanted else None)
                self._drain(self._merge)
            elif wanted:
                file = self._file(message.camera if CAMERA in self._path else "")
                if not file.ready:
                    self._handed -= 1
                    return False
                file.append(self._packer.line(message))
        except (StageDead, UserError) as error:
            self._fails(error)
        return True

    def camera_added(self, name: str, *, live: bool) -> None:
        """A camera joins, or is of the other kind from now on. Raises UserError when its own file can't be written."""
        if CAMERA in self._path and name not in self._files:
            path = self._path_of(name)
            LineFile(path).check(with_folders=bool(self._missing_folders(path)))
        (self._live.add if live else self._live.discard)(name)

    def camera_removed(self, name: str) -> None:
        """Close the camera's file, if it has one of its own. Raises StageDead on a full disk."""
        self._live.discard(name)
        file = self._files.pop(name, None) if CAMERA in self._path else None
        if file is not None:
            self._left.add(name)
            try:
                file.close(0)
            except StageDead as error:
                self._closed_lines += file.written
                self._fails(error)
            else:
                self._closed_lines += file.written

    def service(self) -> None:
        """Write what is held back for the sake of fewer writes. Raises StageDead on a full disk."""
        if self._dead:
            return  # told by the call that met it
        try:
            if self._merge is not None:
                self._drain(self._merge)
            now_ns = self._clock_ns()
            self._again.look(now_ns)
            looking = now_ns >= self._next_look_ns
            if looking:
                self._next_look_ns = now_ns + LOOK_EVERY_NS
            for file in self._files.values():
                file.begin()
                if looking and file.follow():
                    LOG.warning("%s was moved or removed; going on in a new file of that name", file.path)
                file.flush()
            if self._again.why and any(file.written for file in self._files.values()):
                LOG.warning("%s is written again; %d lines are missing in it", self.name, self.missed)
                self._again.written(self._missing)
        except (StageDead, UserError) as error:
            self._fails(error)

    def close(self, deadline_ns: int) -> str:
        """Write everything, merged lines of cameras that have not ended included."""
        told = bool(self._dead)  # by the call that met it, with all that is missing
        failed: StageDead | None = None
        unread = 0
        if self._merge is not None and not told:
            try:
                self._finish(self._merge, deadline_ns)
            except StageDead as error:
                failed = error
            else:
                unread = self._merge.held
        for file in self._files.values():
            try:
                unread += file.close(self._left_ms(deadline_ns))
            except StageDead as error:
                failed = failed or error
        problem = ""
        if failed is not None and not told:
            problem = str(self._broken(failed))
        elif unread and not told:
            problem = f"{self.name}: {unread} lines were not read in time"
        elif self._again.last_why and not told and self._missing:
            problem = f"{self.name}: {self._missing} lines are missing in it: {self._again.last_why}"
        for spool in self._spools:
            spool.close()
        self._spools.clear()
        self._merge = None
        self._files.clear()
        self._remove_folders()
        return problem

    def _drain(self, merge: Merge[bytes]) -> None:
        """Write merged lines, as many as one call may and a pipe's reader takes."""
        file = self._file("")
        if not file.ready:
            return
        for count, line in enumerate(merge.ready(), 1):
            file.append(line)
            if count == DRAIN_LINES or not file.ready:
                return

    def _finish(self, merge: Merge[bytes], deadline_ns: int) -> None:
        """Write all that the merge holds; a slow reader of a pipe is waited for until ``deadline_ns``."""
        file = self._file("")
        for line in merge.rest():
            file.append(line)
            while not file.ready:
                if not file.writable(self._left_ms(deadline_ns)):
                    return

    def _left_ms(self, deadline_ns: int) -> int:
        return max(0, (deadline_ns - self._clock_ns()) // NS_PER_MS)

    def _fails(self, error: StageDead | UserError) -> None:
        """Go on without writing for a while, if there are live cameras; raises StageDead otherwise."""
        live = self._append_shared or bool(self._live)
        files = all(file.folder is not None for file in self._files.values())  # no pipe, no device
        if self._merge is not None or not live or not files:
            raise self._broken(error) from error
        for camera, file in self._files.items():
            with contextlib.suppress(StageDead):
                file.flush()
            self._closed_lines += file.written
            self._left.add(camera)
            file.abandon()
        self._files.clear()
        self._append_shared = True
        if self._again.failed(str(error), self._clock_ns()):
            LOG.error("%s: %s; it is tried again, and what comes meanwhile is missing in it", self.name, error)

    def _broken(self, error: StageDead | UserError) -> StageDead:
        """The last word of this sink, which lines that wait to be merged do not survive."""
        for file in self._files.values():
            with contextlib.suppress(StageDead):  # one word is enough: what it could not write is counted below
                file.flush()
        missing = self._missing
        lines = f"; {missing} {'line is' if missing == 1 else 'lines are'} missing at the end of {self._path}"
        self._dead = f"{error}{lines}" if missing else str(error)
        return StageDead(self._dead)

    def _spool(self) -> Spool:
        self._spools.append(Spool(self._file("").folder))
        return self._spools[-1]

    def _check_merged(self) -> None:
        if self._merged and CAMERA in self._path:
            raise UserError(
                f"{self._path}: with {CAMERA} in the path each camera has a file of its own, so there is nothing to "
                f"merge; leave out {CAMERA}, or merged"
            )

    @property
    def _opened_first(self) -> tuple[str, ...]:
        return self._cameras if CAMERA in self._path else ("",)

    def _path_of(self, camera: str) -> Path:
        if camera and ("/" in camera or camera in {".", ".."}):
            raise UserError(f"{self.name}: {camera!r} can't be part of a path; rename the camera")
        return Path(self._path.replace(CAMERA, camera))

    def _file(self, camera: str) -> LineFile:
        file = self._files.get(camera)
        if file is not None:
            return file
        path = self._path_of(camera)
        self._create(self._missing_folders(path))
        own = self._append or camera in self._live or camera in self._left
        append = own if CAMERA in self._path else self._append_shared
        file = LineFile(path, rotate_bytes=self._rotate_bytes, append=append)
        file.open()
        self._files[camera] = file
        return file

    def _missing_folders(self, path: Path) -> list[Path]:
        """What is to be created, outermost first; nothing when too much is missing, which ``LineFile`` then refuses."""
        missing: list[Path] = []
        folder = path.parent
        while not os.path.lexists(folder) and folder != folder.parent:
            missing.insert(0, folder)
            folder = folder.parent
        return missing if len(missing) == 1 or CAMERA in str(Path(self._path).parent) else []

    def _create(self, folders: list[Path]) -> None:
        for folder in folders:
            try:
                folder.mkdir(exist_ok=True)
            except OSError as error:
                raise UserError(f"can't create the folder {folder}: {error.strerror}; choose another path") from None
            except ValueError:
                return  # a zero byte: opening tells
            self._created.append(folder)

    def _remove_folders(self) -> None:
        """Remove those that were created and have stayed empty."""
        for folder in reversed(self._created):
            with contextlib.suppress(OSError):
                folder.rmdir()
        self._created.clear()

"""Owns the JSON Lines sink: which message goes to which file, in what order. Does not own the files or the encoding.

One object a line, the same content as the published messages but without ``trace``. Detections of a recording hold no
reading of any clock of this machine, so the same input gives the same bytes; statuses do (``time_ns``), and are left
out unless asked for. Lines are handed to the system at most 100 ms after they were taken.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from stages.errors import StageDead, UserError
from stages.messages import ExternalMessage, Heartbeat, Status
from stages.sinks.encode import Packer
from stages.sinks.line_account import LineAccount
from stages.sinks.line_file import LineFile
from stages.sinks.merge import Merge
from stages.sinks.new_folders import NewFolders
from stages.sinks.sink import Occupied
from stages.sinks.spool import Spool

CAMERA = "{camera}"
NS_PER_MS = 1_000_000
LOOK_EVERY_NS = 1000 * NS_PER_MS  # for files that were moved or removed
LOG = logging.getLogger("campipe.jsonl")
MOST_TOLD = 3  # causes of missing lines in one sentence
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

    Where there are live cameras a file that can't be written (a full disk) is tried again for ever, after 1 to 30 s,
    and the other files are written meanwhile; what comes for it is ``missed``, which is logged at the begin and at the
    end of its ``trouble``. Otherwise StageDead is raised: the result of a recording would have a hole.
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
        self._append_shared = bool(self._live)
        self._left: set[str] = set()  # cameras whose files this run has begun, and closed
        self._left_missing = 0  # lines, in the files of cameras that have left
        self._left_why = ""
        self._packer = Packer()
        self._accounts: dict[str, LineAccount] = {}  # by camera; one file is under "" when all share it
        self._folders = NewFolders(deep=CAMERA in str(Path(path).parent))
        self._merge: Merge[bytes] | None = None
        self._spools: list[Spool] = []
        self._dead = ""
        self._dead_missing = 0
        self._next_look_ns = 0

    @property
    def name(self) -> str:
        """For people."""
        return f"jsonl {self._path}"

    @property
    def trouble(self) -> str:
        """Why a file is not written just now; empty when all is well."""
        whys = [account.again.why for account in self._accounts.values() if account.again.why]
        return f"{whys[0]} (and {len(whys) - 1} more)" if len(whys) > 1 else "".join(whys)

    @property
    def missed(self) -> int:
        """Lines that could not be written since ``open``, as far as is known; never falls."""
        if self._dead:
            return self._dead_missing
        return self._left_missing + sum(account.lost for account in self._accounts.values())

    @property
    def _missing(self) -> int:
        return self._left_missing + sum(account.missing for account in self._accounts.values())

    @property
    def _files(self) -> list[LineFile]:
        return [account.file for account in self._accounts.values() if account.file is not None]

    def check(self) -> None:
        """Raise what ``open`` would, changing nothing; Occupied when only another run is in the way."""
        self._check_merged()
        problems: list[str] = []
        occupied: list[str] = []
        for camera in self._opened_first:
            try:
                path = self._path_of(camera)
                LineFile(path).check(with_folders=bool(self._folders.missing(path)))
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
                self._file(self._account(camera), camera)
            except UserError as error:
                problems += error.problems
        if problems:
            for file in self._files:
                file.abandon()
            self._accounts.clear()
            self._folders.remove()
            raise UserError.of(list(dict.fromkeys(problems)))
        self._merge = Merge(self._cameras, self._spool) if self._merged else None
        self._left.clear()
        self._left_missing, self._left_why = 0, ""
        self._dead = ""

    def take(self, message: ExternalMessage) -> bool:
        """Write the message, or give False while the reader of a pipe is slow. Raises StageDead on a full disk.

        What is raised tells how many of the lines handed over so far, this one included, are in no file.
        """
        if self._dead:
            raise StageDead(self._dead)
        if isinstance(message, Heartbeat):
            return True
        wanted = self._status or not isinstance(message, Status)
        key = message.camera if CAMERA in self._path else ""
        if self._merge is None and not wanted:
            return True
        account = self._account(key)
        if account.again.waits:
            account.lose()
            return True
        account.handed += wanted
        try:
            file = self._file(account, key)
            if not file.ready:
                account.handed -= wanted
                return False
            if self._merge is None:
                file.append(self._packer.line(message))
            else:
                self._merge.put(message, self._packer.line(message) if wanted else None)
                self._drain(self._merge)
        except (StageDead, UserError) as error:
            self._fails(account, error)
        return True

    def camera_added(self, name: str, *, live: bool) -> None:
        """A camera joins, or is of the other kind from now on. Raises UserError when its own file can't be written."""
        account = self._accounts.get(name)
        if CAMERA in self._path and (account is None or account.file is None):
            path = self._path_of(name)
            LineFile(path).check(with_folders=bool(self._folders.missing(path)))
        (self._live.add if live else self._live.discard)(name)

    def camera_removed(self, name: str) -> None:
        """Close the camera's file, if it has one of its own. Raises StageDead on a full disk."""
        account = self._accounts.get(name) if CAMERA in self._path else None
        try:
            if account is not None:
                self._leave(name, account)
        finally:
            self._live.discard(name)

    def _leave(self, name: str, account: LineAccount) -> None:
        failed: StageDead | None = None
        if account.file is not None:
            try:
                account.file.close(0)
            except StageDead as error:
                failed = error
        if failed is not None and not self._live:
            raise self._broken(failed) from failed
        account.shut()
        del self._accounts[name]
        if account.begun:
            self._left.add(name)
        if account.missing:
            self._left_missing += account.missing
            self._left_why = str(failed) if failed is not None else account.again.last_why or "not read in time"
        if failed is not None:
            LOG.error("%s: %s; %d lines are missing in it", self.name, failed, account.missing)

    def service(self) -> None:
        """Write what is held back for the sake of fewer writes. Raises StageDead on a full disk."""
        if self._dead:
            return  # told by the call that met it
        now_ns = self._clock_ns()
        looking = now_ns >= self._next_look_ns
        if looking:
            self._next_look_ns = now_ns + LOOK_EVERY_NS
        for account in self._accounts.values():
            account.again.look(now_ns)
            try:
                if self._merge is not None:
                    self._drain(self._merge)
                if account.file is not None:
                    self._write(account, account.file, looking=looking)
            except (StageDead, UserError) as error:
                self._fails(account, error)

    @staticmethod
    def _write(account: LineAccount, file: LineFile, *, looking: bool) -> None:
        file.begin()
        if looking and file.follow():
            LOG.warning("%s was moved or removed; going on in a new file of that name", file.path)
        file.flush()
        if account.written_again():
            LOG.warning("%s is written again; %d lines are missing in it", file.path, account.lost_now)
            account.settle()

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
        for file in self._files:
            try:
                unread += file.close(self._left_ms(deadline_ns))
            except StageDead as error:
                failed = failed or error
        problem = ""
        if failed is not None and not told:
            problem = str(self._broken(failed))
        elif unread and not told:
            problem = f"{self.name}: {unread} lines were not read in time"
        elif self.missed and self._why_missing and not told:
            problem = f"{self.name}: {self.missed} lines are missing in it: {self._why_missing}"
        for spool in self._spools:
            spool.close()
        self._spools.clear()
        self._merge = None
        self._accounts.clear()
        self._folders.remove()
        return problem

    @property
    def _why_missing(self) -> str:
        """Of the troubles there were, by file; of those of cameras that have left the last one."""
        whys = [account.again.last_why for account in self._accounts.values()] + [self._left_why]
        told = list(dict.fromkeys(why for why in whys if why))
        more = f"; and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
        return "; ".join(told[:MOST_TOLD]) + more

    def _drain(self, merge: Merge[bytes]) -> None:
        """Write merged lines, as many as one call may and a pipe's reader takes."""
        file = self._file(self._account(""), "")
        if not file.ready:
            return
        for count, line in enumerate(merge.ready(), 1):
            file.append(line)
            if count == DRAIN_LINES or not file.ready:
                return

    def _finish(self, merge: Merge[bytes], deadline_ns: int) -> None:
        """Write all that the merge holds; a slow reader of a pipe is waited for until ``deadline_ns``."""
        file = self._file(self._account(""), "")
        for line in merge.rest():
            file.append(line)
            while not file.ready:
                if not file.writable(self._left_ms(deadline_ns)):
                    return

    def _left_ms(self, deadline_ns: int) -> int:
        return max(0, (deadline_ns - self._clock_ns()) // NS_PER_MS)

    def _fails(self, account: LineAccount, error: StageDead | UserError) -> None:
        """Go on without this file for a while, if there are live cameras; raises StageDead otherwise."""
        regular = account.file is None or account.file.folder is not None  # no pipe, no device
        if self._merge is not None or not self._live or not regular:
            raise self._broken(error) from error
        account.shut()
        if account.again.failed(str(error), self._clock_ns()):
            LOG.error("%s: %s; it is tried again, and what comes meanwhile is missing in it", self.name, error)

    def _broken(self, error: StageDead | UserError) -> StageDead:
        """The last word of this sink, which lines that wait to be merged do not survive."""
        for file in self._files:
            with contextlib.suppress(StageDead):  # one word is enough: what it could not write is counted below
                file.flush()
        before, why = self.missed, self._why_missing
        self._dead_missing = self._missing
        missing = self._dead_missing - before
        lines = f"; {missing} {'line is' if missing == 1 else 'lines are'} missing at the end of {self._path}"
        earlier = f"; {before} were missing before: {why}" if before and why else ""
        self._dead = f"{error}{lines if missing else ''}{earlier}"
        return StageDead(self._dead)

    def _spool(self) -> Spool:
        self._spools.append(Spool(self._file(self._account(""), "").folder))
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

    def _account(self, key: str) -> LineAccount:
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = LineAccount(begun=key in self._left)
        return account

    def _file(self, account: LineAccount, key: str) -> LineFile:
        if account.file is not None:
            return account.file
        path = self._path_of(key)
        self._folders.create(path)
        kept = key in self._live if CAMERA in self._path else self._append_shared
        goes_on = self._append or account.begun or kept
        file = LineFile(path, rotate_bytes=self._rotate_bytes, append=goes_on, only_files=account.was_file)
        file.open()
        account.file = file
        return file

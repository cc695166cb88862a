"""Owns which files of lines a sink has: one for all cameras, or one for each. Does not own what is written, or when.

What is known of a file outlives its openings (``LineAccount``), and what lacks in the files of cameras that have left
is remembered here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import Final

from stages.errors import UserError
from stages.sinks.line_account import LineAccount
from stages.sinks.line_file import LineFile
from stages.sinks.new_folders import NewFolders
from stages.sinks.sink import Occupied

CAMERA: Final = "{camera}"
MOST_TOLD: Final = 3  # causes of missing lines in one sentence


class LineAccounts:
    """Accounts by key: the camera where ``path`` holds ``{camera}``, else always "".

    Missing folders are created where a name holds ``{camera}``; otherwise only the last one is, because more of them
    missing is rather a typing mistake. Folders that were created for nothing are removed again. ``live``: cameras whose
    files are gone on with where each has one of its own, looked at when a file is opened; a file for all is, if there
    are any when this is made. ``rotate_bytes``, ``append``: see ``LineFile``. ``name``: of the sink, for people.
    """

    def __init__(self, path: str, *, name: str, rotate_bytes: int | None, append: bool, live: Set[str]) -> None:
        self.per_camera = CAMERA in path
        self._path = path
        self._name = name
        self._rotate_bytes = rotate_bytes
        self._append = append
        self._live = live
        self._append_shared = bool(live)
        self._accounts: dict[str, LineAccount] = {}
        self._folders = NewFolders(deep=CAMERA in str(Path(path).parent))
        self._left: set[str] = set()  # keys whose files this run has begun, and closed
        self._left_missing = 0  # lines, in the files of cameras that have left
        self._left_why = ""

    # --- files --------------------------------------------------------------------------------------------------------

    def keys(self, cameras: Sequence[str]) -> Sequence[str]:
        """Of the files that these cameras are written to."""
        return cameras if self.per_camera else ("",)

    def check(self, keys: Iterable[str]) -> None:
        """Raise what opening these would, all problems at once; Occupied when only another run is in the way."""
        problems: list[str] = []
        occupied: list[str] = []
        for key in keys:
            try:
                path = self._path_of(key)
                LineFile(path).check(with_folders=bool(self._folders.missing(path)))
            except Occupied as error:
                occupied += error.problems
            except UserError as error:
                problems += error.problems
        if problems:
            raise UserError.of(list(dict.fromkeys(problems)))
        if occupied:
            raise Occupied(*dict.fromkeys(occupied))

    def open(self, keys: Iterable[str]) -> None:
        """Begin anew with the files of these open; UserError, with all problems and none open, when one can't be."""
        self._left.clear()
        self._left_missing, self._left_why = 0, ""
        problems: list[str] = []
        for key in keys:
            try:
                self.open_file(self.of(key), key)
            except UserError as error:
                problems += error.problems
        if problems:
            for file in self.files:
                file.abandon()
            self.close()
            raise UserError.of(list(dict.fromkeys(problems)))

    def open_file(self, account: LineAccount, key: str) -> LineFile:
        """The file of ``account``, which is that of ``key``; opened unless it is. Raises UserError."""
        if account.file is not None:
            return account.file
        path = self._path_of(key)
        self._folders.create(path)
        kept = key in self._live if self.per_camera else self._append_shared
        goes_on = self._append or account.begun or kept
        file = LineFile(path, rotate_bytes=self._rotate_bytes, append=goes_on, only_files=account.was_file)
        file.open()
        account.file = file
        return file

    def close(self) -> None:
        """Forget all accounts, whose files are closed, and remove folders that have stayed empty."""
        self._accounts.clear()
        self._folders.remove()

    def _path_of(self, key: str) -> Path:
        if key and ("/" in key or key in {".", ".."}):
            raise UserError(f"{self._name}: {key!r} can't be part of a path; rename the camera")
        return Path(self._path.replace(CAMERA, key))

    # --- accounts -----------------------------------------------------------------------------------------------------

    def of(self, key: str) -> LineAccount:
        """The account of this key."""
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = LineAccount(begun=key in self._left)
        return account

    def values(self) -> Iterable[LineAccount]:
        """All there are."""
        return self._accounts.values()

    def known(self, key: str) -> LineAccount | None:
        """The account of this key if there is one."""
        return self._accounts.get(key)

    def leave(self, key: str, account: LineAccount, failed: str) -> None:
        """Nothing more comes for this one; ``failed``: why what it held could not be written, empty when it was."""
        account.shut()
        del self._accounts[key]
        if account.begun:
            self._left.add(key)
        if account.missing:
            self._left_missing += account.missing
            self._left_why = failed or account.again.last_why or "not read in time"

    @property
    def files(self) -> list[LineFile]:
        """Those that are open."""
        return [account.file for account in self._accounts.values() if account.file is not None]

    @property
    def trouble(self) -> str:
        """Why a file is not written just now; empty when all is well."""
        whys = [account.again.why for account in self._accounts.values() if account.again.why]
        return f"{whys[0]} (and {len(whys) - 1} more)" if len(whys) > 1 else "".join(whys)

    @property
    def lost(self) -> int:
        """Lines that are surely in no file."""
        return self._left_missing + sum(account.lost for account in self._accounts.values())

    @property
    def missing(self) -> int:
        """Lines that are in no file, those that are merely held included."""
        return self._left_missing + sum(account.missing for account in self._accounts.values())

    @property
    def why_missing(self) -> str:
        """Of the troubles there were, by file; of those of cameras that have left the last one."""
        whys = [account.again.last_why for account in self._accounts.values()] + [self._left_why]
        told = list(dict.fromkeys(why for why in whys if why))
        more = f"; and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
        return "; ".join(told[:MOST_TOLD]) + more

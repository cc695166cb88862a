"""Owns the folders that a sink creates for its files and removes again when they stay empty. Opens no file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from stages.errors import UserError


class NewFolders:
    """``deep``: any number of them is created for a file; else only its own, and more of them missing is a mistake."""

    def __init__(self, *, deep: bool) -> None:
        self._deep = deep
        self._created: list[Path] = []

    def missing(self, path: Path) -> list[Path]:
        """What is to be created, outermost first; nothing when too much is missing, which ``LineFile`` then refuses."""
        missing: list[Path] = []
        folder = path.parent
        while not os.path.lexists(folder) and folder != folder.parent:
            missing.insert(0, folder)
            folder = folder.parent
        return missing if len(missing) == 1 or self._deep else []

    def create(self, path: Path) -> None:
        """Those that are missing; raises UserError."""
        for folder in self.missing(path):
            try:
                folder.mkdir(exist_ok=True)
            except OSError as error:
                raise UserError(f"can't create the folder {folder}: {error.strerror}; choose another path") from None
            except ValueError:
                return  # a zero byte: opening tells
            self._created.append(folder)

    def remove(self) -> None:
        """Remove those that were created and have stayed empty."""
        for folder in reversed(self._created):
            with contextlib.suppress(OSError):
                folder.rmdir()
        self._created.clear()

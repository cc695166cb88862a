"""Owns what the system's refusals about files mean to a user, and how to foresee them. Opens nothing for good."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

NAME_MAX_BYTES = 255


def explain(error: OSError, path: Path) -> str:
    """What is wrong with ``path``, and the remedy."""
    match error.errno:
        case errno.ENOENT:
            folder = Path(os.path.realpath(path)).parent  # of what a link names
            if folder.is_dir():
                return f"no file can be made in {folder}; choose another path"
            return f"there is no folder {folder}; create it (mkdir -p), or choose another path"
        case errno.EISDIR:
            return "that is a folder; name a file in it"
        case errno.ETXTBSY:
            return "another run is writing to it; end it, or choose another path"
        case errno.ENXIO:
            return "nobody reads this pipe; start its reader first"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"no permission ({error.strerror}); choose a path that you may write to"
        case errno.ENOSPC | errno.EDQUOT:
            return "the disk is full; free some space"
        case errno.ENODEV:
            return "a pipe or device is there now, where a file was; remove it"
        case errno.EFBIG:
            return "the file is as large as the system allows; let it rotate by size"
        case _:
            return f"{error.strerror or error}; choose another path"


def try_to_write(path: Path, *, with_folders: bool) -> None:
    """Raise the OSError that opening ``path`` for appending would meet, as far as it shows without changing anything.

    ``with_folders``: missing folders would be created. ETXTBSY: another run is writing to it. Pipes and devices are not
    opened, because their other side would notice; whether a pipe has a reader is not known before.
    """
    real = Path(os.path.realpath(path))  # a link to nowhere: what it names would be created
    try:
        mode = real.stat().st_mode
    except FileNotFoundError:
        _try_to_create(real, with_folders=with_folders)
        return
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        _try_to_append(real)
    elif stat.S_ISSOCK(mode):
        raise _error(errno.ENXIO)
    elif not _allowed(real, os.W_OK):
        raise _error(errno.EACCES)


def lock(descriptor: int, how: int = fcntl.LOCK_EX) -> None:
    """Two runs that write to one file would spoil both; raises ETXTBSY. Systems without locks are trusted."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _error(errno.ETXTBSY) from None
    except OSError:
        pass


def _try_to_append(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _try_to_create(path: Path, *, with_folders: bool) -> None:
    folder = path.parent
    while with_folders and folder != folder.parent and not os.path.lexists(folder):
        folder = folder.parent
    if any(len(os.fsencode(name)) > NAME_MAX_BYTES for name in path.relative_to(folder).parts):
        raise _error(errno.ENAMETOOLONG)
    if not stat.S_ISDIR(folder.stat().st_mode):
        raise _error(errno.ENOTDIR)
    if not _allowed(folder, os.W_OK | os.X_OK):
        raise _error(errno.EACCES)


def _allowed(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))

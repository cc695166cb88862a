"""Owns the other end of the control socket: finding a running site, asking it, waiting for its answer."""

from __future__ import annotations

import os
import pwd
import socket
import stat
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.control.protocol import MAX_ANSWER_BYTES, SITE_NAME, Answer, Malformed, Request, answer_in, body_length
from pipeline.control.protocol import framed as request_bytes
from pipeline.transport.channel import run_folders
from stages.errors import CampipeError, UserError

CONNECT_S = 5.0
RETRY_S = 0.02
READ_BYTES = 1 << 16
UNITS = Path("/run")  # where systemd makes the folders of units
UNIT_PREFIX = "campipe-"


@dataclass(frozen=True, slots=True)
class _Run:
    """A run that can be asked."""

    site: Path
    socket: Path
    user: int
    of_unit: bool  # its folder lies where root alone makes folders

    def __str__(self) -> str:
        whose = "" if self.user == os.getuid() else f", of user {_user_name(self.user)}"
        return f"--socket {self.socket} ({self.site}{whose})"


def find_socket(site: str | None) -> Path:
    """The socket of the run of that site, or of the only run there is. Raises UserError when none, or several, fit.

    Looks at this user's runs, at those of systemd units if their folders can be read, and, for root, at everybody's.
    """
    units = [folder for folder in _within(UNITS) if folder.name.startswith(UNIT_PREFIX)]
    users = _within(UNITS / "user") if os.getuid() == 0 else []
    folders, others = run_folders([*units, *users])
    found = [run for folder in folders if (run := _run_in(folder, of_unit=folder.parent in units)) is not None]
    if site is not None:
        found = [run for run in found if _is_same(run.site, Path(site))]
        # Anybody may claim to run a site: whoever is trusted more comes first.
        found = next((some for own in (_is_own, _is_of_unit, _is_any) if (some := list(filter(own, found)))), [])
    if len(found) == 1:
        return found[0].socket
    if not found:
        raise UserError(_nobody(site, [*others, *(unit for unit in units if not os.access(unit, os.R_OK | os.X_OK))]))
    raise UserError(f"{len(found)} runs fit; say which one: {'; '.join(map(str, found))}")


def engine_at(path: Path) -> int:
    """Number of the process that listens at ``path``; 0 for one in another container. Raises OSError if none does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        _connect(connection, path)
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", peer)[0]
    return pid


def _is_own(run: _Run) -> bool:
    return run.user == os.getuid()


def _is_of_unit(run: _Run) -> bool:
    return run.of_unit


def _is_any(_: _Run) -> bool:
    return True


def _within(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _run_in(folder: Path, *, of_unit: bool) -> _Run | None:
    """None: a run without control, or one that is just starting or ending."""
    try:
        descriptor = os.open(folder / SITE_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None
            site, where = os.fsdecode(file.read(READ_BYTES)).splitlines()[:2]
    except (OSError, ValueError):
        return None
    return _Run(Path(site), Path(where), status.st_uid, of_unit)


def _is_same(one: Path, other: Path) -> bool:
    """Whether both name one file: by the same path, or as their links lead now."""
    if one == other.absolute():
        return True
    try:
        return one.resolve() == other.resolve()
    except (OSError, RuntimeError, ValueError):  # links that lead to themselves, what is no path
        return False


def _nobody(site: str | None, others: list[Path]) -> str:
    what = f"the site {site}" if site is not None else "any site"
    if site is not None and not os.path.lexists(site):
        what += " (no such file is seen from here)"
    whom = "that this user may ask" if os.getuid() else "on this machine"
    sentence = f"no campipe {whom} runs {what} under control; "
    if not others:
        return sentence + "start it with `campipe run`, or name its --socket when control.socket is set"
    whose = dict.fromkeys(f"{_user_name(folder.stat().st_uid)} ({folder})" for folder in others if folder.exists())
    return (
        sentence + f"others' runs are there, of {', '.join(whose)}: ask as that user, or as root (sudo campipe ctl ...)"
    )


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def ask(path: Path, request: Request, timeout_s: float) -> Answer:
    """The answer of the run that listens at ``path``. Raises UserError if nobody does, CampipeError without answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            _connect(connection, path)
        except OSError as error:
            reason = error.strerror or "no answer"
            raise UserError(f"{path}: nobody can be asked there ({reason}); is that campipe still running?") from None
        connection.settimeout(timeout_s)
        try:
            connection.sendall(request_bytes(request))
            head = _exactly(connection, 4)
            length = body_length(head, MAX_ANSWER_BYTES)
            return answer_in(_exactly(connection, length or 0))
        except TimeoutError:
            raise CampipeError(f"no answer within {timeout_s:g} s; what was asked may still be done") from None
        except (OSError, Malformed) as error:
            raise CampipeError(f"the answer did not come whole: {error or 'the connection was closed'}") from None


def _connect(connection: socket.socket, path: Path) -> None:
    """Connect, waiting for a place while many others try to."""
    connection.settimeout(CONNECT_S)
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            connection.connect(str(path))
        except BlockingIOError:  # its queue is full
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)
        else:
            return


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(min(READ_BYTES, count - len(data)))
        if not piece:
            raise ConnectionResetError("the connection was closed")
        data += piece
    return bytes(data)

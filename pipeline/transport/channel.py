"""Owns the sockets between the engine and its workers: one ROUTER, one DEALER per worker, over ipc in a private folder.

The ROUTER is ZeroMQ's; a worker speaks the protocol itself (``zmtp``).

Queues are bounded by credit, not by the socket: a decode worker sends no frame without a free slot, an executor or NMS
worker gets no more than its capacity. So the high-water marks are set far above what can ever be under way; a socket
that dropped or blocked there would break the ledger.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import zmq

from pipeline.transport.codec import decode, encode
from pipeline.transport.zmtp import Dealer, path_of
from stages.errors import UserError
from stages.messages import InternalMessage

CONNECT_MS = 30_000
WAIT_MS = 500  # of WorkerChannel.wait
_HWM = 100_000
_NAMES_KEPT = 4096
_NOW = int(zmq.NOBLOCK)  # as plain numbers: arithmetic with enumerations costs as much as a message
_NOW_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_SOCKET_NAME = "engine"
_PREFIX = "campipe-"
_RUN_FOLDER = re.compile(_PREFIX + r"\d+-[a-z0-9_]{8}")  # as mkdtemp names them: never a folder of somebody's own
_LONGEST_IPC_PATH = 100  # sun_path holds 108 bytes


@contextlib.contextmanager
def run_folder() -> Iterator[Path]:
    """A new private folder for this run's sockets, removed afterwards: in XDG_RUNTIME_DIR, else TMPDIR, else /tmp.

    Workers remove it when the engine is killed. What was left by one that was killed before it had a worker is removed
    by the next run, which knows it by its lock: that is held while its process lives. The number of the process would
    not tell: a zombie still has it, another process gets it, and in another container that shares the folder it means
    somebody else.
    """
    for parent in _parents():
        _sweep(parent)
        with contextlib.suppress(OSError):  # not there, not writable, full: the next one
            folder, descriptor = _locked_folder(parent)
            break
    else:
        raise UserError(
            "no folder for this run's sockets: neither XDG_RUNTIME_DIR nor TMPDIR nor /tmp can be written; let one of "
            "them be (a few kB are enough: of a read-only container, --tmpfs /tmp)"
        )
    try:
        yield folder
    finally:
        remove_run_folder(folder)
        os.close(descriptor)


def _locked_folder(parent: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        with contextlib.suppress(FileNotFoundError):  # swept by another run before it was locked: once more
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            if _lock(descriptor) is not False and folder.exists():
                return folder, descriptor
            os.close(descriptor)


def _lock(descriptor: int) -> bool | None:
    """False: somebody else has it. None: this file system has no locks; what lies there is never swept."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _parents() -> list[Path]:
    try:
        temporary = tempfile.gettempdir()
    except FileNotFoundError:  # none can be written, as in a container with a root that is only read
        temporary = None
    parents = (os.environ.get("XDG_RUNTIME_DIR"), temporary, "/tmp")  # noqa: S108  mkdtemp makes it 0700
    fit = [each for each in parents if each and len(os.fsencode(each)) <= _LONGEST_IPC_PATH - 50 and each.isprintable()]
    return [Path(each) for each in dict.fromkeys(fit)]


def run_folders(more: Iterable[Path] = ()) -> tuple[list[Path], list[Path]]:
    """Folders of runs that live now (locked ones) which this user may enter: this user's, or anybody's for root.

    And those of runs that this user may not enter; they may have ended. ``more``: where to look too.
    """
    ours: list[Path] = []
    others: list[Path] = []
    for parent in dict.fromkeys([*_parents(), *more]):
        with contextlib.suppress(OSError):
            for folder in sorted(parent.iterdir()):
                with contextlib.suppress(OSError):  # it is gone, or no folder
                    if not _RUN_FOLDER.fullmatch(folder.name):
                        continue
                    if os.getuid() not in {0, folder.lstat().st_uid}:
                        others.append(folder)
                    elif _is_in_use(folder):
                        ours.append(folder)
    return ours, others


def _is_in_use(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        return _lock(descriptor) is not True
    finally:
        os.close(descriptor)


def _sweep(parent: Path) -> None:
    """Remove folders of runs whose process is gone."""
    with contextlib.suppress(OSError):
        for folder in parent.glob(f"{_PREFIX}*-*"):
            if _RUN_FOLDER.fullmatch(folder.name):
                with contextlib.suppress(OSError):  # another user's, or gone
                    _remove_unlocked(folder)


def _remove_unlocked(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid == os.getuid() and _lock(descriptor):
            remove_run_folder(folder)
    finally:
        os.close(descriptor)


def remove_run_folder(folder: Path) -> None:
    """Remove it; harmless when somebody else was faster."""
    shutil.rmtree(folder, ignore_errors=True)


def endpoint(folder: Path) -> str:
    """Where the engine listens."""
    return f"ipc://{folder / _SOCKET_NAME}"


class EngineChannel:
    """The engine's end: receives from and sends to workers by their address (name and incarnation)."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], where: str) -> None:
        self._context = context
        self._where = where
        self._names: dict[bytes, str] = {}  # of addresses that messages came from
        self.socket: zmq.Socket[bytes] | None = None

    def open(self) -> None:
        """Bind."""
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.set_hwm(_HWM)
        self.socket.linger = 0
        self.socket.bind(self._where)

    def receive(self) -> tuple[str, InternalMessage] | None:
        """One message that has arrived, or None. Raises msgspec.DecodeError or ValueError for what is no message."""
        socket = self.socket
        assert socket is not None
        try:
            address = socket.recv(_NOW)
            data = socket.recv(_NOW)  # workers send one part; all parts of a message arrive together
        except zmq.Again:
            return None
        name = self._names.get(address)
        return self._met(address) if name is None else name, decode(data)

    def _met(self, address: bytes) -> str:
        """The name of an address that is new, if it is one: after a message of too many parts it may be such a part.

        Looking for further parts costs as much as receiving one, so it is done here and not for every message.
        """
        assert self.socket is not None
        further = 0
        while self.socket.get(zmq.RCVMORE):
            self.socket.recv(_NOW)
            further += 1
        if further:
            raise ValueError(f"a message has {further + 2} parts")
        name = address.decode(errors="replace")
        if "#" in name:  # as every worker's has, before its incarnation
            if len(self._names) >= _NAMES_KEPT:
                self._names.clear()
            self._names[address] = name
        return name

    def send(self, address: str, message: InternalMessage) -> None:
        """Send; a worker that is gone loses it silently (its sentinel tells of it)."""
        socket = self.socket
        assert socket is not None
        socket.send(address.encode(), _NOW_MORE)
        socket.send(encode(message), _NOW)

    def close(self) -> None:
        """Unbind; may be called twice."""
        if self.socket is not None:
            self.socket.close(linger=0)
            self.socket = None


class WorkerChannel:
    """A worker's end. Used by one thread."""

    def __init__(self, where: str, address: str) -> None:
        self.socket = Dealer(path_of(where), address.encode(), connect_ms=CONNECT_MS, wait_ms=WAIT_MS)

    def send(self, message: InternalMessage) -> None:
        """Send; blocks only while the engine takes nothing in (credit bounds the queue)."""
        self.socket.send(encode(message))

    def receive(self, timeout_ms: int | None) -> InternalMessage | None:
        """One message; None when none came within ``timeout_ms`` (0: only what is there, None: wait for ever)."""
        data = self.socket.receive(timeout_ms)
        return None if data is None else decode(data)

    def wait(self) -> InternalMessage | None:
        """The next message, for a worker that waits for nothing else; None when none came for ``WAIT_MS``."""
        data = self.socket.wait()
        return None if data is None else decode(data)

    def close(self) -> None:
        """Close; the last words still arrive."""
        self.socket.close()

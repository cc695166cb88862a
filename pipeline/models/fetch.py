"""Owns getting the file of a known model over HTTP into a folder, whole or not at all. Knows no model (``known``).

What arrives is kept in a ``.part`` file named after the checksum it must have in the end, so that a later attempt can
go on from there, whichever server answers. Only a file of the right size and checksum gets the model's name. Several
processes may fetch the same model at once: one works, the others wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import os
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pipeline import __version__
from pipeline.models.known import KnownModel
from pipeline.models.store import check
from stages.errors import UserError

BLOCK_BYTES = 1 << 16
ATTEMPTS = 6
LOCK_WAIT_S = 600.0
RETRIED_STATUS = {408, 425, 429, 500, 502, 503, 504}

Progress = Callable[[int, int], None]
"""Called with (bytes there, bytes in all)."""
Say = Callable[[str], None]
"""Called with a sentence that explains a delay."""


def _quiet(*_: object) -> None:
    pass


class _Broken(Exception):
    """The connection failed in a way that another attempt may mend."""


def fetch(
    model: KnownModel,
    folder: Path,
    *,
    url: str | None = None,
    progress: Progress = _quiet,
    say: Say = _quiet,
    timeout_s: float = 30.0,
    retry_wait_s: float = 1.0,
) -> Path:
    """The file of ``model`` in ``folder``, fetched unless it is already there and right.

    ``url`` replaces the official address (a mirror); the content must be the same. UserError, with the remedy, when the
    server can't be reached or refuses, when what it gives is not the pinned content, or when it can't be written.
    """
    target = folder / model.file
    if not check(target, model.sha256, model.size_bytes):
        return target
    address = url or model.url
    if address is None:
        raise UserError(f"model {model.name!r} comes with campipe, there is nowhere to fetch it from; install it again")
    _check_address(address)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from None
    with _lock(folder / f".{model.file}.lock", model.name, say):
        if not check(target, model.sha256, model.size_bytes):
            return target  # another process fetched it meanwhile
        part = folder / f"{model.file}.{model.sha256[:12]}.part"
        _Download(model, address, part, progress, say, timeout_s, retry_wait_s).run()
        try:
            with part.open("rb") as file:
                os.fsync(file.fileno())  # else a power cut could leave an empty file with the model's name
            part.replace(target)
        except OSError as error:
            raise _unwritable(folder, error) from None
    return target


@dataclass(frozen=True, slots=True)
class _Download:
    """One download into ``part``, in as many connections as it takes."""

    model: KnownModel
    url: str
    part: Path
    progress: Progress
    say: Say
    timeout_s: float
    retry_wait_s: float

    def run(self) -> None:
        """Leave ``part`` with the right content, or raise UserError; a wrong content is removed."""
        resumed = self._have() > 0
        self._complete()
        wrong = check(self.part, self.model.sha256, self.model.size_bytes)
        if wrong and resumed:  # the older piece may be what is wrong
            self.say("what was kept of an earlier attempt does not fit; starting again")
            self._drop()
            self._complete()
            wrong = check(self.part, self.model.sha256, self.model.size_bytes)
        if wrong:
            self._drop()
            raise UserError(
                f"what {shown(self.url)} gives {wrong}; it was removed. The server, or something on the way, changed "
                f"the file: try later, or {self._by_hand()}"
            )

    def _complete(self) -> None:
        """Connect until ``part`` has the whole size."""
        self._need_room()
        for attempt in range(1, ATTEMPTS + 1):
            if self._have() == self.model.size_bytes:
                return
            try:
                self._connect_once()
            except _Broken as broken:
                reason = str(broken)
            else:
                reason = "the connection closed early"
            have, size = self._have(), self.model.size_bytes
            if have == size:
                return
            if attempt < ATTEMPTS:
                self.say(f"interrupted at {have} of {size} bytes ({reason}); trying again")
                time.sleep(self.retry_wait_s * attempt)
        raise UserError(
            f"fetching {shown(self.url)} failed {ATTEMPTS} times, the last at {have} of {size} bytes ({reason}); "
            f"`campipe models fetch {self.model.name}` goes on from there"
        )

    def _connect_once(self) -> None:
        """Append what one connection gives; _Broken if trying again may help."""
        have = self._have()
        request = urllib.request.Request(self.url, headers={"User-Agent": f"campipe/{__version__}"})  # noqa: S310
        if have:
            request.add_header("Range", f"bytes={have}-")
        try:
            # _check_address let only http and https pass, and redirects stay within those
            with urllib.request.urlopen(request, timeout=self.timeout_s) as response:  # noqa: S310
                self._receive(response, have)
        except urllib.error.HTTPError as error:
            with error:
                self._refused(error)
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise _Broken("no answer in time") from None
            raise UserError(
                f"can't reach {shown(self.url)} ({_reason(error.reason)}). Check the network (and HTTPS_PROXY), or "
                f"{self._by_hand()}"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise _Broken(_reason(error)) from None

    def _refused(self, error: urllib.error.HTTPError) -> None:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            self._drop()
            raise _Broken("the server can't resume")
        if error.code in RETRIED_STATUS:
            raise _Broken(f"the server answered {error.code} {error.reason}")
        raise UserError(
            f"{shown(self.url)}: the server answered {error.code} {error.reason}. Check the address (--url), or "
            f"{self._by_hand()}"
        )

    def _receive(self, response: Any, have: int) -> None:
        size = self.model.size_bytes
        start = have if response.status == http.client.PARTIAL_CONTENT else 0
        if start and not str(response.headers.get("Content-Range", "")).startswith(f"bytes {start}-"):
            self._drop()
            raise _Broken("the server resumed at another place")
        offered = response.headers.get("Content-Length", "")
        if offered.isdigit() and start + int(offered) != size:
            raise UserError(
                f"{shown(self.url)} offers {start + int(offered)} bytes, expected {size}: it is not the file that "
                f"campipe knows (a login page of the network?). Check the address (--url), or {self._by_hand()}"
            )
        with self._open() as file:
            self._write(file, b"", start)
            self.progress(start, size)
            while start < size and (block := response.read(min(BLOCK_BYTES, size - start))):
                start = self._write(file, block, start)
                self.progress(start, size)

    def _open(self) -> IO[bytes]:
        try:
            # unbuffered, so that a write that fails fails where it is handled, and nothing is lost by a kill
            return os.fdopen(os.open(self.part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b", buffering=0)
        except OSError as error:
            raise _unwritable(self.part.parent, error) from None

    def _write(self, file: IO[bytes], block: bytes, start: int) -> int:
        """Put ``block`` at ``start`` and cut the file after it; returns where it ends."""
        try:
            file.seek(start)
            view = memoryview(block)
            while view:
                view = view[file.write(view) :]
            file.truncate(start + len(block))
        except OSError as error:
            self._drop()  # a full disk must not stay full because of us
            raise _unwritable(self.part.parent, error) from None
        return start + len(block)

    def _need_room(self) -> None:
        missing = self.model.size_bytes - self._have()
        free = shutil.disk_usage(self.part.parent).free
        if free < missing:
            raise UserError(
                f"{self.part.parent} has {free} bytes free, the rest of {self.model.file} needs {missing}; make room, "
                f"or set XDG_CACHE_HOME to a folder on another disk"
            )

    def _have(self) -> int:
        """Bytes of ``part``; a part longer than the file can become is dropped."""
        try:
            have = self.part.stat().st_size
        except FileNotFoundError:
            return 0
        if have > self.model.size_bytes:
            self._drop()
            return 0
        return have

    def _drop(self) -> None:
        self.part.unlink(missing_ok=True)

    def _by_hand(self) -> str:
        return f"get {self.model.file} on another machine and place it at {self.part.parent / self.model.file}"


@contextlib.contextmanager
def _lock(path: Path, name: str, say: Say) -> Iterator[None]:
    """Hold ``path`` locked. The file stays: removing it would let two processes hold two files of one name.

    The lock goes with its process, however that ends.
    """
    try:
        file = path.open("ab")
    except OSError as error:
        raise _unwritable(path.parent, error) from None
    with file:
        deadline = time.monotonic() + LOCK_WAIT_S
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    say(f"another process is fetching {name}; waiting for it")
                    told = True
                if time.monotonic() > deadline:
                    raise UserError(
                        f"another process has been fetching {name} for {LOCK_WAIT_S:.0f} s and holds {path}; end it"
                    ) from None
                time.sleep(0.05)
            except OSError as error:
                raise _unwritable(path.parent, error) from None
        yield


def shown(url: str) -> str:
    """``url`` as messages show it: without what may be a secret (user, password, query, fragment)."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return "the address"
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _check_address(url: str) -> None:
    try:
        parts = urllib.parse.urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or not url.isascii() or any(character <= " " or character == "\x7f" for character in url):
        raise UserError(f"{shown(url)!r} is not an address that models can be fetched from; give an http or https URL")
    if "@" in parts.netloc:
        raise UserError(f"{shown(url)} was given with a user or password, which is not supported; leave them out")


def _reason(error: object) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _unwritable(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"can't write to {folder} ({_reason(error)}); make room or mend its permissions, or set XDG_CACHE_HOME to "
        f"another folder"
    )

"""Owns the thread that looks at a site's files and reads them anew: YAML must never hold up the engine's loop.

It tells what it has read; what is done about it is decided elsewhere. What was refused, here or there, is read again
now and then: the remedy may lie outside of the files (a recording that appears, a permission, a camera that has left).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from pipeline.observe.logs import redact
from stages.errors import UserError

LOG = logging.getLogger("campipe.control")
SETTLED_LOOKS = 2  # a file is read when it was found the same so often: an editor may be in the middle of it
RETRY_S = 5.0  # what was refused is read again that often, and ...
RETRY_SHARE = 0.05  # ... takes at most so much of this machine's time
RETRY_MOST = 12  # times RETRY_S, between tries of what is read without a problem and refused elsewhere
SUFFIXES = (".yaml", ".yml")

T = TypeVar("T")
Fingerprint = tuple[tuple[str, int, int, int], ...]
"""Of each file: its path, when it was changed, its size, its inode."""


@dataclass(frozen=True, slots=True)
class Read(Generic[T]):
    """What a reading gave: ``content``, or ``problems``. ``token`` is what was given to ``ask``, None for a change."""

    kind: Literal["site", "camera"]
    content: T | None
    problems: tuple[str, ...]
    token: object = None


def fingerprint(site: Path, folder: Path | None) -> Fingerprint:
    """What the site's file and the cameras' files look like from outside; files that can't be seen are left out."""
    paths = [site]
    found: list[tuple[str, int, int, int]] = []
    if folder is not None:
        try:
            paths += sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.name[0] != ".")
        except OSError:
            found.append((str(folder), 0, 0, 0))  # the folder itself is gone, which is a change too
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        found.append((str(path), status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)


class Watcher(Generic[T]):
    """Looks each ``every_s`` (0: never) and reads when something has changed, or when asked.

    ``read_site()`` and ``read_camera(path)`` run in the thread; what they raise as UserError becomes ``problems``.
    ``folder()``: where the cameras' files lie now, None when they are in the site's own file.
    ``known``: how the files looked before the site was read that runs; without it, as they look at ``open``.
    """

    def __init__(
        self,
        site: Path,
        folder: Callable[[], Path | None],
        read_site: Callable[[], T],
        read_camera: Callable[[str], T],
        *,
        every_s: float,
        known: Fingerprint | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        self._site = site
        self._folder = folder
        self._read_site = read_site
        self._read_camera = read_camera
        self._every_s = every_s
        self._known = known
        self._retry_s = retry_s
        self._refused: tuple[str, ...] = ()  # problems of the site as it was read last
        self._again_s = 0.0  # when it is read again, though nothing has changed
        self._unused = False  # whether what was read last is right, but was refused by whom it was told to
        self._unused_before = 0  # readings of files that have not changed since, that came to the same
        self._asked: queue.SimpleQueue[tuple[str | None, object] | None] = queue.SimpleQueue()
        self._told: queue.SimpleQueue[Read[T]] = queue.SimpleQueue()
        self._site_seen: Fingerprint | None = None
        self._cameras: Path | None = None  # the folder, as the site's file said when it was last seen
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Start to look. What was changed since the files were ``known`` is a change."""
        known = self._known if self._known is not None else self._look()
        self._thread = threading.Thread(target=self._run, args=(known,), name="campipe-watch", daemon=True)
        self._thread.start()

    def ask(self, camera_file: str | None, token: object) -> None:
        """Read the site, or one camera's file, now."""
        self._asked.put((camera_file, token))

    def told(self) -> list[Read[T]]:
        """What has been read since the last call; never waits."""
        found: list[Read[T]] = []
        while True:
            try:
                found.append(self._told.get_nowait())
            except queue.Empty:
                return found

    def unused(self) -> None:
        """The site as it was told last could not be used: read and tell it again in a while, changed or not."""
        self._unused = True

    def close(self) -> None:
        """End the thread; a reading that is under way is not waited for beyond a moment. May be called twice."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._asked.put(None)
            thread.join(5)

    def _run(self, known: Fingerprint) -> None:
        seen, looks = known, 0
        while True:
            try:
                asked = self._asked.get(timeout=self._every_s or None)
            except queue.Empty:
                now = self._look()
                looks = looks + 1 if now == seen else 1
                seen = now
                if now != known and looks >= SETTLED_LOOKS:
                    known = now
                    self._unused_before = 0
                    self._told.put(self._read(None, None))
                elif now == known and self._due():
                    before, unused, read = self._refused, self._unused, self._read(None, None)
                    self._unused_before += unused
                    if unused or read.problems != before:
                        self._told.put(read)
                continue
            if asked is None:
                return
            path, token = asked
            if path is None:
                known = seen = self._look()
                self._unused_before = 0
            self._told.put(self._read(path, token))

    def _due(self) -> bool:
        more_s = self._retry_s * (min(2 ** min(self._unused_before, 10), RETRY_MOST) - 1) if self._unused else 0.0
        return (self._unused or bool(self._refused)) and time.monotonic() >= self._again_s + more_s

    def _look(self) -> Fingerprint:
        site = fingerprint(self._site, None)
        if site != self._site_seen:  # where the cameras lie is in there, and reading it costs
            self._site_seen, self._cameras = site, self._folder()
        return fingerprint(self._site, self._cameras)

    def _read(self, camera_file: str | None, token: object) -> Read[T]:
        if camera_file is not None:
            return self._read_now(camera_file, token)
        self._unused = False
        began_s = time.monotonic()
        read = self._read_now(None, token)
        ended_s = time.monotonic()
        self._refused = read.problems
        self._again_s = ended_s + max(self._retry_s, (ended_s - began_s) / RETRY_SHARE)
        return read

    def _read_now(self, camera_file: str | None, token: object) -> Read[T]:
        kind: Literal["site", "camera"] = "site" if camera_file is None else "camera"
        try:
            content = self._read_site() if camera_file is None else self._read_camera(camera_file)
        except UserError as error:
            return Read(kind, None, error.problems, token)
        except Exception as error:  # a thread that ends would leave every later change unseen
            if not self._refused:
                LOG.exception("the site can't be read")
            return Read(kind, None, (redact(f"{type(error).__name__}: {error}"),), token)
        return Read(kind, content, (), token)

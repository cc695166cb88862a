"""Owns what becomes of requests and changed files: which cameras are wanted, and the answer. Starts and stops nothing.

Wanted is what the files say, but for what was asked for by hand: a camera that was removed stays away until its file
changes or it is added again; one that was added stays until it is removed, or until a file of its name joins the site.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pipeline.config import Resolved
from pipeline.control.changes import diff
from pipeline.control.protocol import SITE_NAME, SOCKET_NAME, Answer
from pipeline.control.server import Client, ControlServer
from pipeline.control.watcher import Read, Watcher
from pipeline.observe.snapshot import EngineSnapshot
from stages.camera import CameraSpec
from stages.errors import UserError

if TYPE_CHECKING:
    from pipeline.runtime.fleet import Fleet

LOG = logging.getLogger("campipe.control")
WAIT_NS = 30_000_000_000  # for cameras that are still leaving or restarting, before a change of theirs is given up
SETTINGS = ("devices", "batch", "nms_workers", "publish", "jsonl", "limits", "observe", "control")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Cameras by name: what the files say, what was added by hand, what was removed (with what its file said then)."""

    files: dict[str, CameraSpec]
    added: dict[str, CameraSpec]
    removed: dict[str, CameraSpec]

    @property
    def specs(self) -> dict[str, CameraSpec]:
        """All that are to run."""
        return {name: spec for name, spec in self.files.items() if name not in self.removed} | self.added


class ControlDesk:
    """Takes requests and changed files, once in a while, in the engine's loop."""

    def __init__(self, site: Path, started_with: Resolved, watcher: Watcher[Resolved], socket: Path | None) -> None:
        self._site_path = site
        self._resolved = started_with
        self._watcher = watcher
        self._socket = socket
        self._server: ControlServer | None = None
        self._wanted = _Wanted({camera.name: camera for camera in started_with.cameras}, {}, {})
        self._queue: deque[Read[Resolved]] = deque()
        self._site_shown = os.fsencode(site).decode(errors="backslashreplace")
        self._notes: tuple[str, ...] = ()  # last told of settings that wait for the next start
        self._waiting: tuple[Read[Resolved], int] | None = None  # read, but cameras are busy; until when
        self.problems: tuple[str, ...] = ()  # why the files as they are now are not what runs

    def open(self, folder: Path) -> None:
        """Listen and watch. The run's ``folder`` tells ``campipe ctl`` which site runs here."""
        server = ControlServer(self._socket or folder / SOCKET_NAME)
        server.open()
        self._server = server
        # a link may lead to a name that is not UTF-8: as bytes
        (folder / SITE_NAME).write_bytes(os.fsencode(f"{self._site_path}\n{server.path}\n"))
        self._watcher.open()

    def close(self) -> None:
        """Stop both; may be called twice."""
        self._watcher.close()
        if self._server is not None:
            self._server.close()
            self._server = None

    def service(self, fleet: Fleet, now_ns: int, snapshot: Callable[[int], EngineSnapshot]) -> None:
        """Do what was asked for since the last call."""
        if self._server is None:
            return
        for client in self._server.service(now_ns):
            answer = self._requested(client, fleet, now_ns, snapshot)
            if answer is not None:
                self._server.answer(client, answer, now_ns)
        self._queue.extend(self._watcher.told())
        if self._waiting is not None:
            read, until_ns = self._waiting
            self._waiting = None
            newer = read.token is None and any(later.kind == "site" for later in self._queue)
            if not newer:
                self._take(read, fleet, now_ns, until_ns)
        while self._waiting is None and self._queue:
            self._take(self._queue.popleft(), fleet, now_ns, now_ns + WAIT_NS)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _requested(
        self, client: Client, fleet: Fleet, now_ns: int, snapshot: Callable[[int], EngineSnapshot]
    ) -> Answer | None:
        """The answer, or None when it comes later."""
        request = client.request
        assert request is not None
        name = request.camera
        try:
            match request.do:
                case "status":
                    status = msgspec.to_builtins(snapshot(now_ns))
                    return Answer(ok=True, status=status | {"site": self._site_shown, "problems": self.problems})
                case "add" if not Path(request.file).is_absolute():
                    return Answer(ok=False, text=[f"{request.file!r} is not the absolute path of a camera's file"])
                case "add":
                    self._watcher.ask(request.file, client)
                    return None
                case "reload":
                    self._watcher.ask(None, client)
                    return None
                case "remove":
                    fleet.remove(name, now_ns)
                    before = self._wanted
                    added = {each: spec for each, spec in before.added.items() if each != name}
                    left = {name: before.files[name]} if name in before.files else {}
                    self._wanted = _Wanted(before.files, added, before.removed | left)
                    return Answer(ok=True, text=[f"camera {name} is removed"])
                case "pause":
                    return Answer(ok=True, text=[fleet.pause(name, now_ns)])
                case "resume":
                    return Answer(ok=True, text=[fleet.resume(name, now_ns)])
        except UserError as error:
            return Answer(ok=False, text=list(error.problems))

    # --- what was read ------------------------------------------------------------------------------------------------

    def _take(self, read: Read[Resolved], fleet: Fleet, now_ns: int, until_ns: int) -> None:
        """Make what was read what runs, all of it or nothing."""
        resolved = read.content
        if resolved is None:
            self._refuse(read, read.problems, now_ns)
            return
        try:
            self._check_models(resolved)
            wanted = self._one_more(resolved, fleet) if read.kind == "camera" else self._as_files_say(resolved)
            changes = diff(fleet.specs, wanted.specs)
            if fleet.busy(changes.names):
                if now_ns < until_ns:
                    self._waiting = (read, until_ns)
                    return
                raise UserError(f"{', '.join(changes.names)}: still leaving or restarting; try again later")
            fleet.apply(changes, now_ns)
        except UserError as error:
            self._refuse(read, error.problems, now_ns)
            return
        self._wanted = wanted
        text = [str(changes)]
        if read.kind == "site":
            if self.problems:
                LOG.info("the files are right again, and used")
            self.problems = ()
            text += self._note_settings(resolved)
        if told := changes.of_those_that_stay or ("" if changes or read.token is None else str(changes)):
            LOG.info("%s", told)  # the fleet tells what is added and removed
        self._answer(read, Answer(ok=True, text=text), now_ns)

    def _one_more(self, resolved: Resolved, fleet: Fleet) -> _Wanted:
        """A camera's own file was named."""
        (spec,) = resolved.cameras
        present = fleet.specs.get(spec.name)
        if present is not None:
            what = "as that file says" if present == spec else "and differs; change its file, or remove it first"
            raise UserError(f"camera {spec.name} is in the run already, {what}")
        before = self._wanted
        removed = {name: each for name, each in before.removed.items() if name != spec.name}
        added = before.added if before.removed.get(spec.name) == spec else before.added | {spec.name: spec}
        return _Wanted(before.files, added, removed)

    def _as_files_say(self, resolved: Resolved) -> _Wanted:
        files = {camera.name: camera for camera in resolved.cameras}
        before = self._wanted
        removed = {name: spec for name, spec in before.removed.items() if files.get(name) == spec}
        added = {name: spec for name, spec in before.added.items() if name not in files}
        return _Wanted(files, added, removed)

    def _check_models(self, resolved: Resolved) -> None:
        before = {model.name: model for model in self._resolved.models}
        changed = [model.name for model in resolved.models if before.get(model.name, model) != model]
        if changed:
            raise UserError.of(
                [f"model {name}: its description or file was changed; restart campipe to use it" for name in changed]
            )

    def _note_settings(self, resolved: Resolved) -> list[str]:
        """Sentences on what the site's file says that only a new start can bring."""
        changed = [name for name in SETTINGS if getattr(resolved, name) != getattr(self._resolved, name)]
        notes = tuple(f"{name.removesuffix('_workers')}: changed, and used from the next start on" for name in changed)
        if notes != self._notes:
            self._notes = notes
            for note in notes:
                LOG.warning("%s: %s", self._site_path, note)
        return list(notes)

    def _refuse(self, read: Read[Resolved], problems: tuple[str, ...], now_ns: int) -> None:
        news = read.kind == "camera" or read.token is not None or problems != self.problems
        if read.kind == "site":
            self.problems = problems
            if read.content is not None:
                self._watcher.unused()  # the remedy may come by itself: cameras leave, a file can be written again
            if news:
                LOG.error("the changed files are not used, and nothing is changed:")
        for problem in problems if news else ():
            LOG.error("%s", problem)
        self._answer(read, Answer(ok=False, text=list(problems)), now_ns)

    def _answer(self, read: Read[Resolved], answer: Answer, now_ns: int) -> None:
        if isinstance(read.token, Client) and self._server is not None:
            self._server.answer(read.token, answer, now_ns)

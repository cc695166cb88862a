"""Owns the forkserver of one run: its process, and starting others from it. Decides not when (``launching``).

multiprocessing has one forkserver for a whole program. Two runs in one program would share it: it would end with the
first, and the second's workers with it; and a forkserver that the program uses itself would be ours, without what is
loaded beforehand. So each run has its own, with its socket in the run's folder: that path is short enough, and goes
with the run however it ends.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import forkserver, popen_forkserver, reduction, spawn, util
from multiprocessing.context import ForkServerContext, ForkServerProcess, set_spawning_popen
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pipeline.runtime.starting import stop_server


class RunForkServer:
    """``preload``: modules that it has loaded before it starts anybody. Starts with the first process that it starts.

    A forkserver that has died, or was ended by ``stop``, is replaced with the next process.
    """

    def __init__(self, folder: str, preload: Sequence[str]) -> None:
        self._folder = folder
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._server = forkserver.ForkServer()
        self._server.set_forkserver_preload(list(preload))

    @property
    def pid(self) -> int | None:
        """Of its process, if there is one."""
        pid = getattr(self._server, "_forkserver_pid", None)
        return pid if isinstance(pid, int) else None

    def process(self, target: Callable[..., object], arguments: tuple[Any, ...], name: str = "") -> BaseProcess:
        """A process to be started (in ``starting_processes``)."""
        made: ForkServerProcess = self._context.Process(target=target, args=arguments, name=name or None, daemon=True)
        vars(made)["_Popen"] = partial(_Popen, self)
        return made

    def connect(self, descriptors: list[int]) -> tuple[int, int]:
        """Have a process started that gets these; where its number and end are told, and where it reads its work."""
        if not Path(self._folder).is_dir():
            raise OSError(f"{self._folder} was removed, and its sockets with it; restart campipe")
        # Its socket goes where multiprocessing keeps its own files; there is no other way to say where.
        settings = _process_settings()
        before = settings.get("tempdir")
        settings["tempdir"] = self._folder
        try:
            return self._server.connect_to_new_process(descriptors)
        finally:
            settings["tempdir"] = before

    def stop(self) -> None:
        """End it, and with it the processes that it has started; may be called twice."""
        with contextlib.suppress(OSError):  # its socket may be gone with its folder
            stop_server(self._server)


class _Popen(popen_forkserver.Popen):
    """As multiprocessing's, with another forkserver than the program's."""

    def __init__(self, server: RunForkServer, process: BaseProcess) -> None:
        del vars(process)["_Popen"]  # the process is about to be pickled
        self._server = server
        super().__init__(process)

    def _launch(self, process: BaseProcess) -> None:
        work = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process.name), work)
            reduction.dump(process, work)
        finally:
            set_spawning_popen(None)
        self.sentinel, writer = self._server.connect(self._fds)  # type: ignore[attr-defined]
        # Its duplicate is what the process knows by that this one has ended.
        self.finalizer = util.Finalize(self, util.close_fds, (os.dup(writer), self.sentinel))  # type: ignore[attr-defined]
        with open(writer, "wb") as pipe:  # noqa: PTH123  a descriptor
            pipe.write(work.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


def _process_settings() -> dict[str, object]:
    """Where multiprocessing keeps the folder of its sockets; there is no public way to set it."""
    settings: dict[str, object] = getattr(multiprocessing.current_process(), "_config", {})
    return settings

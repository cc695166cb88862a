"""Owns starting ``serve`` as a process and speaking with its control port. For tests that kill or stop a camera."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2]
START_S = 30.0


class ServerProcess:
    """A camera that may be killed. ``options`` go to serve's command line. A context manager: enters serving."""

    def __init__(self, *options: str, port: int = 0) -> None:
        self._options = [*options, "--port", str(port)]
        self._process: subprocess.Popen[str] | None = None
        self.port = port
        self._control = 0

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None, "start comes first"
        return self._process.pid

    def start(self) -> None:
        """Start, and wait until it serves."""
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        command = [sys.executable, "-m", "faults.servers.serve", *self._options]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, env=environment, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        try:
            ready, _, _ = select.select([self._process.stdout], [], [], START_S)
            words = self._process.stdout.readline().split() if ready else []
        except BaseException:  # interrupted
            self.close()
            raise
        if len(words) != 3:
            self.close()
            raise RuntimeError("the server did not start")
        self.port, self._control = int(words[1]), int(words[2])
        self._options[-1] = words[1]  # on the same port when started again

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """One request to the control port and its answer."""
        with socket.create_connection(("127.0.0.1", self._control), 10) as connection:
            connection.sendall(json.dumps({"do": do, **more}).encode() + b"\n")
            with connection.makefile() as lines:
                said: dict[str, Any] = json.loads(lines.readline())
        if not said["ok"]:
            raise ValueError(said["error"])
        return said

    def close(self) -> None:
        """Kill it; may be called twice."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""Owns the other end of the control socket: finding a running site, asking it, waiting for its answer."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from pipeline.control.protocol import MAX_ANSWER_BYTES, SITE_NAME, Answer, Malformed, Request, answer_in, body_length
from pipeline.control.protocol import framed as request_bytes
from pipeline.transport.channel import run_folders
from stages.errors import CampipeError, UserError

CONNECT_S = 5.0
RETRY_S = 0.02
READ_BYTES = 1 << 16


def find_socket(site: str | None) -> Path:
    """The socket of the run of that site, or of the only run there is. Raises UserError when none, or several, fit."""
    wanted = Path(site).resolve() if site is not None else None
    found: list[tuple[str, Path]] = []
    for folder in run_folders():
        try:
            path, where = (folder / SITE_NAME).read_text(encoding="utf-8").splitlines()[:2]
        except (OSError, ValueError):
            continue  # a run without control, or one that is just starting or ending
        if wanted is None or Path(path) == wanted:
            found.append((path, Path(where)))
    if len(found) == 1:
        return found[0][1]
    if not found:
        what = f"the site {site}" if site is not None else "any site"
        raise UserError(
            f"no campipe of this user's runs {what} under control; start it with `campipe run`, or name its --socket "
            "when control.socket is set"
        )
    listed = "; ".join(f"--socket {where} ({path})" for path, where in found)
    raise UserError(f"{len(found)} runs fit; say which one: {listed}")


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

"""Owns the control socket: who may connect, how much is read, how long is waited. Does not own what is answered.

A stream socket of this machine's, in a folder that only its owner may enter. Never blocks; each call of ``service``
does a bounded amount of work, whatever clients do: few at a time, short requests, a deadline for each of them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pipeline.control.protocol import Answer, Malformed, Request, framed, request_in
from pipeline.observe.logs import redact
from stages.errors import UserError

MAX_CLIENTS = 16  # others wait to be accepted
BACKLOG = 64
PATIENCE_NS = 3_000_000_000  # for a whole request, and for an answer to be taken
READ_BYTES = 16 * 1024
LONGEST_PATH_BYTES = 100  # sun_path holds 108


@dataclass(slots=True, eq=False)
class Client:
    """One connection. ``request`` is None until it is whole."""

    connection: socket.socket
    until_ns: int
    received: bytearray = field(default_factory=bytearray)
    request: Request | None = None
    to_send: memoryview | None = None


def _redacted(answer: Answer) -> Answer:
    status = answer.status
    if status is not None and status.get("problems"):
        status = status | {"problems": [redact(str(problem)) for problem in status["problems"]]}
    return msgspec.structs.replace(answer, text=[redact(line) for line in answer.text], status=status)


class ControlServer:
    """Requests in, answers out. ``path`` is removed again by ``close``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener: socket.socket | None = None
        self._clients: list[Client] = []

    def open(self) -> None:
        """Listen; only this user may connect. Raises UserError when that can't be had."""
        if len(os.fsencode(self.path)) > LONGEST_PATH_BYTES:
            raise UserError(f"control.socket: {self.path}: is too long; use at most {LONGEST_PATH_BYTES} bytes")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        before = os.umask(0o177)
        try:
            self._clear()
            listener.bind(str(self.path))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            remedy = "name another path as control.socket"
            raise UserError(f"control.socket: {self.path}: {error.strerror}; {remedy}") from None
        except BaseException:
            listener.close()
            raise
        finally:
            os.umask(before)
        self._listener = listener

    def _clear(self) -> None:
        """Remove a socket that nobody listens at any more; refuse to touch anything else."""
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise UserError(f"control.socket: {self.path}: a file is there; name another path")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(self.path))
            except ConnectionRefusedError:
                self.path.unlink()
                return
            except OSError:
                pass
        raise UserError(f"control.socket: {self.path}: another campipe listens there; name another path")

    def service(self, now_ns: int) -> list[Client]:
        """Clients whose request is whole since the last call; each is to be given one ``answer``."""
        self._accept(now_ns)
        whole: list[Client] = []
        for client in list(self._clients):
            if client.to_send is not None:
                self._send(client)
            elif client.request is None and self._read(client):
                whole.append(client)
            if client in self._clients and now_ns > client.until_ns and (client.to_send or client.request is None):
                self._drop(client)
        return whole

    def answer(self, client: Client, answer: Answer, now_ns: int) -> None:
        """Say this to the client and then close; nothing happens when it has left. No secret is said."""
        if client not in self._clients:
            return
        client.to_send = memoryview(framed(_redacted(answer)))
        client.until_ns = now_ns + PATIENCE_NS
        self._send(client)

    def _accept(self, now_ns: int) -> None:
        while self._listener is not None and len(self._clients) < MAX_CLIENTS:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # nobody waits, or no descriptor is free: the next call tries again
                return
            connection.setblocking(False)
            if _is_ours(connection):
                self._clients.append(Client(connection, now_ns + PATIENCE_NS))
            else:
                connection.close()

    def _read(self, client: Client) -> bool:
        try:
            data = client.connection.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            self._drop(client)
            return False
        if not data:
            self._drop(client)
            return False
        client.received += data
        try:
            client.request = request_in(client.received)
        except Malformed as problem:
            client.request = Request(do="status")  # nothing more is read of it
            self.answer(client, Answer(ok=False, text=[str(problem)]), client.until_ns - PATIENCE_NS)
            return False
        return client.request is not None

    def _send(self, client: Client) -> None:
        assert client.to_send is not None
        try:
            sent = client.connection.send(client.to_send)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)
            return
        client.to_send = client.to_send[sent:]
        if not client.to_send:
            self._drop(client)

    def _drop(self, client: Client) -> None:
        client.connection.close()
        with contextlib.suppress(ValueError):
            self._clients.remove(client)

    def close(self) -> None:
        """Stop listening, hang up; may be called twice."""
        for client in list(self._clients):
            self._drop(client)
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            with contextlib.suppress(OSError):
                self.path.unlink()


def _is_ours(connection: socket.socket) -> bool:
    """Whether the process at the other end is this user's, or root's."""
    credentials = struct.Struct("3i")
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    except OSError:
        return False
    _, user, _ = credentials.unpack(data)
    return user in {0, os.getuid()}

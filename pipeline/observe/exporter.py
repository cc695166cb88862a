"""Owns the HTTP face of a run on loopback: /metrics, /healthz, /livez. Does not own the figures, nor its process.

Any program on the machine may connect, so nothing it does may cost much: few connections at a time, each with a
deadline, requests of a few kilobytes, GET and HEAD only. Nothing secret is in the answers.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from pipeline.observe.health import Health, judge
from pipeline.observe.metrics import SnapshotCollector
from pipeline.observe.snapshot import EngineSnapshot
from stages.errors import UserError

CONNECTIONS = 16  # at a time; a further one is closed at once
DEADLINE_S = 5.0  # for a request to come, and for its answer to be taken


class Exporter:
    """Serves the newest snapshot at ``host:port`` until closed. ``update`` may be called from another thread."""

    def __init__(self, host: str, port: int, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._where = (host, port)
        self._clock_s = clock_s
        self._newest: tuple[EngineSnapshot, float] | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(SnapshotCollector(self.read))
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Listen. Raises UserError when the address can't be had."""
        try:
            server = _Server(self._where, _handler(self))
        except OSError as error:
            host, port = self._where
            reason = error.strerror or str(error)
            raise UserError(
                f"observe.listen: {host}:{port} can't be listened at ({reason}); end the program that has it, or write "
                "another port (0 for a free one)"
            ) from None
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """``host:port`` with the real port."""
        if self._server is None:
            return "{}:{}".format(*self._where)
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def update(self, snapshot: EngineSnapshot) -> None:
        """Serve this one from now on."""
        self._newest = (snapshot, self._clock_s())

    def read(self) -> tuple[EngineSnapshot | None, float, Health]:
        """The newest snapshot, its age in seconds, and what is to be thought of it."""
        newest = self._newest
        if newest is None:
            return None, 0.0, judge(None, 0.0)
        snapshot, at_s = newest
        age_s = self._clock_s() - at_s
        return snapshot, age_s, judge(snapshot, age_s)

    def answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """Status, content type and body for a GET of ``path``."""
        match path.partition("?")[0]:
            case "/metrics":
                return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry)
            case "/healthz":
                return self._healthz()
            case "/livez":
                _, _, health = self.read()
                dead = any(finding.subject == "engine" and finding.colour == "red" for finding in health.findings)
                return (
                    (HTTPStatus.SERVICE_UNAVAILABLE if dead else HTTPStatus.OK),
                    "text/plain",
                    b"dead\n" if dead else b"ok\n",
                )
            case _:
                return HTTPStatus.NOT_FOUND, "text/plain", b"there are /metrics, /healthz and /livez\n"

    def _healthz(self) -> tuple[HTTPStatus, str, bytes]:
        snapshot, age_s, health = self.read()
        told: dict[str, Any] = {
            "health": health.colour,
            "findings": [
                {"colour": finding.colour, "subject": finding.subject, "sentence": finding.sentence}
                for finding in health.findings
            ],
            "told_seconds_ago": round(age_s, 3),
            "cameras": {camera.name: camera.state for camera in snapshot.cameras} if snapshot else {},
        }
        status = HTTPStatus.SERVICE_UNAVAILABLE if health.colour == "red" else HTTPStatus.OK
        return status, "application/json", (json.dumps(told, ensure_ascii=False) + "\n").encode()

    def close(self) -> None:
        """Stop listening; may be called twice."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        if self._thread is not None:
            self._thread.join(DEADLINE_S)
            self._thread = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = CONNECTIONS

    def __init__(self, where: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._room = threading.BoundedSemaphore(CONNECTIONS)
        self._since_s: dict[socket, float] = {}
        super().__init__(where, handler)

    def process_request(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        if isinstance(request, socket):
            self._since_s[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Cut off whoever sends or takes a byte now and then: the handler's timeout is for each byte anew."""
        late_s = time.monotonic() - DEADLINE_S
        for request, since_s in list(self._since_s.items()):
            if since_s < late_s:
                with contextlib.suppress(OSError):
                    request.shutdown(SHUT_RDWR)

    def process_request_thread(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            if isinstance(request, socket):
                self._since_s.pop(request, None)
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


def _handler(exporter: Exporter) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = DEADLINE_S
        server_version = "campipe"
        sys_version = ""

        def do_GET(self) -> None:
            self._answer(body_wanted=True)

        def do_HEAD(self) -> None:
            self._answer(body_wanted=False)

        def _answer(self, *, body_wanted: bool) -> None:
            status, content_type, body = exporter.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if body_wanted:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Scrapes are no events."""

    return Handler

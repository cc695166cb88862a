"""Owns two broken cameras for measuring what they do to others: a port that refuses, and MJPEG that breaks off.

Run as a program: prints both ports and serves until its input ends.
"""

from __future__ import annotations

import http.server
import itertools
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Final

import av
import cv2

ALIVE_S: Final = 1.5
FPS: Final = 10
BOUNDARY: Final = "picture"


def pictures(clip: Path, count: int = 10) -> list[bytes]:
    """The clip's first pictures as JPEG."""
    with av.open(str(clip)) as container:
        shown = [frame.to_ndarray(format="bgr24") for frame in itertools.islice(container.decode(video=0), count)]
    return [cv2.imencode(".jpg", picture)[1].tobytes() for picture in shown]


def handler(shown: list[bytes]) -> type[http.server.BaseHTTPRequestHandler]:
    """Sends pictures for ``ALIVE_S`` and closes."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """One connection."""
            self.send_response(200)
            self.send_header("Content-Type", f"multipart/x-mixed-replace; boundary={BOUNDARY}")
            self.end_headers()
            until_s = time.monotonic() + ALIVE_S
            for picture in itertools.cycle(shown):
                if time.monotonic() > until_s:
                    return
                head = f"--{BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(picture)}\r\n\r\n"
                try:
                    self.wfile.write(head.encode() + picture + b"\r\n")
                except OSError:
                    return
                time.sleep(1 / FPS)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base's name
            """Say nothing."""

    return Handler


def main() -> None:
    """See the module."""
    with (
        socket.socket() as dead,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler(pictures(Path(sys.argv[1])))) as server,
    ):
        dead.bind(("127.0.0.1", 0))  # taken, and nobody listens
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(dead.getsockname()[1], server.server_port, flush=True)  # noqa: T201  what it is started for
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main()

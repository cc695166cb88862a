"""Owns the RTSP test server as a process: ``python -m faults.servers.serve`` with ``tests`` in PYTHONPATH.

Prints ``READY PORT CONTROL`` and serves until its parent is gone or it gets SIGTERM. To the control port (TCP on the
loopback) go JSON objects, one a line, each answered with one: ``{"do": "mishap", "path": "gate", "set": {"stall":
true}}``, ``heal`` (path), ``cut`` (path or null, reset), ``bye`` (path), ``stop``, ``start``, ``counts``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import signal
import socketserver
import sys
import threading
from typing import Any

from faults.servers.elementary import ElementaryStream, make_stream
from faults.servers.rtsp import RtspServer

PARENT_LOOK_S = 0.5
_PATH = re.compile(r"(?P<name>[\w.-]+)=(?P<width>\d+)x(?P<height>\d+)@(?P<fps>\d+)")


def main() -> int:
    """Serve until told to end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", metavar="NAME=WIDTHxHEIGHT@FPS", help="a path and its pictures")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--scheme", choices=("none", "basic", "digest", "both"), default="none")
    parser.add_argument("--user", default="")
    parser.add_argument("--password", default=os.environ.get("CAMERA_PASSWORD", ""), help="default: $CAMERA_PASSWORD")
    args = parser.parse_args()
    parent = os.getppid()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    paths = dict(map(_path, args.paths))
    server = RtspServer(paths, scheme=args.scheme, user=args.user, password=args.password, port=args.port)
    with server, _control(server) as control:
        threading.Thread(target=control.serve_forever, args=(0.05,), daemon=True).start()
        print("READY", server.port, control.server_address[1], flush=True)
        while os.getppid() == parent and not ended.wait(PARENT_LOOK_S):
            pass
        control.shutdown()
    return 0


def _path(text: str) -> tuple[str, dict[str, ElementaryStream]]:
    match = _PATH.fullmatch(text)
    if match is None:
        sys.exit(f"{text}: write NAME=WIDTHxHEIGHT@FPS")
    width, height, fps = (int(match[key]) for key in ("width", "height", "fps"))
    small = make_stream(width // 4 * 2, height // 4 * 2, fps)
    return match["name"], {"main": make_stream(width, height, fps), "small": small}


def answer(server: RtspServer, request: dict[str, Any]) -> dict[str, Any]:
    """Do what one line of the control port asks for."""
    path = request.get("path")
    match request.get("do"):
        case "mishap":
            server.mishap(path, **request["set"])
        case "heal":
            server.heal(path)
        case "cut":
            return {"ok": True, "cut": server.cut(path, reset=bool(request.get("reset")))}
        case "bye":
            server.bye(path)
        case "stop":
            server.stop()
        case "start":
            server.start()
        case "counts":
            sent = {name: dataclasses.asdict(mount.sent) for name, mount in server.mounts.items()}
            return {"ok": True, "connections": server.connections, "open": server.open_connections, "sent": sent}
        case other:
            return {"ok": False, "error": f"there is no {other!r}"}
    return {"ok": True}


def _control(server: RtspServer) -> socketserver.ThreadingTCPServer:
    class Lines(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                try:
                    said = answer(server, json.loads(line))
                except (ValueError, KeyError, TypeError) as error:
                    said = {"ok": False, "error": f"{type(error).__name__}: {error}"}
                self.wfile.write(json.dumps(said).encode() + b"\n")

    class Control(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    return Control(("127.0.0.1", 0), Lines)


if __name__ == "__main__":
    sys.exit(main())

"""Owns the cameras of the fault tests that send MPEG-TS: to a UDP port, or as an HLS playlist. Made by PyAV."""

from __future__ import annotations

import http.server
import io
import socket
import threading
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
from faults.servers.elementary import ElementaryStream, make_stream

DATAGRAM_BYTES = 7 * 188
TICKS = 90_000


def muxed(stream: ElementaryStream, loops: int = 1, start_s: float = 0.0) -> bytes:
    """``stream`` so many times in a row as one transport stream whose timestamps begin at ``start_s``."""
    target = io.BytesIO()
    with av.open(io.BytesIO(stream.annex_b), format="h264") as reader:
        packets = [bytes(packet) for packet in reader.demux(video=0) if packet.size]
        with av.open(target, "w", format="mpegts", options={"mpegts_copyts": "1"}) as writer:
            copy: Any = writer.add_stream_from_template(reader.streams.video[0], opaque=False)
            for number in range(len(packets) * loops):
                packet: Any = av.Packet(packets[number % len(packets)])
                packet.stream, packet.time_base = copy, Fraction(1, TICKS)
                packet.pts = packet.dts = int((start_s + number / stream.fps) * TICKS)
                packet.is_keyframe = number % (len(packets) // len(stream.groups)) == 0
                writer.mux(packet)
    return target.getvalue()


class TsSender:
    """Sends to ``port`` of the loopback in real time from ``start`` to ``close``, without B-frames; loops in time."""

    def __init__(self, port: int, stream: ElementaryStream | None = None) -> None:
        self.port = port
        self.stall = threading.Event()
        self._stream = stream or make_stream()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send, name="ts-sender", daemon=True)

    def __enter__(self) -> TsSender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(10)

    def _send(self) -> None:
        seconds = sum(map(len, self._stream.groups)) / self._stream.fps
        began_s, part = time.monotonic(), 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            while True:
                data = muxed(self._stream, start_s=part * seconds)
                pieces = [data[at : at + DATAGRAM_BYTES] for at in range(0, len(data), DATAGRAM_BYTES)]
                for number, piece in enumerate(pieces):
                    due_s = began_s + (part + number / len(pieces)) * seconds
                    if self._ended.wait(max(due_s - time.monotonic(), 0)):
                        return
                    if not self.stall.is_set():
                        out.sendto(piece, ("127.0.0.1", self.port))
                part += 1


class HlsServer:
    """``url`` is a live playlist of one-second segments made beforehand in ``folder``, up to ``seconds``."""

    def __init__(self, folder: Path, seconds: int = 30, stream: ElementaryStream | None = None) -> None:
        one = stream or make_stream(seconds=1)
        for number in range(seconds):
            (folder / f"s{number}.ts").write_bytes(muxed(one, start_s=float(number)))
        self._folder = folder
        self._seconds = seconds
        self._began_s = time.monotonic()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/live.m3u8"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="hls-server", daemon=True)

    def __enter__(self) -> HlsServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def playlist(self) -> str:
        """The last segments that are over by now."""
        newest = min(int(time.monotonic() - self._began_s) + 3, self._seconds)
        first = max(newest - 4, 0)
        entries = "".join(f"#EXTINF:1.0,\ns{number}.ts\n" for number in range(first, newest))
        return f"#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n#EXT-X-MEDIA-SEQUENCE:{first}\n{entries}"

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.strip("/")
                path = server._folder / name
                if name == "live.m3u8":
                    self._answer(server.playlist().encode(), "application/vnd.apple.mpegurl")
                elif path.name == name and path.suffix == ".ts" and path.is_file():
                    self._answer(path.read_bytes(), "video/mp2t")
                else:
                    self.send_error(404)

            def _answer(self, body: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        return Handler

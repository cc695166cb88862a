"""Owns the paced streams of a density measurement: paced files or a real RTSP server, and cameras that are broken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from pipeline.bench.workload import Workload, network_cameras, recordings
from stages.camera import CameraSpec
from stages.errors import CampipeError, UserError

ROOT: Final = Path(__file__).resolve().parents[2]
SERVERS: Final = ROOT / "tests"  # the RTSP server of the fault tests is part of a checkout, not of an installation

RTSP: Final = """
import sys, threading
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
from faults.servers.elementary import make_stream
from faults.servers.rtsp import RtspServer
clip, width, height, fps = Path(sys.argv[3]), *map(int, sys.argv[4:7])
stream = make_stream(width, height, fps, 4, clip=clip)
with RtspServer({"gate": stream, "flapping": stream}) as server:
    print(server.port, flush=True)
    left = threading.Event()
    def leave():
        sys.stdin.read()
        left.set()
    threading.Thread(target=leave, daemon=True).start()
    while not left.wait(1.5):
        server.cut("flapping")
"""


class Streams:
    """Paced recordings at ``fps``. A context manager; ``faulty`` gives a dead and a flapping camera."""

    def __init__(self, load: Workload, fps: float) -> None:
        self.fps = fps
        self._load = load

    def recordings(self, count: int) -> list[CameraSpec]:
        """The same pictures as recordings, for measuring parts alone."""
        return recordings(self._load, count, paced=True)

    def cameras(self, count: int) -> list[CameraSpec]:
        """``count`` streams."""
        return self.recordings(count)

    @contextmanager
    def faulty(self) -> Iterator[list[CameraSpec]]:
        """A camera that nobody answers for, and one that is lost again and again."""
        command = [sys.executable, "-m", "pipeline.bench.flapping", str(self._load.clip)]
        with _server(command, ROOT) as words:
            dead, flapping = words
            urls = [f"rtsp://127.0.0.1:{dead}/dead", f"http://127.0.0.1:{flapping}/flapping.mjpg"]
            yield network_cameras(urls, ["dead", "flapping"])

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class RtspStreams(Streams):
    """The same pictures from a real RTSP server in a process of its own, which takes its part of the cores."""

    def __init__(self, load: Workload, fps: int, size: tuple[int, int]) -> None:
        super().__init__(load, fps)
        if not (SERVERS / "faults" / "servers" / "rtsp.py").is_file():
            raise UserError("--rtsp needs the server of campipe's own tests; run from a checkout, or without --rtsp")
        self._size = size
        self._port = ""
        self._serving = ExitStack()

    def cameras(self, count: int) -> list[CameraSpec]:
        """See Streams."""
        names = [f"camera-{number:03}" for number in range(1, count + 1)]
        return network_cameras([f"rtsp://127.0.0.1:{self._port}/gate"] * count, names)

    @contextmanager
    def faulty(self) -> Iterator[list[CameraSpec]]:
        """See Streams."""
        with _server([sys.executable, "-m", "pipeline.bench.flapping", str(self._load.clip)], ROOT) as words:
            urls = [f"rtsp://127.0.0.1:{words[0]}/dead", f"rtsp://127.0.0.1:{self._port}/flapping"]
            yield network_cameras(urls, ["dead", "flapping"])

    def __enter__(self) -> RtspStreams:
        width, height = self._size
        arguments = [str(ROOT), str(SERVERS), str(self._load.clip), str(width), str(height), str(int(self.fps))]
        (self._port,) = self._serving.enter_context(_server([sys.executable, "-c", RTSP, *arguments], ROOT))
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.close()


@contextmanager
def _server(command: list[str], folder: Path) -> Iterator[list[str]]:
    """A process that says on one line what it serves where, and leaves when its input ends."""
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdin, process.stdout:
            words = process.stdout.readline().split()
            if not words:
                raise CampipeError(f"{' '.join(command[1:3])} did not start")
            yield words
    finally:
        process.terminate()
        process.wait()

"""Owns ``campipe run`` of a live site as a process, watched from outside: messages, logs, footprint. Judges nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil
import zmq
from faults.canary import found_in
from made.ports import free_port

from pipeline.control.client import ask
from pipeline.control.protocol import Answer, Request
from stages.messages import Detections, Heartbeat, Status

ROOT = Path(__file__).resolve().parents[2]
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Seen:
    """One published frame; ``at_s`` monotonic when it was received, ``age_ms`` from the arrival of its data to then."""

    at_s: float
    epoch: int
    seq: int
    pts_ns: int
    size: tuple[int, int]
    corrupt: bool
    clock: str
    captured_ns: int
    age_ms: float


@dataclass(frozen=True, slots=True)
class Told:
    """One status message and when it was received."""

    at_s: float
    status: Status


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of the whole tree of processes."""

    processes: int
    threads: int
    descriptors: int
    memory_bytes: int  # private, that is USS

    def grown(self, before: Footprint, memory_bytes: int, coming_and_going: int = 0) -> list[str]:
        """What there is more of than before: of memory by more than ``memory_bytes``, of threads and descriptors by
        more than ``coming_and_going`` connections have of them."""
        rooms = {"processes": 0, "threads": coming_and_going, "descriptors": coming_and_going}
        rooms["memory_bytes"] = memory_bytes
        pairs = {name: (getattr(before, name), getattr(self, name)) for name in rooms}
        return [f"{name} {a} -> {b}" for name, (a, b) in pairs.items() if b > a + rooms[name]]

    def __str__(self) -> str:
        memory = f"{self.memory_bytes / 2**20:.1f} MB"
        return f"{self.processes} processes, {self.threads} threads, {self.descriptors} descriptors, {memory}"


class LiveRun:
    """Write a site into ``folder``, run it, listen to it. ``cameras``: as in a site file, by name.

    A context manager: enters started, leaves with everything killed that is left.
    """

    def __init__(
        self, folder: Path, cameras: dict[str, dict[str, Any]], *, command: Sequence[str] = (), **settings: Any
    ) -> None:
        self.folder = folder
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.figures = f"127.0.0.1:{free_port()}"
        self.cameras_folder = folder / "cameras"
        self._cameras = cameras
        self._settings = settings
        self._more = list(command)
        self.process: subprocess.Popen[bytes] | None = None
        self.frames: dict[str, list[Seen]] = {}
        self.told: dict[str, list[Told]] = {}
        self.heartbeats = 0
        self.tries: Counter[str] = Counter()  # by camera: how often it was connected, or was tried to be
        self.leaks: list[str] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._listener = threading.Thread(target=self._listen, name="live-run-listener", daemon=True)
        self._family: dict[int, psutil.Process] = {}

    # --- life ---------------------------------------------------------------------------------------------------------

    @property
    def log(self) -> str:
        """All that it said on stderr and stdout so far."""
        return "".join((self.folder / name).read_text(errors="replace") for name in ("stderr.txt", "stdout.txt"))

    def start(self) -> None:
        """Write the site, start the run, start listening."""
        self.cameras_folder.mkdir(parents=True, exist_ok=True)
        for name, camera in self._cameras.items():
            self.write_camera(name, camera)
        site: dict[str, Any] = {
            "cameras": "cameras",
            "devices": {"device": "canned:0", "options": {"objects": 1, "copies": "none"}},
            "publish": {"bind": self.address, "trace": True},
            "observe": {"listen": self.figures},
            "control": {"socket": str(self.folder / "ctl")},
            "sinks": [{"jsonl": {"path": "out.jsonl", "status": True}}],
        } | self._settings
        (self.folder / "site.yaml").write_text(json.dumps(site))
        self._listener.start()
        command = [sys.executable, "-P", "-m", "pipeline", "run", "site.yaml", "--report", "report.json"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(self.folder)}
        with (self.folder / "stderr.txt").open("wb") as errors, (self.folder / "stdout.txt").open("wb") as out:
            self.process = subprocess.Popen(
                [*command, "--view", "lines", "--log-level", "debug", *self._more],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )

    def write_camera(self, name: str, camera: dict[str, Any]) -> None:
        """The file of one camera, put there whole."""
        new = self.cameras_folder / f".{name}.new"
        new.write_text(json.dumps(camera))  # JSON is YAML
        new.replace(self.cameras_folder / f"{name}.yaml")

    def stop(self, within_s: float = 30.0) -> dict[str, Any]:
        """Ask it to stop; its report."""
        assert self.process is not None
        self.family()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(within_s)
        report: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return report

    def close(self) -> None:
        """Kill what is left; may be called twice."""
        if self.process is not None:
            left = self.family()
            self.process.kill()
            self.process.wait()
            for each in left:
                if each.pid != self.process.pid and each.is_running():
                    each.kill()
        self._ended.set()
        if self._listener.is_alive():
            self._listener.join(10)

    def __enter__(self) -> LiveRun:
        try:
            self.start()
        except BaseException:  # interrupted
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def left_behind(self, within_s: float = 3.0, *, folders: bool = True) -> list[str]:
        """Processes of the run that are still there, and folders if wanted, ``within_s`` after its end."""
        until_s = time.monotonic() + within_s
        while True:
            left = [f"process {p.pid}" for p in self._family.values() if _alive(p)]
            left += [f"folder {p.name}" for p in self.folder.glob("campipe-*") if folders]
            if not left or time.monotonic() > until_s:
                return left
            time.sleep(LOOK_S)

    # --- processes ----------------------------------------------------------------------------------------------------

    def family(self) -> list[psutil.Process]:
        """The engine and all its descendants that are alive; those once seen are remembered."""
        assert self.process is not None
        try:
            engine = psutil.Process(self.process.pid)
            for each in (engine, *engine.children(recursive=True)):
                self._family[each.pid] = each
        except psutil.NoSuchProcess:
            pass
        return [each for each in self._family.values() if _alive(each)]

    def ask(self, do: Any, camera: str = "", file: str = "") -> Answer:
        """One request to the control socket."""
        return ask(self.folder / "ctl", Request(do=do, camera=camera, file=file), 30.0)

    def status(self) -> dict[str, Any]:
        """The engine's own snapshot."""
        answer = self.ask("status")
        assert answer.status is not None
        return answer.status

    def workers(self, kind: str) -> list[int]:
        """Pids of the workers of a kind (decode, executor, nms, observe) that are ready."""
        workers = self.status()["workers"]
        return [each["pid"] for each in workers if each["kind"] == kind and each["state"] == "ready" and each["pid"]]

    def pages(self) -> str:
        """What it shows to watchdogs, to Prometheus, and on the control socket."""
        shown = json.dumps(self.status(), default=str)
        for page in ("metrics", "healthz", "livez"):
            try:
                with urllib.request.urlopen(f"http://{self.figures}/{page}", timeout=10) as answer:
                    shown += answer.read().decode()
            except urllib.error.HTTPError as error:  # a red health is told as 503
                shown += error.read().decode()
        return shown

    def footprint(self, samples: int = 5, every_s: float = 0.2) -> Footprint:
        """Of all processes: the least of some samples, for connections and their threads come and go."""
        found = [self._footprint_now()]
        for _ in range(1, samples):
            time.sleep(every_s)
            found.append(self._footprint_now())
        return Footprint(*(min(getattr(each, name) for each in found) for name in Footprint.__slots__))

    def _footprint_now(self) -> Footprint:
        threads = descriptors = memory = processes = 0
        for each in self.family():
            try:
                info = each.memory_full_info()
                threads += each.num_threads()
                descriptors += each.num_fds()
            except psutil.Error:
                continue
            processes += 1
            memory += info.uss
        return Footprint(processes, threads, descriptors, memory)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Receive everything; look for the canary in the bytes of each status, heartbeat, and some of the rest."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        decoder = msgspec.msgpack.Decoder(Detections | Status | Heartbeat)
        try:
            with context.socket(zmq.SUB) as subscriber:
                subscriber.linger = 0
                subscriber.rcvhwm = 100_000
                subscriber.setsockopt(zmq.RECONNECT_IVL, 50)
                subscriber.subscribe(b"")
                subscriber.connect(self.address)
                while not self._ended.is_set():
                    if subscriber.poll(100):
                        parts = subscriber.recv_multipart()
                        self._keep(parts, decoder.decode(parts[-1]))
        finally:
            context.term()

    def _keep(self, parts: list[bytes], message: Detections | Status | Heartbeat) -> None:
        now_s = time.monotonic()
        if isinstance(message, Heartbeat):
            self.heartbeats += 1
            return
        if isinstance(message, Status):
            self.leaks += [f"status of {message.camera}" for _ in found_in(parts[-1])]
            self.tries[message.camera] += message.state == "connecting"
            with self._lock:
                self.told.setdefault(message.camera, []).append(Told(now_s, message))
            return
        seen = Seen(
            now_s,
            message.epoch,
            message.seq,
            message.pts_ns,
            (message.width, message.height),
            message.corrupt,
            message.clock,
            message.captured_ns,
            message.trace.total_ms if message.trace else 0.0,
        )
        with self._lock:
            self.frames.setdefault(message.camera, []).append(seen)

    def frames_of(self, camera: str, since_s: float = 0.0, until_s: float = float("inf")) -> list[Seen]:
        """What was received of ``camera`` in that time."""
        with self._lock:
            frames = self.frames.get(camera, [])
            first = bisect_left(frames, since_s, key=lambda seen: seen.at_s)
            return [seen for seen in frames[first:] if seen.at_s < until_s]

    def told_of(self, camera: str, since_s: float = 0.0) -> list[Told]:
        """Statuses of ``camera`` received since then."""
        with self._lock:
            return [told for told in self.told.get(camera, []) if told.at_s >= since_s]

    def wait(self, what: str, condition: Callable[[], Any], within_s: float) -> Any:
        """Wait until ``condition`` gives something that is true, and give that; fail with ``what`` otherwise."""
        assert self.process is not None
        until_s = time.monotonic() + within_s
        while not (value := condition()):
            if self.process.poll() is not None:
                raise AssertionError(f"the run ended ({self.process.returncode}) before {what}: {self.log[-2000:]}")
            if time.monotonic() > until_s:
                raise AssertionError(f"not within {within_s:g} s: {what}")
            time.sleep(LOOK_S)
        return value

    def wait_for_frames(self, cameras: Sequence[str], since_s: float, within_s: float, count: int = 1) -> None:
        """Until each of ``cameras`` has given ``count`` frames since then."""
        for camera in cameras:
            self.wait(
                f"pictures of {camera}",
                lambda camera=camera: len(self.frames_of(camera, since_s)) >= count,  # type: ignore[misc]
                within_s,
            )

    def leaks_in_files(self) -> list[str]:
        """Files of the run's folder that hold the canary, besides those that were given to it."""
        given = {self.folder / "site.yaml", *self.cameras_folder.glob("*"), *(self.folder / "given").glob("*")}
        files = [path for path in self.folder.rglob("*") if path.is_file() and path not in given]
        return [str(path.relative_to(self.folder)) for path in files if found_in(path.read_bytes())]


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

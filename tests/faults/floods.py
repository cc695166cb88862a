"""Owns doing the same thing to a run very often, and its footprint before and after. Judges nothing."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import psutil
import zmq
from faults.canary import CANARY, USER
from faults.live_run import Footprint, LiveRun
from faults.servers.rtsp import RtspServer
from faults.victim import pictures

from pipeline.control.protocol import Answer

Holdings = dict[int, tuple[int, int]]
"""By process: threads and descriptors."""
AT_ONCE = 40  # subscribers
CAMERAS_AT_ONCE = 4
ABSENT, BRIEF = 3, 5
SETTLE_S = 30.0
WARM_UP = {"absent": 300, "brief": 100}
POINTS = 6  # at which memory is looked at during a flood
SAMPLES: dict[str, Any] = {"samples": 3, "every_s": 0.1}  # of memory while all goes on; the least counts
QUICK = {"first_ms": 10, "longest_ms": 10}
REFUSED = {"first_ms": 30, "longest_ms": 30}  # at 10 ms they try, and take CPU, far more often than is waited for


# Of all processes together, for each time: a leak of a packet or a picture shows, the rounding of allocators does not.
BYTES_EACH = {
    "failed opens": 8 << 10,
    "reconnects": 32 << 10,
    "camera adds and removes": 128 << 10,
    "subscriber connects": 4 << 10,
}


@dataclass(frozen=True, slots=True)
class Flood:
    """``count`` times something; ``before`` is the footprint after a warm-up, not from the very beginning.

    ``along``: how often it was done, and private memory of all processes then. ``steady``: nothing comes and goes when
    the footprints are taken; otherwise ``least`` is what each process had of threads and descriptors when it had the
    least of them afterwards, and ``most`` the most beforehand.
    """

    what: str
    count: int
    seconds: float
    before: Footprint
    after: Footprint
    along: Sequence[tuple[int, int]]
    steady: bool = True
    most: Holdings = field(default_factory=dict)
    least: Holdings = field(default_factory=dict)
    HEAD: ClassVar = ("what", "times", "seconds", "processes", "threads", "descriptors", "memory, MB", "KiB each")

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """For a table: before, and after."""
        shown = []
        for name, count, footprint in ((self.what, 0, self.before), ("", self.count, self.after)):
            figures = (footprint.processes, footprint.threads, footprint.descriptors)
            memory, done = f"{footprint.memory_bytes / 2**20:.1f}", bool(count)
            seconds, each = (f"{self.seconds:.0f}", f"{self.bytes_each / 1024:.1f}") if done else ("", "")
            shown.append((name, str(count), seconds, *map(str, figures), memory, each))
        return shown

    @property
    def bytes_each(self) -> float:
        """What each time added. The largest step is left out: something that is loaded or filled once is no leak."""
        steps = sorted(b[1] - a[1] for a, b in pairwise(self.along))
        return sum(steps[:-1]) / (self.along[-1][0] * (len(steps) - 1) / len(steps))

    @property
    def grown(self) -> list[str]:
        """What there is more of than before: memory in proportion to ``count``, all else exactly."""
        found = []
        if self.bytes_each > BYTES_EACH[self.what]:
            found.append(f"{self.bytes_each / 1024:.1f} KiB each time")
        if self.steady:
            names = ("processes", "threads", "descriptors")
            pairs = [(name, getattr(self.before, name), getattr(self.after, name)) for name in names]
            return found + [f"{name} {a} -> {b}" for name, a, b in pairs if b > a]
        if self.most.keys() != self.least.keys():
            found.append(f"processes {sorted(self.most)} -> {sorted(self.least)}")
        for pid, had in self.most.items():
            has = self.least.get(pid, (0, 0))
            found += [
                f"{what} of process {pid}: at most {a} -> at least {b}"
                for what, a, b in zip(("threads", "descriptors"), had, has, strict=True)
                if b > a
            ]
        return found

    def __str__(self) -> str:
        each = f"{self.bytes_each / 1024:.1f} KiB each"
        return f"{self.what:22} {self.count:6} in {self.seconds:5.1f} s: {self.before}  ->  {self.after}, {each}"


@contextmanager
def unlucky_site(folder: Path) -> Iterator[LiveRun]:
    """A run of cameras that refuse, of cameras that hang up after two pictures, and one that is well."""
    with ExitStack() as stack:
        paths = {"steady": pictures(), "extra": pictures()} | {f"brief-{n}": pictures() for n in range(BRIEF)}
        server = stack.enter_context(RtspServer(paths, scheme="digest", user=USER, password=CANARY))
        cameras: dict[str, dict[str, Any]] = {"steady": camera(server, "steady")}
        for n in range(BRIEF):
            server.mishap(f"brief-{n}", close_after=2)
            cameras[f"brief-{n}"] = camera(server, f"brief-{n}", reconnect=QUICK)
        for n in range(ABSENT):
            deaf = stack.enter_context(socket.socket())
            deaf.bind(("127.0.0.1", 0))  # bound and not listening: refuses
            cameras[f"absent-{n}"] = {
                "source": {"url": f"rtsp://127.0.0.1:{deaf.getsockname()[1]}/x", "reconnect": REFUSED}
            }
        run = stack.enter_context(LiveRun(folder, cameras))
        (folder / "given").mkdir()
        (folder / "given" / "extra.yaml").write_text(yaml_of(camera(server, "extra")))
        run.wait_for_frames(["steady"], 0.0, 60)
        yield run


def camera(server: RtspServer, path: str, **more: Any) -> dict[str, Any]:
    """Its entry in a site."""
    return {"source": {"url": server.url(path), "user": USER, "password": CANARY, **more}}


def yaml_of(entry: dict[str, Any]) -> str:
    """As a camera's file; JSON is YAML."""
    return json.dumps(entry)


def tries(run: LiveRun, kind: str) -> int:
    """How often cameras of a kind were connected or tried to be."""
    return sum(count for name, count in list(run.tries.items()) if name.startswith(kind))


def opens_and_reconnects(run: LiveRun, failed: int, reconnects: int, warm_up: float) -> list[Flood]:
    """Wait for so many failed opens and reconnects, after that part of them as a warm-up.

    The heap of each decode worker fills during its first 20 connections or so.
    """
    counts = {"absent": failed, "brief": reconnects}
    for kind, count in counts.items():
        first_ones = max(round(count * warm_up), WARM_UP[kind])
        run.wait(f"{first_ones} tries", lambda kind=kind, n=first_ones: tries(run, kind) >= n, 600)  # type: ignore[misc]
    began_s, first = time.monotonic(), {kind: tries(run, kind) for kind in counts}
    before, most = run.footprint(), holdings(run, max)
    along = [(dict.fromkeys(counts, 0), before.memory_bytes)]
    for point in range(1, POINTS):
        for kind, count in counts.items():
            wanted = first[kind] + count * point // (POINTS - 1)
            run.wait(f"{count} tries", lambda kind=kind, wanted=wanted: tries(run, kind) >= wanted, 1200)  # type: ignore[misc]
        done = {kind: tries(run, kind) - first[kind] for kind in counts}
        along.append((done, (after := run.footprint(**SAMPLES)).memory_bytes))
    seconds, least = time.monotonic() - began_s, holdings(run, min)
    return [
        Flood(
            what,
            done[kind],
            seconds,
            before,
            after,
            [(each[kind], memory) for each, memory in along],
            steady=False,
            most=most,
            least=least,
        )
        for what, kind in (("failed opens", "absent"), ("reconnects", "brief"))
    ]


def holdings(run: LiveRun, which: Callable[[int, int], int], samples: int = 20) -> Holdings:
    """What each process of the run has: the most or the least of some samples, for connections come and go."""
    found: Holdings = {}
    for _ in range(samples):
        for process in run.family():
            with suppress(psutil.Error):
                now = (process.num_threads(), process.num_fds())
                then = found.get(process.pid, now)
                found[process.pid] = (which(then[0], now[0]), which(then[1], now[1]))
        time.sleep(0.1)
    return found


def calm(run: LiveRun) -> None:
    """Take the unlucky cameras out: what follows is not to be measured beside them."""
    for name in [*(f"brief-{n}" for n in range(BRIEF)), *(f"absent-{n}" for n in range(ABSENT))]:
        _told(run.ask("remove", camera=name))
    run.wait("they are gone", lambda: len(run.status()["cameras"]) == 1, 60)


def subscribers(run: LiveRun, count: int) -> Flood:
    """So many subscribers connect, get a message and leave, many at once."""

    def crowd(most: int) -> None:
        sockets = [context.socket(zmq.SUB) for _ in range(min(AT_ONCE, most))]
        for each in sockets:
            each.linger = 0
            each.subscribe(b"")
            each.connect(run.address)
        for each in sockets:
            if not each.poll(10_000):
                raise AssertionError("a subscriber was told nothing for 10 s")
        for each in sockets:
            each.close()

    return _repeated(run, "subscriber connects", count, crowd, AT_ONCE, (context := zmq.Context()).term)


def additions(run: LiveRun, count: int) -> Flood:
    """Some cameras join, give a picture, and are taken out, so many in all: by request, and each fourth time by files.

    A file takes seconds until it is seen.
    """
    template = (run.folder / "given" / "extra.yaml").read_bytes()
    turn = iter(range(10**9))

    def some(most: int) -> None:
        names = [f"extra-{n}" for n in range(most)]
        by_file, began_s = next(turn) % 4 == 2, time.monotonic()
        folder = run.cameras_folder if by_file else run.folder / "given"
        for name in names:
            (folder / f"{name}.yaml").write_bytes(template)
            if not by_file:
                _told(run.ask("add", file=str(folder / f"{name}.yaml")))
        run.wait_for_frames(names, began_s, 30)
        for name in names:
            (folder / f"{name}.yaml").unlink()
            if not by_file:
                _told(run.ask("remove", camera=name))
        run.wait("they are gone", lambda: not {each["name"] for each in run.status()["cameras"]} & {*names}, 30)

    return _repeated(run, "camera adds and removes", count, some, CAMERAS_AT_ONCE, lambda: None)


def _told(answer: Answer) -> None:
    assert answer.ok, answer.text


def _repeated(
    run: LiveRun, what: str, count: int, act: Callable[[int], None], step: int, end: Callable[[], None]
) -> Flood:
    try:
        for _ in range(0, max(count // 5, step), step):
            act(step)
        time.sleep(1.0)
        began_s, before = time.monotonic(), run.footprint()
        along, done = [(0, before.memory_bytes)], 0
        for point in range(1, POINTS):
            while done < count * point // (POINTS - 1):
                act(min(step, count - done))
                done += min(step, count - done)
            along.append((done, run.footprint().memory_bytes))
        seconds = time.monotonic() - began_s
    finally:
        end()
    return Flood(what, count, seconds, before, settled(run, before), along)


def settled(run: LiveRun, before: Footprint) -> Footprint:
    """The footprint when what came has gone; on a busy machine that takes a while."""
    until_s = time.monotonic() + SETTLE_S
    while True:
        now = run.footprint()
        names = ("processes", "threads", "descriptors")
        if all(getattr(now, each) <= getattr(before, each) for each in names) or time.monotonic() > until_s:
            return now

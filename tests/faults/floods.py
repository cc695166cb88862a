"""Owns doing the same thing to a run very often, and its footprint before and after. Judges nothing."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
from faults.canary import CANARY, USER
from faults.live_run import Footprint, LiveRun
from faults.servers.rtsp import RtspServer
from faults.victim import pictures

AT_ONCE = 40  # subscribers
ABSENT, BRIEF = 3, 5
QUICK = {"first_ms": 10, "longest_ms": 10}


@dataclass(frozen=True, slots=True)
class Flood:
    """``count`` times something; ``before`` is the footprint after a warm-up, not from the very beginning."""

    what: str
    count: int
    seconds: float
    before: Footprint
    after: Footprint

    def __str__(self) -> str:
        return f"{self.what:22} {self.count:6} in {self.seconds:5.1f} s: {self.before}  ->  {self.after}"


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
                "source": {"url": f"rtsp://127.0.0.1:{deaf.getsockname()[1]}/x", "reconnect": QUICK}
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
    names = [name for name in list(run.told) if name.startswith(kind)]
    return sum(told.status.state == "connecting" for name in names for told in run.told_of(name))


def opens_and_reconnects(run: LiveRun, failed: int, reconnects: int, warm_up: float = 0.2) -> list[Flood]:
    """Wait for so many failed opens and reconnects, after that part of them as a warm-up."""
    counts = {"absent": failed, "brief": reconnects}
    for kind, count in counts.items():
        first_ones = round(count * warm_up)
        run.wait(f"{first_ones} tries", lambda kind=kind, n=first_ones: tries(run, kind) >= n, 600)  # type: ignore[misc]
    began_s, first = time.monotonic(), {kind: tries(run, kind) for kind in counts}
    before = run.footprint()
    for kind, count in counts.items():
        run.wait(f"{count} tries", lambda kind=kind, count=count: tries(run, kind) - first[kind] >= count, 1200)  # type: ignore[misc]
    done = {kind: tries(run, kind) - first[kind] for kind in counts}
    seconds, after = time.monotonic() - began_s, run.footprint()
    named = (("failed opens", "absent"), ("reconnects", "brief"))
    return [Flood(what, done[kind], seconds, before, after) for what, kind in named]


def calm(run: LiveRun) -> None:
    """Take the unlucky cameras out: what follows is not to be measured beside them."""
    for name in [*(f"brief-{n}" for n in range(BRIEF)), *(f"absent-{n}" for n in range(ABSENT))]:
        answer = run.ask("remove", camera=name)
        assert answer.ok, answer.text
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
    """A camera joins, gives a picture, and is taken out, so many times: by request and by its file in turn."""
    file, watched = run.folder / "given" / "extra.yaml", run.cameras_folder / "extra.yaml"
    turn = iter(range(10**9))

    def once(_: int) -> None:
        number, began_s = next(turn), time.monotonic()
        if number % 2:
            watched.write_bytes(file.read_bytes())
        else:
            answer = run.ask("add", file=str(file))
            assert answer.ok, answer.text
        run.wait_for_frames(["extra"], began_s, 30)
        if number % 2:
            watched.unlink()
        else:
            answer = run.ask("remove", camera="extra")
            assert answer.ok, answer.text
        run.wait("extra is gone", lambda: all(c["name"] != "extra" for c in run.status()["cameras"]), 30)

    return _repeated(run, "camera adds and removes", count, once, 1, lambda: None)


def _repeated(
    run: LiveRun, what: str, count: int, act: Callable[[int], None], step: int, end: Callable[[], None]
) -> Flood:
    try:
        for _ in range(0, max(count // 5, step), step):
            act(step)
        time.sleep(1.0)
        began_s, before = time.monotonic(), run.footprint()
        for done in range(0, count, step):
            act(count - done)
        seconds = time.monotonic() - began_s
    finally:
        end()
    time.sleep(1.0)
    return Flood(what, count, seconds, before, run.footprint())

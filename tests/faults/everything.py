"""Owns a site of cameras that suffer, one that comes late, and healthy ones beside them; and doing faults to it."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.canary import CANARY, USER, found_in
from faults.catalogue import Fault
from faults.live_run import LiveRun
from faults.servers.process import ServerProcess
from faults.trial import HEADER, Health, Outcome, attempt_all, disorder, health
from faults.victim import GROUP_S, Victim

HEALTHY = ("healthy-1", "healthy-2")
QUIET_S = 6.0
ALL_LOST_S = 3.0
BACK_S = 2.0  # the target for a camera that is there again, without the wait for its keyframe


@dataclass(frozen=True, slots=True)
class FaultySite:
    """What runs: the site, those that suffer, the one that is absent at the start, the server of the healthy ones."""

    run: LiveRun
    victims: list[Victim]
    late: Victim
    server: ServerProcess

    @property
    def names(self) -> list[str]:
        """Of all cameras but the late one."""
        return [*(victim.name for victim in self.victims), *HEALTHY]


@dataclass
class Findings:
    """What one pass over faults gave. Times are seconds."""

    outcomes: list[Outcome]
    health: list[Health]
    load: float  # of the machine: processes that want to run, for each CPU, over the last minute
    absent_s: float | None = None
    all_back_s: float | None = None

    def __str__(self) -> str:
        lines = [HEADER, *(outcome.row() for outcome in self.outcomes)]
        extra = (("absent at start", self.absent_s), ("all cameras lost at once", self.all_back_s))
        lines += [f"{name:26} {'refused':13} {'':6} {s:6.2f} {BACK_S + GROUP_S:5.0f}" for name, s in extra if s]
        return "\n".join([*lines, *map(str, self.health), f"load of the machine: {self.load:.1f} for each CPU"])


@contextmanager
def faulty_site(folder: Path, victims: int) -> Iterator[FaultySite]:
    """A running site; passwords in URLs and in fields, both ways of authentication."""
    paths = [f"{name}=160x120@5" for name in HEALTHY]
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(*paths, "--scheme", "digest", "--user", USER, "--password", CANARY))
        schemes = ("digest", "basic")
        suffering = [stack.enter_context(Victim(f"v{n}", scheme=schemes[n % 2])) for n in range(victims)]
        late = stack.enter_context(Victim("late", absent=True))
        cameras = {v.name: v.camera(in_url=n % 3 == 0) for n, v in enumerate([*suffering, late])}
        for name in HEALTHY:
            url = f"rtsp://127.0.0.1:{server.port}/{name}"
            cameras[name] = {"source": {"url": url, "user": USER, "password": CANARY}}
        run = stack.enter_context(LiveRun(folder, cameras))
        run.wait_for_frames([v.name for v in suffering] + list(HEALTHY), 0.0, 60, 5)
        yield FaultySite(run, suffering, late, server)


def come_late(site: FaultySite) -> float:
    """The camera that was absent appears; how long until its first picture."""
    assert not site.run.frames_of(site.late.name)
    there_s = time.monotonic()
    site.late.whole()
    site.run.wait_for_frames([site.late.name], there_s, 30)
    return site.run.frames_of(site.late.name)[0].at_s - there_s


def one_pass(site: FaultySite, faults: Sequence[Fault], slack_s: float) -> Findings:
    """A quiet while, then all ``faults`` dealt to the victims; how the healthy ones fared."""
    quiet = (time.monotonic() + 1, time.monotonic() + 1 + QUIET_S)
    time.sleep(1 + QUIET_S)
    began_s = time.monotonic()
    outcomes = attempt_all(site.run, site.victims, faults, slack_s)
    during = (began_s, time.monotonic())
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return Findings(outcomes, [health(site.run, name, quiet, during) for name in HEALTHY], load)


def lose_all(site: FaultySite) -> float:
    """All cameras at once, for a while; how long until the last one was back."""
    lost_s = time.monotonic()
    victims = [*site.victims, site.late]
    site.server.ask("stop")
    for victim in victims:
        victim.server.stop()
    names = [*site.names, site.late.name]
    for name in names:
        site.run.wait(f"{name} told lost", lambda name=name: site.run.told_of(name, lost_s), 30)  # type: ignore[misc]
    time.sleep(ALL_LOST_S)
    back_s = time.monotonic()
    site.server.ask("start")
    for victim in victims:
        victim.server.start()
    site.run.wait_for_frames(names, back_s, 45)
    return max(site.run.frames_of(name, back_s)[0].at_s for name in names) - back_s


@dataclass(frozen=True, slots=True)
class Ending:
    """What is left when the run was stopped."""

    report: dict[str, Any]
    leaks: list[str]
    left: list[str]
    disorder: dict[str, list[str]]


def end(site: FaultySite) -> Ending:
    """Stop the run, look for the canary and for what is left behind."""
    leaks = found_in(site.run.pages())
    report = site.run.stop()
    leaks += site.run.leaks + site.run.leaks_in_files()
    wrong = {name: disorder(site.run.frames_of(name)) for name in site.names}
    return Ending(report, leaks, site.run.left_behind(), {name: found for name, found in wrong.items() if found})


def shuffled(faults: Sequence[Fault], draw: random.Random) -> list[Fault]:
    """In an order of ``draw``'s."""
    return draw.sample(list(faults), len(faults))

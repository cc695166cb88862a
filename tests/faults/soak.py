"""Owns the parts of the long run (``tools/soak``): what is done, how often, and what has to hold. Parses no options."""

from __future__ import annotations

import random
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.catalogue import FAULTS
from faults.checks import Checks, say, table
from faults.everything import BACK_S, come_late, end, faulty_site, lose_all, one_pass, shuffled
from faults.floods import Flood, additions, calm, opens_and_reconnects, subscribers, unlucky_site
from faults.kills import CAMERAS, KINDS, WAYS, Blow, kill_tree, live_site, small_tree, strike, tree_camera
from faults.live_run import LiveRun
from faults.overload import overloaded, slow_site
from faults.trial import Outcome, disorder
from faults.victim import GROUP_S

VICTIMS = 8
SLACK_S = 0.5
BUSY = 3.0  # processes that want to run, for each CPU: then figures of time mean little
ROOM_BYTES = 8 << 20  # of about 15 processes
SILENCE_S = 1.0  # of a camera that had no part in what was done to another's worker
TREES_AT_ONCE = 2
# Stopped ones are noticed by their silence alone, which takes seconds: several at a time.
STOPPED = (("decode", "observe"), ("executor", "nms", "forkserver"))


@dataclass(frozen=True, slots=True)
class Wishes:
    """``minutes``: of the part faults. ``times``: kills of each kind; floods and overload are scaled by it / 20."""

    minutes: float
    seed: int
    times: int

    @property
    def scale(self) -> float:
        """Of counts that are meant for 20 times."""
        return self.times / 20


def faults(folder: Path, wishes: Wishes, checks: Checks) -> None:
    """Until the time is over, whole passes only."""
    draw, outcomes = random.Random(wishes.seed), list[Outcome]()
    until_s = time.monotonic() + wishes.minutes * 60
    with faulty_site(folder, VICTIMS) as site:
        late_s = come_late(site)
        say(f"absent at start: back after {late_s:.2f} s")
        before, passes = None, 0
        while True:
            found = one_pass(site, shuffled(FAULTS, draw), SLACK_S)
            found.all_back_s = lose_all(site)
            passes += 1
            say(f"\npass {passes}\n{found}")
            outcomes += found.outcomes
            for each in found.health:
                problems = [str(each)] if each.missing or each.moved_percent >= 5 else []
                checks.check(f"pass {passes}: {each.name} beside them is as before, without a gap", problems)
            if found.load > BUSY:
                say("the machine is too busy with other things for these figures to mean much")
            footprint = site.run.footprint()
            say(footprint)
            before = before or footprint  # after the first pass: each process has had a connection by then
            if time.monotonic() > until_s:
                break
        ending = end(site)
    say(f"\n{_summary(outcomes)}\n")
    for fault in FAULTS:
        mine = [each for each in outcomes if each.fault is fault]
        checks.check(f"{fault.name}, {len(mine)} times", [problem for each in mine for problem in each.problems])
    limit_s = BACK_S + GROUP_S + SLACK_S
    checks.check("absent at start", [f"back after {late_s:.1f} s"] if late_s > limit_s else [])
    checks.check("threads, descriptors, memory as after the first pass", footprint.grown(before, ROOM_BYTES, VICTIMS))
    checks.check("every frame is counted", _inexact(ending.report))
    checks.check("frames in order", [f"{name}: {what}" for name, some in ending.disorder.items() for what in some])
    _clean(checks, ending.leaks, ending.left)


def _summary(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for fault in FAULTS:
        mine = [each for each in outcomes if each.fault is fault]
        told = [each.noticed_s for each in mine if each.noticed_s is not None]
        back = [each.back_s for each in mine if each.back_s is not None]
        causes = sorted({each.cause for each in mine if each.cause})
        medians = [f"{statistics.median(some):.2f}" if some else "-" for some in (told, back)]
        longest = f"{max(back):.2f}" if back else "-"
        rows.append((fault.name, str(len(mine)), *medians, longest, f"{fault.back_s + GROUP_S:.0f}", ", ".join(causes)))
    return table(("fault", "times", "told, s", "back, s", "longest, s", "limit, s", "told as"), rows)


def floods(folder: Path, wishes: Wishes, checks: Checks) -> None:
    """1000 failed opens and 300 reconnects, 200 cameras added and removed, 10,000 subscribers."""
    scale = wishes.scale
    with unlucky_site(folder) as run:
        acts: list[Callable[[], list[Flood]]] = [
            lambda: opens_and_reconnects(run, round(1000 * scale), round(300 * scale), warm_up=1.0),
            lambda: additions_in_peace(run, round(200 * scale)),
            lambda: [subscribers(run, round(10_000 * scale))],
        ]
        done = [flood for act in acts for flood in act()]
        report = run.stop()
        leaks, left = run.leaks + run.leaks_in_files(), run.left_behind()
    say(table(Flood.HEAD, [row for flood in done for row in flood.rows]))
    for flood in done:
        checks.check(f"nothing grows by {flood.count} {flood.what} ({flood.seconds:.0f} s)", flood.grown)
    checks.check("every frame is counted", _inexact(report))
    _clean(checks, leaks, left)


def additions_in_peace(run: LiveRun, count: int) -> list[Flood]:
    """Without the unlucky cameras beside them."""
    calm(run)
    return [additions(run, count)]


def overload(folder: Path, wishes: Wishes, checks: Checks) -> None:
    """A consumer at a third of the needed speed for two minutes."""
    with slow_site(folder) as run:
        found = overloaded(run, 120 * wishes.scale)
        left = run.left_behind()
    say(found)
    _ledgers(found.report)
    late = f"99 % are not younger than {found.limit_ms:.0f} ms but {found.age_ms(0.99):.0f}"
    checks.check(
        f"99 % of what is published in {found.seconds:.0f} s is younger than {found.limit_ms:.0f} ms",
        [late] if found.age_ms(0.99) > found.limit_ms else [],
    )
    checks.check("memory and all else stay flat", found.late.grown(found.early, ROOM_BYTES))
    checks.check("every frame is counted", _inexact(found.report))
    _clean(checks, found.leaks, left)


def kills(folder: Path, wishes: Wishes, checks: Checks) -> None:
    """Each kind of worker with each signal, then whole trees in each way."""
    blows: list[Blow] = []
    with live_site(folder / "workers") as run:
        for _ in range(wishes.times):
            for kind in KINDS:
                blows += strike(run, [kind], signal.SIGKILL)
            for kinds in STOPPED:
                blows += strike(run, kinds, signal.SIGSTOP)
        wrong = [f"{name}: {what}" for name in CAMERAS for what in disorder(run.frames_of(name))]
        report = run.stop()
        leaks, left = run.leaks + run.leaks_in_files(), run.left_behind()
    say(_told(blows))
    _ledgers(report)
    for number in (signal.SIGKILL, signal.SIGSTOP):
        for kind in KINDS:
            mine = [each for each in blows if (each.kind, each.signal) == (kind, number.name)]
            gaps = [each.others_gap_s for each in mine if each.others_gap_s is not None]
            checks.check(
                f"{number.name} of {kind}, {len(mine)} times: replaced, and others do not feel it",
                [f"another camera was silent for {gap:.1f} s" for gap in gaps if gap > SILENCE_S],
            )
    checks.check("frames in order", wrong)
    checks.check("every frame is counted", _inexact(report))
    _clean(checks, leaks, left)
    for way in WAYS:
        began_s = time.monotonic()
        remains = trees(folder, way, wishes.times)
        seconds = time.monotonic() - began_s
        checks.check(f"kill -9 of a whole tree, {way}, {wishes.times} times ({seconds:.0f} s): nothing stays", remains)


def trees(folder: Path, way: str, times: int) -> list[str]:
    """Start so many small runs, some at a time, and kill each; what they leave."""
    with tree_camera() as url, ThreadPoolExecutor(TREES_AT_ONCE) as pool:

        def one(number: int) -> list[str]:
            with small_tree(folder / f"tree-{WAYS.index(way)}-{number}", url) as run:
                return kill_tree(run, way)

        try:
            return [what for left in pool.map(one, range(times)) for what in left]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _told(blows: Sequence[Blow]) -> str:
    rows = []
    for number, kind in [(number, kind) for number in ("SIGKILL", "SIGSTOP") for kind in KINDS]:
        mine = [each for each in blows if (each.kind, each.signal) == (kind, number)]
        if mine:
            replaced, gaps = [each.replaced_s for each in mine], [each.others_gap_s for each in mine]
            silent = [gap for gap in gaps if gap is not None]
            figures = (statistics.median(replaced), max(replaced), max(each.pictures_s for each in mine))
            others = f"{max(silent):.2f}" if silent else "-"
            rows.append((f"{number} {kind}", str(len(mine)), *(f"{figure:.2f}" for figure in figures), others))
    return table(("hit", "times", "replaced, s", "longest, s", "pictures, s", "others silent, s"), rows)


def _ledgers(report: dict[str, Any]) -> None:
    rows = []
    for name, camera in report["cameras"].items():
        ledger = camera["ledger"]
        dropped = ", ".join(f"{cause} {count}" for cause, count in ledger["dropped"].items())
        rows.append((name, *(str(ledger[each]) for each in ("decoded", "published", "in_flight")), dropped))
    say(table(("camera", "decoded", "published", "in flight", "dropped"), rows))


def _inexact(report: dict[str, Any]) -> list[str]:
    return [
        f"{name}: {camera['ledger']}"
        for name, camera in report["cameras"].items()
        if not camera["exact"] or camera["ledger"]["in_flight"]
    ]


def _clean(checks: Checks, leaks: list[str], left: list[str]) -> None:
    checks.check("no password is told anywhere", leaks)
    checks.check("nothing is left behind", left)


Part = Callable[[Path, Wishes, Checks], None]
PARTS: dict[str, tuple[Part, str]] = {
    "faults": (faults, f"every fault, dealt to {VICTIMS} cameras in random order, two healthy ones beside them"),
    "floods": (floods, "failed opens, reconnects, cameras that come and go, subscribers that come and go"),
    "overload": (overload, "a device at a third of the speed that four cameras need"),
    "kills": (kills, "kill -9 and kill -STOP of each kind of worker, and of whole trees"),
}

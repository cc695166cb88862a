"""Owns doing faults to cameras of a run and measuring what comes of each. Knows no particular fault."""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from faults.catalogue import Fault
from faults.live_run import LiveRun, Seen
from faults.victim import GROUP_S, Victim

STEADY_FRAMES = 3
MARKED_S = 15.0
MISSED_S = 45.0  # waited for what should come at once, so that the table shows how late it was
LOST_STATES = ("stalled", "reconnecting", "failed")


@dataclass
class Outcome:
    """What came of one fault. Times are seconds; None: did not happen."""

    fault: Fault
    victim: str
    cause: str = ""
    detail: str = ""
    noticed_s: float | None = None
    back_s: float | None = None
    problems: list[str] = field(default_factory=list)

    def row(self) -> str:
        """One line of the table."""
        noticed = f"{self.noticed_s:6.2f}" if self.noticed_s is not None else "     -"
        back = f"{self.back_s:6.2f}" if self.back_s is not None else "     -"
        limit = self.fault.back_s + GROUP_S
        verdict = "ok" if not self.problems else "; ".join(self.problems)
        return f"{self.fault.name:26} {self.cause or '(goes on)':13} {noticed} {back} {limit:5.0f}  {verdict}"


HEADER = f"{'fault':26} {'cause told':13} {'told':>6} {'back':>6} {'limit':>5}  s after its begin, after its end"


def attempt(run: LiveRun, victim: Victim, fault: Fault, slack_s: float = 0.0) -> Outcome:
    """Do one fault, wait for its word, end it, wait for pictures."""
    outcome = Outcome(fault, victim.name)
    try:
        run.wait_for_frames([victim.name], time.monotonic(), MISSED_S, STEADY_FRAMES)
        size = run.frames_of(victim.name, 0)[-1].size
        began_s = time.monotonic()
        fault.begin(victim)
        if fault.causes:
            _told(run, victim, outcome, began_s)
            time.sleep(fault.hold_s)
        else:
            time.sleep(fault.lasts_s)
            _goes_on(run, victim, outcome, began_s, size)
        (fault.end or Victim.whole)(victim)
        ended_s = time.monotonic()
        _back(run, victim, outcome, began_s, ended_s, slack_s)
    except Exception:  # one trial that fails must leave the others their turn
        outcome.problems.append(traceback.format_exc(limit=-3).strip().splitlines()[-1])
        victim.whole()
    return outcome


def _told(run: LiveRun, victim: Victim, outcome: Outcome, began_s: float) -> None:
    def lost() -> list[tuple[float, str, str, str]]:
        told = [(t.at_s, t.status.state, t.status.cause, t.status.detail) for t in run.told_of(victim.name, began_s)]
        return [each for each in told if each[1] in LOST_STATES]

    def right() -> list[tuple[float, str, str, str]]:
        return [each for each in lost() if each[2] in outcome.fault.causes]

    try:
        run.wait(f"one of {', '.join(outcome.fault.causes)}", right, outcome.fault.notice_s)
    except AssertionError as error:
        outcome.problems.append(f"{error}; told: {', '.join(sorted({each[2] for each in lost()})) or 'nothing'}")
        outcome.cause = (lost() or [(0.0, "", "", "")])[-1][2]
        return
    at_s, _, outcome.cause, outcome.detail = right()[0]
    outcome.noticed_s = at_s - began_s
    if ";" not in outcome.detail and "," not in outcome.detail:
        outcome.problems.append(f"no remedy in {outcome.detail!r}")


def _goes_on(run: LiveRun, victim: Victim, outcome: Outcome, began_s: float, size: tuple[int, int]) -> None:
    if outcome.fault.flags:  # a decoder does not notice all damage: some pictures just look wrong
        with contextlib.suppress(AssertionError):
            run.wait("a corrupt one", lambda: [f for f in run.frames_of(victim.name, began_s) if f.corrupt], MARKED_S)
    lost = [t.status for t in run.told_of(victim.name, began_s) if t.status.state in LOST_STATES]
    frames = run.frames_of(victim.name, began_s)
    if lost:
        outcome.problems.append(f"lost: {lost[0].cause}, {lost[0].detail}")
    if len(frames) < STEADY_FRAMES:
        outcome.problems.append(f"only {len(frames)} frames in {outcome.fault.lasts_s:g} s")
    if outcome.fault.flags and not any(seen.corrupt for seen in frames):
        outcome.problems.append("no picture is marked corrupt")
    if outcome.fault.new_size and frames and frames[-1].size == size:
        outcome.problems.append(f"no new size: {size}")


def _back(run: LiveRun, victim: Victim, outcome: Outcome, began_s: float, ended_s: float, slack_s: float) -> None:
    limit_s = outcome.fault.back_s + GROUP_S + slack_s
    run.wait(f"{victim.name} is back", lambda: run.frames_of(victim.name, ended_s), max(MISSED_S, limit_s + 5))
    outcome.back_s = run.frames_of(victim.name, ended_s)[0].at_s - ended_s
    if outcome.back_s > limit_s:
        outcome.problems.append(f"late by {outcome.back_s - limit_s:.1f} s")
    run.wait_for_frames([victim.name], ended_s, MISSED_S, STEADY_FRAMES)
    outcome.problems += disorder(run.frames_of(victim.name, began_s))


def disorder(frames: Sequence[Seen]) -> list[str]:
    """What is wrong with the order of frames: seq, epochs and pts only go up, time is UTC of now."""
    problems = []
    for a, b in pairwise(frames):
        if (b.epoch, b.seq) <= (a.epoch, a.seq):
            problems.append(f"{b.epoch}/{b.seq} after {a.epoch}/{a.seq}")
        elif b.epoch == a.epoch and b.pts_ns <= a.pts_ns:
            problems.append(f"pts goes back at {b.epoch}/{b.seq}")
        elif b.epoch == a.epoch and b.pts_ns - a.pts_ns > 30e9 * (b.seq - a.seq):
            problems.append(f"pts jumps by {(b.pts_ns - a.pts_ns) / 1e9:.0f} s at {b.epoch}/{b.seq}")
    now_ns, mono_s = time.time_ns(), time.monotonic()
    for seen in frames:
        off_s = (seen.captured_ns - (now_ns - (mono_s - seen.at_s) * 1e9)) / 1e9
        if abs(off_s) > 10:
            problems.append(f"captured_ns is {off_s:.0f} s off ({seen.clock})")
            break
    return problems[:2]


def attempt_all(run: LiveRun, victims: Sequence[Victim], faults: Sequence[Fault], slack_s: float) -> list[Outcome]:
    """Deal ``faults`` to ``victims``: each takes the next when it has done with one, all at the same time."""
    waiting = list(reversed(faults))
    outcomes: list[Outcome] = []
    lock = threading.Lock()

    def suffer(victim: Victim) -> None:
        while True:
            with lock:
                if not waiting:
                    return
                fault = waiting.pop()
            outcome = attempt(run, victim, fault, slack_s)
            with lock:
                outcomes.append(outcome)

    threads = [
        threading.Thread(target=suffer, args=(victim,), name=f"suffer-{victim.name}", daemon=True) for victim in victims
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:  # interrupted: nobody is to begin another one
        with lock:
            waiting.clear()
        raise
    order = {fault.name: position for position, fault in enumerate(faults)}
    return sorted(outcomes, key=lambda outcome: order[outcome.fault.name])


@dataclass(frozen=True, slots=True)
class Health:
    """How an untouched camera fared: frames per second in the quiet and during the faults, gaps, longest silence."""

    name: str
    quiet_fps: float
    during_fps: float
    missing: int
    longest_s: float
    gaps: tuple[str, ...] = ()

    @property
    def moved_percent(self) -> float:
        """By how much its rate moved."""
        return abs(self.during_fps / self.quiet_fps - 1) * 100 if self.quiet_fps else 100.0

    def __str__(self) -> str:
        rates = f"{self.quiet_fps:.3f} -> {self.during_fps:.3f} fps ({self.moved_percent:.1f} %)"
        missing = " ".join([f"{self.missing} frames missing", *self.gaps])
        return f"{self.name}: {rates}, {missing}, longest silence {self.longest_s:.2f} s"


def health(run: LiveRun, camera: str, quiet: tuple[float, float], during: tuple[float, float]) -> Health:
    """Rates by the stream's own frames: (frames - 1) / time between the first and the last."""
    frames = run.frames_of(camera, during[0], during[1])
    steps = list(pairwise(frames))
    missing = sum(b.seq - a.seq - 1 if a.epoch == b.epoch else 1 for a, b in steps)
    longest_s = max((b.at_s - a.at_s for a, b in steps), default=float("inf"))
    told = [t for t in run.told_of(camera, during[0]) if t.at_s < during[1] and t.status.state == "gap"]
    gaps = tuple(f"({t.status.cause} at {t.at_s - during[0]:.1f} s)" for t in told)
    return Health(camera, _rate(run.frames_of(camera, *quiet)), _rate(frames), missing, longest_s, gaps)


def _rate(frames: Sequence[Seen]) -> float:
    return (len(frames) - 1) / (frames[-1].at_s - frames[0].at_s) if len(frames) > 2 else 0.0

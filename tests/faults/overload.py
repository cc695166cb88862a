"""Owns a run whose device is too slow for its cameras, and how old what it publishes is. Judges nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.canary import CANARY, USER
from faults.live_run import Footprint, LiveRun
from faults.servers.process import ServerProcess

CAMERAS, FPS, BATCH = 4, 10, 4
BATCH_MS = 1000 * 3 * BATCH / (CAMERAS * FPS)  # device time of a batch: a third of the speed that is needed
MAX_AGE_MS = 500


@dataclass(frozen=True, slots=True)
class Overload:
    """``ages_ms`` sorted: from the arrival of a frame's data to its reception by a subscriber."""

    seconds: float
    published: int
    offered: int
    ages_ms: list[float]
    early: Footprint
    late: Footprint
    report: dict[str, Any]
    leaks: list[str]

    def age_ms(self, part: float) -> float:
        """The age that so many (0..1) of the published frames did not exceed."""
        return self.ages_ms[min(int(len(self.ages_ms) * part), len(self.ages_ms) - 1)]

    @property
    def limit_ms(self) -> float:
        """max_age_ms and one batch."""
        return MAX_AGE_MS + BATCH_MS

    def __str__(self) -> str:
        ages = ", ".join(f"p{round(part * 100)} {self.age_ms(part):.0f}" for part in (0.5, 0.9, 0.99, 1.0))
        return (
            f"consumer at a third of the speed, {self.seconds:.0f} s: {self.published} of {self.offered} frames "
            f"published, age in ms {ages} (limit {self.limit_ms:.0f})\n  {self.early}  ->  {self.late}"
        )


@contextmanager
def slow_site(folder: Path) -> Iterator[LiveRun]:
    """Four cameras that send more than the device takes."""
    names = [f"fast-{n}" for n in range(CAMERAS)]
    paths = [f"{name}=160x120@{FPS}" for name in names]
    with ServerProcess(*paths, "--scheme", "digest", "--user", USER, "--password", CANARY) as server:
        cameras = {
            name: {
                "source": {"url": f"rtsp://127.0.0.1:{server.port}/{name}", "user": USER, "password": CANARY},
                "live": {"max_age_ms": MAX_AGE_MS},
            }
            for name in names
        }
        options = {"objects": 1, "copies": "none", "service_ms": BATCH_MS}
        settings = {
            "devices": {"device": "canned:0", "executors": 1, "lanes": 1, "options": options},
            "batch": {"max_batch": BATCH},
        }
        with LiveRun(folder, cameras, **settings) as run:
            yield run


def overloaded(run: LiveRun, seconds: float) -> Overload:
    """Let it run for so long, then stop it."""
    run.wait_for_frames([f"fast-{n}" for n in range(CAMERAS)], 0.0, 60, 3)
    time.sleep(min(3.0, seconds / 4))
    early, began_s = run.footprint(), time.monotonic()
    time.sleep(seconds)
    ended_s, late = time.monotonic(), run.footprint()
    frames = [seen for n in range(CAMERAS) for seen in run.frames_of(f"fast-{n}", began_s, ended_s)]
    ages_ms = sorted(seen.age_ms for seen in frames)
    report = run.stop()
    leaks = run.leaks + run.leaks_in_files()
    offered = round((ended_s - began_s) * CAMERAS * FPS)
    return Overload(ended_s - began_s, len(frames), offered, ages_ms, early, late, report, leaks)

"""Each place at which the backend calls the module fails once: nothing is left, the right error is told.

The places are found by recording runs that end well, and runs in which the lanes are rebuilt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ascend.call_sites import Recorder, Site
from ascend.driving import bench, open_sim, run_batches, tiny_spec

from stages.accelerators.accelerator import RunTimes
from stages.accelerators.aclsim.contract import CONTRACT
from stages.accelerators.aclsim.violations import ErrorReturned, UnpairedSetDevice
from stages.errors import BadItem, DeviceFailed, UserError
from stages.model import ModelSpec, OmSpec

LOST, OTHER = 507899, 500000
BATCHES, ROWS = 5, 7
REBUILD = "fail the 2nd execute_async with 500000"  # so that places on the way of recovery are found, too
RELEASES = ("rt.free", "rt.free_host", "rt.destroy_", "mdl.destroy_", "destroy_data_buffer", "rt.reset_device",
            "mdl.unload", "finalize")  # fmt: skip
ENDS = ("mdl.unload", "rt.reset_device", "finalize")
ASYNCHRONOUS = ("rt.memcpy_async", "mdl.execute_async")


@dataclass
class Story:
    """How a run went."""

    raised: list[BaseException] = field(default_factory=list)
    told: list[tuple[list[Any], Any]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    logged: str = ""

    @property
    def text(self) -> str:
        failed = [str(outcome) for _, outcome in self.told if isinstance(outcome, Exception)]
        return "\n".join([*map(str, self.raised), *failed, self.logged])

    @property
    def whole(self) -> bool:
        return not self.raised and len(self.told) == BATCHES and all(isinstance(o, RunTimes) for _, o in self.told)


def run(
    spec: ModelSpec,
    variant: str,
    faults: str,
    log: pytest.LogCaptureFixture,
    recorder: Recorder | None,
    check: str = "on",
) -> Story:
    """Open, load, run some batches, close; whatever is raised."""
    story = Story()
    log.clear()
    options = {"variant": variant, "sample_every": "4", "faults": faults, "hang_ms": "500", "check": check}
    with bench(recorder.around if recorder else None) as made:
        try:
            device = open_sim(options)
            try:
                device.load(spec, 8)
                lanes = device.lanes(2)
                try:
                    story.told = run_batches(lanes, spec, BATCHES, ROWS, 2)
                finally:
                    lanes.close()
            finally:
                device.close()
        except BaseException as error:
            story.raised.append(error)
        story.left = made.left()
        found = [violation for violation in made.violations if not violation.warning]
        story.violations = [str(violation) for violation in found if not isinstance(violation, ErrorReturned)]
    story.logged = log.text
    return story


def specs(folder: Path) -> list[tuple[str, ModelSpec]]:
    """Both variants with gears, and a batch that is built in, so that a batch is run in parts."""
    return [("B", tiny_spec(folder)), ("A", tiny_spec(folder)), ("B", tiny_spec(folder, OmSpec("", "", 4)))]


def for_each_site(
    folder: Path, base: str, log: pytest.LogCaptureFixture, judge: Callable[[Site, int, ModelSpec, str], list[str]]
) -> None:
    """``judge`` each place, with the number that its call has in a run; with ``base`` those that only it reaches."""
    log.set_level(logging.INFO)
    seen: set[Site] = set()
    problems: list[str] = []
    for variant, spec in specs(folder):
        straight = sites(spec, variant, "", log)
        chosen = {site: n for site, n in sites(spec, variant, base, log).items() if site not in straight}
        for site, number in (chosen if base else straight).items():
            if site not in seen:
                seen.add(site)
                problems += [f"{site}: {problem}" for problem in judge(site, number, spec, variant)]
    assert len(seen) > (25 if base else 70)
    print(f"{len(seen)} places of {len({site.call for site in seen})} functions")
    assert not problems, "\n".join(problems)


def sites(spec: ModelSpec, variant: str, faults: str, log: pytest.LogCaptureFixture) -> dict[Site, int]:
    """Places that a run comes by, which must be whole in the end."""
    recorder = Recorder()
    story = run(spec, variant, faults, log, recorder)
    assert story.whole, story.text
    assert not story.left
    return recorder.sites


def ordinal(number: int) -> str:
    return f"{number}{({1: 'st', 2: 'nd', 3: 'rd'}).get(number, 'th')}"


@pytest.mark.early
@pytest.mark.parametrize("code", [OTHER, LOST])
@pytest.mark.parametrize("base", ["", REBUILD], ids=["straight", "rebuilt"])
def test_a_call_returns_an_error(tmp_path: Path, code: int, base: str, caplog: pytest.LogCaptureFixture) -> None:
    expected = run(specs(tmp_path)[0][1], "B", "", caplog, None).told[0][0]

    def judge(site: Site, number: int, spec: ModelSpec, variant: str) -> list[str]:
        problems = []
        call = CONTRACT[site.call]
        short = site.call.removeprefix("rt.").removeprefix("mdl.")
        for how in ("", " on submit") if site.call in ASYNCHRONOUS else ("",):
            script = f"fail the {ordinal(number)} {short} with {code}{how}"
            story = run(spec, variant, f"{base}; {script}", caplog, None)
            problems += [f"{script}: {problem}" for problem in wrong(story, site, code, expected, again=bool(base))]
            if call.code_last and not any("_rebuild" in frame for frame in site.frames if "drain" in site.frames[0]):
                named = f"returned {code}" if site.call in ASYNCHRONOUS else f"acl.{site.call} returned {code}"
                if named not in story.text:
                    problems.append(f"{script}: nobody tells it: {story.text[:300]!r}")
        return problems

    for_each_site(tmp_path, base, caplog, judge)


def wrong(story: Story, site: Site, code: int, expected: list[Any], *, again: bool) -> list[str]:
    """What must not be so after a failure. ``again``: it is the second, so that a batch may be given up."""
    problems = []
    if site.call in ENDS:  # nothing more can be done by this process: its end takes what is left
        found = [v for v in story.violations if not v.startswith(("Leak", "UnpairedSetDevice"))]
    else:
        found = story.violations
        own = int(site.call.startswith(RELEASES) or site.call == "rt.synchronize_stream_with_timeout")
        if len(story.left) > own:  # what refuses to be released is left, nothing else
            problems.append(f"left: {story.left}")
    problems += [f"the sanitizer: {violation}" for violation in found]
    problems += [
        f"raised {error!r}"
        for error in story.raised
        if not isinstance(error, (DeviceFailed, UserError, UnpairedSetDevice))
    ]
    outcomes = [outcome for _, outcome in story.told]
    strange = [o for o in outcomes if not isinstance(o, (RunTimes, DeviceFailed, *((BadItem,) if again else ())))]
    if strange:
        problems.append(f"told {strange}")
    if code != LOST and story.told and not story.whole and not again and site.call not in ENDS:
        problems.append(f"not recovered: {story.text[:300]}")
    for outputs, outcome in story.told:
        if isinstance(outcome, RunTimes) and not all(map(np.array_equal, outputs, expected)):
            problems.append("other outputs than without the failure")
            break
    return problems


def test_an_interrupt_at_every_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As by a signal handler, or a defect: what was acquired is released all the same."""
    error = KeyboardInterrupt("struck")

    def judge(site: Site, number: int, spec: ModelSpec, variant: str) -> list[str]:
        recorder = Recorder((site.call, number), error)
        # no sanitizer: it would refuse what follows an interrupted release, and so add failures of its own
        story = run(spec, variant, "", caplog, recorder, check="off")
        if not recorder.struck:
            return ["was not reached again"]
        own = int(site.call.startswith(RELEASES))
        problems = [] if len(story.left) <= own else [f"left: {story.left}"]
        if error not in story.raised and str(error) not in story.text:
            problems.append(f"swallowed: {story.text[:300]!r}")
        return problems

    for_each_site(tmp_path, "", caplog, judge)

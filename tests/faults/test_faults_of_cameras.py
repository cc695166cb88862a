"""Every fault of a camera, in one run: its cause is told, it comes back in time, healthy ones beside it feel nothing.

The long form, in random order and for as long as wanted, is ``tools/soak``.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from faults.canary import CANARY, USER, found_in
from faults.catalogue import SHORT, Fault
from faults.live_run import LiveRun
from faults.servers.process import ServerProcess
from faults.trial import HEADER, Health, Outcome, attempt_all, disorder, health
from faults.victim import Victim

VICTIMS = 8
HEALTHY = ("healthy-1", "healthy-2")
QUIET_S = 6.0
SLACK_S = 2.0  # for a machine of two busy cores


@dataclass
class Suite:
    """What the one run gave."""

    outcomes: list[Outcome]
    absent_s: float
    health: list[Health]
    all_back_s: float
    report: dict[str, Any]
    leaks: list[str]
    left: list[str]
    disorder: dict[str, list[str]]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Suite:
    folder = tmp_path_factory.mktemp("faults")
    paths = [f"{name}=160x120@5" for name in HEALTHY]
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(*paths, "--scheme", "digest", "--user", USER, "--password", CANARY))
        victims = [stack.enter_context(Victim(f"v{n}", scheme="basic" if n % 2 else "digest")) for n in range(VICTIMS)]
        late = stack.enter_context(Victim("late", absent=True))
        cameras = {v.name: v.camera(in_url=n % 3 == 0) for n, v in enumerate([*victims, late])}
        for name in HEALTHY:
            url = f"rtsp://127.0.0.1:{server.port}/{name}"
            cameras[name] = {"source": {"url": url, "user": USER, "password": CANARY}}
        run = stack.enter_context(LiveRun(folder, cameras))
        suite = measure(run, victims, late, server)
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print_table(suite)
    return suite


def measure(run: LiveRun, victims: list[Victim], late: Victim, server: ServerProcess) -> Suite:
    names = [victim.name for victim in victims]
    run.wait_for_frames([*names, *HEALTHY], 0.0, 60, 5)
    assert not run.frames_of(late.name)
    late_s = time.monotonic()
    late.whole()
    run.wait_for_frames([late.name], late_s, 30)
    absent_s = run.frames_of(late.name)[0].at_s - late_s
    quiet = (time.monotonic() + 1, time.monotonic() + 1 + QUIET_S)
    time.sleep(1 + QUIET_S)
    began_s = time.monotonic()
    outcomes = attempt_all(run, victims, SHORT, SLACK_S)
    during = (began_s, time.monotonic())
    healths = [health(run, name, quiet, during) for name in HEALTHY]
    all_back_s = lose_all(run, [*victims, late], server)
    leaks = found_in(run.pages())
    report = run.stop()
    leaks += run.leaks + run.leaks_in_files()
    wrong = {name: disorder(run.frames_of(name)) for name in [*names, *HEALTHY]}
    return Suite(outcomes, absent_s, healths, all_back_s, report, leaks, run.left_behind(), wrong)


def lose_all(run: LiveRun, victims: list[Victim], server: ServerProcess) -> float:
    """All cameras at once, for three seconds; how long until the last one was back."""
    lost_s = time.monotonic()
    server.ask("stop")
    for victim in victims:
        victim.server.stop()
    names = [*(victim.name for victim in victims), *HEALTHY]
    for name in names:
        run.wait(f"{name} told lost", lambda name=name: run.told_of(name, lost_s), 10)  # type: ignore[misc]
    time.sleep(3)
    back_s = time.monotonic()
    server.ask("start")
    for victim in victims:
        victim.server.start()
    run.wait_for_frames(names, back_s, 45)
    return max(run.frames_of(name, back_s)[0].at_s for name in names) - back_s


def print_table(suite: Suite) -> None:
    print(f"\n\n{HEADER}")
    for outcome in suite.outcomes:
        print(outcome.row())
    print(f"{'absent at start':26} {'refused':13} {'':6} {suite.absent_s:6.2f}     3")
    print(f"{'all cameras lost at once':26} {'refused':13} {'':6} {suite.all_back_s:6.2f}     3")
    print(*suite.health, sep="\n")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", SHORT, ids=lambda fault: fault.name)
def test_each_fault_is_told_with_its_cause_and_overcome(suite: Suite, fault: Fault) -> None:
    (outcome,) = (outcome for outcome in suite.outcomes if outcome.fault is fault)
    assert not outcome.problems, outcome.row()


def test_a_camera_that_was_absent_at_the_start_joins_when_it_is_there(suite: Suite) -> None:
    assert suite.absent_s < 2 + 1 + SLACK_S


def test_all_cameras_lost_at_once_come_back(suite: Suite) -> None:
    assert suite.all_back_s < 2 + 1 + SLACK_S * 2


def test_healthy_cameras_beside_them_feel_nothing(suite: Suite) -> None:
    for each in suite.health:
        assert each.moved_percent < 5, each
        assert each.missing == 0, each


def test_every_frame_is_accounted_for(suite: Suite) -> None:
    assert suite.report["exit_status"] == 0, suite.report["problems"]
    for name, camera in suite.report["cameras"].items():
        assert camera["exact"], name
        assert camera["ledger"]["in_flight"] == 0, name
    assert all(stage["restarts"] == 0 for stage in suite.report["stages"].values())


def test_time_and_seq_only_go_up(suite: Suite) -> None:
    assert not {name: wrong for name, wrong in suite.disorder.items() if wrong}


def test_no_password_is_seen_anywhere(suite: Suite) -> None:
    assert not suite.leaks


def test_nothing_is_left_behind(suite: Suite) -> None:
    assert not suite.left

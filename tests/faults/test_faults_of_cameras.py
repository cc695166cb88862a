"""Every fault of a camera, in one run: its cause is told, it comes back in time, healthy ones beside it feel nothing.

The long form, in random order and for as long as wanted, is ``tools/soak``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest
from faults.catalogue import SHORT, Fault
from faults.everything import BACK_S, Ending, Findings, come_late, end, faulty_site, lose_all, one_pass
from faults.victim import GROUP_S

pytestmark = [pytest.mark.timeout(300), pytest.mark.early]  # the first test waits for the whole run

VICTIMS = 8
SLACK_S = 10.0  # for a machine that is shared; how long it took is printed, and held to its target by tools/soak
TOO_BUSY = 3.0  # processes for each CPU: a machine that has so much else to do can't show that nothing is missing


@dataclass
class Suite:
    """What the one run gave."""

    found: Findings
    ending: Ending


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Suite:
    with faulty_site(tmp_path_factory.mktemp("faults"), VICTIMS) as site:
        absent_s = come_late(site)
        found = one_pass(site, SHORT, SLACK_S)
        found.absent_s, found.all_back_s = absent_s, lose_all(site)
        suite = Suite(found, end(site))
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n\n{found}", file=sys.stderr, flush=True)  # stdout of a process of pytest-xdist leads nowhere
    return suite


@pytest.mark.parametrize("fault", SHORT, ids=lambda fault: fault.name)
def test_each_fault_is_told_with_its_cause_and_overcome(suite: Suite, fault: Fault) -> None:
    (outcome,) = (outcome for outcome in suite.found.outcomes if outcome.fault is fault)
    assert not outcome.problems, outcome.row()


def test_a_camera_that_was_absent_at_the_start_joins_when_it_is_there(suite: Suite) -> None:
    assert suite.found.absent_s is not None
    assert suite.found.absent_s < BACK_S + GROUP_S + SLACK_S


def test_all_cameras_lost_at_once_come_back(suite: Suite) -> None:
    assert suite.found.all_back_s is not None
    assert suite.found.all_back_s < BACK_S + GROUP_S + SLACK_S * 2


def test_healthy_cameras_beside_them_feel_nothing(suite: Suite) -> None:
    for each in suite.found.health:
        busy = suite.found.load >= TOO_BUSY
        assert each.moved_percent < (20 if busy else 5), each
        assert each.missing <= (5 if busy else 0), each


def test_every_frame_is_accounted_for(suite: Suite) -> None:
    report = suite.ending.report
    assert report["exit_status"] == 0, report["problems"]
    for name, camera in report["cameras"].items():
        assert camera["exact"], name
        assert camera["ledger"]["in_flight"] == 0, name
    assert all(stage["restarts"] == 0 for stage in report["stages"].values())


def test_time_and_seq_only_go_up(suite: Suite) -> None:
    assert not suite.ending.disorder


def test_no_password_is_seen_anywhere(suite: Suite) -> None:
    assert not suite.ending.leaks


def test_nothing_is_left_behind(suite: Suite) -> None:
    assert not suite.ending.left

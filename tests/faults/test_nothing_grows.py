"""Failed opens, reconnects, cameras that come and go, subscribers that come and go: nothing grows by them.

Here in small numbers; ``tools/soak`` does as many as are wanted.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faults.floods import ABSENT, BRIEF, Flood, additions, opens_and_reconnects, subscribers, unlucky_site
from faults.live_run import LiveRun

ROOM_BYTES = 16 << 20  # of about 14 processes, some of which have just started: allocators round up, caches fill


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    with unlucky_site(tmp_path_factory.mktemp("floods")) as run:
        yield run


def assert_flat(flood: Flood) -> None:
    print(flood)
    assert not flood.after.grown(flood.before, ROOM_BYTES, ABSENT + BRIEF), flood


def test_failed_opens_and_reconnects_leave_nothing(run: LiveRun) -> None:
    for flood in opens_and_reconnects(run, failed=200, reconnects=40):
        assert_flat(flood)


def test_cameras_that_come_and_go_leave_nothing(run: LiveRun) -> None:
    assert_flat(additions(run, 2))


def test_subscribers_that_come_and_go_leave_nothing(run: LiveRun) -> None:
    assert_flat(subscribers(run, 800))


def test_the_run_is_exact_after_all_that(run: LiveRun) -> None:
    report = run.stop()
    assert all(camera["exact"] for camera in report["cameras"].values())
    assert not run.leaks_in_files()
    assert not run.left_behind()

"""kill -9 and kill -STOP of each kind of worker and of the whole tree while cameras send: replaced, counted, clean."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from faults.kills import CAMERAS, HANG_MS, KINDS, WAYS, kill_tree, live_site, strike
from faults.trial import disorder

pytestmark = pytest.mark.early

TIMES = 2


@pytest.mark.timeout(240)
def test_every_kind_of_worker_is_replaced_whatever_ends_it(tmp_path: Path) -> None:
    with live_site(tmp_path) as run:
        blows = [blow for _ in range(TIMES) for kind in KINDS for blow in strike(run, [kind], signal.SIGKILL)]
        blows += strike(run, ["forkserver"], signal.SIGSTOP)
        for _ in range(TIMES):
            blows += strike(run, KINDS, signal.SIGSTOP)
        for blow in blows:
            print(blow)
        wrong = [each for name in CAMERAS for each in disorder(run.frames_of(name))]
        report = run.stop()
        assert not wrong
        for blow in blows:
            assert blow.others_gap_s is None or blow.others_gap_s < HANG_MS / 1000, blow  # they do not wait for it
        for name, camera in report["cameras"].items():
            assert camera["exact"], name
            assert camera["ledger"]["in_flight"] == 0
        assert sum(stage["restarts"] for stage in report["stages"].values()) >= len(blows)
        assert not run.leaks + run.leaks_in_files()
        assert not run.left_behind()


@pytest.mark.parametrize("way", [WAYS[0], pytest.param(WAYS[1], marks=pytest.mark.long), WAYS[2]])
def test_nothing_is_left_of_a_run_that_is_killed(way: str, tmp_path: Path) -> None:
    with live_site(tmp_path) as run:
        assert not kill_tree(run, way)

"""Failed opens, reconnects, cameras that come and go, subscribers that come and go: nothing grows by them.

Here in small numbers; ``tools/soak`` does as many as are wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from faults.floods import Flood, additions, calm, opens_and_reconnects, subscribers, unlucky_site

pytestmark = [pytest.mark.timeout(400), pytest.mark.early]  # the first test waits for the whole run

COUNTS = {"failed opens": 400, "reconnects": 80, "camera adds and removes": 5, "subscriber connects": 800}


@dataclass
class Done:
    """What the one run gave."""

    floods: dict[str, Flood]
    report: dict[str, Any]
    leaks: list[str]
    left: list[str]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    with unlucky_site(tmp_path_factory.mktemp("floods")) as run:
        opens, reconnects, added, connected = COUNTS.values()
        floods = opens_and_reconnects(run, opens, reconnects, warm_up=0)
        calm(run)
        floods += [additions(run, added), subscribers(run, connected)]
        report = run.stop()
        leaks = run.leaks + run.leaks_in_files()
        return Done({flood.what: flood for flood in floods}, report, leaks, run.left_behind())


@pytest.mark.parametrize("what", COUNTS)
def test_nothing_is_left_of_what_comes_and_goes(done: Done, what: str) -> None:
    flood = done.floods[what]
    print(flood)
    assert flood.count >= COUNTS[what]
    assert not flood.grown, flood


def test_the_run_is_exact_and_clean_after_all_that(done: Done) -> None:
    assert all(camera["exact"] for camera in done.report["cameras"].values())
    assert not done.leaks
    assert not done.left

"""What the desk makes of changed files: used, or refused and tried again by itself. Real files, a scripted fleet."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Resolved
from pipeline.config.resolve import BatchRequest
from pipeline.control.changes import Changes
from pipeline.control.desk import WAIT_NS, ControlDesk
from pipeline.control.watcher import Watcher
from pipeline.plan import Limits
from stages.camera import CameraSpec
from stages.errors import UserError


class ScriptedFleet:
    """Cameras that are busy, or refused, for as long as it is said."""

    def __init__(self, *names: str) -> None:
        self.specs = {name: CameraSpec(name, f"/{name}", "m") for name in names}
        self.leaving = False
        self.refuses = ""
        self.tries = 0

    def busy(self, names: tuple[str, ...]) -> bool:
        return self.leaving and bool(names)

    def apply(self, changes: Changes, _now_ns: int) -> None:
        if changes:
            self.tries += 1
        if self.refuses:
            raise UserError(self.refuses)
        self.specs |= {spec.name: spec for spec in changes.add}
        for name in changes.remove:
            del self.specs[name]


class Desk:
    """A desk over a site's file that holds the names of its cameras."""

    def __init__(self, folder: Path) -> None:
        self.site = folder / "site.yaml"
        self.site.write_text("a")
        self.fleet = ScriptedFleet("a")
        self.now_ns = 0
        self.readings = 0
        watcher = Watcher(
            self.site, lambda: None, self._resolved, lambda _path: self._resolved(), every_s=0.005, retry_s=0.02
        )
        self.desk = ControlDesk(self.site, self._resolved(), watcher, None)
        self.desk.open(folder)

    def _resolved(self) -> Resolved:
        self.readings += 1
        cameras = tuple(CameraSpec(name, f"/{name}", "m") for name in self.site.read_text().split())
        return Resolved(cameras, (), (), BatchRequest(None, 0), None, None, (), Limits(), None, None)

    def until(self, wanted: Any) -> None:
        deadline_s = time.monotonic() + 20
        while not wanted():
            assert time.monotonic() < deadline_s
            self.now_ns += WAIT_NS // 3  # what is waited for is soon given up
            self.desk.service(self.fleet, self.now_ns, lambda _now_ns: pytest.fail("nobody asked"))  # type: ignore[arg-type]
            time.sleep(0.002)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.desk.close()


@pytest.mark.parametrize("why", ["still leaving", "refused by the fleet"])
def test_a_change_that_the_desk_refused_is_used_once_its_remedy_has_come(
    desk: Desk, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "campipe.control")
    desk.fleet.leaving, desk.fleet.refuses = why == "still leaving", "its file can't be written"
    desk.site.write_text("a b")
    desk.until(lambda: desk.desk.problems)
    assert "still leaving" in desk.desk.problems[0] or "can't be written" in desk.desk.problems[0]
    readings = desk.readings
    desk.until(lambda: desk.readings >= readings + 3)
    assert list(desk.fleet.specs) == ["a"]
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"], "told once, not at each try"
    desk.fleet.leaving, desk.fleet.refuses = False, ""
    desk.until(lambda: "b" in desk.fleet.specs)
    assert desk.desk.problems == ()
    assert "the files are right again, and used" in caplog.text
    readings = desk.readings
    time.sleep(0.1)
    assert desk.readings == readings, "what is used is read only when it changes"


def test_what_the_desk_refuses_is_tried_ever_less_often(desk: Desk) -> None:
    desk.fleet.refuses = "restart campipe"
    desk.site.write_text("a b")
    began_s = time.monotonic()
    desk.until(lambda: desk.fleet.tries >= 4)  # waits of 1, 2 and 4 times retry_s between them
    assert time.monotonic() - began_s >= 7 * 0.02
    desk.fleet.refuses = ""
    desk.until(lambda: "b" in desk.fleet.specs)


def test_a_change_that_waits_for_cameras_gives_way_to_a_newer_one(desk: Desk) -> None:
    desk.fleet.leaving = True
    desk.site.write_text("a b")
    desk.until(lambda: desk.desk._waiting is not None)
    readings = desk.readings
    desk.site.write_text("a")
    deadline_s = time.monotonic() + 20
    while desk.readings == readings or desk.desk._waiting is not None:  # nothing is given up meanwhile
        assert time.monotonic() < deadline_s
        desk.desk.service(desk.fleet, desk.now_ns, lambda _now_ns: pytest.fail("nobody asked"))  # type: ignore[arg-type]
        time.sleep(0.002)
    assert desk.desk.problems == ()


def test_what_the_fleet_tells_is_not_told_again(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "campipe")
    desk.site.write_text("a b")
    desk.until(lambda: "b" in desk.fleet.specs)
    assert [record.getMessage() for record in caplog.records if "added" in record.getMessage()] == []

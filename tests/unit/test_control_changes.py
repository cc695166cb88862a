"""What a change of configuration comes to, who is told of it, and how files are watched: pure parts and real files."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.camera import CameraConfig
from pipeline.control.changes import IN_PLACE, KEYS, Changes, diff
from pipeline.control.watcher import Watcher, fingerprint
from pipeline.runtime.link_log import REMIND_EVERY, LinkLog
from pipeline.runtime.roster import Roster
from pipeline.runtime.stagger import LONGEST_NS, SPACING_NS, Stagger
from pipeline.transport.arena import SharedRing
from pipeline.transport.ring_door import RingDoor, push
from stages.camera import CameraSpec, LinkSpec
from stages.errors import StageDead, UserError
from stages.messages import CameraAdded, CameraChanged, CameraRemoved, LinkChanged

SPEC = CameraSpec("a", "/a.mp4", "m")
OTHER = {
    "url": "/b.mp4", "model": "n", "track": 1, "loop": True, "pace": "realtime", "live": True, "recorded_at_ns": 5,
    "max_frames": 7, "sample_every": 2, "sample_fps": 5.0, "roi": (0.0, 0.0, 0.5, 1.0), "confidence": 0.7, "iou": 0.6,
    "classes": (1,), "class_agnostic": True, "nms_groups": ((1, 2),), "max_objects": 3, "max_age_ms": 20, "user": "u",
    "password": "p", "keyframes": True, "corrupt": "drop", "network": True, "link": LinkSpec(stall_ms=1),
    "preload": True,
}  # fmt: skip


def test_every_field_of_a_camera_is_either_changed_in_place_or_restarts_it() -> None:
    fields = {field.name for field in dataclasses.fields(CameraSpec)} - {"name"}
    assert set(OTHER) == fields, "a new field: say what a change of it comes to"
    for name, value in OTHER.items():
        new = dataclasses.replace(SPEC, **{name: value})
        changes = diff({"a": SPEC}, {"a": new})
        assert changes == (Changes(change=(new,)) if name in IN_PLACE else Changes(restart=(new,))), name


def test_only_keyframes_is_a_change_in_place_of_a_live_camera_alone() -> None:
    live = dataclasses.replace(SPEC, network=True)
    assert diff({"a": live}, {"a": dataclasses.replace(live, keyframes=True)}).change
    assert diff({"a": SPEC}, {"a": dataclasses.replace(SPEC, keyframes=True)}).restart


def test_changes_say_which_keys_of_a_camera_s_file_they_come_from() -> None:
    before = {name: dataclasses.replace(SPEC, name=name) for name in ("gate", "yard", "left")}
    after = {
        "gate": dataclasses.replace(before["gate"], sample_fps=2.0, keyframes=False, confidence=0.7, max_age_ms=5),
        "yard": dataclasses.replace(before["yard"], url="/b.mp4", password="p"),
        "new": SPEC,
    }
    changes = diff(before, after)
    assert changes.of_those_that_stay == "changed gate (confidence, live, sampling); restarted yard (source)"
    assert str(changes) == f"added a; removed left; {changes.of_those_that_stay}"
    assert str(diff(after, after)) == "nothing changed"


def test_keys_of_changes_are_keys_of_a_camera_s_file() -> None:
    for name in OTHER:
        assert KEYS.get(name, name) in CameraConfig.model_fields, name


SPECS = st.dictionaries(
    st.sampled_from("abcdef"),
    st.tuples(st.sampled_from([0.1, 0.2]), st.sampled_from(["/1", "/2"])),
).map(lambda d: {name: CameraSpec(name, url, "m", confidence=c) for name, (c, url) in d.items()})


@given(now=SPECS, wanted=SPECS)
def test_doing_the_changes_gives_what_was_wanted(now: dict[str, CameraSpec], wanted: dict[str, CameraSpec]) -> None:
    changes = diff(now, wanted)
    done = {name: spec for name, spec in now.items() if name not in changes.remove}
    done |= {spec.name: spec for spec in (*changes.add, *changes.change, *changes.restart)}
    assert done == wanted
    assert len(set(changes.names)) == len(changes.names)
    assert not set(changes.names) & {name for name in now if now[name] == wanted.get(name)}
    assert bool(changes) == (now != wanted)


class Line:
    """As much of a CameraLine as a roster looks at."""

    def __init__(self, spec: CameraSpec) -> None:
        self.spec = spec
        self.settings = 0
        self.kept = {0: spec}


def test_a_worker_is_told_what_changed_since_it_was_started_once_and_with_its_ring_first() -> None:
    roster = Roster()
    a, b = Line(SPEC), Line(dataclasses.replace(SPEC, name="b", password="canary"))
    lines = {"a": a}
    rings = {"a": ("frames/a", 2, 10)}
    roster.started(("x/0", "x/1"), "executor", lines, rings)  # type: ignore[arg-type]
    roster.started(("n",), "nms", lines, rings)  # type: ignore[arg-type]
    assert roster.tell("x/0", lines, rings, lambda _: True) == []  # type: ignore[arg-type]
    lines, rings = {"b": b}, {"b": ("frames/b", 3, 10)}
    refused = roster.tell("x/0", lines, rings, lambda _: False)  # type: ignore[arg-type]
    assert refused == [CameraRemoved("a")]
    told = roster.tell("x/0", lines, rings, lambda _: True)  # type: ignore[arg-type]
    assert told == [CameraAdded(b.spec.without_secrets(), 0, ("frames/b", 3, 10))]
    assert roster.tell("x/0", lines, rings, lambda _: True) == []  # type: ignore[arg-type]
    assert len(roster.tell("x/1", lines, rings, lambda _: True)) == 2  # type: ignore[arg-type]
    b.settings, b.kept = 2, {1: b.spec, 2: b.spec}
    bare = b.spec.without_secrets()
    assert roster.tell("n", lines, rings, lambda _: True) == [  # type: ignore[arg-type]
        CameraRemoved("a"),
        CameraChanged(bare, 1),
        CameraChanged(bare, 2),
    ]
    assert roster.tell("n", lines, rings, lambda _: True) == []  # type: ignore[arg-type]
    assert roster.tell("stranger", lines, rings, lambda _: True) == []  # type: ignore[arg-type]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_ring_handed_over_is_the_same_memory_mapped_once_and_unmapped_with_its_last_user(tmp_path: Path) -> None:
    path = str(tmp_path / "rings-1")
    ring = SharedRing.create("frames/a+1", 2, 100)
    assert not push(path, ring), "nobody listens"
    door = RingDoor(path)
    before = descriptors()
    door.open()
    assert push(path, ring)
    assert push(path, ring), "twice, for its message was lost"
    first = door.take("frames/a+1", 2, 100)
    second = door.take("frames/a+1", 2, 100)
    assert first is second
    ring.begin_write(1)[:3] = b"abc"
    generation = ring.end_write(1)
    assert bytes(first.read(1, generation)[:3]) == b"abc"
    door.give_back("frames/a+1")
    assert bytes(first.read(1, generation)[:3]) == b"abc"
    door.give_back("frames/a+1")
    door.give_back("never heard of")
    other = SharedRing.create("frames/b+2", 1, 10)
    assert push(path, other)
    door.take("frames/b+2", 1, 10)
    door.close()
    door.close()
    other.close()
    assert descriptors() == before
    ring.close()


def test_pushing_to_a_worker_that_does_not_take_never_blocks(tmp_path: Path) -> None:
    door = RingDoor(str(tmp_path / "rings-1"))
    door.open()
    rings = [SharedRing.create(f"frames/a+{n}", 1, 10) for n in range(3)]
    began = time.monotonic()
    pushed = 0
    while push(str(tmp_path / "rings-1"), rings[pushed % 3]):
        pushed += 1
        assert pushed < 100_000
    assert time.monotonic() - began < 30
    assert pushed > 0
    assert door.take("frames/a+2", 1, 10).name == "frames/a+2"
    assert push(str(tmp_path / "rings-1"), rings[0]), "there is room again"
    door.close()
    for ring in rings:
        ring.close()


def test_a_ring_that_does_not_come_ends_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.transport.ring_door.TAKE_WITHIN_S", 0.05)
    door = RingDoor(str(tmp_path / "rings-1"))
    door.open()
    with pytest.raises(StageDead, match="has not come"):
        door.take("frames/a+1", 1, 10)
    door.close()
    with pytest.raises(StageDead, match="closed"):
        door.take("frames/a+1", 1, 10)


def test_connections_are_spaced_and_nobody_waits_for_ever() -> None:
    stagger = Stagger()
    delays = [stagger.delay_ms(0) for _ in range(10)]
    assert delays == [n * SPACING_NS // 1_000_000 for n in range(10)]
    assert max(stagger.delay_ms(0) for _ in range(1000)) <= LONGEST_NS // 1_000_000
    assert Stagger().delay_ms(10**15) == 0


def test_a_camera_that_is_dead_for_days_is_logged_at_its_changes_and_seldom_between(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = LinkLog()
    caplog.set_level("INFO")
    for attempt in range(1, 10 * REMIND_EVERY):
        log.note(LinkChanged("a", 0, "connecting", "first", "", attempt))
        log.note(LinkChanged("a", 0, "reconnecting", "refused", "nobody listens", attempt))
    assert len(caplog.records) == 10
    log.note(LinkChanged("a", 0, "reconnecting", "unauthorised", "wrong password", 3))
    log.note(LinkChanged("a", 0, "streaming", "first", ""))
    log.note(LinkChanged("a", 0, "streaming", "first", ""))
    assert [r.levelname for r in caplog.records[10:]] == ["WARNING", "INFO"]
    log.note(LinkChanged("a", 0, "failed", "unauthorised", "given up"))
    assert caplog.records[-1].levelname == "ERROR"


class Watched:
    """A watcher of real files whose readings are counted."""

    def __init__(self, folder: Path, every_s: float) -> None:
        self.site = folder / "site.yaml"
        self.cameras = folder / "cameras"
        self.cameras.mkdir()
        self.site.write_text("1")
        self.readings = 0
        self.refuse = ""
        self.watcher: Watcher[str] = Watcher(
            self.site, lambda: self.cameras, self._read, lambda path: f"camera {path}", every_s=every_s, retry_s=0.05
        )
        self.watcher.open()

    def _read(self) -> str:
        self.readings += 1
        if self.refuse:
            raise UserError(self.refuse)
        return self.site.read_text()

    def told(self, within_s: float = 5) -> list[object]:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if found := self.watcher.told():
                return list(found)
            time.sleep(0.005)
        return []


EDITS: dict[str, Callable[[Watched], object]] = {
    "site edited": lambda w: w.site.write_text("2"),
    "camera added": lambda w: (w.cameras / "a.yaml").write_text("x"),
    "folder gone": lambda w: w.cameras.rmdir(),
    "site replaced by one that looks the same": lambda w: (
        (w.site.parent / "n").write_text("1"),
        os.utime(w.site.parent / "n", ns=(w.site.stat().st_atime_ns, w.site.stat().st_mtime_ns)),
        (w.site.parent / "n").rename(w.site),
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_changed_files_are_read_once_when_they_have_settled(tmp_path: Path, edit: str) -> None:
    watched = Watched(tmp_path, 0.02)
    assert watched.told(0.1) == []
    EDITS[edit](watched)
    assert len(watched.told()) == 1
    assert watched.told(0.1) == []
    watched.watcher.close()


def test_a_file_that_is_still_being_written_is_not_read(tmp_path: Path) -> None:
    watched = Watched(tmp_path, 0.05)
    path = watched.cameras / "a.yaml"
    for n in range(10):
        path.write_text("x" * (n + 1))
        time.sleep(0.03)
    assert len(watched.told()) == 1
    assert watched.readings <= 2
    watched.watcher.close()


def test_what_was_refused_is_used_when_its_remedy_comes_from_outside_the_files(tmp_path: Path) -> None:
    watched = Watched(tmp_path, 0.01)
    watched.refuse = "the recording is not there"
    watched.site.write_text("2")
    (read,) = watched.told()
    assert read.problems == ("the recording is not there",)  # type: ignore[attr-defined]
    assert watched.told(0.2) == [], "told again and again"
    watched.refuse = "it can't be read"
    (read,) = watched.told()
    assert read.problems == ("it can't be read",)  # type: ignore[attr-defined]
    watched.refuse = ""
    (read,) = watched.told()
    assert (read.content, read.problems) == ("2", ())  # type: ignore[attr-defined]
    readings = watched.readings
    assert watched.told(0.2) == []
    assert watched.readings == readings, "what is right is read only when it changes"
    watched.watcher.close()


def test_other_files_of_the_folder_mean_nothing(tmp_path: Path) -> None:
    before = fingerprint(tmp_path / "site.yaml", tmp_path)
    (tmp_path / ".a.yaml").write_text("")
    (tmp_path / "a.yaml~").write_text("")
    (tmp_path / "4913").write_text("")
    assert fingerprint(tmp_path / "site.yaml", tmp_path) == before
    (tmp_path / "a.yml").write_text("")
    assert fingerprint(tmp_path / "site.yaml", tmp_path) != before


def test_whoever_asks_gets_the_reading_or_what_is_wrong(tmp_path: Path) -> None:
    watched = Watched(tmp_path, 0)
    watched.watcher.ask(None, "token")
    (read,) = watched.told()
    assert (read.content, read.token, read.kind) == ("1", "token", "site")  # type: ignore[attr-defined]
    watched.watcher.ask("/a.yaml", None)
    (read,) = watched.told()
    assert (read.content, read.kind) == ("camera /a.yaml", "camera")  # type: ignore[attr-defined]
    watched.refuse = "no good"
    watched.watcher.ask(None, 1)
    (read,) = watched.told()
    assert (read.content, read.problems) == (None, ("no good",))  # type: ignore[attr-defined]
    watched.watcher.close()
    watched.watcher.close()
    assert "campipe-watch" not in [thread.name for thread in threading.enumerate()]

"""The dispatcher under random timing and random deaths: recordings are published once and in order, whatever dies."""

from __future__ import annotations

import dataclasses
import gc
import random
from collections import deque
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made.plans import run_plan
from made.specs import model_spec
from searching import examples

from pipeline.plan import BatchPlan, DevicePlan, RunPlan
from pipeline.runtime.dispatch import Dispatcher
from stages.camera import CameraSpec
from stages.messages import (
    BatchReady,
    CameraChanged,
    Detections,
    FrameDropped,
    FrameReady,
    ItemFailed,
    LinkChanged,
    Objects,
    PostDone,
    PostTask,
    RawOutput,
    SlotsFreed,
    Status,
    Stop,
    StreamEnded,
    StreamStarted,
)
from stages.model import ModelSpec, TensorSpec


def model(name: str = "m") -> ModelSpec:
    return model_spec(name=name, width=8, height=8, labels=("a", "b"), outputs=(TensorSpec("o", (4, 6), "float32"),))


def plan(
    cameras: int, slots: int, max_batch: int, executors: int, nms: int, *, live: bool = False, max_age_ms: int = 1000
) -> RunPlan:
    names = [f"c{i}" for i in range(cameras)]
    return run_plan(
        *(CameraSpec(n, f"/{n}", "m", live=live, max_age_ms=max_age_ms) for n in names),
        slots=slots,
        models=(model(),),
        devices=(DevicePlan("cpu", executors, 1, 2),),
        batch={"m": BatchPlan(max_batch, 5.0)},
        nms_workers=nms,
        output_slots={"m": executors * 2 + 1},
    )


def objects(index: int, seq: int) -> Objects:
    """One object whose score tells the seq, so that a mix-up of frames shows."""
    boxes = np.array([[1, 2, 3, 4]], np.float32)
    return Objects(index, boxes.tobytes(), np.float32(seq / 1000).tobytes(), np.int32(seq % 2).tobytes(), 0, 0)


MOST_KILLS = 7  # a frame that sees more deaths than this is suspected, and rightly


@dataclass
class Source:
    """Where a decode worker is in its recording, and what it has counted."""

    epoch: int
    seq: int
    decoded: int
    sampled_out: int
    done: bool = False


class World:
    """Workers that do what messages ask, at random moments, and die at random moments."""

    def __init__(
        self, the_plan: RunPlan, frames: int, rng: random.Random, bad_rate: float = 0.0, epochs: int = 1, every: int = 1
    ) -> None:
        self.plan = the_plan
        self.epochs = epochs  # times that each recording is played
        self.every = every  # decoded frames per wanted one
        self.frames = frames
        self.rng = rng
        self.bad_rate = bad_rate
        self.now_ns = 1
        self.dispatcher = Dispatcher(the_plan, lambda: 0)
        self.inboxes: dict[str, deque[object]] = {}
        self.outboxes: dict[str, deque[object]] = {}
        self.sources: dict[str, Source] = {}
        self.free: dict[str, list[int]] = {}
        self.written: dict[tuple[str, int], tuple[int, int]] = {}  # (camera, slot) -> (generation, seq), seq is
        # unique over epochs here: epoch * frames + seq
        self.rows: dict[int, list[int]] = {}  # output slot -> seqs
        self.generations: dict[object, int] = {}
        self.published: dict[str, list[Detections]] = {c.name: [] for c in the_plan.cameras}
        self.statuses: list[Status] = []
        self.kills = 0
        for camera in the_plan.cameras:
            self.start(f"decode/{camera.name}")
        for index in range(the_plan.devices[0].executors):
            self.start(f"executor/{index}")
        for index in range(the_plan.nms_workers):
            self.start(f"nms/{index}")
        self.dispatcher.open_gates()

    def start(self, name: str) -> None:
        kind = name.partition("/")[0]
        self.inboxes[name] = deque()
        self.outboxes[name] = deque()
        if kind == "decode":
            camera = name.removeprefix("decode/")
            begin = self.dispatcher.begin(camera)
            self.sources[camera] = Source(begin.epoch, begin.next_seq, begin.decoded, begin.sampled_out)
            self.free[camera] = []
            self.outboxes[name].append(StreamStarted(camera, begin.epoch, 8, 8, 10.0, "h264", "file", self.frames))
        self.dispatcher.worker_ready(name, kind, 2)

    def bump(self, key: object) -> int:
        self.generations[key] = self.generations.get(key, 0) + 2
        return self.generations[key]

    def kill(self, name: str, *, blame: bool = False) -> None:
        self.kills += 1
        outbox = self.outboxes.pop(name)
        self.inboxes.pop(name)
        for _ in range(self.rng.randint(0, len(outbox))):  # some last messages arrive, the others are lost with it
            self.dispatcher.receive(name, outbox.popleft())
        self.dispatcher.worker_lost(name, blame=blame)
        self.start(name)

    def work(self, name: str) -> None:
        kind, _, rest = name.partition("/")
        inbox, outbox = self.inboxes[name], self.outboxes[name]
        if kind == "decode":
            source = self.sources[rest]
            while inbox:
                message = inbox.popleft()
                if isinstance(message, SlotsFreed):
                    self.free[rest] += message.slots
                elif isinstance(message, Stop) and not source.done:
                    source.done = True
                    outbox.append(
                        StreamEnded(rest, source.epoch, "stopped", "", source.decoded, source.sampled_out, 0, True)
                    )
            if not source.done:
                self.decode(rest, source, outbox)
        elif kind == "executor" and inbox:
            message = inbox.popleft()
            assert isinstance(message, BatchReady)
            seqs = []
            for item in message.items:
                generation, seq = self.written[item.camera, item.slot]
                assert generation == item.generation, "the slot was rewritten while a batch held it"
                seqs.append(seq)
            self.rows[message.output_slot] = seqs
            generation = self.bump(("out", message.output_slot))
            failed = [ItemFailed(i, "infer_failed", "") for i in range(len(seqs)) if self.rng.random() < self.bad_rate]
            outbox.append(RawOutput(message.batch_id, generation, failed, 1, 2, 3, 4))
        elif kind == "nms" and inbox:
            message = inbox.popleft()
            assert isinstance(message, PostTask)
            assert self.generations["out", message.output_slot] == message.generation, "output slot reused too early"
            seqs = self.rows[message.output_slot]
            outbox.append(PostDone(message.task_id, [objects(i.index, seqs[i.index]) for i in message.items], [], 5, 6))

    def decode(self, camera: str, source: Source, outbox: deque[object]) -> None:
        """One wanted frame, or the end of an epoch, as a decode worker tells it."""
        epoch, seq = source.epoch, source.seq
        if seq == self.frames:
            source.decoded += self.every - 1  # trailing frames that nobody wanted
            source.sampled_out += self.every - 1
            last = epoch + 1 == self.epochs
            outbox.append(StreamEnded(camera, epoch, "ended", "", source.decoded, source.sampled_out, 0, last))
            source.done = last
            if not last:
                source.epoch, source.seq = epoch + 1, 0
                outbox.append(StreamStarted(camera, epoch + 1, 8, 8, 10.0, "h264", "file", self.frames))
        elif self.free[camera]:
            slot = self.free[camera].pop()
            assert slot not in self.dispatcher.cameras[camera].held, "a slot that is in use was given away"
            generation = self.bump((camera, slot))
            self.written[camera, slot] = (generation, epoch * self.frames + seq)
            source.decoded += self.every
            source.sampled_out += self.every - 1
            source.seq += 1
            if self.rng.random() < self.bad_rate / 2:
                self.free[camera].append(slot)
                outbox.append(
                    FrameDropped(camera, epoch, seq, source.decoded, source.sampled_out, "bad_frame", "a test's")
                )
                return
            outbox.append(
                FrameReady(
                    camera,
                    epoch,
                    seq,
                    slot,
                    generation,
                    8,
                    8,
                    seq,
                    seq,
                    source.decoded,
                    source.sampled_out,
                    False,
                    self.now_ns,
                )
            )

    def step(self, kill_rate: float) -> None:
        self.now_ns += self.rng.randint(1, 3_000_000)
        name = self.rng.choice(list(self.inboxes))
        if self.kills < MOST_KILLS and self.rng.random() < kill_rate:
            # blamed at times: what is suspected is tried alone, but a single blamed death costs nobody anything
            self.kill(name, blame=self.rng.random() < 0.2 and self.kills < 1)
        elif self.rng.random() < 0.5:
            self.work(name)
        elif self.outboxes[name]:
            self.dispatcher.receive(name, self.outboxes[name].popleft())
        self.dispatcher.pump(self.now_ns)
        while self.dispatcher.outbox:
            target, message = self.dispatcher.outbox.popleft()
            self.inboxes[target].append(message)
        for _ in range(self.rng.randint(0, 3)):
            live = self.rng.random() < 0.5
            message = self.dispatcher.peek_outbound(live=live)
            if message is None:
                continue
            if isinstance(message, Detections):
                self.published[message.camera].append(message)
            elif isinstance(message, Status):
                self.statuses.append(message)
            self.dispatcher.delivered(live=live)
        for camera in self.dispatcher.cameras.values():
            assert camera.ledger.exact, f"the ledger of {camera.name} is off: {camera.ledger.entry()}"

    def run(self, kill_rate: float, max_steps: int = 60_000) -> None:
        for _ in range(max_steps):
            if self.dispatcher.drained:
                return
            self.step(kill_rate)
        pytest.fail(f"did not drain: {[c.ledger.entry() for c in self.dispatcher.cameras.values()]}")


@given(
    seed=st.integers(0, 2**32),
    cameras=st.integers(1, 4),
    slots=st.integers(1, 6),
    max_batch=st.integers(1, 8),
    executors=st.integers(1, 3),
    nms=st.integers(1, 3),
    kill_rate=st.sampled_from([0.0, 0.01, 0.05, 0.2]),
    epochs=st.integers(1, 3),
    every=st.integers(1, 3),
)
@settings(max_examples=examples(80))
def test_recordings_are_published_once_and_in_order_whatever_dies(
    seed: int,
    cameras: int,
    slots: int,
    max_batch: int,
    executors: int,
    nms: int,
    kill_rate: float,
    epochs: int,
    every: int,
) -> None:
    frames = 24 // epochs
    the_plan = plan(cameras, slots, max_batch, executors, nms)
    world = World(the_plan, frames, random.Random(seed), epochs=epochs, every=every)
    world.run(kill_rate)
    whole = epochs * (frames * every + every - 1)
    for name, messages in world.published.items():
        assert [(m.epoch, m.seq) for m in messages] == [(e, s) for e in range(epochs) for s in range(frames)]
        assert all(m.objects[0].score == (m.epoch * frames + m.seq) / 1000 for m in messages), "another frame's objects"
        entry = world.dispatcher.cameras[name].ledger.entry()
        assert (entry.decoded, entry.published, entry.in_flight) == (whole, frames * epochs, 0)
        assert sum(entry.dropped.values()) == whole - frames * epochs
        assert not world.dispatcher.cameras[name].held
    states = [(s.camera, s.state) for s in world.statuses]
    assert sorted(states) == sorted((c, s) for c in world.published for s in ["started"] * epochs + ["ended"])
    assert all(s.ledger is not None and s.ledger.in_flight == 0 for s in world.statuses if s.state == "ended")


@given(seed=st.integers(0, 2**32), kill_rate=st.sampled_from([0.0, 0.03]))
@settings(max_examples=examples(30))
def test_a_frame_that_fails_alone_is_counted_and_told_as_a_gap(seed: int, kill_rate: float) -> None:
    frames = 40
    world = World(plan(2, 4, 4, 2, 2), frames, random.Random(seed), bad_rate=0.2)
    world.run(kill_rate)
    for name, messages in world.published.items():
        entry = world.dispatcher.cameras[name].ledger.entry()
        assert entry.published + sum(entry.dropped.values()) == frames
        assert set(entry.dropped) <= {"infer_failed", "bad_frame"}
        told = {
            seq
            for s in world.statuses
            if s.camera == name and s.state == "gap" and s.from_seq is not None and s.to_seq is not None
            for seq in range(s.from_seq, s.to_seq + 1)
        }
        assert told | {m.seq for m in messages} == set(range(frames))
        assert not told & {m.seq for m in messages}
        assert all(m.objects[0].score == m.seq / 1000 for m in messages)


@given(seed=st.integers(0, 2**32), stop_after=st.integers(0, 300))
@settings(max_examples=examples(40))
def test_a_stop_at_any_moment_drains_and_balances(seed: int, stop_after: int) -> None:
    world = World(plan(3, 4, 4, 2, 1), 100, random.Random(seed))
    for _ in range(stop_after):
        world.step(0.0)
    world.dispatcher.stop_sources()
    world.run(0.0)
    for name, messages in world.published.items():
        assert [m.seq for m in messages] == list(range(len(messages)))
        assert world.dispatcher.cameras[name].ledger.published == len(messages)


@given(seed=st.integers(0, 2**32), after=st.integers(0, 300))
@settings(max_examples=examples(40))
def test_giving_up_at_any_moment_counts_every_frame(seed: int, after: int) -> None:
    world = World(plan(3, 4, 4, 2, 2), 100, random.Random(seed))
    for _ in range(after):
        world.step(0.02)
    world.dispatcher.abandon("stopped")
    world.dispatcher.pump(world.now_ns)
    world.dispatcher.discard_outbound("stopped")
    for name in [name for name in world.outboxes if name.startswith("decode/")]:
        while world.outboxes[name]:  # what was on its way, and last words, change nothing any more
            world.dispatcher.receive(name, world.outboxes[name].popleft())
        world.dispatcher.receive(name, StreamEnded(name[7:], 0, "stopped", "", 100, 0, 0, True))
    for camera in world.dispatcher.cameras.values():
        assert camera.ledger.exact
        assert camera.ledger.in_flight == 0


def test_a_frame_that_ends_workers_twice_is_quarantined_and_its_company_is_not() -> None:
    world = World(plan(1, 4, 4, 1, 1), 30, random.Random(1))
    quarantined = []
    world.dispatcher.on_quarantine = lambda frame, stage: quarantined.append((frame.ready.seq, stage))
    for _ in range(20_000):
        if world.dispatcher.drained:
            break
        inbox = world.inboxes["executor/0"]
        if inbox and isinstance(inbox[0], BatchReady):
            seqs = [world.written[item.camera, item.slot][1] for item in inbox[0].items]
            if 7 in seqs:
                world.kill("executor/0", blame=True)
                continue
        world.step(0.0)
    assert quarantined == [(7, "executor")]
    assert [m.seq for m in world.published["c0"]] == [s for s in range(30) if s != 7]
    assert world.dispatcher.cameras["c0"].ledger.entry().dropped == {"quarantined": 1}


def test_a_frame_that_ends_workers_by_sigkill_is_suspected_in_the_end() -> None:
    """An OOM kill looks like a kill from outside: not blamed at once, but not for ever either."""
    world = World(plan(1, 4, 4, 1, 1), 30, random.Random(5))
    for _ in range(40_000):
        if world.dispatcher.drained:
            break
        inbox = world.inboxes["executor/0"]
        batch = inbox[0] if inbox else None
        if isinstance(batch, BatchReady) and 7 in [world.written[i.camera, i.slot][1] for i in batch.items]:
            world.kill("executor/0", blame=False)
            continue
        world.step(0.0)
    assert world.dispatcher.cameras["c0"].ledger.entry().dropped == {"quarantined": 1}
    assert [m.seq for m in world.published["c0"]] == [s for s in range(30) if s != 7]
    assert world.kills == 8


def test_a_run_that_is_refused_as_a_whole_drops_only_the_frame_to_blame() -> None:
    world = World(plan(1, 8, 4, 1, 1), 24, random.Random(9))
    for _ in range(40_000):
        if world.dispatcher.drained:
            break
        inbox, outbox = world.inboxes["executor/0"], world.outboxes["executor/0"]
        if inbox and isinstance(inbox[0], BatchReady):
            batch = inbox[0]
            if 5 in [world.written[item.camera, item.slot][1] for item in batch.items]:
                inbox.popleft()
                refused = [ItemFailed(i, "infer_failed", "the model said no") for i in range(len(batch.items))]
                outbox.append(RawOutput(batch.batch_id, world.bump(("out", batch.output_slot)), refused, 1, 2, 3, 4))
        world.step(0.0)
    assert world.dispatcher.cameras["c0"].ledger.entry().dropped == {"infer_failed": 1}
    assert [m.seq for m in world.published["c0"]] == [s for s in range(24) if s != 5]


def test_live_cameras_publish_the_newest_and_count_the_rest() -> None:
    rng = random.Random(3)
    world = World(plan(2, 6, 2, 1, 1, live=True), 200, rng)
    world.run(0.0)
    for name, messages in world.published.items():
        entry = world.dispatcher.cameras[name].ledger.entry()
        assert entry.decoded == 200
        assert entry.published == len(messages)
        assert set(entry.dropped) <= {"superseded", "too_old"}
        assert [m.seq for m in messages] == sorted({m.seq for m in messages})


class ChangingWorld(World):
    """A world whose cameras are added, removed, paused, changed and started over, and whose links come and go."""

    def __init__(self, the_plan: RunPlan, frames: int, rng: random.Random) -> None:
        self.made_with: dict[tuple[str, int, int], int] = {}  # camera, epoch, seq -> settings
        self.identity: dict[tuple[str, int], tuple[int, int]] = {}  # camera, slot -> epoch, seq
        self.in_rows: dict[int, list[tuple[str, int, int]]] = {}  # output slot -> camera, epoch, seq
        self.settings: dict[str, int] = {}
        self.leaving: set[str] = set()  # decode workers that were told to stop
        self.wanted: dict[str, CameraSpec] = {}  # cameras that restart: what they are to become
        self.linked: set[str] = set()
        self.removed = 0
        self.ever_removed: set[str] = set()
        self.restarted = 0
        super().__init__(the_plan, frames, rng)

    def start(self, name: str) -> None:
        if name.startswith("decode/"):
            camera = name.removeprefix("decode/")
            self.leaving.discard(name)
            self.linked.discard(camera)
            spec = self.dispatcher.cameras[camera].spec
            begin = self.dispatcher.begin(camera)
            self.inboxes[name], self.outboxes[name] = deque(), deque()
            self.sources[camera] = Source(begin.epoch, begin.next_seq, begin.decoded, begin.sampled_out)
            self.free[camera] = []
            self.settings[camera] = 0
            if not spec.network:
                self.outboxes[name].append(StreamStarted(camera, begin.epoch, 8, 8, 10.0, "h264", "file", self.frames))
            self.dispatcher.worker_ready(name, "decode", 2)
            return
        super().start(name)

    def kill(self, name: str, *, blame: bool = False) -> None:
        if not name.startswith("decode/"):
            super().kill(name, blame=blame)
            return
        self.kills += 1
        outbox = self.outboxes.pop(name)
        self.inboxes.pop(name)
        for _ in range(self.rng.randint(0, len(outbox))):
            self.dispatcher.receive(name, outbox.popleft())
        line = self.dispatcher.cameras.get(name.removeprefix("decode/"))
        again = line is not None and line.end is None and not line.hold and name not in self.leaving
        self.dispatcher.worker_lost(name, blame=blame, why="killed" if again else "")
        if again:
            self.start(name)

    def decode(self, camera: str, source: Source, outbox: deque[object]) -> None:
        line = self.dispatcher.cameras.get(camera)
        if line is None or f"decode/{camera}" in self.leaving:
            return
        if line.spec.network and not self.link(camera, source, outbox):
            return
        if not line.spec.network and source.seq >= self.frames:
            outbox.append(StreamEnded(camera, source.epoch, "ended", "", source.decoded, source.sampled_out, 0, True))
            source.done = True
            return
        if not self.free[camera]:
            if line.spec.live:
                source.decoded += 1
                dropped = FrameDropped(camera, source.epoch, source.seq, source.decoded, 0, "no_slot", "")
                outbox.append(dropped)
                source.seq += 1
            return
        slot = self.free[camera].pop()
        assert slot not in self.free[camera], "a slot was given twice"
        assert slot not in line.held, "a slot that is in use was given away"
        generation = self.bump((camera, slot))
        source.decoded += 1
        epoch, seq = source.epoch, source.seq
        source.seq += 1
        self.written[camera, slot] = (generation, seq)
        self.identity[camera, slot] = (epoch, seq)
        number = self.settings[camera]
        self.made_with[camera, epoch, seq] = number
        ready = FrameReady(camera, epoch, seq, slot, generation, 8, 8, seq, seq, source.decoded, 0, False, self.now_ns)
        outbox.append(msgspec.structs.replace(ready, settings=number, arrived_at_ns=self.now_ns))

    def link(self, camera: str, source: Source, outbox: deque[object]) -> bool:
        """The connection of a live camera; False while there is none."""
        if camera not in self.linked:
            if self.rng.random() < 0.5:
                outbox.append(LinkChanged(camera, source.epoch, "reconnecting", "refused", "nobody listens", 1, 250))
                return False
            self.linked.add(camera)
            outbox.append(StreamStarted(camera, source.epoch, 8, 8, 10.0, "h264", "arrival", None))
            outbox.append(LinkChanged(camera, source.epoch, "streaming", "first", ""))
            return True
        if self.rng.random() < 0.03:
            self.linked.discard(camera)
            outbox.append(StreamEnded(camera, source.epoch, "ended", "", source.decoded, 0, 0, False))
            source.epoch, source.seq = source.epoch + 1, 0
            outbox.append(LinkChanged(camera, source.epoch, "stalled", "no_picture", ""))
            return False
        return True

    def work(self, name: str) -> None:
        kind, _, camera = name.partition("/")
        inbox = self.inboxes[name]
        if kind == "decode":
            for message in list(inbox):
                if isinstance(message, CameraChanged):
                    self.settings[camera] = message.settings
                elif isinstance(message, Stop):
                    self.leaving.add(name)
                elif isinstance(message, SlotsFreed):
                    assert not set(message.slots) & set(self.free[camera]), "a slot was given twice"
            if name in self.leaving and not self.outboxes[name] and self.sources[camera].done:
                del self.inboxes[name], self.outboxes[name]
                self.dispatcher.worker_lost(name, blame=False)
                return
        elif kind == "executor" and inbox:
            batch = inbox[0]
            assert isinstance(batch, BatchReady)
            self.in_rows[batch.output_slot] = [(i.camera, *self.identity[i.camera, i.slot]) for i in batch.items]
        elif kind == "nms" and inbox:
            task = inbox[0]
            assert isinstance(task, PostTask)
            for item in task.items:
                made = self.in_rows[task.output_slot][item.index]
                assert made[0] == item.camera
                assert self.made_with[made] == item.settings, "judged by other settings than it was made with"
                assert item.settings in self.dispatcher.cameras[item.camera].kept, "forgotten while it is under way"
        super().work(name)

    # --- what the shell does ------------------------------------------------------------------------------------------

    def stop(self, camera: str) -> None:
        name = f"decode/{camera}"
        if name in self.inboxes:
            self.inboxes[name].append(Stop())

    def change_something(self) -> None:
        changes = self.dispatcher.changes
        lines = self.dispatcher.cameras
        name = self.rng.choice([f"c{i}" for i in range(5)])
        line = lines.get(name)
        action = self.rng.choice(["add", "remove", "pause", "resume", "change", "restart"])
        if line is None:
            if action == "add":
                network = self.rng.random() < 0.5
                changes.add(CameraSpec(name, f"/{name}", "m", network=network, live=network), 3)
                self.published.setdefault(name, [])
                self.start(f"decode/{name}")
        elif line.hold in {"restarting", "removed"}:
            pass
        elif action == "remove":
            changes.remove(name, "on request")
            self.ever_removed.add(name)
            self.stop(name)
        elif action == "pause" and line.end is None and not line.hold:
            changes.pause(name)
            self.stop(name)
        elif action == "resume" and line.hold == "paused" and f"decode/{name}" not in self.inboxes:
            changes.resume(name)
            self.start(f"decode/{name}")
        elif action == "change" and line.end is None:
            changes.change(dataclasses.replace(line.spec, confidence=self.rng.random()))
        elif action == "restart" and line.hold != "paused":
            self.wanted[name] = dataclasses.replace(line.spec, url="/other")
            changes.restart(name, "reloaded", "its source was changed")
            self.stop(name)

    def step(self, kill_rate: float, change_rate: float = 0.0) -> None:
        if self.rng.random() < change_rate:
            self.change_something()
        super().step(kill_rate)
        for name, what in self.dispatcher.changes.step():
            if f"decode/{name}" in self.inboxes:
                continue
            if what == "restarting":
                self.dispatcher.changes.start_over(self.wanted.pop(name), self.rng.randint(1, 4), paused=False)
                self.start(f"decode/{name}")
                self.restarted += 1
            else:
                self.removed += 1
        for line in self.dispatcher.changes.past.values():
            assert line.ledger.exact
            assert line.ledger.in_flight == 0


@given(
    seed=st.integers(0, 2**32),
    live=st.booleans(),
    kill_rate=st.sampled_from([0.0, 0.02]),
    change_rate=st.sampled_from([0.005, 0.03, 0.1]),
)
@settings(max_examples=30, deadline=None)
def test_whatever_changes_while_it_runs_every_frame_is_counted_and_none_comes_twice(
    seed: int, live: bool, kill_rate: float, change_rate: float
) -> None:
    rng = random.Random(seed)
    the_plan = plan(2, 4, 3, 2, 2)
    specs = tuple(dataclasses.replace(c, network=live, live=live, max_age_ms=50) for c in the_plan.cameras)
    world = ChangingWorld(dataclasses.replace(the_plan, cameras=specs), 40, rng)
    for _ in range(1500):
        world.step(kill_rate, change_rate)
    world.dispatcher.stop_sources()
    world.run(0.0)
    lines = {**world.dispatcher.changes.past, **world.dispatcher.cameras}
    for name, messages in world.published.items():
        told = [(m.epoch, m.seq) for m in messages]
        assert told == sorted(set(told)), f"{name}: twice, or out of order"
        assert all(m.objects[0].score == m.seq / 1000 for m in messages)
        if name in lines:
            entry = lines[name].ledger.entry()
            assert (entry.published, entry.in_flight) == (len(messages), 0)
            assert not lines[name].held
    if not live:
        for name in {"c0", "c1"} - world.ever_removed:
            entry = lines[name].ledger.entry()
            assert set(entry.dropped) <= {"sampling"}, "a recording that was not removed loses nothing"


def test_pausing_a_recording_loses_and_repeats_nothing_and_is_told_in_order() -> None:
    world = ChangingWorld(plan(1, 4, 2, 1, 1), 60, random.Random(4))
    for round_ in range(5):
        for _ in range(150):
            world.step(0.0)
        if world.dispatcher.cameras["c0"].end is not None:
            break
        world.dispatcher.changes.pause("c0")
        world.stop("c0")
        for _ in range(300):
            world.step(0.0)
        assert "decode/c0" not in world.inboxes
        assert world.dispatcher.cameras["c0"].state == "paused"
        before = len(world.published["c0"])
        assert world.statuses[-1].state == "paused", round_
        for _ in range(50):
            world.step(0.0)
        assert len(world.published["c0"]) == before
        world.dispatcher.changes.resume("c0")
        world.start("decode/c0")
    world.run(0.0)
    assert [m.seq for m in world.published["c0"]] == list(range(60))
    states = [(s.state, s.cause) for s in world.statuses]
    assert states[0] == ("started", "started")
    assert states[-1] == ("ended", "ended")
    assert states[1:-1] == [("paused", "paused"), ("started", "resumed")] * (len(states[1:-1]) // 2)
    assert len(states) > 3


def test_a_camera_that_is_removed_and_added_again_goes_on_counting_in_a_new_epoch() -> None:
    world = ChangingWorld(plan(1, 4, 2, 1, 1), 30, random.Random(8))
    world.dispatcher.changes.stay = True
    for _ in range(60):
        world.step(0.0)
    world.dispatcher.changes.remove("c0", "on request")
    world.stop("c0")
    while not world.removed:
        world.step(0.0)
    ended = world.statuses[-1]
    assert (ended.state, ended.cause, ended.epoch) == ("ended", "removed", 0)
    assert ended.ledger is not None
    assert ended.ledger.in_flight == 0
    assert not world.dispatcher.drained, "it waits for cameras"
    published = len(world.published["c0"])
    world.dispatcher.changes.add(CameraSpec("c0", "/c0", "m"), 3)
    world.start("decode/c0")
    world.run(0.0)
    assert [(m.epoch, m.seq) for m in world.published["c0"][published:]] == [(1, s) for s in range(30)]
    assert world.dispatcher.cameras["c0"].ledger.published == published + 30


def test_a_run_of_a_live_camera_that_has_failed_does_not_end_by_itself() -> None:
    the_plan = plan(1, 4, 2, 1, 1)
    specs = tuple(dataclasses.replace(c, network=True, live=True) for c in the_plan.cameras)
    world = ChangingWorld(dataclasses.replace(the_plan, cameras=specs), 30, random.Random(2))
    world.dispatcher.end_camera("c0", "worker_failed", "its budget of restarts is spent")
    for _ in range(100):
        world.step(0.0)
    assert world.dispatcher.cameras["c0"].state == "failed"
    assert world.dispatcher.cameras["c0"].told_end
    assert not world.dispatcher.drained
    world.dispatcher.changes.restart("c0", "reloaded", "")
    world.wanted["c0"] = world.dispatcher.cameras["c0"].spec
    world.stop("c0")
    for _ in range(200):
        world.step(0.0)
    assert world.restarted == 1
    assert world.published["c0"], "it runs again"
    world.dispatcher.stop_sources()
    world.run(0.0)


def test_frames_of_a_live_camera_that_wait_too_long_for_the_sinks_are_dropped_and_told_in_their_place() -> None:
    the_plan = plan(1, 6, 2, 1, 1, live=True, max_age_ms=100)
    world = World(the_plan, 60, random.Random(6))
    for _ in range(200):
        world.step(0.0)
    dispatcher = world.dispatcher
    waiting = len(dispatcher.outbound)
    while len(dispatcher.outbound) < waiting + 5:
        name = world.rng.choice(list(world.inboxes))
        world.work(name)
        while world.outboxes[name]:
            dispatcher.receive(name, world.outboxes[name].popleft())
        world.now_ns += 1000
        dispatcher.pump(world.now_ns)
        while dispatcher.outbox:
            target, message = dispatcher.outbox.popleft()
            world.inboxes[target].append(message)
    world.now_ns += 200_000_000
    dispatcher.pump(world.now_ns)
    first = dispatcher.peek_outbound(live=True)
    while isinstance(first, Status) and first.state != "gap":
        dispatcher.delivered(live=True)
        first = dispatcher.peek_outbound(live=True)
    assert len(dispatcher.outbound) == 0 or isinstance(first, Status)
    world.run(0.0)
    messages = world.published["c0"]
    entry = dispatcher.cameras["c0"].ledger.entry()
    assert entry.dropped["too_old"] >= 5
    assert entry.decoded == entry.published + sum(entry.dropped.values()) == 60
    told = {q for s in world.statuses if s.state == "gap" for q in range(s.from_seq or 0, (s.to_seq or 0) + 1)}
    assert told | {m.seq for m in messages} == set(range(60))


def test_the_death_of_a_live_cameras_worker_is_told_and_it_goes_on_in_a_new_epoch() -> None:
    the_plan = plan(1, 4, 2, 1, 1)
    specs = tuple(dataclasses.replace(c, network=True, live=True) for c in the_plan.cameras)
    world = ChangingWorld(dataclasses.replace(the_plan, cameras=specs), 30, random.Random(3))
    while not world.published["c0"]:
        world.step(0.0)
    epoch = world.published["c0"][-1].epoch
    world.kill("decode/c0")
    assert world.dispatcher.cameras["c0"].state == "reconnecting"
    for _ in range(300):
        world.step(0.0)
    told = [s for s in world.statuses if s.cause == "worker_failed"]
    assert [s.state for s in told] == ["reconnecting"]
    assert "killed" in told[0].detail
    assert world.published["c0"][-1].epoch > epoch
    world.dispatcher.stop_sources()
    world.run(0.0)


def test_a_live_camera_that_gives_up_is_told_as_failed_once() -> None:
    the_plan = plan(1, 4, 2, 1, 1)
    specs = tuple(dataclasses.replace(c, network=True, live=True) for c in the_plan.cameras)
    world = ChangingWorld(dataclasses.replace(the_plan, cameras=specs), 30, random.Random(3))
    world.dispatcher.receive("decode/c0", LinkChanged("c0", 0, "failed", "unauthorised", "wrong password", 5))
    world.dispatcher.receive("decode/c0", StreamEnded("c0", 0, "unauthorised", "wrong password", 0, 0, 0, True))
    for _ in range(50):
        world.step(0.0)
    assert [(s.state, s.cause) for s in world.statuses] == [("failed", "unauthorised")]
    assert world.dispatcher.cameras["c0"].state == "failed"


def test_a_live_camera_that_is_dead_for_hours_leaves_nothing_behind() -> None:
    the_plan = plan(1, 4, 2, 1, 1)
    specs = tuple(dataclasses.replace(c, network=True, live=True) for c in the_plan.cameras)
    dispatcher = Dispatcher(dataclasses.replace(the_plan, cameras=specs), lambda: 0)
    dispatcher.worker_ready("decode/c0", "decode", 2)
    dispatcher.open_gates()
    dispatcher.outbox.clear()
    told = 0

    def hour() -> None:
        nonlocal told
        for attempt in range(1800):
            dispatcher.receive("decode/c0", LinkChanged("c0", 0, "connecting", "refused", "", attempt))
            dispatcher.receive("decode/c0", LinkChanged("c0", 0, "reconnecting", "refused", "nobody", attempt, 2000))
            dispatcher.pump(attempt)
            while dispatcher.peek_outbound(live=True) is not None:
                dispatcher.delivered(live=True)
                told += 1

    hour()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(5):
        hour()
    gc.collect()
    assert told == 6 * 3600
    assert len(gc.get_objects()) - before < 100
    assert (len(dispatcher.outbound), len(dispatcher.outbox), len(dispatcher.cameras["c0"].order)) == (0, 0, 0)

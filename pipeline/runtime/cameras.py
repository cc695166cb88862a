"""Owns which cameras a run has, and how they come and go while it runs. Pure: it starts and stops no worker.

What a change waits for is told by ``step``: a camera that restarts or is removed has first to end its decode worker
(the shell's part) and then to see every frame of it settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pipeline.plan import RunPlan
from pipeline.runtime.camera_line import CameraLine
from pipeline.runtime.inflight import Frame, WorkerLine
from pipeline.runtime.outbound import Outbound
from pipeline.runtime.timing import histograms
from stages.batch import Batcher
from stages.camera import CameraSpec
from stages.messages import CameraChanged, InternalMessage, LinkChanged, Stop
from stages.model import ModelSpec

PAST_KEPT = 256  # removed cameras that the report still has, and that go on counting when they come again


def decode_worker(camera: str) -> str:
    """Name of the worker that decodes ``camera``."""
    return f"decode/{camera}"


class Cameras:
    """The cameras of a run. ``lines`` are those that it has, ``past`` those that were removed."""

    def __init__(
        self,
        plan: RunPlan,
        batcher: Batcher[Frame],
        outbound: Outbound,
        outbox: deque[tuple[str, InternalMessage]],
        wall_ns: Callable[[], int],
    ) -> None:
        self.lines: dict[str, CameraLine] = {}
        self.past: dict[str, CameraLine] = {}
        self.workers: dict[str, WorkerLine] = {}  # decode workers that are ready
        self.latencies = histograms() if plan.observe else {}
        self.stay = False  # the run waits for cameras that may still be added
        self._models = {model.name: model for model in plan.models}
        self._trace = plan.publish is not None and plan.publish.trace
        self._batcher = batcher
        self._outbound = outbound
        self._outbox = outbox
        self._wall_ns = wall_ns
        self._stopping = False
        for spec in plan.cameras:
            self.add(spec, plan.frame_slots[spec.name])

    def add(self, spec: CameraSpec, slots: int) -> None:
        """A camera joins; its decode worker is the shell's."""
        line = CameraLine(spec, self._models[spec.model], slots, trace=self._trace, latencies=self.latencies)
        past = self.past.pop(spec.name, None)
        if past is not None:
            line.go_on_from(past)
        self.lines[spec.name] = line
        self._batcher.add_camera(spec.name, spec.model, live=spec.live, max_age_ns=line.max_age_ns)

    def change(self, spec: CameraSpec) -> None:
        """Frames that are made from now on follow ``spec``, which has the same source, model and pace as before."""
        line = self.lines[spec.name]
        line.change(spec)
        self._batcher.change_camera(spec.name, live=spec.live, max_age_ns=line.max_age_ns)
        if decode_worker(spec.name) in self.workers:
            self._outbox.append((decode_worker(spec.name), CameraChanged(spec, line.settings)))

    def pause(self, name: str) -> None:
        """No more frames from this camera until ``resume``; those under way are finished. The shell ends its worker."""
        line = self.lines[name]
        line.hold = "paused"
        if decode_worker(name) not in self.workers:
            line.paused(self._wall_ns())

    def resume(self, name: str) -> None:
        """A paused camera goes on; the shell starts its worker."""
        self.lines[name].resume()

    def restart(self, name: str, cause: str, detail: str) -> None:
        """Hold a camera until ``step`` says that it can be started over."""
        line = self.lines[name]
        paused = line.hold == "paused"
        line.hold = "restarting"
        if line.end is None and not paused:
            line.told("reconnecting", cause, detail, self._wall_ns())

    def start_over(self, spec: CameraSpec, slots: int, *, paused: bool) -> None:
        """What ``restart`` was asked for: ``spec`` takes the place of what the camera was."""
        line = self.lines[spec.name]
        self._batcher.remove_camera(spec.name)
        line.start_over(spec, self._models[spec.model], slots)
        self._batcher.add_camera(spec.name, spec.model, live=spec.live, max_age_ns=line.max_age_ns)
        if paused:
            line.hold = "paused"

    def remove(self, name: str, detail: str) -> None:
        """A camera leaves: what waits is dropped, what is being worked on is finished. The shell ends its worker."""
        line = self.lines[name]
        for frame in self._batcher.withdraw(name):
            line.drop(frame, "removed")
        line.hold = "removed"
        line.fail("removed", detail, self._wall_ns())

    def step(self) -> list[tuple[str, str]]:
        """Cameras whose worker is gone and whose frames are settled: (name, "restarting" or "removed").

        Those that were removed are forgotten with this; a restarting one is told again until it starts over.
        """
        ready: list[tuple[str, str]] = []
        for name, line in list(self.lines.items()):
            if line.hold not in {"restarting", "removed"} or decode_worker(name) in self.workers:
                continue
            if line.order or line.held or (line.end is not None and not line.told_end) or self._outbound.holds(line):
                continue
            ready.append((name, line.hold))
            if line.hold == "removed":
                self._batcher.remove_camera(name)
                del self.lines[name]
                self.past[name] = line
                while len(self.past) > PAST_KEPT:
                    del self.past[next(iter(self.past))]
        return ready

    # --- workers and ends ---------------------------------------------------------------------------------------------

    def worker_ready(self, worker: WorkerLine) -> None:
        """A decode worker can be given slots; it is told what was changed since it was started."""
        self.workers[worker.name] = worker
        line = self.lines.get(worker.name.removeprefix("decode/"))
        if line is not None and line.settings:
            self._outbox.append((worker.name, CameraChanged(line.spec, line.settings)))

    def worker_lost(self, name: str, why: str) -> None:
        """A decode worker is gone. ``why``: it died, and is started again; empty: it left as it was told to."""
        self.workers.pop(name, None)
        line = self.lines.get(name.removeprefix("decode/"))
        if line is None or line.end is not None:
            return
        if self._stopping:
            self.end(line.name, "stopped", "on request")
        elif line.hold == "paused":
            line.paused(self._wall_ns())
        elif why and line.spec.network and not line.hold:
            lost = LinkChanged(line.name, line.epoch, "reconnecting", "worker_failed", f"{why}; it is started again")
            line.link_changed(lost, self._wall_ns())

    def stop(self) -> None:
        """Ask every source to end."""
        self._stopping = True
        for line in self.lines.values():
            worker = decode_worker(line.name)
            if line.hold in {"paused", "restarting"}:
                line.hold = ""
            if line.end is None and worker in self.workers:
                self._outbox.append((worker, Stop()))
            elif line.end is None:
                self.end(line.name, "stopped", "on request")

    def end(self, name: str, cause: str, detail: str) -> None:
        """No more frames will come from this camera; those under way are still finished."""
        line = self.lines.get(name)
        if line is not None:
            line.fail(cause, detail, self._wall_ns())

    @property
    def drained(self) -> bool:
        """Every camera has ended and has told so, and none can come or come back."""
        if not self._stopping and (self.stay and not self.lines):
            return False
        return all(line.told_end and (self._stopping or self._over(line)) for line in self.lines.values())

    @staticmethod
    def _over(line: CameraLine) -> bool:
        """A live camera that has failed may be mended and started again, so a run of it never ends by itself."""
        return not line.hold and not (line.spec.network and line.state == "failed")

    def more_can_come(self, model: str) -> bool:
        """Whether a frame for this model may come soon."""
        return any(self._may_deliver(line) for line in self.lines.values() if line.spec.model == model)

    def can_add(self, model: str) -> bool:
        """Whether a frame may come soon that would make a batch of what waits larger.

        The next frame of a live camera takes the place of the one that waits.
        """
        return any(
            self._may_deliver(line) and not (line.spec.live and self._batcher.holds(line.name))
            for line in self.lines.values()
            if line.spec.model == model
        )

    def expected_ns(self, model: str, now_ns: int, until_ns: int) -> list[int]:
        """When frames of live cameras should come, ascending, that would make a batch of what waits larger."""
        found: list[int] = []
        for line in self.lines.values():
            if line.spec.model == model and line.spec.live and not self._batcher.holds(line.name):
                next_ns = line.rhythm.next_ns(now_ns)
                if next_ns is not None and next_ns <= until_ns and self._may_deliver(line):
                    found.append(next_ns)
        found.sort()
        return found

    @staticmethod
    def _may_deliver(line: CameraLine) -> bool:
        return (
            line.end is None
            and not line.hold
            and (line.spec.live or line.free_slots > 0)
            and (line.link is None or line.link.state == "streaming")
        )

    def model(self, name: str) -> ModelSpec | None:
        """The model of this name, if the run has loaded it."""
        return self._models.get(name)

"""Owns the cameras of a running engine in deed: their decode workers and rings, and who else has to know of them.

What a change means for frames is ``cameras``' (pure); this starts and stops what belongs to it, in the order that loses
nothing: a worker that decodes for nobody first, memory that nobody writes or reads any more last.
"""

from __future__ import annotations

import dataclasses
import logging
import resource
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import msgspec

from pipeline.control.changes import Changes
from pipeline.observe import logs
from pipeline.observe.subject import about
from pipeline.plan import RunPlan
from pipeline.planning import DESCRIPTORS_PER_WORKER, FIXED_DESCRIPTORS, frame_slots
from pipeline.runtime.cameras import decode_worker
from pipeline.runtime.crew import decoder
from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.outlet import Outlet
from pipeline.runtime.rings import Rings
from pipeline.runtime.roster import RingFacts, Roster
from pipeline.runtime.stagger import Stagger
from pipeline.runtime.supervisor import Supervisor
from pipeline.runtime.work import DecodeWork, ExecutorWork, NmsWork
from pipeline.runtime.worker_process import WorkerProcess
from pipeline.transport.arena import SharedRing, ring_bytes
from pipeline.transport.ring_door import push
from stages.camera import CameraSpec
from stages.errors import UserError
from stages.messages import Begin, InternalMessage, Stop

LOG = logging.getLogger("campipe.cameras")
LEAVING = frozenset({"restarting", "removed"})


@dataclass(slots=True)
class _Successor:
    """What a camera that restarts is to become."""

    spec: CameraSpec
    ring: SharedRing
    paused: bool


class Fleet:
    """Cameras that come and go. All calls come from the engine's loop. ``send`` takes an endpoint and a message."""

    def __init__(
        self,
        plan: RunPlan,
        dispatcher: Dispatcher,
        rings: Rings[SharedRing],
        outlet: Outlet,
        send: Callable[[WorkerProcess, str, InternalMessage], None],
    ) -> None:
        self._plan = plan
        self._models = {model.name: model for model in plan.models}
        self._dispatcher = dispatcher
        self._changes = dispatcher.changes
        self._rings = rings
        self._outlet = outlet
        self._send = send
        self._supervisor: Supervisor
        self._roster = Roster()
        self._stagger = Stagger()
        self._successors: dict[str, _Successor] = {}
        self._to_start: dict[str, int] = {}  # cameras whose worker starts when every executor has their ring; by when
        self._to_resume: set[str] = set()  # resumed before their former worker was gone
        self._pushed: dict[str, set[str]] = {}  # by worker and incarnation: rings handed to it
        self._departing: set[str] = set()  # removed, but their worker's process still has to end
        self._untold = True  # some endpoint may have to be told something
        self._put_off = False  # but one of them took no ring just now

    def attend(self, supervisor: Supervisor) -> None:
        """The workers' supervisor, which calls ``starting`` and ``gone``."""
        self._supervisor = supervisor

    # --- what others ask ----------------------------------------------------------------------------------------------

    @property
    def specs(self) -> dict[str, CameraSpec]:
        """The cameras as they are, or are about to become."""
        found = {name: line.spec for name, line in self._dispatcher.cameras.items() if line.hold != "removed"}
        return found | {name: successor.spec for name, successor in self._successors.items()}

    def busy(self, names: Iterable[str]) -> bool:
        """Whether one of these cameras is still leaving or restarting: then a change of it has to wait."""
        lines = self._dispatcher.cameras
        return any(lines[name].hold in LEAVING if name in lines else self._worker(name) is not None for name in names)

    def begin(self, camera: str, now_ns: int) -> Begin | None:
        """What a decode worker is told in answer to its Hello; None: its camera has left meanwhile."""
        line = self._dispatcher.cameras.get(camera)
        if line is None:
            return None
        begin = line.begin()
        if line.spec.network:
            begin = msgspec.structs.replace(begin, delay_ms=self._stagger.delay_ms(now_ns))
        return begin

    # --- changes ------------------------------------------------------------------------------------------------------

    def apply(self, changes: Changes, now_ns: int) -> None:
        """Do all of it, or nothing: raises UserError with all that speaks against it."""
        wanted = (*changes.add, *changes.restart)
        problems = [
            f"camera {spec.name}: model {spec.model!r} is not loaded in this run (loaded: {', '.join(self._models)}); "
            "restart campipe, or name it under control.models before"
            for spec in wanted
            if spec.model not in self._models
        ]
        problems += [f"camera {name}: it is in the run already" for name in self._taken(changes)]
        if problems:
            raise UserError.of(problems)
        for spec in (*wanted, *changes.change):
            logs.register_secret(spec.password or "")
        made = self._make_rings(wanted)
        try:
            for spec in (*wanted, *changes.change):
                self._outlet.camera_added(spec.name, live=spec.live)
        except UserError:
            for ring in made.values():
                ring.close()
            for spec in changes.add:
                self._outlet.camera_removed(spec.name)
            raise
        for name in changes.remove:
            self.remove(name, now_ns, "its file was removed")
        for spec in changes.change:
            self._changes.change(spec)
            worker = self._worker(spec.name)
            if worker is not None and isinstance(worker.work, DecodeWork):
                worker.work = dataclasses.replace(worker.work, camera=spec)
        for spec in changes.restart:
            self._restart(spec, made[spec.name], now_ns, "its source, model or pace was changed")
        for spec in changes.add:
            self._add(spec, made[spec.name], now_ns)
        self._untold = True

    def _taken(self, changes: Changes) -> list[str]:
        return [spec.name for spec in changes.add if spec.name in self._dispatcher.cameras]

    def _make_rings(self, specs: tuple[CameraSpec, ...]) -> dict[str, SharedRing]:
        """Memory for all of them; none when it is missing for one."""
        self._check_descriptors(len(specs))
        limit = self._plan.limits.shared_memory_bytes
        made: dict[str, SharedRing] = {}
        try:
            for spec in specs:
                model = self._models[spec.model]
                slots = self._slots(spec)
                need = ring_bytes(slots, model.frame_bytes)
                taken = self._rings.shared_bytes + sum(ring_bytes(r.slots, r.slot_bytes) for r in made.values())
                if limit is not None and taken + need > limit:
                    raise UserError(
                        f"camera {spec.name}: needs {need / 2**20:.1f} MiB of shared memory, and of the "
                        f"{limit / 2**20:.0f} MiB that limits.shared_memory_mb allows {taken / 2**20:.1f} are taken; "
                        "raise the limit and restart, or remove a camera"
                    )
                made[spec.name] = self._rings.make(spec.name, slots, model.frame_bytes)
        except BaseException:
            for ring in made.values():
                ring.close()
            raise
        return made

    def _slots(self, spec: CameraSpec) -> int:
        under_way = sum(device.executors * device.lanes for device in self._plan.devices)
        sharing = 1 + sum(line.spec.model == spec.model for line in self._dispatcher.cameras.values())
        return frame_slots(under_way * self._plan.batch[spec.model].max_batch, sharing)

    def _check_descriptors(self, more: int) -> None:
        workers = len(self._supervisor.workers) + more
        need = FIXED_DESCRIPTORS + (DESCRIPTORS_PER_WORKER + 2) * workers
        usable = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if need > usable:
            raise UserError(
                f"too few file descriptors: {need} are needed with {more} more cameras, and this process may open "
                f"{usable}; raise the limit (LimitNOFILE= of systemd) and restart"
            )

    def _add(self, spec: CameraSpec, ring: SharedRing, now_ns: int) -> None:
        LOG.info("camera %s is added", spec.name, extra=about(spec.name))
        self._rings.put(spec.name, ring)
        self._changes.add(spec, ring.slots)
        self._to_start[spec.name] = now_ns + self._supervisor.hang_ns

    def _restart(self, spec: CameraSpec, ring: SharedRing, now_ns: int, why: str) -> None:
        line = self._dispatcher.cameras[spec.name]
        LOG.info("camera %s starts over: %s", spec.name, why, extra=about(spec.name, epoch=line.epoch))
        paused = line.hold == "paused" and spec.name not in self._to_resume
        self._to_resume.discard(spec.name)
        self._to_start.pop(spec.name, None)
        self._changes.restart(spec.name, "reloaded", why)
        self._successors[spec.name] = _Successor(spec, ring, paused)
        self._stop_worker(spec.name, now_ns)

    def remove(self, name: str, now_ns: int, detail: str = "on request") -> None:
        """Take a camera out. Raises UserError when there is none of that name."""
        line = self._dispatcher.cameras.get(name)
        if line is None or line.hold == "removed":
            raise self._unknown(name)
        LOG.info("camera %s is removed: %s", name, detail, extra=about(name, epoch=line.epoch))
        successor = self._successors.pop(name, None)
        if successor is not None:
            successor.ring.close()
        self._to_start.pop(name, None)
        self._to_resume.discard(name)
        self._changes.remove(name, detail)
        self._stop_worker(name, now_ns)

    def pause(self, name: str, now_ns: int) -> str:
        """Let no more frames come from it; a sentence. Raises UserError when that can't be."""
        line = self._dispatcher.cameras.get(name)
        if line is None or line.hold == "removed":
            raise self._unknown(name)
        if line.hold == "paused" and name not in self._to_resume:
            return f"camera {name} is paused already"
        if line.hold == "restarting":
            self._successors[name].paused = True
            return f"camera {name} restarts, and is paused then"
        if line.end is not None:
            raise UserError(f"camera {name} has {line.state} already; there is nothing to pause")
        LOG.info("camera %s is paused", name, extra=about(name, epoch=line.epoch))
        self._to_start.pop(name, None)
        if name in self._to_resume:
            self._to_resume.discard(name)
        else:
            self._changes.pause(name)
            self._stop_worker(name, now_ns)
        return f"camera {name} is paused"

    def resume(self, name: str, now_ns: int) -> str:
        """Let frames come again: of a paused camera, or anew of one that has failed or ended; a sentence."""
        line = self._dispatcher.cameras.get(name)
        if line is None or line.hold == "removed":
            raise self._unknown(name)
        if line.hold == "restarting":
            self._successors[name].paused = False
            return f"camera {name} restarts"
        if line.end is not None:
            self._restart(line.spec, self._make_rings((line.spec,))[name], now_ns, f"it had {line.state}, on request")
            return f"camera {name} starts again"
        if line.hold != "paused":
            return f"camera {name} is not paused"
        LOG.info("camera %s is resumed", name, extra=about(name, epoch=line.epoch))
        worker = self._worker(name)
        if worker is not None and worker.running:
            self._to_resume.add(name)
        else:
            self._start_again(name, now_ns)
        return f"camera {name} is resumed"

    def _unknown(self, name: str) -> UserError:
        known = sorted(self.specs)
        return UserError(f"there is no camera {name[:80]!r} in this run; there are: {', '.join(known) or 'none'}")

    # --- workers ------------------------------------------------------------------------------------------------------

    def _worker(self, camera: str) -> WorkerProcess | None:
        return self._supervisor.workers.get(decode_worker(camera))

    def _stop_worker(self, camera: str, now_ns: int) -> None:
        worker = self._worker(camera)
        if worker is None:
            return
        if self._supervisor.let_go(worker, now_ns):
            for endpoint in worker.endpoints:
                self._send(worker, endpoint, Stop())

    def _start_again(self, name: str, now_ns: int) -> None:
        if self._dispatcher.cameras[name].end is None:
            self._changes.resume(name)
            self._to_start[name] = now_ns + self._supervisor.hang_ns

    def _start_worker(self, name: str, now_ns: int) -> None:
        spec = self._dispatcher.cameras[name].spec
        worker = self._worker(name)
        if worker is None:
            self._supervisor.add(decoder(self._plan, spec, self._models[spec.model], self._rings.frames[name]), now_ns)
            return
        worker.work = DecodeWork(spec, self._models[spec.model], self._rings.frames[name])
        self._supervisor.take_up(worker, now_ns)

    def starting(self, worker: WorkerProcess) -> None:
        """A worker process is about to be started: it gets what is true now."""
        if worker.kind == "nms" and isinstance(worker.work, NmsWork):
            kept = [(n, spec) for line in self._dispatcher.cameras.values() for n, spec in line.kept.items()]
            cameras = tuple((number, spec.without_secrets()) for number, spec in kept)
            worker.work = dataclasses.replace(worker.work, cameras=cameras)
        if isinstance(worker.work, ExecutorWork):
            worker.work = dataclasses.replace(worker.work, frames=dict(self._rings.frames))
        if worker.kind in {"executor", "nms"}:
            self._roster.started(worker.endpoints, worker.kind, self._dispatcher.cameras, self._facts())
            self._pushed = {key: names for key, names in self._pushed.items() if not key.startswith(f"{worker.name}#")}

    def gone(self, worker: WorkerProcess, now_ns: int) -> None:
        """A decode worker has left, as it was told to or because its camera has ended."""
        name = worker.name.removeprefix("decode/")
        self._dispatcher.worker_lost(worker.name, blame=False)
        if name in self._to_resume:
            self._to_resume.discard(name)
            self._start_again(name, now_ns)

    # --- what has become possible -------------------------------------------------------------------------------------

    def step(self, now_ns: int) -> None:
        """Go on with everything that had to wait. Rings that a process is just being started with stay open."""
        for name, what in self._changes.step() if not self._supervisor.launching else ():
            worker = self._worker(name)
            if what == "removed":
                self._rings.remove(name)
                self._outlet.camera_removed(name)
                self._departing.add(name)
                self._untold = True
            elif worker is None or not worker.running:
                self._succeed(name, now_ns)
        for name in list(self._departing):
            worker = self._worker(name)
            if worker is None or not worker.running:
                self._departing.discard(name)
                if worker is not None:
                    self._supervisor.forget(worker)
        self._put_off = False
        self.tell()
        for name, until_ns in list(self._to_start.items()):
            line = self._dispatcher.cameras.get(name)
            if line is None or line.end is not None:
                del self._to_start[name]
            elif not self._untold or now_ns > until_ns:
                del self._to_start[name]
                self._start_worker(name, now_ns)

    def _succeed(self, name: str, now_ns: int) -> None:
        successor = self._successors.pop(name)
        self._rings.put(name, successor.ring)
        self._changes.start_over(successor.spec, successor.ring.slots, paused=successor.paused)
        self._untold = True
        if not successor.paused:
            self._to_start[name] = now_ns + self._supervisor.hang_ns

    def hear(self) -> None:
        """A worker has said Hello: it may have to be told what changed while it started."""
        self._untold, self._put_off = True, False

    def tell(self) -> None:
        """Tell executors and NMS workers of changes; before they are sent work that follows from them.

        A worker that takes no ring now is asked again by the next ``step``.
        """
        if not self._untold or self._put_off:
            return
        facts = self._facts()
        lines = self._dispatcher.cameras
        complete = True
        for worker in self._supervisor.workers.values():
            if worker.kind not in {"executor", "nms"} or not worker.running:
                continue
            refused: list[str] = []
            for endpoint in worker.greeted:
                for message in self._roster.tell(endpoint, lines, facts, partial(self._push, worker, refused)):
                    self._send(worker, endpoint, message)
            complete = complete and not refused
        self._untold = self._put_off = not complete
        present = {name for name, _, _ in facts.values()}
        for pushed in self._pushed.values():
            pushed.intersection_update(present)

    def _push(self, worker: WorkerProcess, refused: list[str], camera: str) -> bool:
        ring = self._rings.frames[camera]
        pushed = self._pushed.setdefault(f"{worker.name}#{worker.incarnation}", set())
        if ring.name in pushed:
            return True
        if not push(self._supervisor.door(worker), ring):
            refused.append(camera)
            return False
        pushed.add(ring.name)
        return True

    def _facts(self) -> dict[str, RingFacts]:
        return {camera: (ring.name, ring.slots, ring.slot_bytes) for camera, ring in self._rings.frames.items()}

    @property
    def shared_bytes(self) -> int:
        """Shared memory that is taken now."""
        return self._rings.shared_bytes

    def close(self) -> None:
        """Release what was made for cameras that have not come to it."""
        for successor in self._successors.values():
            successor.ring.close()
        self._successors.clear()

"""Owns what the death or refusal of a worker means for the run: who is told, what is given up, when it can't go on.

Does not start anything again (``supervisor``), and re-sends no frames (``dispatch``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.worker_process import WorkerProcess
from stages.messages import Refused

LOG = logging.getLogger("campipe.engine")
LOST = frozenset({"failed", "refused", "gone"})


class Losses:
    """``problems`` end the run; ``refusals`` are what workers could not start for."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.problems: list[str] = []
        self.refusals: list[str] = []
        self.refused_ns: int | None = None

    def problem(self, sentence: str) -> None:
        """Something that the run can't go on with."""
        LOG.error("%s", sentence)
        self.problems.append(sentence)

    def refused(self, worker: WorkerProcess, message: Refused, all_workers: Iterable[WorkerProcess]) -> None:
        """A worker can't start for a reason that the user can mend."""
        worker.state = "refused"
        self.refused_ns = time.monotonic_ns()
        if not self._dispatcher.gates_open:
            self.refusals += message.problems
            return
        detail = "; ".join(message.problems)
        if worker.kind == "decode":
            LOG.error("%s refused: %s", worker.name, detail)
            self._dispatcher.end_camera(worker.name.removeprefix("decode/"), message.cause, detail)
        else:
            self.given_up(worker, f"{worker.name} refused to start again: {detail}", all_workers)

    def lost(self, worker: WorkerProcess, why: str, blame: bool) -> None:
        """A worker has died."""
        again = worker.state == "restarting"
        LOG.warning("%s%s", why, "; starting it again" if again else "")
        for name in worker.endpoints:
            self._dispatcher.worker_lost(name, blame=blame, why=why if again else "")
        if worker.kind == "decode" and worker.state == "gone":
            self._dispatcher.end_camera(worker.name.removeprefix("decode/"), "stopped", "on request")

    def given_up(self, worker: WorkerProcess, why: str, all_workers: Iterable[WorkerProcess]) -> None:
        """A worker is not started again: its camera has failed, or the run when it was the last of its kind."""
        if worker.kind == "decode":
            LOG.error("%s", why)
            self._dispatcher.end_camera(worker.name.removeprefix("decode/"), "worker_failed", why)
            return
        others = [other for other in all_workers if other.kind == worker.kind and other is not worker]
        if worker.kind == "observe":
            LOG.error("%s; the run goes on without figures", why)
        elif all(other.state in LOST for other in others):
            self.problem(f"{why}; no {worker.kind} is left")
        else:
            LOG.error("%s; the others go on", why)

    def needed(self, worker: WorkerProcess) -> bool:
        """Whether a dead worker must be started again: not a decoder that has told its end."""
        if worker.kind != "decode":
            return True
        camera = self._dispatcher.cameras.get(worker.name.removeprefix("decode/"))
        return camera is not None and camera.end is None

    @property
    def failed_cameras(self) -> list[str]:
        """A sentence for each live camera that has failed for good."""
        return [
            f"camera {camera.name} has failed: {camera.end.detail or camera.end.cause}"
            for camera in self._dispatcher.cameras.values()
            if camera.spec.network and camera.end is not None and camera.state == "failed"
        ]

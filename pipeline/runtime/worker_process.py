"""Owns the record of one worker over all its incarnations: what it is, has said, and did. Starts nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess

from pipeline.runtime.policy import RestartPolicy
from pipeline.runtime.work import Work
from stages.messages import WorkerStats


@dataclass(slots=True, eq=False)
class WorkerProcess:
    """One worker over all its incarnations."""

    name: str
    kind: str  # decode | executor | nms | observe
    endpoints: tuple[str, ...]
    work: Work
    policy: RestartPolicy
    spawned: bool  # spawn instead of forkserver
    number: int = 0  # unlike any other's of this run
    wanted: bool = True  # False: it was told to leave and is not started again
    leave_by_ns: int = 0  # when one that is not wanted is killed
    state: str = "starting"  # starting | ready | restarting | refused | failed | gone
    incarnation: int = 0
    launching: bool = False  # its process is being started, by another thread
    process: BaseProcess | None = None
    pid: int = 0
    greeted: set[str] = field(default_factory=set)  # endpoints that said Hello with the right token
    ready: set[str] = field(default_factory=set)
    pid_descriptor: int = -1
    ending_ns: int = 0  # when its end was noticed or brought about; 0: it has not ended
    restart_at_ns: int = 0
    started_ns: int = 0
    heard_ns: dict[str, int] = field(default_factory=dict)  # by endpoint
    deaths: int = 0
    killed_for_hang: bool = False
    last_words: str = ""
    last_why: str = ""  # how the last incarnation ended, for people
    said_goodbye: bool = False
    stats: dict[str, WorkerStats] = field(default_factory=dict)
    past_cpu_ns: int = 0
    past_busy_ns: int = 0
    past_items: int = 0
    largest_private_bytes: int = 0

    def address(self, endpoint: str) -> str:
        """Address of this incarnation on the engine's socket."""
        return f"{endpoint}#{self.incarnation}"

    @property
    def running(self) -> bool:
        """It has a process, or is about to have one."""
        return self.launching or self.process is not None

    def begin_incarnation(self, now_ns: int) -> None:
        """It is about to be started (again): nothing was said yet."""
        self.incarnation += 1
        self.state, self.launching = "starting", True
        self.pid = self.ending_ns = 0
        self.ready.clear()
        self.greeted.clear()
        self.last_words = ""
        self.killed_for_hang = self.said_goodbye = False
        self.hear(now_ns)

    def hear(self, now_ns: int) -> None:
        """Whatever deadline it has begins now."""
        self.heard_ns = dict.fromkeys(self.endpoints, now_ns)
        if self.state == "starting":
            self.started_ns = now_ns

    @property
    def cpu_ns(self) -> int:
        """CPU time of all incarnations."""
        return self.past_cpu_ns + sum(stats.cpu_ns for stats in self.stats.values())

    @property
    def busy_ns(self) -> int:
        """Busy time of all incarnations and threads."""
        return self.past_busy_ns + sum(stats.busy_ns for stats in self.stats.values())

    @property
    def items(self) -> int:
        """Frames worked on by all incarnations."""
        return self.past_items + sum(stats.items for stats in self.stats.values())

    @property
    def private_bytes(self) -> int:
        """Private memory of the present incarnation."""
        return max((stats.private_bytes for stats in self.stats.values()), default=0)

    def settle_stats(self) -> None:
        """Add the counters of an incarnation that is over to the past."""
        self.largest_private_bytes = max(self.largest_private_bytes, self.private_bytes)
        self.past_cpu_ns, self.past_busy_ns, self.past_items = self.cpu_ns, self.busy_ns, self.items
        self.stats.clear()

    def absorb(self, other: WorkerProcess) -> None:
        """Count what another one did, which is forgotten then."""
        other.settle_stats()
        self.past_cpu_ns += other.past_cpu_ns
        self.past_busy_ns += other.past_busy_ns
        self.past_items += other.past_items
        self.deaths += other.deaths
        self.largest_private_bytes = max(self.largest_private_bytes, other.largest_private_bytes)

"""Owns whether the limits set on this process (ulimit, a service manager, a container) leave room for a run.

Changes none of them. Memory and descriptors are judged elsewhere; the want of these is not told where it is felt:
native libraries crash or stand still without address space, and a process that can't have a thread is never ready.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.plan import DevicePlan, RunPlan
from pipeline.runtime.rings import shared_memory_bytes

MIB: Final = 2**20
# Address space of one process, most of it libraries: measured with 2 executors and the default model (850 MiB at most,
# 780 MiB were too little), and with a decoder.
BARE_BYTES: Final = 560 * MIB
ON_CPU_BYTES: Final = 800 * MIB
PER_EXECUTOR_BYTES: Final = 8 * MIB  # the stack of a thread; its heap is asked for in pieces where it is short
# Processes and threads, at least: of the engine with Python's helpers, and of each worker of a kind.
ENGINE_TASKS: Final = 7
WORKER_TASKS: Final = 2
EXECUTOR_TASKS: Final = 3  # and one for each executor
CAP_SYS_ADMIN: Final = 21
CAP_SYS_RESOURCE: Final = 24


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What may still be had; None: as much as one likes."""

    address_space_bytes: int | None = None  # of each process, all in all
    file_bytes: int | None = None  # of each file; shared memory counts as one
    tasks: int | None = None  # processes and threads, beside those that are there


def refused(plan: RunPlan, limits: ProcessLimits) -> list[str]:
    """What a run of the plan can't have, each with its remedy."""
    rings = shared_memory_bytes(plan)
    problems = refused_space(plan.devices, limits, sum(rings.values()))
    largest = max(rings, key=lambda name: rings[name], default=None)
    if limits.file_bytes is not None and largest is not None and limits.file_bytes < rings[largest]:
        problems.append(
            f"the size of files is limited to {limits.file_bytes} bytes, which counts for shared memory too, and "
            f"{largest} needs {rings[largest]}; raise the limit (ulimit -f unlimited, LimitFSIZE=infinity of systemd)"
        )
    tasks = task_count(plan)
    if limits.tasks is not None and limits.tasks < tasks:
        problems.append(
            f"too few processes and threads: at least {tasks} are needed, and {limits.tasks} more may be started; "
            "raise the limit (ulimit -u, TasksMax= of systemd, --pids-limit of a container), or use fewer cameras"
        )
    return problems


def refused_space(devices: Sequence[DevicePlan], limits: ProcessLimits, shared_bytes: int = 0) -> list[str]:
    """Whether a process may have libraries, threads and ``shared_bytes``; known before models are looked into."""
    on_cpu = max((device.executors for device in devices if device.device == "cpu"), default=0)
    own = ON_CPU_BYTES + PER_EXECUTOR_BYTES * max(0, on_cpu - 2) if on_cpu else BARE_BYTES
    needed = own + shared_bytes
    if limits.address_space_bytes is None or limits.address_space_bytes >= needed:
        return []
    problem = (
        f"too little address space: a process of this run needs about {needed // MIB} MiB, and may have "
        f"{limits.address_space_bytes // MIB} MiB; raise the limit (ulimit -v unlimited, LimitAS=infinity of systemd): "
        "most of it is libraries and no memory, which MemoryMax= or a container's limit is for"
    )
    return [problem]


def task_count(plan: RunPlan) -> int:
    """Processes and threads that a run has at least, the engine's first one not counted: it is there."""
    executors = sum(EXECUTOR_TASKS + device.executors for device in plan.devices)
    workers = len(plan.cameras) + plan.nms_workers + (1 if plan.observe else 0)
    return ENGINE_TASKS - 1 + WORKER_TASKS * workers + executors


def limits_now(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> ProcessLimits:
    """The limits of this process."""
    tasks = [left for left in (_of_user(proc), *_of_groups(proc, cgroups)) if left is not None]
    return ProcessLimits(
        _finite(resource.RLIMIT_AS), _finite(resource.RLIMIT_FSIZE), max(0, min(tasks)) if tasks else None
    )


def _finite(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _of_user(proc: Path) -> int | None:
    """What ``ulimit -u`` leaves; it counts all that the user runs, and binds nobody who may change it."""
    limit = _finite(resource.RLIMIT_NPROC)
    if limit is None:
        return None
    capable = int(_fields(proc / "self" / "status").get("CapEff", "0"), 16)
    if os.getuid() == 0 or capable & (1 << CAP_SYS_ADMIN | 1 << CAP_SYS_RESOURCE):
        return None
    there = 0
    for folder in proc.iterdir():
        if folder.name.isdigit():
            told = _fields(folder / "status")
            if told.get("Uid", "-1").split()[0] == str(os.getuid()):
                there += int(told.get("Threads", "1"))
    return limit - there


def _of_groups(proc: Path, cgroups: Path) -> list[int]:
    """What the control groups that this process is in leave (v2: one tree; v1: one of its own)."""
    found: list[int] = []
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers not in {"", "pids"}:
            continue
        base = cgroups / controllers if controllers else cgroups
        inner = base / path.lstrip("/")
        for folder in (inner, *(each for each in inner.parents if each == base or base in each.parents)):
            limit, now = _text(folder / "pids.max").strip(), _text(folder / "pids.current").strip()
            if limit.isdigit() and now.isdigit():
                found.append(int(limit) - int(now))
    return found


def _fields(path: Path) -> dict[str, str]:
    return {key: value.strip() for key, _, value in (line.partition(":") for line in _text(path).splitlines())}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

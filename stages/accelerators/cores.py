"""Owns how many cores this process may use, and how they are shared out to executors. Starts nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

MOST_EXECUTORS = 8  # by default: each has its own staging buffers (two lanes of 8 frames 640x640 float32 are 79 MB)


def usable_cores() -> int:
    """Cores that this process may use: by its affinity and by the CPU quota of its cgroups; at least 1.

    A quota of 1.5 cores counts as 1: a thread more would be throttled half of the time.
    """
    quota = cgroup_cores(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    affinity = len(os.sched_getaffinity(0))
    return affinity if quota is None else max(1, min(affinity, int(quota)))


def split_cores(cores: int, executors: int | None, threads: int | None) -> tuple[int, int]:
    """Executors and threads per executor; None stands for "decide".

    Left to decide, each core gets an executor of one thread: on 2 cores two of one thread give 1.4 to 1.6 times the
    frames per second of one of two threads (YOLOX-nano 86 to 54, COCO-SSD 76 to 51), because a run alone on its core
    waits for nobody. From MOST_EXECUTORS on, the executors get more threads instead.
    """
    if executors is None:
        executors = max(1, min(MOST_EXECUTORS, cores // (threads or 1)))
    if threads is None:
        threads = max(1, cores // executors)
    return executors, threads


def cgroup_cores(membership: Path, root: Path) -> float | None:
    """The smallest CPU quota, in cores, of the cgroups named in ``membership`` and of those above them; None: no limit.

    ``membership`` is /proc/self/cgroup, ``root`` where cgroup file systems are mounted. Both versions and their mixture
    are read; what does not exist or can't be read limits nothing.
    """
    quotas = []
    for hierarchy, group in parse_membership(_text(membership)):
        for folder in _folders(root, hierarchy, group):
            if hierarchy == "":
                quotas.append(parse_cpu_max(_text(folder / "cpu.max")))
            else:
                quotas.append(parse_cfs(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")))
    return min((q for q in quotas if q is not None), default=None)


def parse_membership(text: str) -> Iterator[tuple[str, str]]:
    """Of /proc/self/cgroup, the lines that matter: controllers ("" is version 2) and path.

    >>> list(parse_membership("4:memory:/a\\n1:cpu,cpuacct:/b\\n0::/c"))
    [('cpu,cpuacct', '/b'), ('', '/c')]
    """
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (number == "0" and controllers == "") or "cpu" in controllers.split(","):
            yield controllers, path


def parse_cpu_max(text: str) -> float | None:
    """Cores of a cgroup v2 ``cpu.max``: "quota period" in microseconds, "max" for none."""
    words = text.split()
    if len(words) != 2 or words[0] == "max":
        return None
    return _ratio(words[0], words[1])


def parse_cfs(quota: str, period: str) -> float | None:
    """Cores of cgroup v1 ``cpu.cfs_quota_us`` and ``cpu.cfs_period_us``; a quota of -1 is none."""
    return _ratio(quota.strip(), period.strip())


def _ratio(quota: str, period: str) -> float | None:
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None
    return cores if cores > 0 else None


def _folders(root: Path, hierarchy: str, group: str) -> Iterable[Path]:
    """The group's folder and those above it, in each place where its hierarchy may be mounted.

    In a container the path may be the host's and lead nowhere; the container's own group is then the mount's root,
    which is looked at in any case.
    """
    mounts = [root, root / "unified"] if hierarchy == "" else [root / hierarchy, root / "cpu"]
    parts = [part for part in PurePosixPath(group).parts if part not in ("/", "..")]
    for mount in mounts:
        for depth in range(len(parts), -1, -1):
            yield mount.joinpath(*parts[:depth])


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""

"""Owns what is said of the machine that a measurement was made on, and what others take of it meanwhile."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pipeline import __version__
from stages.accelerators.cores import usable_cores

PACKAGES = ("numpy", "av", "opencv-python", "opencv-python-headless", "onnxruntime", "pyzmq", "msgspec")
QUIET_SHARE = 0.05  # of all cores; above it others are at work, and figures are theirs as well
LOOK_S = 1.0  # for so long it is looked at what others use


@dataclass(frozen=True, slots=True)
class Machine:
    """``cores``: those that this process may use, of ``all_cores``. ``others``: cores that others used just before."""

    cpu: str
    cores: int
    all_cores: int
    memory_bytes: int
    system: str
    others: float
    versions: dict[str, str]

    @property
    def quiet(self) -> bool:
        """Whether hardly anybody else was at work when the measurement began."""
        return self.others <= QUIET_SHARE * self.all_cores

    def text(self) -> str:
        """Two lines."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        noise = "" if self.quiet else ": figures are not to be trusted"
        return (
            f"{self.cpu}, {self.cores} of {self.all_cores} cores, {self.memory_bytes / 2**30:.1f} GiB, {self.system}, "
            f"others use {self.others:.2f} cores{noise}\n{versions}"
        )


def describe(look_s: float = LOOK_S) -> Machine:
    """This machine, now: for ``look_s`` seconds it is looked at what others do."""
    versions = {"campipe": __version__, "Python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return Machine(
        cpu=cpu_model(Path("/proc/cpuinfo")),
        cores=usable_cores(),
        all_cores=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()}",
        others=others_cores(look_s),
        versions=versions,
    )


def others_cores(look_s: float, stat: Path = Path("/proc/stat")) -> float:
    """Cores that others than this process keep busy, over so many seconds; 0 where the kernel does not tell.

    What a hypervisor gives to other guests (steal) counts as theirs. The average load is no measure: it tells of the
    minute before, and so of one's own last run.
    """
    before, cpu_s, began_s = _busy_s(stat), time.process_time(), time.monotonic()
    time.sleep(look_s)
    after, own_s, took_s = _busy_s(stat), time.process_time() - cpu_s, time.monotonic() - began_s
    return max(0.0, (after - before - own_s) / took_s)


def _busy_s(stat: Path) -> float:
    try:
        with stat.open(encoding="ascii") as lines:
            return busy_s(lines.readline())
    except OSError:
        return 0.0


def busy_s(line: str) -> float:
    """Seconds that all cores were busy, from the first line of /proc/stat; time of guests is in user's already.

    >>> round(busy_s("cpu  100 0 50 9000 20 0 5 45 30 0") * os.sysconf("SC_CLK_TCK"))
    200
    """
    words = line.split()
    if len(words) < 8 or words[0] != "cpu":
        return 0.0
    user, nice, system, _idle, _waiting, *interrupts_and_steal = map(int, words[1:9])
    return (user + nice + system + sum(interrupts_and_steal)) / os.sysconf("SC_CLK_TCK")


def cpu_model(info: Path) -> str:
    """The first processor's name, or the architecture where the kernel names none (many ARM boards)."""
    try:
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip().lower() in {"model name", "hardware", "cpu model"} and value.strip():
            return " ".join(value.split())
    return platform.machine()

"""Owns what is said of the machine that a measurement was made on. Measures nothing."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pipeline import __version__
from stages.accelerators.cores import usable_cores

PACKAGES = ("numpy", "av", "opencv-python", "opencv-python-headless", "onnxruntime", "pyzmq", "msgspec")
QUIET_LOAD = 0.5  # per core; above it others are at work, and figures are theirs as well


@dataclass(frozen=True, slots=True)
class Machine:
    """``cores``: those that this process may use, of ``all_cores``. ``load``: average of the last minute, at start."""

    cpu: str
    cores: int
    all_cores: int
    memory_bytes: int
    system: str
    load: float
    versions: dict[str, str]

    @property
    def quiet(self) -> bool:
        """Whether nobody else seemed to be at work when the measurement began."""
        return self.load <= QUIET_LOAD * self.all_cores

    def text(self) -> str:
        """Two lines."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        noise = "" if self.quiet else " (others are at work: figures are not to be trusted)"
        return (
            f"{self.cpu}, {self.cores} of {self.all_cores} cores, {self.memory_bytes / 2**30:.1f} GiB, {self.system}, "
            f"load {self.load:.2f}{noise}\n{versions}"
        )


def describe() -> Machine:
    """This machine, now."""
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
        load=os.getloadavg()[0],
        versions=versions,
    )


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

"""Owns how much memory this machine or container has left. Reserves nothing.

Shared memory counts as memory of the container that touches it first; asking for more than there is does not fail but
brings the kernel's OOM killer. So it is asked beforehand.
"""

from __future__ import annotations

from pathlib import Path

KEEP_FREE_SHARE = 0.1  # of what is available: decoders, models and the rest of the machine live there too


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that can still be taken: what the kernel says is available, or what the cgroup's limit leaves."""
    free = meminfo_available(_text(proc / "meminfo"))
    for folder in _cgroup_folders(_text(proc / "self" / "cgroup"), cgroups):
        left = cgroup_left(
            _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes"),
            _text(folder / "memory.current") or _text(folder / "memory.usage_in_bytes"),
            _text(folder / "memory.stat"),
        )
        if left is not None:
            free = min(free, left)
    return free


def usable_bytes(held_bytes: int = 0) -> int:
    """What a run may plan with, once those have given back ``held_bytes`` who hold them now."""
    return int((available_bytes() + held_bytes) * (1 - KEEP_FREE_SHARE))


def meminfo_available(text: str) -> int:
    """``MemAvailable`` of /proc/meminfo in bytes; a very large number when the kernel does not tell."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        kilobytes = value.removesuffix("kB").strip()
        if key == "MemAvailable" and kilobytes.isdigit():
            return int(kilobytes) * 1024
    return 2**62


def cgroup_left(limit: str, usage: str, stat: str) -> int | None:
    """Bytes below a cgroup's memory limit, page cache that can be given back not counted; None without a limit."""
    if not limit.strip().isdigit() or not usage.strip().isdigit() or int(limit) >= 2**60:
        return None
    cache = 0
    for line in stat.splitlines():
        key, _, value = line.partition(" ")
        if key in {"inactive_file", "total_inactive_file"} and value.strip().isdigit():
            cache = int(value)
    return max(0, int(limit) - max(0, int(usage) - cache))


def _cgroup_folders(cgroup: str, root: Path) -> list[Path]:
    """This process's memory cgroup and all above it (v2: one tree; v1: the memory controller's tree)."""
    folders: list[Path] = []
    for line in cgroup.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers in {"", "memory"}:
            base = root / "memory" if controllers else root
            inner = base / path.lstrip("/")
            while True:
                folders.append(inner)
                if inner == base or base not in inner.parents:
                    break
                inner = inner.parent
    return folders


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""

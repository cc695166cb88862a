"""How much memory is left, from the texts of real kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.transport.memory import available_bytes, cgroup_left, meminfo_available

MEMINFO = "MemTotal:       16384 kB\nMemFree:         100 kB\nMemAvailable:    8000 kB\n"


def test_meminfo() -> None:
    assert meminfo_available(MEMINFO) == 8000 * 1024
    for odd in ("", "MemAvailable:", "MemAvailable: abc kB", "MemAvailable: -5 kB"):
        assert meminfo_available(odd) > 2**60


@pytest.mark.parametrize(
    ("limit", "usage", "stat", "left"),
    [
        ("max\n", "1000\n", "", None),
        ("9223372036854771712\n", "1000\n", "", None),  # v1 without a limit
        ("5000\n", "1000\n", "", 4000),
        ("5000\n", "3000\n", "anon 1\ninactive_file 1000\n", 3000),
        ("5000\n", "3000\n", "cache 9\ntotal_inactive_file 1000\n", 3000),
        ("5000\n", "6000\n", "", 0),
        ("", "", "", None),
        ("junk", "1", "", None),
    ],
)
def test_cgroup(limit: str, usage: str, stat: str, left: int | None) -> None:
    assert cgroup_left(limit, usage, stat) == left


def test_the_tightest_of_all_cgroups_above_counts(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(MEMINFO)
    (proc / "self" / "cgroup").write_text("0::/a/b\n")
    (groups / "a" / "b").mkdir(parents=True)
    (groups / "a" / "memory.max").write_text("3000\n")
    (groups / "a" / "memory.current").write_text("1000\n")
    (groups / "a" / "b" / "memory.max").write_text("max\n")
    (groups / "a" / "b" / "memory.current").write_text("1000\n")
    assert available_bytes(proc, groups) == 2000

"""Cores that may be used, on made-up cgroup trees, and how they are shared out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.accelerators.cores import (
    MOST_EXECUTORS,
    cgroup_cores,
    parse_cfs,
    parse_cpu_max,
    parse_membership,
    split_cores,
    usable_cores,
)


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000\n", None),
        ("150000 100000\n", 1.5),
        ("50000 100000", 0.5),
        ("800000 200000\n", 4.0),
        ("", None),
        ("max", None),
        ("100000", None),
        ("0 100000", None),
        ("100000 0", None),
        ("-1 100000", None),
        ("abc 100000", None),
    ],
)
def test_cpu_max(text: str, cores: float | None) -> None:
    assert parse_cpu_max(text) == cores


@pytest.mark.parametrize(
    ("quota", "period", "cores"),
    [
        ("-1\n", "100000\n", None),
        ("200000\n", "100000\n", 2.0),
        ("25000", "100000", 0.25),
        ("", "", None),
        ("100000", "", None),
        ("100000", "0", None),
        ("x", "y", None),
    ],
)
def test_cfs(quota: str, period: str, cores: float | None) -> None:
    assert parse_cfs(quota, period) == cores


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("0::/\n", [("", "/")]),
        ("0::/system.slice/campipe.service\n", [("", "/system.slice/campipe.service")]),
        ("4:cpu,cpuacct:/docker/ab12\n3:cpuset:/x\n1:name=systemd:/y\n", [("cpu,cpuacct", "/docker/ab12")]),
        ("1:cpu:/\n2:cpuacct:/\n0::/\n", [("cpu", "/"), ("", "/")]),
        ("0::/a:b", [("", "/a:b")]),
        ("", []),
        ("nonsense\n\n::\n", []),
    ],
)
def test_membership(text: str, groups: list[tuple[str, str]]) -> None:
    assert list(parse_membership(text)) == groups


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        pytest.param("0::/\n", {}, None, id="no limit"),
        pytest.param("0::/\n", {"cpu.max": "200000 100000"}, 2.0, id="v2, a container's root"),
        pytest.param(
            "0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3.0, id="v2, from above"
        ),
        pytest.param(
            "0::/a/b\n", {"a/b/cpu.max": "150000 100000", "a/cpu.max": "300000 100000"}, 1.5, id="v2, the smallest"
        ),
        pytest.param("0::/host/path\n", {"cpu.max": "100000 100000"}, 1.0, id="v2, the host's path in a container"),
        pytest.param(
            "2:cpu,cpuacct:/docker/x\n",
            {"cpu,cpuacct/docker/x/cpu.cfs_quota_us": "250000", "cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000"},
            2.5,
            id="v1",
        ),
        pytest.param(
            "2:cpu,cpuacct:/docker/x\n",
            {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"},
            0.5,
            id="v1, linked name, the host's path in a container",
        ),
        pytest.param(
            "1:cpu:/\n0::/\n",
            {
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
                "unified/cpu.max": "400000 100000",
            },
            4.0,
            id="both versions",
        ),
        pytest.param("0::/../../x\n", {"cpu.max": "100000 100000"}, 1.0, id="a path outside of the namespace"),
        pytest.param("", {"cpu.max": "100000 100000"}, None, id="no cgroups"),
    ],
)
def test_quotas_of_trees(tmp_path: Path, membership: str, files: dict[str, str], cores: float | None) -> None:
    (tmp_path / "membership").write_text(membership)
    root = tmp_path / "root"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    assert cgroup_cores(tmp_path / "membership", root) == cores


def test_no_cgroup_file_system_limits_nothing(tmp_path: Path) -> None:
    assert cgroup_cores(tmp_path / "none", tmp_path / "none") is None


@pytest.mark.parametrize(
    ("affinity", "quota", "cores"), [(8, None, 8), (8, 2.5, 2), (2, 6.0, 2), (8, 0.3, 1), (1, None, 1)]
)
def test_usable_cores(monkeypatch: pytest.MonkeyPatch, affinity: int, quota: float | None, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)))
    monkeypatch.setattr("stages.accelerators.cores.cgroup_cores", lambda *_: quota)
    assert usable_cores() == cores


def test_affinity_of_this_process_counts() -> None:
    allowed = os.sched_getaffinity(0)
    assert 1 <= usable_cores() <= len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    ("cores", "executors", "threads", "split"),
    [
        (1, None, None, (1, 1)),
        (2, None, None, (2, 1)),
        (4, None, None, (4, 1)),
        (8, None, None, (8, 1)),
        (16, None, None, (8, 2)),
        (64, None, None, (8, 8)),
        (2, 1, None, (1, 2)),
        (2, 3, None, (3, 1)),
        (8, 3, None, (3, 2)),
        (8, None, 2, (4, 2)),
        (8, None, 16, (1, 16)),
        (2, None, 1, (2, 1)),
        (2, 5, 7, (5, 7)),
    ],
)
def test_split(cores: int, executors: int | None, threads: int | None, split: tuple[int, int]) -> None:
    assert split_cores(cores, executors, threads) == split


@given(
    cores=st.integers(1, 512),
    executors=st.none() | st.integers(1, 64),
    threads=st.none() | st.integers(1, 64),
)
def test_what_is_decided_never_takes_more_cores_than_there_are(
    cores: int, executors: int | None, threads: int | None
) -> None:
    found_executors, found_threads = split_cores(cores, executors, threads)
    assert executors in (None, found_executors)
    assert threads in (None, found_threads)
    assert min(found_executors, found_threads) >= 1
    if executors is None:
        assert found_executors <= MOST_EXECUTORS
    if executors is None or threads is None:
        assert found_executors * found_threads <= max(cores, executors or 1, threads or 1)

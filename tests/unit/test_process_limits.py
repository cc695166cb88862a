"""Limits of the process (ulimit, systemd, containers) are told before a run feels them."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

import pytest
from made.plans import run_plan

from pipeline import planning
from pipeline.plan import DevicePlan, RunPlan
from pipeline.planning import needs, over_limits
from pipeline.process_limits import MIB, ProcessLimits, limits_now, refused, task_count
from pipeline.runtime.rings import shared_memory_bytes

PLAN = run_plan("gate", "yard")


def test_without_limits_nothing_is_refused() -> None:
    assert refused(PLAN, ProcessLimits()) == []
    assert refused(PLAN, ProcessLimits(2**40, 2**40, 10_000)) == []


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (ProcessLimits(address_space_bytes=600 * MIB), r"too little address space: .* 600 MiB; raise .*ulimit -v"),
        (ProcessLimits(file_bytes=4096), r"limited to 4096 bytes, which counts for shared memory too.*ulimit -f"),
        (ProcessLimits(tasks=5), r"too few processes and threads: at least \d+ are needed, and 5 more.*ulimit -u"),
    ],
)
def test_a_limit_that_crashes_or_stalls_libraries_is_told_with_its_remedy(limits: ProcessLimits, words: str) -> None:
    (problem,) = refused(PLAN, limits)
    assert re.search(words, problem)


def test_exactly_what_is_needed_is_enough() -> None:
    largest = max(shared_memory_bytes(PLAN).values())
    assert refused(PLAN, ProcessLimits(file_bytes=largest, tasks=task_count(PLAN))) == []
    assert len(refused(PLAN, ProcessLimits(file_bytes=largest - 1, tasks=task_count(PLAN) - 1))) == 2


def test_only_the_cpu_takes_the_address_space_of_its_sessions() -> None:
    card = run_plan("gate", devices=(DevicePlan("ascend-sim:0", 1, 1, 2),))
    limits = ProcessLimits(address_space_bytes=700 * MIB)
    assert refused(card, limits) == []
    assert len(refused(PLAN, limits)) == 1


def test_want_of_descriptors_is_not_told_as_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 64) if which == resource.RLIMIT_NOFILE else (-1, -1))
    need = needs(PLAN)
    assert need.fits
    (problem,) = over_limits(PLAN, need)
    assert problem.startswith("too few file descriptors: 2 cameras need")


def test_the_processes_of_the_site_that_runs_are_not_told_to_be_in_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "limits_now", lambda: ProcessLimits(file_bytes=4096, tasks=0))
    (problem,) = over_limits(PLAN, needs(PLAN), runs=True)
    assert problem.startswith("the size of files is limited")
    assert len(over_limits(PLAN, needs(PLAN))) == 2


def _proc(folder: Path, cgroup: str, threads: dict[int, int], capabilities: str = "0000000000000000") -> Path:
    for pid, count in threads.items():
        (folder / str(pid)).mkdir(parents=True)
        (folder / str(pid) / "status").write_text(f"Name:\tx\nUid:\t{os.getuid()}\t0\t0\t0\nThreads:\t{count}\n")
    (folder / "self").mkdir()
    (folder / "self" / "status").write_text(f"CapEff:\t{capabilities}\n")
    (folder / "self" / "cgroup").write_text(cgroup)
    return folder


def _limited(monkeypatch: pytest.MonkeyPatch, tasks: int, user: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (tasks if which == resource.RLIMIT_NPROC else -1, -1))
    monkeypatch.setattr(os, "getuid", lambda: user)


def test_all_that_the_user_runs_counts_for_the_limit_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _limited(monkeypatch, 40, 4711)
    proc = _proc(tmp_path / "proc", "", {10: 3, 11: 8})
    assert limits_now(proc, tmp_path / "none") == ProcessLimits(tasks=29)


def test_who_may_exceed_the_limit_of_processes_is_not_bound_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _limited(monkeypatch, 1, 4711)
    proc = _proc(tmp_path / "proc", "", {10: 3}, capabilities="000001ffffffffff")
    assert limits_now(proc, tmp_path / "none") == ProcessLimits()


@pytest.mark.parametrize(("cgroup", "base"), [("0::/a/b\n", ""), ("8:pids:/a/b\n4:memory:/c\n", "pids")])
def test_the_tightest_group_of_a_container_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, base: str
) -> None:
    _limited(monkeypatch, resource.RLIM_INFINITY, 4711)
    proc = _proc(tmp_path / "proc", cgroup, {10: 3})
    inner = tmp_path / "groups" / base / "a" / "b"
    inner.mkdir(parents=True)
    for folder, most, now in ((inner, "max", "4"), (inner.parent, "100", "90")):
        (folder / "pids.max").write_text(most + "\n")
        (folder / "pids.current").write_text(now + "\n")
    assert limits_now(proc, tmp_path / "groups") == ProcessLimits(tasks=10)


def test_a_plan_of_many_cameras_asks_for_their_threads() -> None:
    many: RunPlan = run_plan(*[f"camera-{number}" for number in range(50)])
    assert task_count(many) - task_count(PLAN) == 2 * 48

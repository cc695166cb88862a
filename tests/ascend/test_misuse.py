"""Every wrong program of ``misuse/`` is refused at its marked line, and its corrected twin passes without a report."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ascend.catalogue import HERE, OTHER, Misuse, read_pages, run
from ascend.plain_vendor import PlainVendor
from ascend.tiny_models import write_tiny_models

from stages.accelerators.aclsim import SimOptions, Violation, check, simulate, violations

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = read_pages()
IN_PROCESS = [program for program in PROGRAMS if not program.in_child]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_tiny_models(tmp_path_factory.mktemp("models"))


def by_name(programs: list[Misuse]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("program", programs, ids=[program.name for program in programs])


def refused_as_expected(program: Misuse, found: list[Violation], raised: list[BaseException]) -> None:
    kind = getattr(violations, program.expected)
    told = [violation for violation in found if isinstance(violation, kind)]
    assert told, f"expected {program.expected}; found {[str(v) for v in found]}, raised {raised}"
    first = told[0] if kind.warning or kind is violations.ErrorReturned else found[0]
    assert type(first) is kind, f"expected {program.expected} first; found {[str(v) for v in found]}"
    if here := program.marked(HERE):
        assert first.where in here, f"{first}\nmarked: {here}"
    if other := program.marked(OTHER):
        assert first.other_where in other, f"{first}\nmarked: {other}"
    assert first.message
    assert first.remedy or kind is violations.ErrorReturned, f"no remedy: {first}"
    if program.code:
        assert str(program.code) in str(first)
    strangers = [error for error in raised if not isinstance(error, Violation)]
    assert not strangers, strangers


@by_name(IN_PROCESS)
def test_wrong_program_is_refused(program: Misuse, models: list[str]) -> None:
    with_simulation = simulate(SimOptions(compute="canned"))
    raised = run(program.bad, program.page, with_simulation.acl, models)
    with_simulation.close()
    refused_as_expected(program, with_simulation.checker.violations, raised)


@by_name(IN_PROCESS)
def test_corrected_program_passes(program: Misuse, models: list[str]) -> None:
    with_simulation = simulate(SimOptions(compute="canned"))
    raised = run(program.good, program.page, with_simulation.acl, models)
    with_simulation.close()
    assert not raised
    assert not with_simulation.checker.violations, with_simulation.checker.report()


@by_name([program for program in IN_PROCESS if not program.needs_codes])
@pytest.mark.parametrize("at_once", [True, False], ids=["at-once", "threads"])
def test_wrong_program_is_refused_around_a_module_that_checks_nothing(
    program: Misuse, models: list[str], at_once: bool
) -> None:
    vendor = PlainVendor(at_once)
    checked = check(vendor.acl)
    raised = run(program.bad, program.page, checked.acl, models)
    checked.close()
    vendor.close()
    refused_as_expected(program, checked.violations, raised)


@by_name(IN_PROCESS)
def test_corrected_program_passes_around_a_module_that_checks_nothing(program: Misuse, models: list[str]) -> None:
    vendor = PlainVendor()
    checked = check(vendor.acl)
    raised = run(program.good, program.page, checked.acl, models)
    checked.close()
    vendor.close()
    assert not raised
    assert not checked.violations, checked.report()


@by_name([program for program in PROGRAMS if program.in_child])
@pytest.mark.parametrize("which", ["bad", "good"])
def test_program_with_a_child(program: Misuse, which: str, tmp_path: Path, models: list[str]) -> None:
    script = tmp_path / f"{which}.py"
    script.write_text(program.script(which), encoding="utf-8")
    command = [sys.executable, "-m", "stages.accelerators.aclsim", str(script), *models]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env={**os.environ})
    assert done.returncode == (1 if which == "bad" else 0), done.stderr
    assert (program.expected in done.stderr) == (which == "bad")


def test_pages_are_whole() -> None:
    names = [program.name for program in PROGRAMS]
    assert len(names) == len(set(names))
    assert len(names) >= 100
    used = {program.expected for program in PROGRAMS}
    told = {kind.__name__ for kind in violations.KINDS}
    assert used <= told
    unshown = told - used
    assert not unshown, f"kinds without a program: {unshown}"
    for program in PROGRAMS:
        blocks = re.findall("<- here|<- other", program.script("good"))
        assert not blocks, f"{program.name}: a mark in the corrected program"

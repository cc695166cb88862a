"""Owns the record of what a long run has looked at, and how it is printed. Looks at nothing itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def say(*what: object) -> None:
    """At once, also into a pipe."""
    print(*what, flush=True)


class Checks:
    """Each check is a sentence of what should hold, and what speaks against it."""

    def __init__(self) -> None:
        self.made = 0
        self.failed: list[str] = []
        self._part = ""

    def part(self, name: str, about: str) -> None:
        """What follows belongs to this part."""
        self._part = name
        say(f"\n=== {name}: {about}")

    def check(self, what: str, problems: Iterable[str]) -> None:
        """It holds if there are no problems."""
        problems = list(dict.fromkeys(problems))
        self.made += 1
        say(f"  {'ok    ' if not problems else 'FAILED'}  {what}")
        for problem in problems:
            say(f"          {problem}")
        if problems:
            self.failed.append(f"{self._part}: {what}: {'; '.join(problems)}")

    def __str__(self) -> str:
        if not self.failed:
            return f"all {self.made} checks passed"
        return "\n".join([f"{len(self.failed)} of {self.made} checks failed:", *(f"  {each}" for each in self.failed)])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they must be: the first to the left, the others to the right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) if not at else cell.rjust(width) for at, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(line, widths, strict=True)) for line in lines)
    )

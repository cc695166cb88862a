"""Owns the report: violations as text. Does not own finding them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stages.accelerators.aclsim.violations import ErrorReturned, Violation


def report_text(violations: Sequence[Violation], dropped: int) -> str:
    """A line per kind, then every violation; the same told again is only counted."""
    if not violations:
        return "acl sanitizer: nothing found\n"
    groups: dict[tuple[str, str, str], list[Violation]] = {}
    for violation in violations:
        groups.setdefault((type(violation).__name__, violation.where, violation.message), []).append(violation)
    kinds = Counter(_kind(v) for v in violations)
    head = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    lines = [f"acl sanitizer: {head}" + (f"; {dropped} more were not kept" if dropped else "")]
    for group in groups.values():
        times = f"  ({len(group)} times)" if len(group) > 1 else ""
        lines += ["", f"{'warning: ' if group[0].warning else ''}{group[0]}{times}"]
    return "\n".join(lines) + "\n"


def _kind(violation: Violation) -> str:
    if isinstance(violation, ErrorReturned):
        return "returned codes"
    return "warnings" if violation.warning else "violations"

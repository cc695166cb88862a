"""For tests of one's own: replay recordings through the same graph in this process, compare with golden files.

Installing campipe also installs a pytest plugin with the fixtures ``replay`` and ``assert_matches_golden``. Everything
here is imported when it is first used, because pytest imports this package at each of its starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.testing.golden import assert_matches_golden, write_golden
    from pipeline.testing.replaying import Replayed, replay

__all__ = ["Replayed", "assert_matches_golden", "replay", "write_golden"]


def __getattr__(name: str) -> object:
    if name in {"assert_matches_golden", "write_golden"}:
        from pipeline.testing import golden

        return getattr(golden, name)
    if name in {"replay", "Replayed"}:
        from pipeline.testing import replaying

        return getattr(replaying, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

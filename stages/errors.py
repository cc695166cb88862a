"""Owns every exception that crosses a module border. Does not own exit codes or printing (``pipeline.cli``).

::

    CampipeError
    ├── UserError            a mistake of the user's: printed as one line each, exit status 2
    │   └── SourceRefused    this file or camera can't be used (typed ``cause``)
    ├── BadItem              this frame failed: count it under ``cause`` and go on
    │   └── StaleSlot        the slot was rewritten since the reference was made
    ├── LinkFault            a live source is lost or not to be had: its link decides when it is tried again
    └── StageDead            this worker is finished: unwind, let the supervisor restart it
        └── DeviceFailed     the accelerator failed in a way that a new process may mend

Only two families are caught while running: BadItem by the stage loop, StageDead by the worker's main.
"""

from __future__ import annotations

from collections.abc import Sequence


class CampipeError(Exception):
    """Base of all errors that campipe raises on purpose."""


class UserError(CampipeError):
    """One or more mistakes of the user's, each a complete sentence that names the remedy."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems: tuple[str, ...] = problems

    def __reduce__(self) -> tuple[type[UserError], tuple[str, ...]]:
        return type(self), self.problems

    @classmethod
    def of(cls, problems: Sequence[str]) -> UserError:
        """One error that carries all of ``problems``, so that a user sees them at once."""
        return cls(*problems)


class SourceRefused(UserError):
    """The source can't be used as it is; ``cause`` is one of the words in ``stages.messages.EndCause``."""

    def __init__(self, cause: str, problem: str) -> None:
        super().__init__(problem)
        self.cause = cause

    def __reduce__(self) -> tuple[type[SourceRefused], tuple[str, ...]]:
        return type(self), (self.cause, self.problems[0])


class BadItem(CampipeError):
    """This frame failed; ``cause`` is the ledger's word for it."""

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(f"{cause}: {detail}" if detail else cause)
        self.cause = cause
        self.detail = detail

    def __reduce__(self) -> tuple[type[BadItem], tuple[str, ...]]:
        return type(self), (self.cause, self.detail)


class StaleSlot(BadItem):
    """The slot no longer holds what the reference named."""

    def __init__(self, detail: str) -> None:
        super().__init__("stale", detail)

    def __reduce__(self) -> tuple[type[StaleSlot], tuple[str, ...]]:
        return type(self), (self.detail,)


class LinkFault(CampipeError):
    """A live source can't be opened or read any more; ``cause`` is one of the words in ``stages.messages.LinkCause``.

    ``detail`` is a sentence for people, without any credentials.
    """

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause = cause
        self.detail = detail

    def __reduce__(self) -> tuple[type[LinkFault], tuple[str, ...]]:
        return type(self), (self.cause, self.detail)


class StageDead(CampipeError):
    """This worker can't go on; whoever started it decides whether to start another."""


class DeviceFailed(StageDead):
    """The accelerator failed; its frames are re-sent or counted, its process is replaced.

    ``by_work``: what it was given may have made it fail, so its frames are suspected as those of a crash are.
    """

    by_work = False

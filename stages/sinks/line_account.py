"""Owns what is known of one file of a sink over all its openings: its trouble, and the lines it lacks. Opens nothing.

A file that can't be written is shut and opened again later, as another ``LineFile``; the lines that were handed over
meanwhile, or held when it was shut, are in none.
"""

from __future__ import annotations

import contextlib

from stages.errors import StageDead
from stages.sinks.again import Again
from stages.sinks.line_file import LineFile


class LineAccount:
    """``file``: while it is open. ``begun``: by this run, so that it is gone on with. ``handed``: lines to be written.

    ``lost``: lines that are surely in no file; it never falls. ``was_file``: neither pipe nor device, when it was open.
    """

    def __init__(self, *, begun: bool = False) -> None:
        self.file: LineFile | None = None
        self.begun = begun
        self.was_file = False
        self.handed = 0
        self.lost = 0
        self.again = Again()
        self._shut_lines = 0  # in the file, by openings that are over
        self._lost_before = 0  # this trouble

    @property
    def missing(self) -> int:
        """Lines that are not in the file, those that are merely held included."""
        return self.handed - self._shut_lines - (self.file.written if self.file is not None else 0)

    @property
    def lost_now(self) -> int:
        """Lines lost in this trouble."""
        return self.lost - self._lost_before

    def lose(self) -> None:
        """A line comes while the file can't be written."""
        self.handed += 1
        self.lost += 1

    def shut(self) -> None:
        """Release the file; what it still holds and can't write is lost."""
        if self.file is not None:
            with contextlib.suppress(StageDead):
                self.file.flush()
            self._shut_lines += self.file.written
            self.begun = True
            self.was_file = self.was_file or self.file.folder is not None
            self.file.abandon()
            self.file = None
        self.lost = self.missing

    def written_again(self) -> bool:
        """Whether a trouble is over, for a line has been written since; ``lost_now`` is its price until ``settle``."""
        return bool(self.again.why) and self.file is not None and self.file.written > 0

    def settle(self) -> None:
        """The trouble is over and told."""
        self.again.written()
        self._lost_before = self.lost

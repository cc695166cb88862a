"""Owns which frame is held to have ended a worker. Pure; keeps its marks on the frames.

A worker that dies by its own fault (a crash, an error, silence) puts every frame that it held under suspicion: each is
tried alone next, with a worker to itself. One that ends ``KILLS_TO_QUARANTINE`` workers alone is given up. Deaths that
look like a hand from outside (SIGKILL: an operator, or the kernel for want of memory) and failing devices say nothing
of a frame the first times; one that is there at more than ``DEATHS_TO_SUSPECT`` of them is suspected all the same.
"""

from __future__ import annotations

from pipeline.runtime.inflight import Frame

KILLS_TO_QUARANTINE = 2
DEATHS_TO_SUSPECT = 5


def given_up(frame: Frame, company: int, *, blame: bool) -> bool:
    """Mark a frame whose worker died, while it held ``company`` frames in all; True when it is to be tried no more."""
    frame.deaths += 1
    if not blame and frame.deaths <= DEATHS_TO_SUSPECT:
        return False
    frame.alone = True
    if company > 1:
        return False
    frame.kills += 1
    return frame.kills >= KILLS_TO_QUARANTINE

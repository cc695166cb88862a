"""Owns how much memory the run of a site holds now, for who asks whether the same site would fit. Judges nothing."""

from __future__ import annotations

from pipeline.control.client import engine_at, find_socket
from pipeline.observe.processes import family, held_bytes
from stages.errors import UserError


def bytes_held_by_run(site: str) -> int | None:
    """Of all its processes and rings; None when several runs fit, or this user may not look into them."""
    try:
        engine = engine_at(find_socket(site))
    except (UserError, OSError):
        return None
    own_bytes = held_bytes(engine)
    if own_bytes is None:
        return None
    return own_bytes + sum(held_bytes(pid) or 0 for pid in family(engine)[1:])  # a worker may have ended since

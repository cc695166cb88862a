"""Owns how many frames a batch should have, by what batches of each size took. Pure; ``schedule`` decides by it.

A device need not take less time for fewer frames, nor more for more: models are built for some sizes, and a batch takes
the next larger one. So neither is a larger batch always worth waiting for, nor a smaller one always sooner done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

Took = Callable[[int], int | None]  # by the number of frames: nanoseconds, None when it can't be told
WORTH: Final = 20  # times that differ by less than this part are the same


def company_ns(
    frames: int, expected_ns: Sequence[int], now_ns: int, took: Took, *, elsewhere: bool = False
) -> int | None:
    """Until when so many frames should wait for others before a device that is free; None: they should not.

    ``expected_ns``: when others should come, ascending. ``elsewhere``: another device is free for these. What counts is
    the sum of the times that all of them need: those that wait lose, those that come need not wait for a second batch.
    """
    alone_ns = took(frames)
    if alone_ns is None:
        return None
    best_ns, until_ns = 0, None
    for count, at_ns in enumerate(expected_ns, 1):
        together_ns, behind_ns = took(frames + count), took(count)
        if together_ns is None or behind_ns is None:
            break
        free_ns = at_ns if elsewhere else max(at_ns, now_ns + alone_ns)
        lost_ns = frames * (at_ns + together_ns - now_ns - alone_ns)
        won_ns = count * (free_ns + behind_ns - at_ns - together_ns)
        if won_ns - lost_ns > best_ns:
            best_ns, until_ns = won_ns - lost_ns, at_ns
    return until_ns


def one_more_is_free(frames: int, took: Took) -> bool:
    """Whether a batch with one frame more takes as long, for all that is known: models have some sizes built in."""
    alone_ns, together_ns = took(frames), took(frames + 1)
    return alone_ns is None or together_ns is None or together_ns <= alone_ns + alone_ns // WORTH


def first_part(frames: int, took: Took) -> int:
    """How many of so many frames should be given now: all, unless several smaller batches end sooner than one."""
    whole_ns = took(frames)
    if whole_ns is None:
        return frames
    best_ns, part = whole_ns - whole_ns // WORTH, frames
    for size in range(frames - 1, 0, -1):
        of_size_ns, of_rest_ns = took(size), took(frames % size) if frames % size else 0
        if of_size_ns is not None and of_rest_ns is not None:
            parts_ns = frames // size * of_size_ns + of_rest_ns
            if parts_ns < best_ns:
                best_ns, part = parts_ns, size
    return part

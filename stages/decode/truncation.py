"""Owns the verdict whether a file stopped before the end that its header promises. Pure; opens nothing.

A false alarm is worse than a miss here: headers lie in both directions. So a frame count alone convicts nobody (edit
lists hide frames, AVI counts empty chunks as frames): the time that was reached must fall short too. A piece of data
that the file ends in the middle of is proof by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from stages.decode.clock import SECOND_NS


@dataclass(frozen=True, slots=True)
class Promise:
    """What the header says. None: it says nothing, or what it says isn't worth believing."""

    frames: int | None
    duration_ns: int | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What reading the file to its end gave."""

    packets: int  # of the video track
    frames: int  # decoded
    reached_ns: int  # end of the last packet, on the scale of Promise.duration_ns
    cut_short: bool  # the last piece of the file is incomplete
    nominal_ns: int  # from frame to frame


def missing(promise: Promise, outcome: Outcome) -> str | None:
    """What is missing, as a clause for people ("the file stops after 48 of 100 frames"), or None when nothing is."""
    mean_ns = outcome.reached_ns // outcome.packets if outcome.packets else 0
    frame_ns = max(outcome.nominal_ns, mean_ns)
    short_ns = 0 if promise.duration_ns is None else promise.duration_ns - outcome.reached_ns
    if promise.frames is not None:
        few = outcome.packets < promise.frames and (promise.duration_ns is None or 2 * short_ns > 3 * frame_ns)
    else:
        few = short_ns > max(3 * frame_ns, SECOND_NS // 10)
    if not few and not outcome.cut_short:
        return None
    if promise.frames is not None and outcome.frames < promise.frames:
        return f"the file stops after {outcome.frames} of {promise.frames} frames"
    if promise.duration_ns is not None and short_ns > 0:
        at, of = outcome.reached_ns / SECOND_NS, promise.duration_ns / SECOND_NS
        return f"the file stops at {at:.2f} s of {of:.2f} s, after {outcome.frames} frames"
    return f"the end of the file is missing, after {outcome.frames} frames"

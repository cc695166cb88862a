"""Owns the knowledge of what a subscriber has missed: places of cameras in their streams. Pure; owns no socket."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from stages.messages import Status

MAX_ANNOUNCED = 1000  # holes told before the frames around them; more than a publisher that keeps order ever has


class Gap(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="lost"):
    """Detections of seq ``from_seq`` to ``to_seq`` of ``epoch`` were published and did not arrive."""

    camera: str
    epoch: int
    from_seq: int
    to_seq: int


@dataclass(frozen=True, slots=True)
class Placed:
    """What the place of a message tells."""

    gaps: tuple[Gap, ...] = ()
    duplicate: bool = False


@dataclass(slots=True)
class _Position:
    epoch: int
    next_seq: int
    given: int = -1  # the last seq that came
    announced: list[tuple[int, int]] = field(default_factory=list)  # (from, to) at or after next_seq, ascending


class Positions:
    """Where each camera's stream is.

    A publisher keeps the order of each camera, so a message that goes back is either the same one again (a duplicate)
    or from a publisher that was started anew; then nothing is known of what came before, and no gap is told.
    """

    def __init__(self) -> None:
        self._positions: dict[str, _Position] = {}

    def forget(self) -> None:
        """The publisher was started anew."""
        self._positions.clear()

    def announced(self, status: Status) -> None:
        """Take in a status: ``started`` tells where a stream begins, ``gap`` which frames will not come."""
        position = self._positions.get(status.camera)
        if status.state == "started":
            if position is None or status.epoch != position.epoch or position.next_seq > 0:
                self._positions[status.camera] = _Position(status.epoch, 0)
        elif status.state == "gap" and status.from_seq is not None and status.to_seq is not None:
            if position is None or status.epoch < position.epoch:
                position = self._positions[status.camera] = _Position(status.epoch, status.from_seq)
            elif status.epoch > position.epoch:
                position = self._positions[status.camera] = _Position(status.epoch, 0)
            _announce(position, status.from_seq, status.to_seq)

    def place(self, camera: str, epoch: int, seq: int) -> Placed:
        """Take in detections."""
        position = self._positions.get(camera)
        if position is None:
            self._positions[camera] = _Position(epoch, seq + 1, seq)
            return Placed()
        if epoch > position.epoch:
            position = self._positions[camera] = _Position(epoch, 0)
        elif (epoch, seq) == (position.epoch, position.given):
            return Placed(duplicate=True)
        elif epoch < position.epoch or seq < position.next_seq:
            self._positions[camera] = _Position(epoch, seq + 1, seq)
            return Placed()
        missing = _missing(position, seq)
        position.next_seq, position.given = seq + 1, seq
        position.announced = [(first, last) for first, last in position.announced if last > seq]
        return Placed(tuple(Gap(camera=camera, epoch=epoch, from_seq=first, to_seq=last) for first, last in missing))


def _announce(position: _Position, first: int, last: int) -> None:
    ranges = sorted([*position.announced, (first, last)])
    joined: list[tuple[int, int]] = []
    for low, high in ranges:
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], high)
        else:
            joined.append((low, high))
    if joined[0][0] <= position.next_seq:
        position.next_seq = max(position.next_seq, joined.pop(0)[1] + 1)
    position.announced = joined[-MAX_ANNOUNCED:]


def _missing(position: _Position, seq: int) -> list[tuple[int, int]]:
    """Parts of ``next_seq`` to ``seq`` - 1 that nobody has announced."""
    missing: list[tuple[int, int]] = []
    at = position.next_seq
    for first, last in position.announced:
        if first >= seq:
            break
        if first > at:
            missing.append((at, first - 1))
        at = max(at, last + 1)
    if at < seq:
        missing.append((at, seq - 1))
    return missing

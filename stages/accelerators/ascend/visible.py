"""Owns which devices this process may see, as the environment says it. Pure: sets no variable and asks no runtime.

``ASCEND_RT_VISIBLE_DEVICES`` is read by the runtime when it is initialised: ids ascending, separated by commas, without
blanks; reading stops at the first that is not one. What is left is numbered from 0 for the process.
``ASCEND_VISIBLE_DEVICES`` is read by the container's runtime when a container starts and by nobody afterwards; inside a
container devices are numbered from 0 whatever chips were mounted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stages.errors import UserError

RUNTIME: Final = "ASCEND_RT_VISIBLE_DEVICES"
CONTAINER: Final = "ASCEND_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Visible:
    """``ids``: what the runtime's variable leaves, in the order of their new numbers; None: it is not set."""

    ids: tuple[int, ...] | None
    notes: tuple[str, ...]  # for people: what the variables do and do not do

    def check(self, device: str, index: int) -> None:
        """Raise UserError when ``index`` is beyond what is visible."""
        if self.ids is None or index < len(self.ids):
            return
        if not self.ids:
            raise UserError(
                f"device {device}: {RUNTIME} leaves no device visible; write their numbers ascending and without "
                "blanks, such as 0,1, or unset it"
            )
        most = len(self.ids) - 1
        kind = device.rpartition(":")[0] or device
        raise UserError(
            f"device {device}: {RUNTIME} leaves {len(self.ids)} visible, which are numbered from 0 to {most} here; use "
            f"{kind}:{most} or less, or let more be visible"
        )

    def where(self, index: int) -> str:
        """``device 2 of this machine or container``: what an index means."""
        if self.ids is None:
            return f"device {index} of this machine or container"
        return f"device {self.ids[index]} of this machine or container ({RUNTIME})"


def visible_devices(environ: Mapping[str, str]) -> Visible:
    """Read both variables. Never raises: what they can't mean is told in the notes."""
    notes = []
    ids: tuple[int, ...] | None = None
    text = environ.get(RUNTIME)
    if text is not None:
        ids = _ids(text)
        kept = ",".join(map(str, ids))
        if kept != text:
            notes.append(
                f"{RUNTIME}={text[:80]!r}: the runtime reads it as {kept or 'nothing'}; "
                "write numbers ascending, separated by commas, without blanks"
            )
    container = environ.get(CONTAINER)
    if container is not None:
        notes.append(
            f"{CONTAINER}={container[:80]!r} is for the start of a container and selects nothing in this process"
            + ("" if text is not None else f"; {RUNTIME} does")
        )
    return Visible(ids, tuple(notes))


def _ids(text: str) -> tuple[int, ...]:
    ids: list[int] = []
    for part in text.split(","):
        if not (part.isascii() and part.isdecimal()) or len(part) > 4 or (ids and int(part) <= ids[-1]):
            break
        ids.append(int(part))
    return tuple(ids)

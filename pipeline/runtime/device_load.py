"""Owns how much of the devices' time frames need, by those of the last moments. Pure; ``schedule`` decides by it.

What counts is the time that they would need in full batches: small ones keep a device busy that has much room left.
"""

from __future__ import annotations

from typing import Final

WINDOW_NS: Final = 500_000_000
PRESSED: Final = 0.8  # of the time of all devices; cameras that send together or late must fit in, too


class DeviceLoad:
    """Counted in windows; what the last one had is the load until the next is over."""

    def __init__(self) -> None:
        self._since_ns: int | None = None
        self._needed_ns = 0
        self._share: float | None = None

    def given(self, needed_ns: int, now_ns: int) -> None:
        """Frames were given to a device that need so many nanoseconds of it."""
        if self._since_ns is None:
            self._since_ns = now_ns
        self._roll(now_ns)
        self._needed_ns += needed_ns

    def pressed(self, devices: int, now_ns: int) -> bool:
        """Whether so many devices have little time left, or may have: nobody knows in the first window."""
        self._roll(now_ns)
        return self._share is None or self._share > PRESSED * devices

    def _roll(self, now_ns: int) -> None:
        if self._since_ns is not None and now_ns - self._since_ns >= WINDOW_NS:
            self._share = self._needed_ns / (now_ns - self._since_ns)
            self._since_ns, self._needed_ns = now_ns, 0

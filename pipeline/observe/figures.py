"""Owns how figures are put into words: rates, ages, durations, sizes, counts by cause. Pure; does not own where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from pipeline.observe.snapshot import CameraSnapshot, EngineSnapshot

LONGEST_ETA_S: Final = 100 * 86_400  # a pace that promises more is no pace
FEWEST_FOR_ETA: Final = 10  # frames; the pace of fewer is that of the start


def rate(per_second: float) -> str:
    """Frames per second: ``0``, ``7.5``, ``212``."""
    return f"{per_second:.1f}" if 0 < per_second < 9.95 else f"{per_second:.0f}"


def age(milliseconds: float) -> str:
    """How old something is: ``85 ms``, ``1.2 s``, ``3:05``."""
    if milliseconds < 999.5:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.1f} s" if milliseconds < 59_950 else duration(milliseconds / 1000)


def duration(seconds: float) -> str:
    """``0:07``, ``12:30``, ``3:05:00``."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def count(number: int) -> str:
    """At most six characters: ``99999``, ``123k``, ``4.5M``, ``1.2G``."""
    if number < 100_000:
        return str(number)
    if number < 1_000_000:
        return f"{number // 1000}k"
    unit, size = ("M", 1_000_000) if number < 1_000_000_000 else ("G", 1_000_000_000)
    whole = number / size
    return f"{whole:.1f}{unit}" if whole < 100 else f"{whole:.0f}{unit}"


def size(number_bytes: float) -> str:
    """``512 B``, ``3.5 MiB``, ``12 GiB``."""
    value = float(number_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1023.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 9.95 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def causes(dropped: Mapping[str, int]) -> str:
    """``sampling 400, too_old 3``, the most frequent first."""
    return ", ".join(f"{cause} {n}" for cause, n in sorted(dropped.items(), key=lambda item: (-item[1], item[0])) if n)


def top(counts: Mapping[str, int], most: int = 5) -> str:
    """``person 312, car 10 and 3 other classes``: the ``most`` most frequent."""
    ordered = sorted(((n, name) for name, n in counts.items() if n), key=lambda item: (-item[0], item[1]))
    words = ", ".join(f"{name} {n}" for n, name in ordered[:most])
    rest = len(ordered) - most
    return f"{words} and {rest} other {'class' if rest == 1 else 'classes'}" if rest > 0 else words


def plural(number: int, noun: str) -> str:
    """``1 frame``, ``2 frames``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def share_done(camera: CameraSnapshot) -> float | None:
    """Part of the recording that is decoded, 0..1; None when its length is unknown or it plays no more."""
    if not camera.frames_expected or camera.state in ("ended", "failed"):
        return None
    return min(1.0, camera.decoded / camera.frames_expected)


def eta_s(camera: CameraSnapshot) -> float | None:
    """Seconds until the recording is decoded, at the pace of now; None when that can't be told."""
    if share_done(camera) is None or camera.fps_in <= 0 or camera.frames_expected is None:
        return None
    if camera.decoded < FEWEST_FOR_ETA:
        return None
    left_s = max(0, camera.frames_expected - camera.decoded) / camera.fps_in
    return left_s if left_s < LONGEST_ETA_S else None


def states(cameras: Iterable[CameraSnapshot]) -> str:
    """``38 streaming, 2 failed``."""
    found = Counter(camera.state for camera in cameras)
    return ", ".join(f"{n} {state}" for state, n in found.most_common())


def total_dropped(snapshot: EngineSnapshot) -> dict[str, int]:
    """Drops of all cameras by cause."""
    total: Counter[str] = Counter()
    for camera in snapshot.cameras:
        total.update(camera.dropped)
    return dict(total)

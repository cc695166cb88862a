"""Owns what has to be done so that the cameras of a run become those of a new configuration. Pure; does none of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from stages.camera import CameraSpec

# Frames that are made from now on are made and judged by these; the source stays open.
IN_PLACE = frozenset(
    {
        "confidence",
        "iou",
        "classes",
        "class_agnostic",
        "nms_groups",
        "max_objects",
        "roi",
        "sample_every",
        "sample_fps",
        "max_age_ms",
        "corrupt",
    }
)
IN_PLACE_LIVE = IN_PLACE | {"keyframes"}  # a recording would have to be read anew from its beginning
# Where a field stands in a camera's file, if not under its own name.
KEYS: Final = {
    **dict.fromkeys(("sample_every", "sample_fps", "keyframes"), "sampling"),
    **dict.fromkeys(("live", "max_age_ms"), "live"),
    **dict.fromkeys(("url", "user", "password", "network", "link", "track", "loop", "pace"), "source"),
    **dict.fromkeys(("preload", "recorded_at_ns", "max_frames"), "source"),
}


@dataclass(frozen=True, slots=True)
class Changes:
    """``change``: in place. ``restart``: that camera alone starts anew. ``remove`` has names, the others have specs.

    ``keys``: for cameras that change or restart, which keys of their files differ.
    """

    add: tuple[CameraSpec, ...] = ()
    remove: tuple[str, ...] = ()
    change: tuple[CameraSpec, ...] = ()
    restart: tuple[CameraSpec, ...] = ()
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)

    def __bool__(self) -> bool:
        return bool(self.add or self.remove or self.change or self.restart)

    @property
    def names(self) -> tuple[str, ...]:
        """Every camera that is concerned."""
        return (*(spec.name for spec in (*self.add, *self.change, *self.restart)), *self.remove)

    def __str__(self) -> str:
        parts = {"added": [spec.name for spec in self.add], "removed": list(self.remove)}
        told = [f"{what} {', '.join(names)}" for what, names in parts.items() if names]
        return "; ".join([*told, *([stayed] if (stayed := self.of_those_that_stay) else [])]) or "nothing changed"

    @property
    def of_those_that_stay(self) -> str:
        """``changed gate (confidence, roi); restarted yard (source)``; empty when no camera that stays is concerned."""
        parts = {"changed": self.change, "restarted": self.restart}
        return "; ".join(f"{what} {', '.join(map(self._what, specs))}" for what, specs in parts.items() if specs)

    def _what(self, spec: CameraSpec) -> str:
        keys = self.keys.get(spec.name)
        return f"{spec.name} ({', '.join(keys)})" if keys else spec.name


def diff(now: Mapping[str, CameraSpec], wanted: Mapping[str, CameraSpec]) -> Changes:
    """What turns ``now`` into ``wanted``, both by name."""
    both = [(now[name], spec) for name, spec in wanted.items() if name in now and now[name] != spec]
    return Changes(
        add=tuple(spec for name, spec in wanted.items() if name not in now),
        remove=tuple(name for name in now if name not in wanted),
        change=tuple(spec for old, spec in both if in_place(old, spec)),
        restart=tuple(spec for old, spec in both if not in_place(old, spec)),
        keys={spec.name: tuple(sorted({KEYS.get(name, name) for name in differing(old, spec)})) for old, spec in both},
    )


def in_place(old: CameraSpec, new: CameraSpec) -> bool:
    """Whether a camera can go from ``old`` to ``new`` without its source being opened anew."""
    may = IN_PLACE_LIVE if old.network and new.network else IN_PLACE
    return differing(old, new) <= may


def differing(old: CameraSpec, new: CameraSpec) -> set[str]:
    """Names of the fields that differ."""
    return {
        field.name for field in dataclasses.fields(CameraSpec) if getattr(old, field.name) != getattr(new, field.name)
    }

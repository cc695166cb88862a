"""Owns which cameras each executor and NMS worker knows, and what it has to be told to know the present ones. Pure.

A worker is started with the cameras of that moment, and says Hello some time later: what changed in between, and since,
comes as messages. They are told before any work that needs them, on the same socket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pipeline.runtime.camera_line import CameraLine
from stages.camera import CameraSpec
from stages.messages import CameraAdded, CameraChanged, CameraRemoved, InternalMessage

RingFacts = tuple[str, int, int]
"""Name of a ring, its slots, bytes of a slot."""


@dataclass(slots=True)
class Known:
    """What one endpoint knows: by camera the ring (executors) and the numbers of settings (NMS workers)."""

    kind: str  # executor | nms
    rings: dict[str, str] = field(default_factory=dict)
    settings: dict[str, set[int]] = field(default_factory=dict)


class Roster:
    """By endpoint, what it knows."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}

    def started(
        self, endpoints: tuple[str, ...], kind: str, lines: Mapping[str, CameraLine], rings: Mapping[str, RingFacts]
    ) -> None:
        """A worker is started with these cameras and rings."""
        for endpoint in endpoints:
            self._known[endpoint] = Known(
                kind,
                {camera: name for camera, (name, _, _) in rings.items()},
                {camera: set(line.kept) for camera, line in lines.items()},
            )

    def tell(
        self,
        endpoint: str,
        lines: Mapping[str, CameraLine],
        rings: Mapping[str, RingFacts],
        push: Callable[[str], bool],
    ) -> list[InternalMessage]:
        """What ``endpoint`` is to be told now. ``push(camera)`` hands its ring to the worker; False: not now."""
        known = self._known.get(endpoint)
        if known is None:
            return []
        return self._rings(known, lines, rings, push) if known.kind == "executor" else self._settings(known, lines)

    @staticmethod
    def _rings(
        known: Known, lines: Mapping[str, CameraLine], rings: Mapping[str, RingFacts], push: Callable[[str], bool]
    ) -> list[InternalMessage]:
        messages: list[InternalMessage] = []
        for camera in [camera for camera in known.rings if camera not in rings]:
            del known.rings[camera]
            messages.append(CameraRemoved(camera))
        for camera, facts in rings.items():
            line = lines.get(camera)
            if line is None or known.rings.get(camera) == facts[0] or not push(camera):
                continue
            known.rings[camera] = facts[0]
            messages.append(CameraAdded(line.spec.without_secrets(), line.settings, facts))
        return messages

    @staticmethod
    def _settings(known: Known, lines: Mapping[str, CameraLine]) -> list[InternalMessage]:
        messages: list[InternalMessage] = []
        for camera in [camera for camera in known.settings if camera not in lines]:
            del known.settings[camera]
            messages.append(CameraRemoved(camera))
        for camera, line in lines.items():
            numbers = known.settings.setdefault(camera, set())
            new: list[tuple[int, CameraSpec]] = [each for each in line.kept.items() if each[0] not in numbers]
            for number, spec in new:
                messages.append(CameraChanged(spec.without_secrets(), number))
            known.settings[camera] = set(line.kept)
        return messages

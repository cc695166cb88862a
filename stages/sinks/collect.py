"""Owns a sink that keeps messages in memory, for tests and for callers that run the graph themselves. Unbounded."""

from __future__ import annotations

from stages.messages import Detections, ExternalMessage, Heartbeat, Status


class CollectSink:
    """Keeps every message, in order of arrival."""

    def __init__(self, name: str = "collect") -> None:
        self._name = name
        self.messages: list[ExternalMessage] = []

    @property
    def name(self) -> str:
        """For people."""
        return self._name

    def open(self) -> None:
        """Start with nothing."""
        self.messages = []

    def take(self, message: ExternalMessage) -> bool:
        """Keep it."""
        self.messages.append(message)
        return True

    def service(self) -> None:
        """Nothing to do."""

    def close(self, deadline_ns: int) -> str:
        """Nothing is held back, so nothing is lost."""
        del deadline_ns
        return ""

    @property
    def detections(self) -> dict[str, list[Detections]]:
        """What was found, by camera, cameras in order of their first message of any kind."""
        found: dict[str, list[Detections]] = {}
        for message in self.messages:
            if isinstance(message, Heartbeat):
                continue
            frames = found.setdefault(message.camera, [])
            if isinstance(message, Detections):
                frames.append(message)
        return found

    @property
    def statuses(self) -> list[Status]:
        """Every change of state and every gap."""
        return [message for message in self.messages if isinstance(message, Status)]

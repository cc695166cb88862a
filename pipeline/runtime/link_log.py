"""Owns what the log says of a camera's connection: each change once, not each of a thousand tries."""

from __future__ import annotations

import logging
from collections.abc import Container

from stages.messages import LinkChanged

LOG = logging.getLogger("campipe.link")
REMIND_EVERY = 100  # tries: a camera that is dead for days is not forgotten, and does not fill the disk


class LinkLog:
    """Remembers what was said last of each camera."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, str]] = {}
        self._remarks: dict[str, str] = {}

    def note(self, message: LinkChanged) -> None:
        """Log the change, if it is one."""
        if message.state == "connecting":
            return  # what comes of it is told in a moment
        known = self._last.get(message.camera)
        news = (message.state, message.cause)
        if message.state == "streaming" and message.detail and message.detail != self._remarks.get(message.camera):
            self._remarks[message.camera] = message.detail
            LOG.warning("camera %s: %s", message.camera, message.detail)
        if message.state == "streaming":
            if known is not None:
                del self._last[message.camera]
                LOG.info("camera %s: streams again", message.camera)
            return
        if known == news and message.attempt % REMIND_EVERY:
            return
        self._last[message.camera] = news
        level = logging.ERROR if message.state == "failed" else logging.WARNING
        LOG.log(level, "camera %s: %s (%s): %s", message.camera, message.state, message.cause, message.detail)

    def keep(self, cameras: Container[str]) -> None:
        """Forget all others: they have left."""
        self._last = {name: last for name, last in self._last.items() if name in cameras}
        self._remarks = {name: remark for name, remark in self._remarks.items() if name in cameras}

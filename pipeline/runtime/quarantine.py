"""Owns keeping frames that end workers: the picture as the model got it, and a note, in a folder. Decides nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pipeline.observe.subject import about
from pipeline.runtime.camera_line import CameraLine
from pipeline.runtime.inflight import Frame
from pipeline.runtime.rings import Rings
from pipeline.transport.arena import SharedRing
from stages.errors import StaleSlot
from stages.messages import FrameReady

LOG = logging.getLogger("campipe.quarantine")


class Quarantine:
    """Writes ``<camera>-<epoch>-<seq>.npy`` (uint8 height x width x 3, model's channel order) and ``.json``."""

    def __init__(self, folder: str | None, cameras: Mapping[str, CameraLine], rings: Rings[SharedRing]) -> None:
        self._folder = Path(folder) if folder else None
        self._cameras = cameras
        self._rings = rings

    def keep(self, frame: Frame, stage: str) -> None:
        """Write the frame; trouble in doing so is logged and never ends the run."""
        ready = frame.ready
        subject = about(frame.camera, stage, ready.epoch, ready.seq)
        LOG.error(
            "%s: frame %d of epoch %d ended %d %s workers; it is left out",
            frame.camera,
            ready.seq,
            ready.epoch,
            frame.deaths,
            stage,
            extra=subject,
        )
        if self._folder is None or not isinstance(ready, FrameReady):
            return
        model = self._cameras[frame.camera].model
        stem = self._folder / f"{frame.camera}-{ready.epoch}-{ready.seq}"
        note = {
            "camera": frame.camera,
            "epoch": ready.epoch,
            "seq": ready.seq,
            "pts_ns": ready.pts_ns,
            "stage": stage,
            "deaths": frame.deaths,
            "model": model.name,
            "channels": model.channels,
        }
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if frame.holds_slot:  # one that ends NMS workers has no pixels any more: its slot was freed
                pixels = self._rings.frames[frame.camera].read(ready.slot, ready.generation)
                picture = np.frombuffer(pixels, np.uint8, model.frame_bytes).reshape(model.height, model.width, 3)
                np.save(f"{stem}.npy", picture)
            Path(f"{stem}.json").write_text(json.dumps(note, indent=1), encoding="utf-8")
        except (OSError, StaleSlot) as error:
            LOG.error("can't write the frame to %s: %s", self._folder, error, extra=subject)

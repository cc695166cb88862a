"""Owns the step from an NMS worker's raw arrays to the objects that subscribers get: rounding, labels. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from stages.messages import DetectedObject, Objects

BOX_DECIMALS = 2  # of a pixel: far below what a detector can tell, and the same text on every machine
SCORE_DECIMALS = 4


def detected(objects: Objects, labels: Sequence[str]) -> list[DetectedObject]:
    """The objects of one frame, best first; ``labels`` by class id."""
    class_ids = np.frombuffer(objects.class_ids, np.int32).tolist()
    if not class_ids:
        return []
    boxes = np.frombuffer(objects.boxes, np.float32).reshape(-1, 4)
    scores = np.frombuffer(objects.scores, np.float32)
    found = [
        DetectedObject(box=box, score=score, class_id=class_id, label=labels[class_id])
        for box, score, class_id in zip(
            boxes.astype(np.float64).round(BOX_DECIMALS).tolist(),
            scores.astype(np.float64).round(SCORE_DECIMALS).tolist(),
            class_ids,
            strict=True,
        )
    ]
    if objects.keypoints or objects.corners or objects.masks:
        return _with_details(found, objects)
    return found


def _with_details(found: list[DetectedObject], objects: Objects) -> list[DetectedObject]:
    """The same objects with the keypoints, corners and masks that the model gave."""
    n = len(found)
    keypoints = np.frombuffer(objects.keypoints, np.float32).reshape(n, -1, 3).astype(np.float64)
    points = np.round(keypoints[..., :2], BOX_DECIMALS).tolist()
    scores = np.round(keypoints[..., 2:], SCORE_DECIMALS).tolist()
    corners = np.frombuffer(objects.corners, np.float32).reshape(n, -1, 2).astype(np.float64)
    rounded = np.round(corners, BOX_DECIMALS).tolist()
    return [
        msgspec.structs.replace(
            item,
            keypoints=[[*xy, *score] for xy, score in zip(points[i], scores[i], strict=True)] or None,
            corners=rounded[i] or None,
            mask=objects.masks[i] if objects.masks else None,
        )
        for i, item in enumerate(found)
    ]

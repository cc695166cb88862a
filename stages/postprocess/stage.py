"""Owns the step from raw outputs in a slot to objects in source pixels. Does not own layouts, NMS or the geometry.

All frames of a task are worked on together. A frame that fails does so alone, as ``ItemFailed``; a task always gets its
``PostDone``. Nothing of a slot is kept: the heads copy what they select, and the slot's generation is checked after
that copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from stages.camera import CameraSpec
from stages.errors import BadItem, UserError
from stages.frames import SlotRing
from stages.letterbox import Geometry, geometry
from stages.messages import ItemFailed, Objects, PostDone, PostItem, PostTask
from stages.model import ModelSpec, output_views
from stages.postprocess.batched import ReadsFrames, Wanted, batched
from stages.postprocess.candidates import TOP_K
from stages.postprocess.head import DetailedHead, Head
from stages.postprocess.nms import group_ids
from stages.postprocess.nms_sweep import starts_of
from stages.postprocess.registry import head_for
from stages.postprocess.together import Frame, kept_of, packed
from stages.stage import MonotonicClock

SETTINGS_KEPT: Final = 64  # descriptions of one camera; far more than can be under way at once

_NUMERIC: Final = (
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
)  # what odd numbers or shapes can make of a frame


def _failure(index: int, error: Exception) -> ItemFailed:
    if isinstance(error, BadItem):
        return ItemFailed(index, error.cause, error.detail)
    return ItemFailed(index, "post_failed", f"{type(error).__name__}: {error}")


class Postprocess:
    """Turns rows of output slots into objects. One instance per worker; not for several threads at once.

    ``outputs`` has the ring of raw outputs of each model and ``max_batch`` the batch size it is laid out for, both by
    the model's name. Mappings are read at use, so that the owner may add to them.

    A camera may change while it runs: each description has a number, ``cameras`` begin with 0, and every frame names
    the number that it was made with, so that frames under way are judged as they were made. The newest
    ``SETTINGS_KEPT`` are known.
    """

    def __init__(
        self,
        models: Sequence[ModelSpec],
        cameras: Sequence[CameraSpec],
        outputs: Mapping[str, SlotRing],
        max_batch: Mapping[str, int],
        clock_ns: MonotonicClock,
    ) -> None:
        self._models = {model.name: model for model in models}
        self._cameras = {camera.name: {0: camera} for camera in cameras}
        self._outputs = outputs
        self._max_batch = max_batch
        self._clock_ns = clock_ns
        self._heads: dict[str, Head] = {}
        self._batched: dict[str, ReadsFrames] = {}
        self._detailed: dict[
            str, DetailedHead
        ] = {}  # those of them that give more than boxes; asked per frame, so kept
        self._geometries: dict[str, tuple[tuple[str, int, int, int], Geometry]] = {}
        self._groups: dict[str, tuple[int, NDArray[np.int32]]] = {}

    def open(self) -> None:
        """Make the heads. Raises UserError, with all problems at once, for layouts and cameras that can't be right."""
        problems: list[str] = []
        heads: dict[str, Head] = {}
        for model in self._models.values():
            try:
                heads[model.name] = head_for(model)
            except UserError as error:
                problems += error.problems
        for descriptions in self._cameras.values():
            for camera in descriptions.values():
                problems += self._problems_of(camera)
        if problems:
            raise UserError.of(problems)
        self._heads = heads
        self._batched = {name: batched(head) for name, head in heads.items()}
        self._detailed = {name: head for name, head in heads.items() if isinstance(head, DetailedHead)}

    def add_camera(self, camera: CameraSpec, settings: int = 0) -> None:
        """Take a camera, or a further description of one, at run time. Raises UserError as ``open`` does."""
        problems = self._problems_of(camera)
        if problems:
            raise UserError.of(problems)
        descriptions = self._cameras.setdefault(camera.name, {})
        descriptions[settings] = camera
        while len(descriptions) > SETTINGS_KEPT:
            del descriptions[min(descriptions)]
        self._geometries.pop(camera.name, None)
        self._groups.pop(camera.name, None)

    def remove_camera(self, name: str) -> None:
        """Forget a camera; frames of it that still come fail with ``post_failed``. Unknown names are no error."""
        self._cameras.pop(name, None)
        self._geometries.pop(name, None)
        self._groups.pop(name, None)

    def step(self, message: PostTask) -> list[PostDone]:
        """The objects of one task, and the frames of it that failed. Never raises for what a slot or a frame holds."""
        started_at_ns = self._clock_ns()
        objects, failed = self._post(message)
        return [PostDone(message.task_id, objects, failed, started_at_ns, self._clock_ns())]

    def flush(self) -> list[PostDone]:
        """Nothing is ever held back."""
        return []

    def close(self) -> None:
        """Forget everything of models and cameras; the rings belong to whoever made them."""
        self._heads = {}
        self._batched = {}
        self._detailed = {}
        self._geometries = {}
        self._groups = {}

    def _problems_of(self, camera: CameraSpec) -> list[str]:
        where = f"camera {camera.name}:"
        model = self._models.get(camera.model)
        if model is None:
            known = ", ".join(self._models) or "none"
            return [f"{where} model {camera.model!r} isn't loaded; give one of: {known}"]
        problems = [
            f"{where} {key} is {value:g}; give a number from 0 to 1"
            for key, value in (("confidence", camera.confidence), ("iou", camera.iou))
            if not 0 <= value <= 1
        ]
        if camera.max_objects < 1:
            problems.append(f"{where} max_objects is {camera.max_objects}; give 1 or more")
        problems += [
            f"{where} class {class_id} is none of model {model.name}'s {len(model.labels)} labels; "
            f"give ids from 0 to {len(model.labels) - 1}"
            for class_id in camera.classes or ()
            if not 0 <= class_id < len(model.labels)
        ]
        grouped = [class_id for group in camera.nms_groups for class_id in group]
        problems += [
            f"{where} nms_groups has class {class_id}, none of model {model.name}'s {len(model.labels)} labels; "
            f"give ids from 0 to {len(model.labels) - 1}"
            for class_id in grouped
            if not 0 <= class_id < len(model.labels)
        ]
        if len(set(grouped)) != len(grouped):
            problems.append(f"{where} nms_groups has a class in two groups; join those groups into one")
        return problems

    def _views(self, task: PostTask) -> list[NDArray[Any]]:
        """All rows of the task's slot, whole or not: the items say which to read. Raises BadItem."""
        model = self._models.get(task.model)
        ring = self._outputs.get(task.model)
        if model is None or ring is None or task.model not in self._heads:
            raise BadItem("post_failed", f"model {task.model!r} isn't open in this worker")
        if not 0 <= task.output_slot < ring.slots:
            raise BadItem("post_failed", f"{ring.name} has no slot {task.output_slot}")
        max_batch = self._max_batch[task.model]
        return output_views(model, ring.read(task.output_slot, task.generation), max_batch, max_batch)

    def _post(self, task: PostTask) -> tuple[list[Objects], list[ItemFailed]]:
        try:
            views = self._views(task)
        except (BadItem, *_NUMERIC) as error:
            return [], [_failure(item.index, error) for item in task.items]
        failed: dict[int, ItemFailed] = {}  # by the place in the task
        frames: dict[int, Frame] = {}
        for place, item in enumerate(task.items):
            try:
                frames[place] = self._frame(task.model, item, len(views[0]))
            except (BadItem, *_NUMERIC) as error:
                failed[place] = _failure(item.index, error)
        objects: list[Objects] = []
        try:
            objects = self._objects(task, list(frames.values()), views)
        except (BadItem, *_NUMERIC):  # one of them is odd: each alone, so that it fails alone
            for place, frame in frames.items():
                try:
                    objects += self._objects(task, [frame], views)
                except (BadItem, *_NUMERIC) as error:
                    failed[place] = _failure(frame.row, error)
        return objects, [failed[place] for place in sorted(failed)]

    def _frame(self, model_name: str, item: PostItem, rows: int) -> Frame:
        camera = self._cameras.get(item.camera, {}).get(item.settings)
        if camera is None:
            known = item.camera in self._cameras
            what = f"camera {item.camera!r} isn't known to this worker"
            raise BadItem("post_failed", f"settings {item.settings} of {what}" if known else what)
        if not 0 <= item.index < rows:
            raise BadItem("post_failed", f"row {item.index} of a slot laid out for {rows}")
        groups = self._group_ids(camera, item.settings) if camera.nms_groups else None
        return Frame(item.index, camera, self._geometry(camera, model_name, item), groups)

    def _objects(self, task: PostTask, frames: Sequence[Frame], views: list[NDArray[Any]]) -> list[Objects]:
        """Of each frame, in their order. Raises when any of them fails."""
        if not frames:
            return []
        head = self._heads[task.model]
        wanted = [Wanted(frame.row, frame.camera.confidence, frame.camera.classes) for frame in frames]
        try:
            found = self._batched[task.model](views, wanted, TOP_K)
        except (BadItem, *_NUMERIC):
            self._check(task)  # numbers that make no sense because they are of two pictures are stale, not wrong
            raise
        self._check(task)
        kept = kept_of(found, frames, head.suppresses, task.model)
        objects = packed(found, kept, frames)
        detailed = self._detailed.get(task.model)
        if detailed is None:
            return objects
        starts, kept_starts = starts_of(found.counts), starts_of(kept.counts)
        for place, frame in enumerate(frames):
            start, kept_start = starts[place], kept_starts[place]
            part = slice(kept_start, kept_start + min(kept.counts[place], frame.camera.max_objects))
            if part.start == part.stop:
                continue
            details = detailed.details(
                [view[frame.row] for view in views],
                found.of(start, starts[place + 1]),
                kept.places[part] - start,
                kept.boxes[part],
                frame.geometry,
            )
            objects[place] = msgspec.structs.replace(
                objects[place],
                keypoints=b"" if details.keypoints is None else details.keypoints.astype("<f4").tobytes(),
                corners=b"" if details.corners is None else details.corners.astype("<f4").tobytes(),
                masks=list(details.masks),
            )
        self._check(task)  # masks are made of the outputs, which must still be these frames'
        return objects

    def _group_ids(self, camera: CameraSpec, settings: int) -> NDArray[np.int32]:
        kept = self._groups.get(camera.name)
        if kept is None or kept[0] != settings:
            made = group_ids(camera.nms_groups, len(self._models[camera.model].labels))
            kept = self._groups[camera.name] = (settings, made)
        return kept[1]

    def _check(self, task: PostTask) -> None:
        self._outputs[task.model].check(task.output_slot, task.generation)

    def _geometry(self, camera: CameraSpec, model_name: str, item: PostItem) -> Geometry:
        """How this camera's pictures lie in the model's input; the last one is kept, sizes seldom change."""
        key = (model_name, item.settings, item.width, item.height)
        kept = self._geometries.get(camera.name)
        if kept is None or kept[0] != key:
            model = self._models[model_name]
            made = geometry(
                item.width,
                item.height,
                model.width,
                model.height,
                model.placement,
                camera.roi,
                scale_up=model.scale_up,
            )
            kept = self._geometries[camera.name] = (key, made)
        return kept[1]

"""Owns the judgement of an INT8 model: what it finds against the float one, how fast it is, and whether that will do.

Objects come out of the product's own device and post-processing. An object is *confident* when its score is
``CLEAR`` above the model's confidence: those at the threshold come and go with any rounding. A confident object of one
model must have a counterpart of the same class in the other that is over the confidence; else it is lost, or new.
"""

from __future__ import annotations

import dataclasses
import select
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.models.quantize_frames import Picture
from pipeline.testing.matching import iou, pair
from stages.accelerators.onnx import OnnxDevice
from stages.accelerators.onnx_session import open_session, quiet_run_options
from stages.accelerators.pixels import PixelWriter
from stages.camera import CameraSpec
from stages.errors import DeviceFailed
from stages.frames import HeapRing
from stages.messages import DetectedObject, Objects, PostItem, PostTask
from stages.model import ModelSpec, output_slot_bytes, output_views
from stages.postprocess.stage import Postprocess

CLEAR = 0.1
SAME_PLACE_IOU = 0.5
LEAST_MATCHED = 0.95  # of the confident objects
MOST_NEW = 0.10  # per object of the float model; laxer, for a higher confidence removes them, and nothing adds the lost
MOST_SHIFT = 0.05  # mean of the absolute change of score
LEAST_SPEED = 1.0  # float's time over INT8's
SPEED_PAIRS = 30


@dataclass(frozen=True, slots=True)
class Agreement:
    """What two models found on the same frames. Shifts are INT8's score less float's, of matched confident objects."""

    frames: int
    clear: float  # least score of a confident object
    confident: int
    matched: int
    lost: dict[str, int]  # by label
    new: dict[str, int]
    mean_shift: float
    mean_absolute_shift: float
    largest_shift: float
    mean_iou: float

    @property
    def share(self) -> float:
        """Matched of all confident objects, 0 to 1."""
        return self.matched / self.confident if self.confident else 0.0


@dataclass(frozen=True, slots=True)
class Speed:
    """One frame on one core, float and INT8 in turn: milliseconds of CPU (medians), and the ratio of each pair."""

    float_ms: float
    int8_ms: float
    ratios: tuple[float, ...] = field(repr=False)

    @property
    def ratio(self) -> float:
        """How many times as fast INT8 is: the median."""
        return statistics.median(self.ratios)


def refusals(agreement: Agreement, speed: Speed) -> list[str]:
    """Why the INT8 model is not good enough, each with the figure and the bar; empty: it is."""
    if not agreement.confident:
        return ["the float model finds nothing for certain on the frames compared; give clips with objects on them"]
    found = []
    if agreement.share < LEAST_MATCHED:
        found.append(f"{agreement.share:.1%} of the confident objects are found again, {LEAST_MATCHED:.0%} are asked")
    new = sum(agreement.new.values())
    if new > MOST_NEW * agreement.confident:
        found.append(f"{new} confident objects are new beside {agreement.confident}, at most {MOST_NEW:.0%} may be")
    if agreement.mean_absolute_shift > MOST_SHIFT:
        found.append(f"scores move by {agreement.mean_absolute_shift:.3f} on average, at most {MOST_SHIFT} may be")
    if speed.ratio <= LEAST_SPEED:
        found.append(f"it is no faster ({speed.ratio:.2f} times the float model's speed)")
    return found


def agree(
    was: Sequence[Sequence[DetectedObject]], now: Sequence[Sequence[DetectedObject]], confidence: float
) -> Agreement:
    """Compare what the float model (``was``) and the INT8 model (``now``) found, frame by frame."""
    clear = min(confidence + CLEAR, 0.95)
    confident = matched = 0
    lost: Counter[str] = Counter()
    new: Counter[str] = Counter()
    shifts: list[float] = []
    overlaps: list[float] = []
    for before, after in zip(was, now, strict=True):
        pairs, _, _ = pair(before, after, _same_class, least_iou=SAME_PLACE_IOU, near_px=-1.0)
        partner = dict(pairs)
        partnered = set(partner.values())
        for index, each in enumerate(before):
            if each.score < clear:
                continue
            confident += 1
            if index not in partner:
                lost[each.label] += 1
                continue
            matched += 1
            found = after[partner[index]]
            shifts.append(found.score - each.score)
            overlaps.append(iou(each.box, found.box))
        for index, each in enumerate(after):
            if each.score >= clear and index not in partnered:
                new[each.label] += 1
    return Agreement(
        frames=len(was),
        clear=clear,
        confident=confident,
        matched=matched,
        lost=dict(lost.most_common()),
        new=dict(new.most_common()),
        mean_shift=statistics.fmean(shifts) if shifts else 0.0,
        mean_absolute_shift=statistics.fmean(map(abs, shifts)) if shifts else 0.0,
        largest_shift=max(shifts, key=abs, default=0.0),
        mean_iou=statistics.fmean(overlaps) if overlaps else 0.0,
    )


def _same_class(a: DetectedObject, b: DetectedObject) -> bool:
    return a.class_id == b.class_id


def find_objects(
    models: Sequence[ModelSpec], pictures: Sequence[Picture], threads: int, progress: Callable[[int, int], None]
) -> list[list[list[DetectedObject]]]:
    """What each model finds on each picture, with the model's own confidence and IoU; one frame a run."""
    device = OnnxDevice(threads)
    device.open()
    try:
        for model in models:
            device.load(model, 1)
        names = dict.fromkeys(picture.camera for picture in pictures)
        found: list[list[list[DetectedObject]]] = [[] for _ in models]
        with _Lanes(device) as lanes:
            for index, model in enumerate(models):
                cameras = [
                    CameraSpec(name, "", model.name, confidence=model.confidence, iou=model.iou) for name in names
                ]
                ring = HeapRing(model.name, 1, output_slot_bytes(model, 1))
                post = Postprocess([model], cameras, {model.name: ring}, {model.name: 1}, time.monotonic_ns)
                post.open()
                for number, picture in enumerate(pictures):
                    found[index].append(_objects(lanes, post, ring, model, picture))
                    progress(index * len(pictures) + number + 1, len(models) * len(pictures))
                post.close()
        return found
    finally:
        device.close()


class _Lanes:
    """One lane of a device for the length of a ``with``, run to its end each time."""

    def __init__(self, device: OnnxDevice) -> None:
        self._device = device

    def __enter__(self) -> _Lanes:
        self._lanes = self._device.lanes(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._lanes.close()

    def run(self, model: str, picture: Picture, outputs: Sequence[Any]) -> None:
        poll = select.poll()
        wake_fd = self._lanes.wake_fd
        if wake_fd is not None:
            poll.register(wake_fd, select.POLLIN)
        self._lanes.submit(0, model, [picture.pixels], outputs)
        while not (ended := self._lanes.finished()):
            poll.poll(1000)
        ((_, result),) = ended
        if isinstance(result, Exception):
            raise DeviceFailed(f"model {model}: {result}") from result


def _objects(
    lanes: _Lanes, post: Postprocess, ring: HeapRing, model: ModelSpec, picture: Picture
) -> list[DetectedObject]:
    memory = ring.begin_write(0)
    lanes.run(model.name, picture, output_views(model, memory, 1, 1))
    generation = ring.end_write(0)
    item = PostItem(0, picture.camera, picture.width, picture.height)
    (done,) = post.step(PostTask(0, model.name, 0, generation, [item]))
    # a frame whose numbers make no sense has no objects: the INT8 model loses them all
    return [each for objects in done.objects for each in _unpacked(objects, model.labels)]


def _unpacked(objects: Objects, labels: Sequence[str]) -> list[DetectedObject]:
    boxes = np.frombuffer(objects.boxes, "<f4").reshape(-1, 4).astype(float)
    scores = np.frombuffer(objects.scores, "<f4").astype(float)
    class_ids = np.frombuffer(objects.class_ids, "<i4")
    return [
        DetectedObject(box=list(map(float, box)), score=float(score), class_id=int(number), label=labels[number])
        for box, score, number in zip(boxes, scores, class_ids, strict=True)
    ]


def measure_speed(was: ModelSpec, now: ModelSpec, pictures: Sequence[Picture]) -> Speed:
    """Both models in turn in this process, one thread, one frame (or the fixed batch) a run, the first runs left out.

    CPU time of the thread: what else runs on the machine hardly counts.
    """
    sessions = [open_session(f"model {model.name}", model.path, 1) for model in (was, now)]
    writer = PixelWriter(was)
    batch = np.zeros((was.fixed_batch or 1, *writer.input_shape), writer.dtype)
    times: list[tuple[float, float]] = []
    for index in range(SPEED_PAIRS + 2):
        for row in range(len(batch)):
            writer.write(pictures[(index + row) % len(pictures)].pixels, batch[row])
        taken = [0.0, 0.0]
        for which in (0, 1) if index % 2 else (1, 0):  # who goes first has a colder cache
            taken[which] = _run_ms(sessions[which], batch) / len(batch)
        times.append((taken[0], taken[1]))
    times = times[2:]
    float_ms, int8_ms = (statistics.median(column) for column in zip(*times, strict=True))
    return Speed(float_ms, int8_ms, tuple(sorted(before / after for before, after in times)))


def _run_ms(session: Any, batch: Any) -> float:
    name = session.get_inputs()[0].name
    start_ns = time.thread_time_ns()
    session.run(None, {name: batch}, quiet_run_options())
    return max(time.thread_time_ns() - start_ns, 1) / 1e6


def with_file(model: ModelSpec, name: str, path: str) -> ModelSpec:
    """The same description for another file."""
    return dataclasses.replace(model, name=name, path=path, sha256="")

"""Owns the messages between campipe's own processes. Does not own sockets, or how bytes are made of them (``codec``).

They are msgpack arrays, tagged, small: pixels and raw outputs stay in shared memory and are named by slot and
generation. Both ends are of one version, so fields may be added and moved freely.

Units are in the names: ``_ns`` nanoseconds. ``*_at_ns`` are readings of CLOCK_MONOTONIC (one clock for all processes of
a machine); ``captured_ns`` is UTC since 1970.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stages.camera import CameraSpec
from stages.messages.external import Mask


class Internal(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=True):
    """Base of messages between campipe's own processes."""


# --- life of a worker -------------------------------------------------------------------------------------------------


class Hello(Internal, tag="hello", frozen=True, array_like=True, gc=False):
    """First message of a worker: it runs and has the right token."""

    token: str
    pid: int


class Ready(Internal, tag="ready", frozen=True, array_like=True, gc=False):
    """The worker has opened everything and can be given work: at most ``capacity`` pieces at a time."""

    capacity: int
    detail: dict[str, str]


class Refused(Internal, tag="refused", frozen=True, array_like=True, gc=False):
    """The worker can't start because of something the user can mend; a new try would fail alike."""

    cause: str
    problems: list[str]


class WorkerFailed(Internal, tag="failed", frozen=True, array_like=True, gc=False):
    """Last message of a worker that dies of an error it could still tell."""

    error: str
    traceback: str


class WorkerStats(Internal, tag="stats", frozen=True, array_like=True, gc=False):
    """Sent each second and once at the end; counters since the worker's start."""

    cpu_ns: int
    busy_ns: int
    items: int
    rss_bytes: int
    private_bytes: int


class Stop(Internal, tag="stop", frozen=True, array_like=True, gc=False):
    """To a worker: finish what you hold, tell, and leave."""


class Goodbye(Internal, tag="goodbye", frozen=True, array_like=True, gc=False):
    """Last message of a worker that leaves in order."""


# --- decode -----------------------------------------------------------------------------------------------------------


class Begin(Internal, tag="begin", frozen=True, array_like=True, gc=False):
    """To a decode worker, in answer to its Hello: where to go on. All zero for a first start.

    ``epoch`` and ``next_seq`` name the first frame wanted, ``decoded`` and ``sampled_out`` are the totals so far.
    ``delay_ms``: a live source waits so long before it connects, so that not all connect at once. ``read``: so many
    frames of this epoch of a recording were read before, sampled out or not; -1: as ``next_seq`` says, for its sampling
    was the same all the time. ``skipped``: total of packets left out, see FrameReady.
    """

    epoch: int
    next_seq: int
    decoded: int
    sampled_out: int
    delay_ms: int = 0
    read: int = -1
    skipped: int = 0


class StreamStarted(Internal, tag="started", frozen=True, array_like=True, gc=False):
    """A source is open. ``frames_expected`` is what the file's index promises, None when it says nothing."""

    camera: str
    epoch: int
    width: int
    height: int
    fps: float
    codec: str
    clock: str
    frames_expected: int | None


class LinkChanged(Internal, tag="link", frozen=True, array_like=True, gc=False):
    """The connection to a live camera changed its state; ``state`` is a LinkState, ``cause`` a LinkCause.

    ``detail`` is for people: what happened, what to look at, when it is tried again. ``retry_ms``: until the next try,
    None when none is planned. ``attempt`` counts tries since the last picture.
    """

    camera: str
    epoch: int
    state: str
    cause: str
    detail: str
    attempt: int = 0
    retry_ms: int | None = None


class FrameReady(Internal, tag="frame", frozen=True, array_like=True, gc=False):
    """A frame lies letterboxed in ``slot`` of its camera's ring.

    ``decoded`` and ``sampled_out`` are totals of this camera over all epochs, this frame included, so that the ledger
    is exact whichever message is the last one to arrive. ``clock`` says what ``captured_ns`` comes from ("": as
    StreamStarted said). ``arrived_at_ns``: when its data had come, before it was decoded (0: not known). ``settings``:
    number of the camera's settings that it was made with. ``skipped``: total of this camera's packets that were
    left out undecoded because decoding could not keep up; no frames were made of them, so they are in no ledger.
    """

    camera: str
    epoch: int
    seq: int
    slot: int
    generation: int
    width: int  # of the upright source picture, pixels
    height: int
    pts_ns: int
    captured_ns: int
    decoded: int
    sampled_out: int
    corrupt: bool
    decoded_at_ns: int
    clock: str = ""
    arrived_at_ns: int = 0
    settings: int = 0
    skipped: int = 0


class FrameDropped(Internal, tag="dropped", frozen=True, array_like=True, gc=False):
    """A frame was decoded and given its seq but can't be sent; ``cause`` is a DropCause. ``skipped``: as FrameReady."""

    camera: str
    epoch: int
    seq: int
    decoded: int
    sampled_out: int
    cause: str
    detail: str
    skipped: int = 0


class StreamEnded(Internal, tag="ended", frozen=True, array_like=True, gc=False):
    """No more frames of this epoch; ``last`` says that no further epoch follows. ``skipped``: see FrameReady."""

    camera: str
    epoch: int
    cause: str
    detail: str
    decoded: int
    sampled_out: int
    decode_errors: int
    last: bool
    skipped: int = 0


class SlotsFreed(Internal, tag="freed", frozen=True, array_like=True, gc=False):
    """To a decode worker: these slots of its ring may be written again."""

    slots: list[int]


# --- inference --------------------------------------------------------------------------------------------------------


class BatchItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where the pixels of one frame of a batch lie."""

    camera: str
    slot: int
    generation: int


class BatchReady(Internal, tag="batch", frozen=True, array_like=True, gc=False):
    """To an executor: run ``model`` over ``items``; put the raw outputs into ``output_slot`` of the model's ring."""

    batch_id: int
    model: str
    output_slot: int
    items: list[BatchItem]


class ItemFailed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One frame of a batch or task that failed alone; ``cause`` is a DropCause."""

    index: int
    cause: str
    detail: str


class RawOutput(Internal, tag="raw", frozen=True, array_like=True, gc=False):
    """The raw outputs of a batch lie in its output slot (row i belongs to item i, failed ones hold zeros)."""

    batch_id: int
    generation: int
    failed: list[ItemFailed]
    submitted_at_ns: int
    uploaded_at_ns: int
    executed_at_ns: int
    finished_at_ns: int


# --- post-processing --------------------------------------------------------------------------------------------------


class PostItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One row of an output slot and the picture that it came from."""

    index: int
    camera: str
    width: int
    height: int
    settings: int = 0


class PostTask(Internal, tag="post", frozen=True, array_like=True, gc=False):
    """To an NMS worker: turn these rows of an output slot into objects."""

    task_id: int
    model: str
    output_slot: int
    generation: int
    items: list[PostItem]


class Objects(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Objects of one frame as raw little-endian arrays.

    Best first: ``boxes`` float32 (n, 4) x1 y1 x2 y2 in source pixels, ``scores`` float32 (n,), ``class_ids`` int32
    (n,).
    ``cut_before`` / ``cut_after``: candidates cut by top-k before NMS, objects cut by max_objects after it.
    Empty unless the model gives them: ``keypoints`` float32 (n, k, 3) x y score, ``corners`` float32 (n, 4, 2) of
    oriented boxes, both in source pixels, ``masks`` one for each object.
    """

    index: int
    boxes: bytes
    scores: bytes
    class_ids: bytes
    cut_before: int
    cut_after: int
    keypoints: bytes = b""
    corners: bytes = b""
    masks: list[Mask] = []


class PostDone(Internal, tag="posted", frozen=True, array_like=True, gc=False):
    """Objects of every item of a task, in the task's order, less those in ``failed``."""

    task_id: int
    objects: list[Objects]
    failed: list[ItemFailed]
    started_at_ns: int
    finished_at_ns: int


# --- changes while running --------------------------------------------------------------------------------------------


class CameraAdded(Internal, tag="added", frozen=True, array_like=True, gc=False):
    """To an executor or NMS worker: a camera joins. ``ring``: name, slots, bytes of a slot; executors fetch it."""

    spec: CameraSpec
    settings: int
    ring: tuple[str, int, int] | None


class CameraChanged(Internal, tag="changed", frozen=True, array_like=True, gc=False):
    """To a decode or NMS worker: frames with this number of ``settings`` are made and judged by ``spec``."""

    spec: CameraSpec
    settings: int


class CameraRemoved(Internal, tag="removed", frozen=True, array_like=True, gc=False):
    """To an executor or NMS worker: no frame of this camera is under way any more; forget it."""

    camera: str


class Figures(Internal, tag="figures", frozen=True, array_like=True, gc=False):
    """To the exporter: the engine's figures of this moment, encoded by whoever owns them."""

    data: bytes


InternalMessage: TypeAlias = (
    Hello
    | Ready
    | Refused
    | WorkerFailed
    | WorkerStats
    | Stop
    | Goodbye
    | Begin
    | StreamStarted
    | LinkChanged
    | FrameReady
    | FrameDropped
    | StreamEnded
    | SlotsFreed
    | BatchReady
    | RawOutput
    | PostTask
    | PostDone
    | CameraAdded
    | CameraChanged
    | CameraRemoved
    | Figures
)

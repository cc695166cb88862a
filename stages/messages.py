"""Owns every message that crosses a process or a socket, and its schema number. Does not own sockets or codecs' use.

Two groups. *Internal* messages travel between campipe's own processes: msgpack arrays, tagged, small; pixels and raw
outputs stay in shared memory and are named by slot and generation. *External* messages go to subscribers: msgpack maps
with plain keys that any msgpack reader can read; ``v`` is their schema number, raised when a field changes meaning.

Units are in the names: ``_ns`` nanoseconds. ``*_at_ns`` are readings of CLOCK_MONOTONIC (one clock for all processes of
a machine); ``captured_ns`` and ``time_ns`` are UTC since 1970.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from stages.camera import CameraSpec

SCHEMA = 1

ClockSource: TypeAlias = Literal["file", "arrival", "rtcp"]

DropCause: TypeAlias = Literal[
    "sampling",  # decoded, not wanted by `sampling`
    "superseded",  # live: a newer frame of the same camera took its place
    "too_old",  # live: older than max_age_ms when its turn came
    "no_slot",  # live: no free slot of shared memory
    "bad_frame",  # of a size or format that can't be used
    "corrupt",  # damaged on its way, and the camera's `corrupt` says drop
    "no_keyframe",  # before the first whole picture of a stream: nothing but grey and smears
    "stale",  # its slot was rewritten before it was read
    "infer_failed",  # the model refused this frame
    "post_failed",  # post-processing refused this frame
    "quarantined",  # it took a worker down with it more than once
    "stage_failed",  # no worker was left to take it
    "stopped",  # a second signal: stop at once
    "removed",  # its camera was taken out of the run
]

EndCause: TypeAlias = Literal[
    "ended",  # the recording was played to its end
    "truncated",  # the recording stops before the end that its index promises
    "stopped",  # on request
    "limit",  # `max_frames` reached
    "not_found",
    "not_video",
    "no_frames",
    "unsupported",
    "unreadable",
    "corrupt",
    "worker_failed",  # the decode process died more often than its budget allows
    "removed",  # taken out of the run on request
]

LinkState: TypeAlias = Literal["connecting", "streaming", "stalled", "reconnecting", "paused", "failed", "ended"]

LinkCause: TypeAlias = Literal[
    "first",  # the first try
    "refused",  # nobody listens at that address and port
    "timeout",  # no answer, or no data, within the deadline
    "unreachable",  # no route to that host
    "unknown_host",  # its name is not known
    "unauthorised",  # user or password is wrong or missing
    "forbidden",  # user and password are right, but not for this stream
    "not_found",  # no such stream on that camera, no such device
    "busy",  # it serves as many clients as it can
    "transport",  # neither TCP nor UDP as asked for
    "tls",  # encryption failed, or its certificate can't be trusted
    "protocol",  # what answers does not speak what the url says
    "no_video",  # it answers, without a video track (or without the one asked for)
    "no_keyframe",  # packets come, but no picture that can be begun with
    "no_picture",  # connected, but no whole picture came for stall_ms
    "unsupported",  # no decoder for its codec
    "corrupt",  # what comes can't be decoded
    "disconnected",  # the camera closed the connection
    "worker_failed",  # the decode process died; it is started again
    "paused",
    "resumed",
    "reloaded",  # its configuration was changed
    "removed",
    "stopped",
]


class Internal(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=True):
    """Base of messages between campipe's own processes."""


class External(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of messages to subscribers."""


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


class Mask(msgspec.Struct, frozen=True, kw_only=True):
    """Which pixels of the source picture belong to an object, as runs over a rectangle of it.

    The rectangle's corner is ``x``, ``y``, its size ``width`` x ``height``, in whole source pixels; it holds the
    object's box. ``counts`` are lengths of runs, column by column, each from top to bottom, first of pixels outside the
    object (0 when the first one is inside), then inside, and so on; they add up to width x height. That is COCO's
    uncompressed RLE of the rectangle: ``{"size": [height, width], "counts": counts}``.
    """

    x: int
    y: int
    width: int
    height: int
    counts: list[int]


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


# --- to subscribers ---------------------------------------------------------------------------------------------------


class DetectedObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One object: ``box`` is [x1, y1, x2, y2] in pixels of the upright source picture, ``score`` 0..1.

    Only of models that find them, otherwise left out: ``keypoints``, each [x, y, score 0..1]; ``corners`` of an
    oriented box, four [x, y] in its order around, which may lie outside the picture (``box`` is what encloses them,
    clipped to it); ``mask``, the object's pixels.
    """

    box: list[float]
    score: float
    class_id: int
    label: str
    keypoints: list[list[float]] | None = None
    corners: list[list[float]] | None = None
    mask: Mask | None = None


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds that a frame spent in each stage, and from the arrival of its data to published."""

    decode_ms: float
    queue_ms: float
    upload_ms: float
    execute_ms: float
    download_ms: float
    post_ms: float
    reorder_ms: float
    total_ms: float


class Detections(External, tag="detections", frozen=True, kw_only=True):
    """What was found in one frame; topic ``detections/<camera>``.

    ``seq`` counts up by one within an ``epoch``: a hole means that frames were dropped or messages lost. ``epoch``
    counts (re)starts of the stream, ``seq`` and ``pts_ns`` begin anew with it. ``captured_ns`` is UTC according to
    ``clock`` (``file``: the recording's own start time, or 1970, plus pts).
    """

    v: int = SCHEMA
    camera: str
    epoch: int
    seq: int
    pts_ns: int
    captured_ns: int
    clock: str
    width: int
    height: int
    model: str
    objects: list[DetectedObject]
    corrupt: bool = False
    trace: Trace | None = None


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """``decoded == published + sum(dropped.values()) + in_flight``, always."""

    decoded: int
    published: int
    dropped: dict[str, int]
    in_flight: int


class Status(External, tag="status", frozen=True, kw_only=True):
    """A camera changed its state, or frames are missing (``gap``: seq ``from_seq`` to ``to_seq`` of ``epoch``); topic
    ``status/<camera>``. ``started``: pictures come. ``cause`` is a LinkCause, EndCause or DropCause, ``detail`` is for
    people. ``repeated``: it was told before, and is told again because a subscriber has joined."""

    v: int = SCHEMA
    camera: str
    epoch: int
    state: Literal["connecting", "started", "stalled", "reconnecting", "paused", "ended", "failed", "gap"]
    cause: str
    detail: str
    time_ns: int
    from_seq: int | None = None
    to_seq: int | None = None
    ledger: LedgerEntry | None = None
    repeated: bool = False


class Heartbeat(External, tag="heartbeat", frozen=True, kw_only=True):
    """The engine lives; topic ``heartbeat``, once a second."""

    v: int = SCHEMA
    time_ns: int
    uptime_ns: int
    cameras: dict[str, str]
    lost_messages: int


ExternalMessage: TypeAlias = Detections | Status | Heartbeat

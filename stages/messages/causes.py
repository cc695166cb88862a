"""Owns the words in which messages say what happened: why a frame, a stream or a connection ended, what a time is from.

A word is never renamed: subscribers compare with them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

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

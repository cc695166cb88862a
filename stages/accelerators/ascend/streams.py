"""Owns the streams and events of one executor and the order of work in them. Owns no memory; waits in one place.

Variant B, one stream per kind of work, so that upload k+1 and download k-1 run under compute k, whichever comes first::

    upload    copy in ── record in_ready
    compute   wait in_ready, reset it ── execute ── record done
    download  wait done, reset it ── copy out ── record ended

All runs of one model id are queued on the one compute stream. Uploads and downloads have streams of their own: in one
copy stream the upload of k+1 would stand behind the download of k, which waits for compute k.

Variant A, one stream per set of buffers: copy in, execute, copy out, record ended; an instance of the model per set.

Events are of the kind that every version has (created with SYNC, reset in the stream that waited). ``ended`` is looked
at by the host. Its reset is queued when the host has seen it, and may still wait behind the download of the next batch
when the set is used again; the event would look complete. So each set has two and uses them in turn: before the second
one is looked at, the stream has passed the reset of the first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from stages.accelerators.ascend.buffers import BufferSet, LaneModel
from stages.accelerators.ascend.constants import DEVICE_TO_HOST, EVENT_COMPLETE, HOST_TO_DEVICE, STOP_ON_FAILURE
from stages.accelerators.ascend.errors import AclError, DeviceHung
from stages.accelerators.ascend.options import Variant
from stages.accelerators.ascend.owned import Owner

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trio:
    """The streams that one set of buffers uses; in variant A all three are the same."""

    upload: int
    compute: int
    download: int


class Streams:
    """See the module. Opened, used and closed by one thread with the executor's context current."""

    def __init__(self, owner: Owner, name: str, variant: Variant, hang_ms: int) -> None:
        self._owner = owner
        self._rt = owner.acl.rt
        self._mdl = owner.acl.mdl
        self._name = name
        self._single = variant == "A"
        self._hang_ms = hang_ms
        self._stack = ExitStack()
        self._all: list[int] = []
        self._trios: list[Trio] = []

    def open(self, sets: int) -> None:
        """Create the streams."""
        if self._single:
            self._trios = [Trio(stream, stream, stream) for stream in map(self._stream, map(str, range(sets)))]
        else:
            upload, compute, download = map(self._stream, ("upload", "compute", "download"))
            self._trios = [Trio(upload, compute, download)] * sets

    def attach(self, sets: Iterable[BufferSet]) -> None:
        """Create the events of each set."""
        for one in sets:
            if not self._single:
                one.in_ready, one.done = self._event("in_ready"), self._event("done")
            one.ended = (self._event("ended"), self._event("ended"))

    def queue(self, one: BufferSet, model: LaneModel, rows: int, pictures_address: int) -> int:
        """Queue a whole batch: copies in, runs, copies out; the event that tells its end.

        Blocks for nothing but the copies in, and only where the batch of a model with several must be chosen anew.
        """
        rt, trio, name = self._rt, self._trios[one.index], model.spec.name
        bindings, chunks = one.bindings[name], tuple(model.chunks(rows))
        copy, frame_bytes, staged = rt.memcpy_async, model.frame_bytes, model.layout.pictures
        for number, _, count in chunks:
            size_bytes = count * frame_bytes
            at = bindings[number]
            source = pictures_address + staged[number].offset
            copy(at.picture, at.picture_bytes, source, size_bytes, HOST_TO_DEVICE, trio.upload)
        if not self._single:
            rt.record_event(one.in_ready, trio.upload)
            rt.stream_wait_event(trio.compute, one.in_ready)
            rt.reset_event(one.in_ready, trio.compute)
        model_id, execute = one.model_ids[name], self._mdl.execute_async
        if model.facts.shape_index is not None:
            for number, _, count in chunks:
                # with several runs all of the largest, so that the model's own choice does not change between them
                frames = count if len(chunks) == 1 else model.facts.most_frames
                self._choose(one, model, number, frames, trio.upload)
        for number, _, _ in chunks:
            execute(model_id, bindings[number].inputs, bindings[number].outputs, trio.compute)
        if not self._single:
            rt.record_event(one.done, trio.compute)
            rt.stream_wait_event(trio.download, one.done)
            rt.reset_event(one.done, trio.download)
        for number, _, count in chunks:
            pieces = model.layout.results[number]
            for piece, source, row_bytes in zip(pieces, bindings[number].results, model.row_bytes, strict=True):
                target = one.result_address + piece.offset
                copy(target, piece.size_bytes, source, count * row_bytes, DEVICE_TO_HOST, trio.download)
        one.turn ^= 1
        event = one.ended[one.turn]
        rt.record_event(event, trio.download)
        return event

    def _choose(self, one: BufferSet, model: LaneModel, number: int, frames: int, upload: int) -> None:
        """Set the batch of a run whose set is not pending; it copies a number to the device, so only when it changes.

        The choice is kept in the dataset, in its device buffer and in the model; each set has an instance of its own.

        That copy blocks, without a limit and with the interpreter's lock held, behind whatever the device copies in. So
        the pictures, queued before it, are waited for, with a limit and the lock released: a device whose uploads hang
        is told as DeviceHung here and would be told by nobody there.
        """
        name, gear = model.spec.name, model.facts.gear(frames)
        if one.gears.get((name, number)) != gear:
            one.gears.pop((name, number), None)  # not known, should the call fail
            self._rt.synchronize_stream_with_timeout(upload, self._hang_ms)
            inputs = one.bindings[name][number].inputs
            self._mdl.set_dynamic_batch_size(one.model_ids[name], inputs, model.facts.shape_index, gear)
            one.gears[name, number] = gear

    def has_ended(self, event: int) -> bool:
        """Whether a batch is over, by the event that ``queue`` gave. Never blocks."""
        return bool(self._rt.query_event_status(event) == EVENT_COMPLETE)

    def wait(self, event: int, timeout_ms: int) -> bool:
        """Block until a batch is over, the interpreter's lock released; False at the timeout."""
        try:
            self._rt.synchronize_event_with_timeout(event, timeout_ms)
        except DeviceHung:
            return False
        return True

    def check(self) -> None:
        """Raise AclError when a stream has failed. Never blocks.

        An event may complete although the work before it failed, where failures don't stop the streams; so streams are
        asked too, before results are believed.
        """
        if self._rt.stream_query is not None:
            for stream in self._all:
                self._rt.stream_query(stream)

    def take_back(self, one: BufferSet, event: int) -> None:
        """Reset a batch's event after the host has seen it."""
        self._rt.reset_event(event, self._trios[one.index].download)

    def drain(self, timeout_ms: int) -> AclError | None:
        """Wait until every stream is at rest, at most so long each; the first error that any of them told.

        Raises DeviceHung for one that is not at rest then: what it uses must not be released.
        """
        first: AclError | None = None
        for stream in self._all:
            try:
                self._rt.synchronize_stream_with_timeout(stream, timeout_ms)
            except DeviceHung:
                raise
            except AclError as error:  # it failed: then it is at rest
                first = first or error
        return first

    def close(self) -> None:
        """Destroy events, then streams; may be called twice. They are at rest."""
        self._all.clear()
        self._trios.clear()
        self._stack.close()
        self._stack = ExitStack()

    def _stream(self, what: str) -> int:
        stream = self._stack.enter_context(self._owner.stream(f"{self._name}: {what}"))
        if self._rt.set_stream_failure_mode is not None:
            # so that what follows a failed run does not run either: its event then never tells of an end
            try:
                self._rt.set_stream_failure_mode(stream, STOP_ON_FAILURE)
            except AclError as error:  # it goes without: see check
                if error.needs_new_process:
                    raise
                log.warning("%s: its streams go on after failures: %s", self._name, error)
        self._all.append(stream)
        return stream

    def _event(self, what: str) -> int:
        return self._stack.enter_context(self._owner.event(f"{self._name}: {what}"))

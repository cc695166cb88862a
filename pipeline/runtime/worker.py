"""Owns the life of a worker process: its start, its loops around the stages, its last words. Decides nothing."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import zmq

from pipeline.plan import NMS_CAPACITY
from pipeline.runtime.work import DecodeWork, ExecutorWork, NmsWork, WorkerStart
from pipeline.transport.channel import WorkerChannel, remove_run_folder
from stages.accelerators.accelerator import Device
from stages.errors import SourceRefused, UserError
from stages.messages import (
    BatchReady,
    Begin,
    Goodbye,
    Hello,
    PostTask,
    Ready,
    Refused,
    SlotsFreed,
    Stop,
    WorkerFailed,
    WorkerStats,
)

STATS_EVERY_NS = 1_000_000_000
MEMORY_EVERY_NS = 5_000_000_000  # reading smaps_rollup walks all pages: rarely
BEGIN_TIMEOUT_MS = 30_000
POLL_WITHOUT_FD_MS = 1
EXIT_ORPHANED = 3
EXIT_FAILED = 4


def main(start: WorkerStart) -> None:
    """Entry point of every worker process."""
    # Ctrl-C, a closed terminal and systemd's SIGTERM reach the whole group; only the engine decides when a worker ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    faulthandler.enable()
    if start.logs is not None:
        start.logs.apply()
    threading.Thread(target=_die_with_parent, args=(start.parent, start.run_folder), daemon=True).start()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    channel = WorkerChannel(context, start.where, start.addresses[0])
    failed = False
    try:
        channel.send(Hello(start.token, os.getpid()))
        match start.work:
            case DecodeWork():
                _decode(channel, start.work)
            case ExecutorWork():
                _executors(context, channel, start, start.work)
            case NmsWork():
                _nms(channel, start.work)
    except UserError as error:
        cause = error.cause if isinstance(error, SourceRefused) else "refused"
        channel.send(Refused(cause, list(error.problems)))
    except Exception as error:  # noqa: BLE001  whatever it is, the engine must hear of it
        channel.send(_last_words(error))
        failed = True
    finally:
        channel.close()
        context.term()
    sys.stdout.flush()
    if failed:
        os._exit(EXIT_FAILED)  # threads of a vendor runtime may never join


def _last_words(error: BaseException) -> WorkerFailed:
    return WorkerFailed(f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))


def _die_with_parent(parent: Connection, run_folder: str) -> None:
    with contextlib.suppress(EOFError, OSError):
        parent.recv_bytes()
    remove_run_folder(Path(run_folder))
    os._exit(EXIT_ORPHANED)


class Meter:
    """Counts what this worker does and tells it once a second."""

    def __init__(self, channel: WorkerChannel, *, process_wide: bool = True) -> None:
        self.busy_ns = 0
        self.items = 0
        self._channel = channel
        self._process_wide = process_wide
        self._next_ns = 0
        self._next_memory_ns = 0
        self._memory = (0, 0)

    def due_ms(self, now_ns: int) -> int:
        """Milliseconds until the next report."""
        return max(0, (self._next_ns - now_ns) // 1_000_000 + 1)

    def report(self, now_ns: int, *, last: bool = False) -> None:
        """Send the counters if it is time."""
        if now_ns < self._next_ns and not last:
            return
        self._next_ns = now_ns + STATS_EVERY_NS
        if self._process_wide and (last or now_ns >= self._next_memory_ns):
            self._next_memory_ns = now_ns + MEMORY_EVERY_NS
            self._memory = memory_bytes()
        cpu_ns = time.process_time_ns() if self._process_wide else 0
        self._channel.send(WorkerStats(cpu_ns, self.busy_ns, self.items, *self._memory))


def memory_bytes() -> tuple[int, int]:
    """Resident and private bytes of this process, (0, 0) where the kernel does not tell."""
    rss = private = 0
    try:
        with Path("/proc/self/smaps_rollup").open(encoding="ascii") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key == "Rss":
                    rss = int(value.split()[0]) * 1024
                elif key in {"Private_Clean", "Private_Dirty"}:
                    private += int(value.split()[0]) * 1024
    except (OSError, ValueError):
        return 0, 0
    return rss, private


def _decode(channel: WorkerChannel, work: DecodeWork) -> None:
    import cv2

    from stages.decode.stage import Decode, ResumePoint

    cv2.setNumThreads(1)
    begin = channel.receive(BEGIN_TIMEOUT_MS)
    if not isinstance(begin, Begin):
        return
    resume = ResumePoint(begin.epoch, begin.next_seq, begin.decoded, begin.sampled_out)
    first = begin == Begin(0, 0, 0, 0)
    stage = Decode(work.camera, work.model, work.ring, time.monotonic_ns, None if first else resume)
    meter = Meter(channel)
    try:
        for message in stage.open():
            channel.send(message)
        channel.send(Ready(work.ring.slots, {}))
        while not stage.done:
            wait_ns = stage.wait_ns()
            now_ns = time.monotonic_ns()
            meter.report(now_ns)
            if wait_ns is None or wait_ns > 0:
                due_ms = meter.due_ms(now_ns)
                timeout_ms = due_ms if wait_ns is None else min(due_ms, -(-wait_ns // 1_000_000))
            else:
                timeout_ms = 0
            control = channel.receive(timeout_ms)
            while control is not None:
                if isinstance(control, SlotsFreed):
                    stage.grant(control.slots)
                elif isinstance(control, Stop):
                    for message in stage.stop():
                        channel.send(message)
                control = channel.receive(0)
            if not stage.done and stage.wait_ns() == 0:
                before_ns = time.monotonic_ns()
                for message in stage.step():
                    channel.send(message)
                meter.busy_ns += time.monotonic_ns() - before_ns
                meter.items += 1
        meter.report(time.monotonic_ns(), last=True)
        channel.send(Goodbye())
    finally:
        stage.close()
        work.ring.close()


def _nms(channel: WorkerChannel, work: NmsWork) -> None:
    import cv2

    from stages.postprocess.stage import Postprocess

    cv2.setNumThreads(1)
    stage = Postprocess(work.models, work.cameras, work.outputs, work.max_batch, time.monotonic_ns)
    meter = Meter(channel)
    stage.open()
    try:
        channel.send(Ready(NMS_CAPACITY, {}))
        while True:
            now_ns = time.monotonic_ns()
            meter.report(now_ns)
            message = channel.receive(meter.due_ms(now_ns))
            if isinstance(message, PostTask):
                before_ns = time.monotonic_ns()
                for done in stage.step(message):
                    channel.send(done)
                meter.busy_ns += time.monotonic_ns() - before_ns
                meter.items += len(message.items)
            elif isinstance(message, Stop):
                break
        meter.report(time.monotonic_ns(), last=True)
        channel.send(Goodbye())
    finally:
        stage.close()


def _executors(
    context: zmq.Context[zmq.Socket[bytes]], channel: WorkerChannel, start: WorkerStart, work: ExecutorWork
) -> None:
    """One thread per address. When one of them fails the process ends: they share the device."""
    import cv2

    from stages.accelerators.registry import open_device

    cv2.setNumThreads(1)
    plan = work.device
    device = open_device(plan.device, plan.threads, plan.options, executors=plan.executors, lanes=plan.lanes)
    device.open()
    failed = threading.Event()
    try:
        for model in work.models.values():
            device.load(model, work.max_batch[model.name])
        channels = [channel] + [WorkerChannel(context, start.where, address) for address in start.addresses[1:]]
        for other in channels[1:]:
            other.send(Hello(start.token, os.getpid()))

        def run(index: int) -> None:
            try:
                _executor(channels[index], device, work, first=index == 0)
            except Exception as error:  # noqa: BLE001  whatever it is, the engine must hear of it and the process ends
                channels[index].send(_last_words(error))
                failed.set()
            finally:
                if index:
                    channels[index].close()

        threads = [threading.Thread(target=run, args=(index,)) for index in range(len(channels))]
        for thread in threads:
            thread.daemon = True
            thread.start()
        while any(thread.is_alive() for thread in threads) and not failed.wait(0.2):
            pass
        if failed.is_set():
            # At once, past every clean-up: another thread may be in a vendor call that never returns.
            time.sleep(0.2)  # last words leave
            os._exit(EXIT_FAILED)
    finally:
        if not failed.is_set():
            device.close()


def _executor(channel: WorkerChannel, device: Device, work: ExecutorWork, *, first: bool) -> None:
    from stages.infer import Executor

    executor = Executor(
        device,
        work.models,
        work.frames,
        work.outputs,
        work.max_batch,
        work.device.lanes,
        time.monotonic_ns,
    )
    executor.open()
    meter = Meter(channel, process_wide=first)
    try:
        channel.send(Ready(work.device.lanes, {}))
        poller = zmq.Poller()
        poller.register(channel.socket, zmq.POLLIN)
        if executor.wake_fd is not None:
            poller.register(executor.wake_fd, zmq.POLLIN)
        stopping = False
        since_ns = 0  # when the device began to be busy
        while True:
            busy = executor.free_lanes < work.device.lanes
            if stopping and not busy:
                break
            now_ns = time.monotonic_ns()
            if since_ns:
                meter.busy_ns += now_ns - since_ns
            since_ns = now_ns if busy else 0
            meter.report(now_ns)
            poller.poll(POLL_WITHOUT_FD_MS if busy and executor.wake_fd is None else meter.due_ms(now_ns))
            for raw in executor.finished():
                channel.send(raw)
            message = channel.receive(0)
            while message is not None:
                if isinstance(message, BatchReady):
                    meter.items += len(message.items)
                    for raw in executor.submit(message):
                        channel.send(raw)
                elif isinstance(message, Stop):
                    stopping = True
                message = channel.receive(0)
        meter.report(time.monotonic_ns(), last=True)
        channel.send(Goodbye())
    finally:
        executor.close()

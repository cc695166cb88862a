"""Owns the threads and loops of an executor worker around its stages. Decides nothing."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

from pipeline.runtime.meter import Meter
from pipeline.runtime.work import ExecutorWork, WorkerStart
from pipeline.transport.channel import WorkerChannel
from pipeline.transport.ring_door import RingDoor
from stages.accelerators.accelerator import Device
from stages.messages import BatchReady, CameraAdded, CameraRemoved, Goodbye, Hello, Ready, Stop, WorkerFailed

POLL_WITHOUT_FD_MS = 1
EXIT_FAILED = 4


def run_executors(
    channel: WorkerChannel,
    start: WorkerStart,
    work: ExecutorWork,
    *,
    last_words: Callable[[BaseException], WorkerFailed],
    door: RingDoor,
) -> None:
    """One thread per address. When one of them fails the process ends: they share the device, and the rings."""
    import cv2

    from stages.accelerators.registry import open_device

    cv2.setNumThreads(1)
    plan = work.device
    device = open_device(plan.device, plan.threads, plan.options, executors=plan.executors, lanes=plan.lanes)
    device.open()
    for ring in work.frames.values():
        door.keep(ring, len(start.addresses))
    failed = threading.Event()
    try:
        for model in work.models.values():
            device.load(model, work.max_batch[model.name])
        channels = [channel] + [WorkerChannel(start.where, address) for address in start.addresses[1:]]
        for other in channels[1:]:
            other.send(Hello(start.token, os.getpid()))

        def run(index: int) -> None:
            try:
                _run_executor(channels[index], device, work, door, first=index == 0)
            except Exception as error:  # noqa: BLE001  whatever it is, the engine must hear of it and the process ends
                channels[index].send(last_words(error))
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


def _run_executor(channel: WorkerChannel, device: Device, work: ExecutorWork, door: RingDoor, *, first: bool) -> None:
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
    rings = {camera: ring.name for camera, ring in work.frames.items()}
    try:
        channel.send(Ready(work.device.lanes, {}))
        poller = select.poll()
        poller.register(channel.socket, select.POLLIN)
        if executor.wake_fd is not None:
            poller.register(executor.wake_fd, select.POLLIN)
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
                elif isinstance(message, CameraAdded) and message.ring is not None:
                    camera = message.spec.name
                    executor.add_frames(camera, door.take(*message.ring))
                    door.give_back(rings.get(camera, ""))
                    rings[camera] = message.ring[0]
                elif isinstance(message, CameraRemoved):
                    executor.remove_frames(message.camera)
                    door.give_back(rings.pop(message.camera, ""))
                elif isinstance(message, Stop):
                    stopping = True
                message = channel.receive(0)
        meter.report(time.monotonic_ns(), last=True)
        channel.send(Goodbye())
    finally:
        executor.close()

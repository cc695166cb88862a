"""What the forkserver has loaded is not copied by each worker's garbage collection: it grew each by 10 MB."""

from __future__ import annotations

import gc
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from pipeline.runtime.run_forkserver import RunForkServer
from pipeline.runtime.starting import starting_processes
from pipeline.runtime.supervisor import PRELOAD

ROOM_BYTES = 2 << 20


def collect(there: Connection) -> None:
    process = psutil.Process()
    before = process.memory_full_info().uss
    gc.collect()
    there.send((gc.get_freeze_count(), process.memory_full_info().uss - before))


def test_a_full_collection_in_a_worker_copies_nothing_of_the_forkserver(run_folder: Path) -> None:
    here, there = multiprocessing.Pipe(duplex=False)
    server = RunForkServer(str(run_folder), PRELOAD)
    process = server.process(collect, (there,))
    try:
        with starting_processes():
            process.start()
        there.close()
        assert here.poll(60)
        frozen, grown = here.recv()
    finally:
        process.join(10)
        process.close()
        here.close()
        server.stop()
    assert frozen > 10_000
    assert grown < ROOM_BYTES

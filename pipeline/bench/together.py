"""Owns running pieces of work in a process each, all in the same time, and what they count. Does not own the work."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from pipeline.bench.ceiling import Part
from pipeline.runtime.run_forkserver import RunForkServer
from pipeline.runtime.starting import WORKER_ENVIRONMENT, environment, starting_processes
from stages.errors import CampipeError, UserError

READY_S: Final = 60.0
SOON_NS: Final = 100_000_000  # from the word to the start, so that all start together


@dataclass(frozen=True, slots=True)
class Count:
    """What one process did in its time."""

    frames: int
    cpu_ns: int
    wall_ns: int


Body = Callable[[Callable[[], int]], int]  # gets the start (which gives the end, monotonic), gives its frames


def together(
    name: str, jobs: list[tuple[Callable[..., None], tuple[Any, ...]]], seconds: float, preload: list[str]
) -> Part:
    """Run these in a process each, at the same time; each is given its end of a pipe and calls ``play`` with it.

    ``preload``: modules that all of them need. Raises UserError or CampipeError when one fails.
    """
    folder = tempfile.mkdtemp(prefix="campipe-bench-")
    server = RunForkServer(folder, preload)
    started: list[tuple[Any, Connection]] = []
    try:
        for function, arguments in jobs:
            here, there = multiprocessing.Pipe()
            process = server.process(function, (there, *arguments))
            with starting_processes(), environment(WORKER_ENVIRONMENT):
                process.start()
            there.close()
            started.append((process, here))
        for _, here in started:
            _expect(name, here, READY_S)
        start_ns = time.monotonic_ns() + SOON_NS
        for _, here in started:
            here.send((start_ns, start_ns + int(seconds * 1e9)))
        counts = [_expect(name, here, seconds + READY_S) for _, here in started]
    finally:
        for process, here in started:
            here.close()
            process.join(2)
            process.kill()
            process.join()
            process.close()
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return part_of(name, counts)


def part_of(name: str, counts: list[Count]) -> Part:
    """Rates of processes that ran side by side add up."""
    frames = sum(count.frames for count in counts)
    rate = sum(count.frames * 1e9 / count.wall_ns for count in counts if count.wall_ns > 0)
    return Part(name, rate, sum(count.cpu_ns for count in counts) / 1e6 / max(frames, 1))


def _expect(name: str, here: Connection, timeout_s: float) -> Any:
    try:
        if not here.poll(timeout_s):
            raise CampipeError(f"{name} alone: no answer for {timeout_s:g} s")
        answer = here.recv()
    except EOFError:
        raise CampipeError(f"{name} alone: its process ended") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def play(there: Connection, prepare: Callable[[], tuple[Body, Callable[[], None]]]) -> None:
    """In the process: get ready, wait for the word, count, tell."""
    import cv2

    cv2.setNumThreads(1)
    try:
        body, close = prepare()
        try:
            there.send("ready")
            start_ns, end_ns = there.recv()
            time.sleep(max(0, start_ns - time.monotonic_ns()) / 1e9)
            began_ns, cpu_ns = time.monotonic_ns(), time.process_time_ns()
            frames = body(lambda: end_ns)
            there.send(Count(frames, time.process_time_ns() - cpu_ns, time.monotonic_ns() - began_ns))
        finally:
            close()
    except UserError as error:
        there.send(error)
    except EOFError:
        pass  # whoever asked is gone
    except Exception as error:  # noqa: BLE001  whatever it is, the asker must hear of it
        there.send(CampipeError(f"{type(error).__name__}: {error}"))
    finally:
        there.close()

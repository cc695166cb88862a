"""Owns trying what a plan names before it is run: sources, devices with their models, sinks. Starts no run.

Each source and each device is opened in a short process of its own: what crashes or hangs there is told as a problem of
that source, and nothing is left running.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, TypeVar

from pipeline.models.verify_device import judge
from pipeline.plan import DevicePlan, RunPlan
from pipeline.preflight.rehearsal import Opened, load_models
from pipeline.runtime.isolated import NoAnswer, call_in_process
from pipeline.runtime.starting import stop_forkserver
from pipeline.sinks import build
from stages.camera import CameraSpec
from stages.decode.probe import probe
from stages.decode.source import SourceFacts
from stages.errors import SourceRefused, UserError
from stages.sinks.sink import Checkable, Occupied

FILE_TIMEOUT_S: Final = 15.0
CAMERA_TIMEOUT_MS: Final = 10_000  # to connect, and again for its first picture, unless its own deadlines are shorter
CAMERA_SPARE_S: Final = 5.0  # beyond both: then it hangs in a call that does not return
DEVICE_TIMEOUT_S: Final = 180.0  # on a slow machine: models are loaded and warmed up, then it is tried (WHOLE_S)
AT_ONCE: Final = 4
CAMERAS_AT_ONCE: Final = 16  # they are mostly waited for

A = TypeVar("A")
T = TypeVar("T")


def try_all(plan: RunPlan, *, runs: bool = False) -> tuple[dict[str, SourceFacts], dict[str, Opened], list[str]]:
    """Facts by camera, what was found by device, and the problems of those that are missing from these.

    ``runs``: a run of the same site may have what a device has no more of.
    """
    spawn = multiprocessing.get_context("spawn")
    quick = multiprocessing.get_context("forkserver")  # its processes cost milliseconds once the decoder is loaded
    quick.set_forkserver_preload(["stages.decode.probe"])

    def try_source(camera: CameraSpec) -> SourceFacts:
        if not camera.network:
            return call_in_process(quick, FILE_TIMEOUT_S, probe, camera)
        camera, longest_s = hurried(camera)
        try:
            return call_in_process(quick, longest_s, probe, camera)
        except SourceRefused:
            raise
        except UserError as error:
            raise UserError(f"trying it came to no end ({error.problems[0].partition(';')[0]})") from None

    def try_device(device: DevicePlan) -> Opened:
        batches = {model.name: plan.batch[model.name].max_batch for model in plan.models}
        try:
            opened = call_in_process(spawn, DEVICE_TIMEOUT_S, load_models, device, plan.models, batches, runs=runs)
        except NoAnswer as error:
            raise UserError(no_answer(device.device, error.problems[0])) from None
        lines, problems = held_against_files(plan, device, opened)
        if problems:
            raise UserError.of(problems)
        return replace(opened, facts=(*opened.facts, *lines), raw={})

    try:
        at_once = CAMERAS_AT_ONCE if any(camera.network for camera in plan.cameras) else AT_ONCE
        sources, bad_sources = in_parallel(try_source, {camera.name: camera for camera in plan.cameras}, at_once)
        opened, bad_devices = in_parallel(try_device, {device.device: device for device in plan.devices})
    finally:
        stop_forkserver()
    problems = [f"camera {name}: {problem}" for name, found in bad_sources.items() for problem in found]
    for name, found in bad_devices.items():
        problems += [f"device {name}: {problem.removeprefix(f'device {name}: ')}" for problem in found]
    return sources, opened, problems


def held_against_files(plan: RunPlan, device: DevicePlan, opened: Opened) -> tuple[list[str], list[str]]:
    """A line on each model that the device was run with, how near it comes to its ONNX file, and what is wrong.

    Each in a process of its own: a card's has the vendor's libraries.
    """
    spawn = multiprocessing.get_context("spawn")
    lines: list[str] = []
    problems: list[str] = []
    for model in plan.models:
        if model.name not in opened.raw:
            continue
        raw = opened.raw[model.name]
        try:
            lines.append(f"  {call_in_process(spawn, DEVICE_TIMEOUT_S, judge, model, device.device, raw)}")
        except NoAnswer as error:
            problems += [f"model {model.name}: running its ONNX file on the CPU: {each}" for each in error.problems]
        except UserError as error:
            problems += error.problems
    return lines, problems


def no_answer(device: str, problem: str) -> str:
    """What is told of a device whose trial crashed or hung. ``problem``: how, up to its semicolon."""
    how = problem.partition(";")[0]
    if not device.startswith("ascend:"):
        return f"{how}; is its model's file whole?"
    return (
        f"{how}, in the vendor's runtime: an acl that was built for another numpy or Python, or a driver of another "
        "release, does that; look at npu-smi info and ~/ascend/log, and try `python -c 'import acl; acl.init()'`"
    )


def hurried(camera: CameraSpec) -> tuple[CameraSpec, float]:
    """``camera`` with deadlines for somebody who waits, and the seconds that trying it can take."""
    link = camera.link
    link = replace(
        link,
        open_timeout_ms=min(link.open_timeout_ms, CAMERA_TIMEOUT_MS),
        read_timeout_ms=min(link.read_timeout_ms, CAMERA_TIMEOUT_MS),
        stall_ms=min(link.stall_ms, CAMERA_TIMEOUT_MS),
    )
    longest_ms = link.open_timeout_ms + max(link.read_timeout_ms, link.stall_ms)
    return replace(camera, link=link), longest_ms / 1000 + CAMERA_SPARE_S


def in_parallel(
    function: Callable[[A], T], items: Mapping[str, A], at_once: int = AT_ONCE
) -> tuple[dict[str, T], dict[str, tuple[str, ...]]]:
    """``function`` of each item, a few at a time: results, and problems of those that raised UserError, by name."""
    good: dict[str, T] = {}
    bad: dict[str, tuple[str, ...]] = {}
    with ThreadPoolExecutor(at_once) as pool:
        futures = {name: pool.submit(function, item) for name, item in items.items()}
        for name, future in futures.items():
            try:
                good[name] = future.result()
            except UserError as error:
                bad[name] = error.problems
    return good, bad


def try_sinks(plan: RunPlan) -> tuple[list[str], list[str], list[str]]:
    """A line on each sink, the problems of those that a run could not open, and what is in use just now.

    An address or file in use is no problem when it is the site that is being checked that runs.
    """
    lines = [] if plan.publish is not None else ["publish: off"]
    problems: list[str] = []
    occupied: list[str] = []
    for sink in build(plan):
        if not isinstance(sink, Checkable):
            continue
        try:
            sink.check()
        except Occupied as error:
            lines.append(f"{sink.name}: not now: {'; '.join(error.problems)}")
            occupied += error.problems
        except UserError as error:
            lines.append(f"{sink.name}: can't be used")
            problems += error.problems
        else:
            lines.append(f"{sink.name}: can be used")
    return lines, problems, occupied

"""Owns ``campipe check``: tries every source, model and sink of a site and says whether it fits. Starts no run.

Each source and each device is opened in a short process of its own: what crashes or hangs there is told as a problem of
that source, and nothing is left running.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

from pipeline.commands.options import Subparsers, add_settings, named
from stages.errors import DeviceFailed, SourceRefused, UserError

if TYPE_CHECKING:
    from pipeline.memory_forecast import MemoryForecast
    from pipeline.models.verify_device import Raw
    from pipeline.plan import DevicePlan, RunPlan
    from pipeline.planning import Needs
    from stages.camera import CameraSpec
    from stages.decode.source import SourceFacts
    from stages.model import ModelSpec

FILE_TIMEOUT_S: Final = 15.0
CAMERA_TIMEOUT_MS: Final = 10_000  # to connect, and again for its first picture, unless its own deadlines are shorter
CAMERA_SPARE_S: Final = 5.0  # beyond both: then it hangs in a call that does not return
DEVICE_TIMEOUT_S: Final = 180.0  # on a slow machine: models are loaded and warmed up, then it is tried (WHOLE_S)
AT_ONCE: Final = 4
CAMERAS_AT_ONCE: Final = 16  # they are mostly waited for

T = TypeVar("T")


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "check",
        description="Try a site before it is run: fill in its secrets, open every source and every model, see whether "
        "every sink could be opened, and say what each camera will use of shared memory and processes, how much memory "
        "the run will take, and whether this machine has that. Cameras are connected to, many at a time, and each must "
        "send a picture within 20 s. Every problem is told, not the first one alone. Exit status 0: it can be run; 2: "
        "it can't.",
        epilog="Examples:\n  campipe check site.yaml\n  campipe check site.yaml --set batch.max_batch=4",
    )
    parser.add_argument("site", metavar="SITE", type=named("a site file"), help="the site's YAML file")
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    """Try everything, print what was found, raise UserError with every problem."""
    from pipeline.commands.held import bytes_held_by_run
    from pipeline.commands.outputs import Inputs, judge_outputs
    from pipeline.config import load_site, resolve
    from pipeline.observe import logs
    from pipeline.planning import draft_plan, needs
    from pipeline.transport.memory import available_bytes

    site = load_site(args.site, args.settings)
    inputs = Inputs()
    inputs.add(args.site, "the site's file")
    inputs.add_site(site)
    undo = logs.configure("text", "warning")  # what the plan does otherwise than described
    try:
        plan = draft_plan(resolve(site))
    finally:
        undo()
    runs = runs_now(args.site)
    sources, devices, problems = try_all(plan, runs=runs)
    sinks, bad_sinks, occupied = try_sinks(plan)
    problems += bad_sinks if runs else bad_sinks + occupied
    problems += judge_outputs(inputs, plan, None).problems
    expected = expect(plan, sources, devices)
    # what the run holds now is free for the one that would take its place
    held_bytes = bytes_held_by_run(args.site) if runs else 0
    need = needs(plan, held_bytes or 0)
    lines = [*render(plan, need, sources, devices, expected, judged=held_bytes is not None), *sinks]
    print("\n".join(lines), flush=True)  # noqa: T201 - it is what the command is for
    if held_bytes is None:
        print("what its run holds now can't be told, so whether the memory is enough is not judged")  # noqa: T201
    elif not need.fits:
        problems.append(too_little(need))
    elif expected.all_bytes > (there := available_bytes() + held_bytes):
        problems.append(too_little_memory(expected, there))
    if problems:
        raise UserError.of(problems)
    fits = "" if held_bytes is None else ", and it fits"
    verdict = "runs now, and has what is occupied" if runs and occupied else "can be run"
    print(f"all sources and models work{fits}: this site {verdict}")  # noqa: T201
    return 0


def runs_now(site: str) -> bool:
    """Whether a run of this very site's file can be asked; what is occupied is its own then."""
    from pipeline.control.client import find_socket

    try:
        find_socket(site)
    except UserError as error:
        return "runs fit" in error.problems[0]
    return True


def try_all(plan: RunPlan, *, runs: bool = False) -> tuple[dict[str, SourceFacts], dict[str, Opened], list[str]]:
    """Facts by camera, what was found by device, and the problems of those that are missing from these.

    ``runs``: a run of the same site may have what a device has no more of.
    """
    import multiprocessing

    from pipeline.models.verify_device import judge
    from pipeline.runtime.isolated import NoAnswer, call_in_process
    from pipeline.runtime.starting import stop_forkserver
    from stages.decode.probe import probe

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
        lines: list[str] = []
        for model in plan.models:  # each in a process of its own: a card's has the vendor's libraries
            if model.name in opened.raw:
                raw = opened.raw[model.name]
                lines.append(f"  {call_in_process(spawn, DEVICE_TIMEOUT_S, judge, model, device.device, raw)}")
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


def no_answer(device: str, problem: str) -> str:
    """What is told of a device whose trial crashed or hung. ``problem``: how, up to its semicolon."""
    how = problem.partition(";")[0]
    if not device.startswith("ascend:"):
        return f"{how}; is its model's file whole?"
    return (
        f"{how}, in the vendor's runtime: an acl that was built for another numpy or Python, or a driver of another "
        "release, does that; look at npu-smi info and ~/ascend/log, and try `python -c 'import acl; acl.init()'`"
    )


@dataclass(frozen=True, slots=True)
class Opened:
    """What opening a device and loading its models has shown."""

    took_s: float  # 0: it could not be opened beside the run of the same site
    facts: tuple[str, ...] = ()  # what the device tells of itself
    own_bytes: int = 0  # memory that it takes in its process, every lane in use
    raw: Mapping[str, Raw] = field(default_factory=dict)  # of a card, by model: what it gives for drawn pictures


A = TypeVar("A")


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
    from concurrent.futures import ThreadPoolExecutor

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


def load_models(
    device: DevicePlan, models: Sequence[ModelSpec], batches: Mapping[str, int], *, runs: bool = False
) -> Opened:
    """Open the device, load the models and fill all lanes as executors would. Runs in a process of its own.

    ``runs``: see ``try_all``.
    """
    import os
    import time

    from pipeline.observe.processes import footprint
    from pipeline.rehearsal import NoRoom, Slow, rehearse
    from stages.accelerators.accelerator import Described
    from stages.accelerators.registry import open_device

    before = footprint(os.getpid())
    own_bytes, took_s = 0, 0.0
    began_ns = time.monotonic_ns()
    opened = open_device(device.device, device.threads, device.options, device.executors, lanes=device.lanes)
    problems: list[str] = []
    facts: tuple[str, ...] = ()
    raw: dict[str, Raw] = {}
    try:
        opened.open()
        for model in models:
            try:
                opened.load(model, batches[model.name])
            except UserError as error:
                problems += error.problems
        took_s = (time.monotonic_ns() - began_ns) / 1e9
        if not problems:
            if isinstance(opened, Described):
                facts = tuple(opened.facts())
            if before is not None:
                own_bytes = max(0, rehearse(opened, device, models, batches) - before.own_bytes)
            if device.device.startswith("ascend:"):
                from pipeline.models.verify_device import run_on  # not before: its memory is none of an executor's

                raw = {model.name: run_on(opened, model) for model in models}
    except (NoRoom, Slow, DeviceFailed) as error:
        if isinstance(error, DeviceFailed) and not runs:
            raise
        # no offence at what the run of the same site has of it, nor at slowness
        facts = (*facts, f"{device.device}: not tried with all lanes, and its memory is not known: {error}")
    finally:
        opened.close()
    if problems:
        raise UserError.of(problems)
    return Opened(took_s, facts, own_bytes, raw)


def expect(plan: RunPlan, sources: Mapping[str, SourceFacts], opened: Mapping[str, Opened]) -> MemoryForecast:
    """The memory that a run of the plan will take."""
    from pipeline.memory_forecast import forecast

    return forecast(plan, sources, {name: found.own_bytes for name, found in opened.items()})


def render(
    plan: RunPlan,
    need: Needs,
    sources: Mapping[str, SourceFacts],
    opened: Mapping[str, Opened],
    expected: MemoryForecast,
    *,
    judged: bool = True,
) -> list[str]:
    """The tables: cameras, models, devices, totals. ``judged``: whether it fits is known."""
    from pipeline.observe.figures import size
    from pipeline.observe.logs import printable
    from pipeline.observe.summary import align

    rings = {ring.name: ring for ring in need.rings}
    cameras = [("camera", "picture", "fps", "codec", "frames", "model", "slots", "shared", "processes")]
    for camera in plan.cameras:
        ring = rings[f"frames/{camera.name}"]
        facts = sources.get(camera.name)
        cameras.append(
            (
                printable(camera.name),
                f"{facts.width}x{facts.height}" if facts else "-",
                (f"{facts.fps:.2f}".rstrip("0").rstrip(".") if facts.fps else "?") if facts else "-",
                printable(facts.codec) if facts else "can't be used",
                _frames(camera, facts),
                camera.model,
                str(ring.slots),
                size(ring.shared_bytes),
                "1",
            )
        )
    models = [("model", "input", "batch", "layout", "classes", "slots", "shared")]
    for model in plan.models:
        ring = rings[f"outputs/{model.name}"]
        batch = plan.batch[model.name].max_batch
        models.append(
            (
                printable(model.name),
                f"{model.width}x{model.height}",
                f"{batch}" if model.fixed_batch else f"up to {batch}",
                model.layout,
                str(len(model.labels)),
                str(ring.slots),
                size(ring.shared_bytes),
            )
        )
    devices = [("device", "executors", "lanes", "threads", "models loaded in")]
    for device in plan.devices:
        found = opened.get(device.device)
        loaded = f"{found.took_s:.1f} s" if found is not None and found.took_s else "not tried"
        state = loaded if found is not None else "can't be used"
        devices.append((device.device, str(device.executors), str(device.lanes), str(device.threads), state))
    processes = (
        f"1 engine + {need.decode_processes} decode + {need.executor_processes} executor + {need.nms_processes} nms"
    )
    verdict = f": {'fits' if need.fits else 'does not fit'}" if judged else ""
    parts = ", ".join(f"{kind} {size(held)}" for kind, held in expected.kinds.items())
    return [
        *align(cameras, left=(0, 3, 5)),
        "",
        *align(models, left=(0, 3)),
        "",
        *align(devices, left=(0, 4)),
        *(
            printable(fact)
            for device in plan.devices
            if device.device in opened
            for fact in opened[device.device].facts
        ),
        "",
        f"processes: {processes} = {need.processes}",
        f"memory of processes: about {size(expected.own_bytes)} ({parts})",
        f"shared memory: {size(need.shared_bytes)} needed, {size(need.usable_bytes)} available{verdict}",
    ]


def _frames(camera: CameraSpec, facts: SourceFacts | None) -> str:
    if facts is None:
        return "-"
    if camera.network:
        return "live"
    return "?" if facts.frames is None else str(facts.frames)


def too_little(need: Needs) -> str:
    """The refusal of a site that does not fit."""
    from pipeline.observe.figures import size

    largest = max(need.rings, key=lambda ring: ring.shared_bytes)
    return (
        f"too little shared memory: {size(need.shared_bytes)} needed, {size(need.usable_bytes)} available; the largest "
        f"part is {largest.name} with {size(largest.shared_bytes)}; use fewer cameras, a smaller batch.max_batch, a "
        "smaller model, or more memory"
    )


def too_little_memory(expected: MemoryForecast, available_bytes: int) -> str:
    """The refusal of a site whose processes do not fit beside its shared memory."""
    from pipeline.observe.figures import size

    largest = max(expected.kinds, key=lambda kind: expected.kinds[kind])
    return (
        f"too little memory: about {size(expected.own_bytes)} of processes and {size(expected.shared_bytes)} of shared "
        f"memory are needed, {size(available_bytes)} available; the largest part is {largest} with "
        f"{size(expected.kinds[largest])}; use fewer cameras, smaller pictures, or more memory"
    )


def try_sinks(plan: RunPlan) -> tuple[list[str], list[str], list[str]]:
    """A line on each sink, the problems of those that a run could not open, and what is in use just now.

    An address or file in use is no problem when it is the site that is being checked that runs.
    """
    from pipeline.sinks import build
    from stages.sinks.sink import Checkable, Occupied

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

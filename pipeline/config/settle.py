"""Owns what is settled once a site's keys are sound: paths made absolute, clashes refused. Opens no file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.config.problems import Problems
from pipeline.config.site import DeviceConfig, SinkConfig, SiteSettings
from pipeline.config.sources import NOT_UTF8, absolute, is_there, is_utf8
from pipeline.yaml import Node, Place, Step
from stages.accelerators.registry import check_name
from stages.errors import UserError
from stages.sinks.address import parse_address

IPC = "ipc://"


def settle(settings: SiteSettings, root: Node, problems: Problems) -> SiteSettings:
    """``settings`` with absolute paths, each relative to the file that states it; ``root`` knows which that is."""
    _check_devices(settings.devices, root, problems)
    changes: dict[str, Any] = {"sinks": _sinks(settings.sinks, root, problems)}
    limits = settings.limits
    if limits.quarantine is not None:
        place = _place(root, "limits", "quarantine")
        path = absolute(limits.quarantine, place.folder)
        if is_there(path) and not is_there(path, folder=True):
            problem = "is a file; name a folder"
            problems.add(place, "limits.quarantine", problem, limits.quarantine)
        changes["limits"] = limits.model_copy(update={"quarantine": str(path)})
    control = settings.control
    if control is not None and control.socket is not None:
        path = absolute(control.socket, _place(root, "control", "socket").folder)
        changes["control"] = control.model_copy(update={"socket": str(path)})
    publish = settings.publish
    if publish is not None and publish.bind.startswith(IPC) and publish.bind[len(IPC)] not in "@*":
        place = _place(root, "publish", "bind")
        bind = f"{IPC}{absolute(publish.bind.removeprefix(IPC), place.folder)}"
        try:
            parse_address(bind, bind=True)
        except UserError as error:
            problems.add(place, "publish.bind", error.problems[0])
        changes["publish"] = publish.model_copy(update={"bind": bind})
    return settings.model_copy(update=changes)


def _place(root: Node, *path: Step) -> Place:
    return root.nearest(path).place


def _check_devices(devices: Sequence[DeviceConfig], root: Node, problems: Problems) -> None:
    seen: dict[str, Place] = {}
    for index, each in enumerate(devices):
        place = _place(root, "devices", index, "device")
        try:
            check_name(each.device)
        except UserError as error:
            problem = error.problems[0].removeprefix(f"device {each.device}: ")
            problems.add(place, f"devices[{index}].device", problem, each.device)
        if each.device in seen:
            problem = f"is the device at {seen[each.device]} too; keep one and raise its executors"
            problems.add(place, f"devices[{index}].device", problem, each.device)
        seen.setdefault(each.device, place)


def _sinks(sinks: Sequence[SinkConfig], root: Node, problems: Problems) -> tuple[SinkConfig, ...]:
    settled: list[SinkConfig] = []
    seen: dict[str, Place] = {}
    for index, sink in enumerate(sinks):
        place = _place(root, "sinks", index, "jsonl", "path")
        path = absolute(sink.jsonl.path, place.folder)
        key = f"sinks[{index}].jsonl.path"
        if not is_utf8(path):
            problems.add(place, key, NOT_UTF8, sink.jsonl.path)
        elif sink.jsonl.path == "-":
            problems.add(place, key, "has no meaning here; write /dev/stdout for the standard output", "-")
        elif str(path) in seen:
            problem = f"is written by the sink at {seen[str(path)]} too; change one of them"
            problems.add(place, key, problem, sink.jsonl.path)
        elif is_there(path, folder=True):
            problems.add(place, key, "is a folder; name a file in it", sink.jsonl.path)
        seen.setdefault(str(path), place)
        settled.append(sink.model_copy(update={"jsonl": sink.jsonl.model_copy(update={"path": str(path)})}))
    return tuple(settled)

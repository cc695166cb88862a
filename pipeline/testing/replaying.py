"""Owns replay for tests: recordings in, typed results out, no process started, nothing published or written.

Does not own the graph: configuration, plan and engine are those of ``campipe replay --in-process``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pipeline.report import RunReport
from stages.errors import CampipeError
from stages.messages import Detections, LedgerEntry, Status

Clip: TypeAlias = str | Path
Clips: TypeAlias = Clip | Sequence[Clip] | Mapping[str, Clip]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay gave. ``detections``: by camera, each in order; a camera without any has an empty list."""

    detections: dict[str, list[Detections]]
    statuses: list[Status]
    ledger: dict[str, LedgerEntry]
    report: RunReport

    def __iter__(self) -> object:
        raise TypeError("iterate over .detections[camera], .statuses or .ledger of what replay() gives")


def replay(
    clips: Clips = (),
    model: str | None = None,
    site: Clip | None = None,
    overrides: Sequence[str] = (),
    device: str | None = None,
    *,
    max_frames: int | None = None,
    check: bool = True,
    **camera_settings: object,
) -> Replayed:
    """Run recordings through the graph in this process; the same input gives the same result each time.

    Without ``site`` each clip plays a camera called after it (``street.mp4``: ``street``, a second one ``street-2``).
    With ``site``, the path of a site file, ``clips`` says which clip plays which of its cameras: ``{"gate-1": path}``;
    cameras not named play what the site says. Its sinks and its address are not used.

    ``model``: name or path of a description. ``device``: cpu by default, or what the site says. ``overrides``: texts
    ``KEY=VALUE`` as ``--set`` takes them. ``max_frames``: of each clip named here. Other keywords are settings of every
    camera: ``confidence=0.5, classes=["person"]``. Raises UserError for mistakes, and CampipeError when the run fails,
    unless ``check`` is False.
    """
    from pipeline.config import load_site, replay_site, resolve
    from pipeline.inprocess import run
    from pipeline.planning import make_plan
    from stages.sinks.collect import CollectSink

    if site is None:
        if isinstance(clips, Mapping):
            raise TypeError("clips by camera need a site that has these cameras; give a list of clips, or site=PATH")
        listed = [clips] if isinstance(clips, str | Path) else list(clips)
        settings = _settings(_names(listed), camera_settings)
        chosen = replay_site(listed, model, device or "cpu", max_frames=max_frames, overrides=[*settings, *overrides])
    else:
        if not isinstance(clips, Mapping) and clips != ():
            raise TypeError("with a site, clips must say which camera each one plays: {'gate-1': 'clip.mp4'}")
        named = clips if isinstance(clips, Mapping) else {}
        played = _played(named, max_frames)
        chosen = load_site(site, [*played, *overrides])
        settings = _settings([camera.name for camera in chosen.cameras], _of_site(model, camera_settings))
        if settings or device is not None:
            devices = [] if device is None else [f"devices={_yaml([{'device': device}])}"]
            chosen = load_site(site, [*devices, *settings, *played, *overrides])
    collected = CollectSink()
    report = run(make_plan(resolve(chosen), in_process=True), sinks=[collected])
    if check and report.exit_status != 0:
        failed = [f"{name}: {camera.cause} {camera.detail}" for name, camera in report.cameras.items() if _bad(camera)]
        raise CampipeError("the replay failed: " + ("; ".join([*report.problems, *failed]) or "see its report"))
    found = collected.detections
    return Replayed(
        detections={name: found.get(name, []) for name in report.cameras},
        statuses=collected.statuses,
        ledger={name: camera.ledger for name, camera in report.cameras.items()},
        report=report,
    )


def _bad(camera: object) -> bool:
    return getattr(camera, "state", "") == "failed" or not getattr(camera, "exact", True)


def _names(clips: Sequence[Clip]) -> list[str]:
    from pipeline.config.replay import clip_name, unique_names

    return unique_names([clip_name(str(clip)) for clip in clips])


def _played(clips: Mapping[str, Clip], max_frames: int | None) -> list[str]:
    """Settings that let a clip play a camera's part: every frame, none dropped, as fast as possible, once."""
    from pipeline.config.secrets import escape_variables

    settings: list[str] = []
    for camera, clip in clips.items():
        url = str(clip) if str(clip).startswith("asset:") else str(Path(clip).absolute())
        source = {"url": escape_variables(url)} | ({} if max_frames is None else {"max_frames": max_frames})
        settings += [f"camera.{camera}.source={_yaml(source)}", f"camera.{camera}.live.policy=lossless"]
    return settings


def _of_site(model: str | None, settings: Mapping[str, object]) -> dict[str, object]:
    return dict(settings) if model is None else {"model": model, **settings}


def _settings(cameras: Sequence[str], settings: Mapping[str, object]) -> list[str]:
    return [f"camera.{camera}.{key}={_yaml(value)}" for camera in cameras for key, value in settings.items()]


def _yaml(value: object) -> str:
    """JSON is YAML; paths and tuples become text and lists."""
    return json.dumps(value, default=str, ensure_ascii=False)

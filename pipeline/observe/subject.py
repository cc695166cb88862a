"""Owns what a log record says of its subject: ``extra=`` for a worker, a camera or a frame. Logs nothing itself."""

from __future__ import annotations


def about(
    camera: str | None = None, stage: str | None = None, epoch: int | None = None, seq: int | None = None
) -> dict[str, str | int]:
    """What is known of it, as ``extra=`` takes it (see ``logs.SUBJECT``)."""
    fields = {"camera": camera, "stage": stage, "epoch": epoch, "seq": seq}
    return {name: value for name, value in fields.items() if value is not None}


def about_worker(name: str, epoch: int | None = None) -> dict[str, str | int]:
    """Of a worker: ``decode/gate-1`` is the stage *decode* of the camera *gate-1*, ``nms/0`` the stage *nms*."""
    stage, _, rest = name.partition("/")
    return about(rest if stage == "decode" else None, stage, epoch)

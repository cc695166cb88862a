"""Owns what this machine or container must have before any call to a card can work. Reads files, makes no call.

Asked when a device can't be opened: the vendor's codes for a missing driver, a container without the card's files and
a user without permission are one and the same.
"""

from __future__ import annotations

import grp
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from stages.accelerators.ascend.importing import HOMES, INSTALLED

MANAGING: Final = ("davinci_manager", "devmm_svm", "hisi_hdc")  # beside davinci0, davinci1, …
GROUP: Final = "HwHiAiUser"
_CARD: Final = re.compile(r"v?davinci\d+")  # v: a part of a chip
_VERSION: Final = re.compile(r"^Version=(.+)$", re.MULTILINE)

MayUse = Callable[[Path], bool]


def _may_use(file: Path) -> bool:
    return os.access(file, os.R_OK | os.W_OK)


def missing_here(root: Path = Path("/"), may_use: MayUse = _may_use) -> list[str]:
    """What is missing, each with its remedy; empty when everything is there that can be seen from outside."""
    try:
        names = {file.name for file in (root / "dev").iterdir()}
    except OSError:
        return []
    cards = sorted(name for name in names if _CARD.fullmatch(name))
    files = ", ".join(f"/dev/{name}" for name in ("davinci0", *MANAGING))
    if not cards:
        why = "the driver is not loaded (npu-smi info, dmesg), or the container was started without the card"
        way = f"ASCEND_VISIBLE_DEVICES with Ascend Docker Runtime, or --device for {files}"
        return [f"there is no /dev/davinci0 here: {why} ({way})"]
    problems = []
    absent = [f"/dev/{name}" for name in MANAGING if name not in names]
    if absent:
        problems.append(
            f"{', '.join(absent)} is not here: start the container with --device for {files}, or load the driver"
        )
    barred = [name for name in (*cards, *MANAGING) if name in names and not may_use(root / "dev" / name)]
    if barred:
        group = _group_of(root / "dev" / barred[0])
        problems.append(
            f"this user may not use {', '.join(f'/dev/{name}' for name in barred)}: let it be in the group {group} "
            f"(usermod -aG {group} USER, then log in again; SupplementaryGroups={group} in a systemd unit)"
        )
    if not (root / INSTALLED / "driver").exists() and not (root / "etc/ascend_install.info").exists():
        problems.append(f"there is no /{INSTALLED}/driver here: install the driver, or mount it into the container")
    return problems


def _group_of(file: Path) -> str:
    try:
        name = grp.getgrgid(file.stat().st_gid).gr_name
    except (OSError, KeyError):
        return GROUP
    return name if name != "root" else GROUP


def versions_here(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """``driver 24.1.rc3, CANN in /usr/local/Ascend/…``: what must belong together; what is not known is left out."""
    parts = []
    try:
        told = _VERSION.search((root / INSTALLED / "driver/version.info").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        told = None
    if told is not None:
        parts.append(f"driver {told[1].strip()[:40]}")
    home = next((environ[name] for name in HOMES if environ.get(name)), "")
    if home:
        parts.append(f"CANN in {os.path.realpath(home) if root == Path('/') else home}")
    return ", ".join(parts)

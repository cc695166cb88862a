"""Owns the names of inference devices. Does not own any device: its module is imported when it is asked for."""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Mapping

from stages.accelerators.accelerator import Device
from stages.errors import UserError
from stages.stage import MonotonicClock

NAMES = ("cpu", "ascend:0", "ascend-sim:0", "canned:0")  # as a user may write them, for messages
INDEXED_KINDS = ("canned", "ascend", "ascend-sim")
_INDEXED = re.compile(r"(?P<kind>[a-z-]+):(?P<index>\d{1,4})")


def open_device(
    name: str,
    threads: int,
    options: Mapping[str, str],
    executors: int = 1,
    clock_ns: MonotonicClock = time.monotonic_ns,
    *,
    lanes: int = 2,
) -> Device:
    """The device called ``name``, not yet opened: the caller opens and closes it.

    ``threads``: of the device's own runtime, per executor. ``executors``: how many LaneSets will be asked for,
    ``lanes`` how many lanes each of them has: what a device reserves when it loads models; more can be asked for later.
    Raises UserError for a name or an option that does not exist.
    """
    check_name(name)
    if threads < 1 or executors < 1:
        raise UserError(f"device {name}: threads is {threads} and executors is {executors}; give 1 or more of each")
    if name == "cpu":
        unknown = sorted(set(options) - {"fold"})
        if unknown:
            raise UserError(f"device cpu: it has no option {', '.join(unknown)}; leave it out (it has: fold)")
        from stages.accelerators.fold import fold_mode
        from stages.accelerators.onnx import OnnxDevice

        return OnnxDevice(threads, executors, clock_ns, fold_mode(options.get("fold", "auto")))
    if name.startswith("ascend"):
        from stages.accelerators.ascend.device import AscendDevice
        from stages.accelerators.ascend.options import ascend_options

        simulated = name.startswith("ascend-sim:") or os.environ.get("CAMPIPE_ACL") == "simulated"
        return AscendDevice(name, ascend_options(name, options, simulated=simulated), executors, lanes, clock_ns)
    from stages.accelerators.canned import CannedDevice, canned_options

    return CannedDevice(canned_options(name, options), clock_ns)


def check_name(name: str) -> None:
    """Raise UserError unless there is a device of this name in this version. Imports nothing."""
    match = _INDEXED.fullmatch(name)
    kind = match["kind"] if match else name
    if name == "cpu" or (match and kind in INDEXED_KINDS):
        return
    close = difflib.get_close_matches(name.lower()[:40], (*NAMES, *INDEXED_KINDS), 1)
    meant = f"{close[0]}:0" if close and close[0] in INDEXED_KINDS else close[0] if close else ""
    hint = f"did you mean `{meant}`?" if meant else f"devices are {', '.join(f'`{n}`' for n in NAMES)}"
    raise UserError(f"device {name[:80]!r} does not exist; {hint}")

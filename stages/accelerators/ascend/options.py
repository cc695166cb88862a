"""Owns the options of ``ascend:N`` and ``ascend-sim:N`` as users write them. Does not own what they do."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from stages.accelerators.aclsim.own_files import check_state, check_trace
from stages.errors import UserError

Variant = Literal["A", "B"]
SIM_ONLY = frozenset(
    (
        "service_ms",
        "pcie_gb_s",
        "copy_ms",
        "compute",
        "clock",
        "memory_mb",
        "leak_bytes_per_run",
        "faults",
        "state_path",
        "trace",
    )
)


@dataclass(frozen=True, slots=True)
class AscendOptions:
    """Options of a device.

    ``variant``: B, streams by kind of work (upload, compute, download) with events between them; A, one stream and one
    instance of the model per set of buffers. ``buffers``: sets of buffers on the device per executor; None: one per
    lane. ``overlap``: off lets one batch through at a time, for comparison. ``hang_ms``: a batch that has not ended
    after so long means that the device hangs. ``sample_every``: batches between two looks at free memory, 0 for none.
    ``check``: the sanitizer looks at every call; None: on with the simulator, off with the vendor's module.

    For the simulator alone: ``service_ms`` batch -> milliseconds of device time; ``pcie_gb_s``, ``copy_ms`` what copies
    take; ``compute``: run the ONNX file or answer without; ``clock``; ``memory_mb`` of the device; ``faults``: scripts,
    several with ``;``; ``state_path``: a file in which faults that happen ``once`` are noted, across processes;
    ``trace``: a file that gets the Chrome trace of the streams.
    """

    variant: Variant = "B"
    buffers: int | None = None
    overlap: bool = True
    hang_ms: int = 15_000
    sample_every: int = 500
    check: bool | None = None
    service_ms: tuple[tuple[int, float], ...] = ()
    pcie_gb_s: float = 12.0
    copy_ms: float | None = None
    compute: Literal["onnx", "canned"] = "onnx"
    clock: Literal["real", "virtual"] = "real"
    memory_mb: int | None = None
    leak_bytes_per_run: int = 0
    faults: tuple[str, ...] = ()
    state_path: str = ""
    trace: str = ""


def ascend_options(device: str, options: Mapping[str, str], *, simulated: bool) -> AscendOptions:
    """Read the options of ``device``. Raises UserError with all that is wrong."""
    known = [field.name for field in fields(AscendOptions)]
    values: dict[str, Any] = {}
    problems = []
    for key, text in options.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}"
            problems.append(f"device {device}: there is no option {key}; {hint}")
        elif key in SIM_ONLY and not simulated:
            problems.append(f"device {device}: {key} is for the simulator; leave it out, or use ascend-sim:0")
        else:
            try:
                values[key] = _READERS[key](text.strip())
            except ValueError as error:
                problems.append(f"device {device}: {key} is {text!r}; {error}")
    if problems:
        raise UserError.of(problems)
    return AscendOptions(**values)


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"give {' or '.join(words)}")
        return text

    return read


def _file(check: Callable[[str, str], None]) -> Callable[[str], str]:
    def read(text: str) -> str:
        try:
            check(text, "")
        except UserError as error:
            raise ValueError(error.problems[0].removeprefix(f": {text} ").removeprefix(f": {text}: ")) from None
        return text

    return read


def _switch(text: str) -> bool:
    if text in ("on", "true"):  # YAML's on may have become true
        return True
    if text in ("off", "false"):
        return False
    raise ValueError("give on or off")


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or not least <= int(text[:12]) <= most:
            raise ValueError(f"give a whole number from {least} to {most}")
        return int(text)

    return read


def _number(least: float, most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not least <= number <= most:
            raise ValueError(f"give a number from {least:g} to {most:g}")
        return number

    return read


def _service_table(text: str) -> tuple[tuple[int, float], ...]:
    remedy = "give ascending pairs like 1=5.2,4=12.8,8=23.5 (batch size=milliseconds)"
    table: list[tuple[int, float]] = []
    for pair in text.split(","):
        size, _, time_ms = pair.replace(":", "=").partition("=")
        if not size.strip().isdecimal() or int(size) <= (table[-1][0] if table else 0):
            raise ValueError(remedy)
        try:
            table.append((int(size), float(time_ms)))
        except ValueError:
            raise ValueError(remedy) from None
        if not 0 <= table[-1][1] < 1e6:
            raise ValueError(remedy)
    return tuple(table)


def _faults(text: str) -> tuple[str, ...]:
    return tuple(script for part in text.split(";") if (script := part.strip()))


_READERS: dict[str, Callable[[str], Any]] = {
    "variant": lambda text: _one_of("A", "B")(text.upper()),
    "buffers": _whole(1, 8),
    "overlap": _switch,
    "hang_ms": _whole(10, 3_600_000),
    "sample_every": _whole(0, 1_000_000_000),
    "check": _switch,
    "service_ms": _service_table,
    "pcie_gb_s": _number(0.001, 1000),
    "copy_ms": _number(0, 10_000),
    "compute": _one_of("onnx", "canned"),
    "clock": _one_of("real", "virtual"),
    "memory_mb": _whole(4, 10_000_000),
    "leak_bytes_per_run": _whole(0, 1 << 30),
    "faults": _faults,
    "state_path": _file(check_state),
    "trace": _file(check_trace),
}

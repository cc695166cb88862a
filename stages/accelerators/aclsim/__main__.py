"""Owns ``python -m stages.accelerators.aclsim script.py``: a user's pyACL script on a simulated card, with a report.

Does not own what is checked (``checker``) nor how the card behaves (``machine``). The script runs as ``__main__`` with
``acl`` in ``sys.modules`` replaced, so that it needs neither a card nor CANN. Child processes made by ``spawn`` import
their modules anew and do not see the replacement.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from stages.accelerators.aclsim import SimOptions, Simulation, Violation, simulate
from stages.accelerators.aclsim.own_files import check_trace
from stages.errors import UserError

PROGRAM = "python -m stages.accelerators.aclsim"
MIB = 1 << 20
MOST_MS = 1e6
REFUSED, VIOLATED, INTERRUPTED = 2, 1, 130
TEXT = """Run a pyACL script on a simulated Ascend card that checks every call. The report goes to stderr.
exit status: 1 when a rule was violated, else the script's own; 2 when the command line is wrong"""
FAULTS = 'make something fail, as "fail the 7th execute_async with 507018", "hang the 3rd execute_async"'


class _Parser(argparse.ArgumentParser):
    """Refuses in one line."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{PROGRAM}: {message}; see --help\n")
        sys.exit(REFUSED)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = _Parser(prog=PROGRAM, description=TEXT, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--devices", type=int, default=1, metavar="N", help="devices of the machine (1)")
    made.add_argument("--soc", default=SimOptions.soc, help=f"what the devices are ({SimOptions.soc})")
    made.add_argument("--memory-mb", type=int, default=SimOptions.memory_bytes // MIB, metavar="N", help="per device")
    made.add_argument("--service", type=service_table, metavar="1=5.2,4=12.8", help="milliseconds of a run by batch")
    made.add_argument("--clock", choices=("virtual", "real"), default="virtual", help="virtual: no time passes")
    made.add_argument("--compute", choices=("onnx", "canned"), default="onnx", help="canned: runs answer at once")
    made.add_argument("--fault", action="append", default=[], metavar="TEXT", help=f"{FAULTS}; may be repeated")
    made.add_argument("--collect", action="store_true", help="do not raise at a violation: go on as a card would")
    made.add_argument("--json", action="store_true", help="the report as one JSON line, the last of stdout")
    made.add_argument("--trace", type=Path, metavar="FILE", help="write what ran when, for chrome://tracing")
    made.add_argument("script", type=Path)
    made.add_argument("arguments", nargs=argparse.REMAINDER, metavar="args…", help="of the script")
    return made


def service_table(text: str) -> dict[int, float]:
    """``1=5.2,4=12.8`` as a table: batches of 1 or more, milliseconds of 0 or more. Raises ArgumentTypeError."""
    try:
        pairs = [pair.split("=") for pair in text.split(",")]
        table = {int(batch): float(time_ms) for batch, time_ms in pairs}
    except ValueError:
        table = {}
    if not table or len(table) < len(pairs) or min(table) < 1 or not all(0 <= ms <= MOST_MS for ms in table.values()):
        remedy = f"give each batch of 1 or more once, with milliseconds from 0 to {MOST_MS:g}, as 1=5.2,4=12.8"
        raise argparse.ArgumentTypeError(f"{text!r} is no table; {remedy}")
    return table


def main(arguments: Sequence[str]) -> int:
    """Run the script; the exit status that it asked for. ``_Run`` says at the end of the process how it went."""
    parsed = parser().parse_args(arguments)
    try:
        if parsed.trace is not None:
            check_trace(str(parsed.trace), "--trace")
        source = parsed.script.read_bytes()
        code = compile(source, str(parsed.script), "exec", dont_inherit=True)
        simulation = simulate(
            SimOptions(
                devices=parsed.devices,
                soc=parsed.soc,
                memory_bytes=parsed.memory_mb * MIB,
                service=parsed.service,
                clock=parsed.clock,
                compute=parsed.compute,
                faults=tuple(parsed.fault),
                lenient=parsed.collect,
            )
        )
    except (UserError, OSError, SyntaxError, ValueError) as error:
        told = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return refused(f"{parsed.script}: {told}" if isinstance(error, (OSError, SyntaxError)) else told)
    sys.modules["acl"] = simulation.acl
    run = _Run(simulation, as_json=parsed.json, trace=parsed.trace)
    atexit.register(run.end)  # first in, last out: after the script's own hooks
    threading.excepthook = lambda failed: run.failed(failed.exc_value, failed.exc_traceback)
    sys.argv = [str(parsed.script), *parsed.arguments]
    sys.path[0] = str(parsed.script.resolve().parent)
    main_module = ModuleType("__main__")
    main_module.__file__ = str(parsed.script)
    sys.modules["__main__"] = main_module
    try:
        exec(code, main_module.__dict__)  # noqa: S102  the user's own script is what this program is for
    except SystemExit as error:
        run.status = exit_status(error)
    except KeyboardInterrupt:
        run.status = INTERRUPTED
    except BaseException as error:  # noqa: BLE001  told as Python itself tells it
        run.failed(error, error.__traceback__)
        run.status = 1
    return run.status


def refused(message: str) -> int:
    """Tell in one line what is wrong with the command line."""
    sys.stderr.write(f"{PROGRAM}: {' '.join(message.split())}\n")
    return REFUSED


def exit_status(error: SystemExit) -> int:
    """As Python does it: text goes to stderr and counts as 1."""
    if error.code is None or isinstance(error.code, int):
        return int(error.code or 0)
    sys.stderr.write(f"{error.code}\n")
    return 1


class _Run:
    """What is told at the end of the process, when the script's threads and its exit hooks have run."""

    def __init__(self, simulation: Simulation, *, as_json: bool, trace: Path | None) -> None:
        self.status = 0
        self._simulation = simulation
        self._as_json = as_json
        self._trace = trace
        self._process = os.getpid()

    def failed(self, error: BaseException | None, trace: TracebackType | None) -> None:
        """Tell an exception; a violation ends the process at once, with the report: others may wait for the thread."""
        if isinstance(error, Violation):
            self.end()
        if error is None or isinstance(error, (Violation, SystemExit)):
            return
        while trace and Path(trace.tb_frame.f_code.co_filename) == Path(__file__):
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)

    def end(self) -> None:
        """Close the simulation, write the report, and let a violation be the status of the process."""
        in_child = os.getpid() != self._process  # forked by the script: its own part of the story
        self._simulation.close()
        checker = self._simulation.checker
        violations: list[Violation] = list(checker.violations)
        if self._as_json and not in_child:
            sys.stdout.write(f"{json.dumps(as_data(violations, self.status), ensure_ascii=False)}\n")
        elif violations or not in_child:
            sys.stderr.write(f"{checker.report().rstrip()}\n")
        if self._trace and not in_child:
            try:
                self._trace.write_text(json.dumps(self._simulation.machine.trace.chrome()), encoding="utf-8")
            except OSError as error:
                refused(f"--trace {self._trace}: {error.strerror}")
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        if any(not violation.warning for violation in violations):
            os._exit(VIOLATED)  # an exit hook has no other way to say so


def as_data(violations: Sequence[Violation], status: int) -> dict[str, Any]:
    """The report as data."""
    told = [
        {
            "kind": type(violation).__name__,
            "warning": violation.warning,
            "call": violation.call,
            "message": violation.message,
            "where": violation.where,
            "other_where": violation.other_where,
            "remedy": violation.remedy,
        }
        for violation in violations
    ]
    return {"script_status": status, "violations": told}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

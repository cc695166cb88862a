"""Owns one run of an engine from the command line: logs, view, signals, report, summary. Does not own the engine."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from pipeline.commands.report import ReportFile
from stages.errors import CampipeError, UserError

if TYPE_CHECKING:
    from pipeline.observe.live import ViewKind
    from pipeline.observe.snapshot import EngineSnapshot
    from pipeline.plan import RunPlan
    from pipeline.report import RunReport
    from stages.sinks.sink import Sink

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stoppable(Protocol):
    """What a signal needs of an engine."""

    def request_stop(self, reason: str) -> None:
        """The first time: drain; the second time: at once."""


class Runnable(Stoppable, Protocol):
    """An engine: over processes or in one."""

    def run(self) -> RunReport:
        """Run until the cameras end or a stop was asked for."""


def run_to_end(args: argparse.Namespace, make: Callable[[], RunPlan], *, wait_subscribers: int = 0) -> int:
    """Make the plan, run it, show what is asked for, and give the exit status.

    The report is written whatever happens, a refusal included: an old report beside a new exit status would mislead.
    """
    from pipeline.observe import logs

    report_file = ReportFile(args.report) if args.report else None
    if report_file is not None:
        report_file.check()
    undo = logs.configure(args.log_format, args.log_level)
    try:
        plan = make()
        report = run_engine(
            plan,
            view=args.view,
            every_s=args.every_s,
            in_process=args.in_process,
            wait_subscribers=wait_subscribers,
        )
    except BaseException as error:
        if report_file is not None:
            with contextlib.suppress(OSError):  # what failed before is the thing to tell
                report_file.write(_failure(error))
        raise
    finally:
        undo()
    show(report)
    if report_file is not None:
        _write(report_file, report)
    return report.exit_status


def run_engine(
    plan: RunPlan,
    *,
    view: ViewKind = "auto",
    every_s: float = 5.0,
    in_process: bool = False,
    wait_subscribers: int = 0,
) -> RunReport:
    """Run the plan with its sinks, stopped by signals, shown by ``view``, begun when so many subscribers are there."""
    from pipeline.commands.gate import SubscriberGate
    from pipeline.observe import logs
    from pipeline.observe.live import make_view
    from pipeline.sinks import build

    for camera in plan.cameras:
        logs.register_secret(camera.password or "")
    shown = make_view(view, every_s)
    sinks: list[Sink] = list(build(plan))
    gate = SubscriberGate(sinks, wait_subscribers)
    if wait_subscribers:
        sinks.insert(0, gate)

    def on_snapshot(snapshot: EngineSnapshot) -> None:
        if snapshot.stopping:
            gate.let_through()
        shown.update(snapshot)

    engine: Runnable
    if in_process:
        from pipeline.inprocess import InProcessEngine

        engine = InProcessEngine(plan, sinks, on_snapshot)
    else:
        from pipeline.engine import Engine

        engine = Engine(plan, sinks, on_snapshot)
    with stop_on_signals(engine), shown:
        return engine.run()


@contextlib.contextmanager
def stop_on_signals(engine: Stoppable) -> Iterator[None]:
    """SIGINT and SIGTERM: the first drains, the second stops at once, the third ends this process where it stands.

    The third is for the case that the engine itself no longer answers; workers leave when their parent is gone.
    """
    seen = 0

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        if seen <= 2:
            engine.request_stop(signal.Signals(number).name)
            return
        _show_cursor()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = {number: signal.signal(number, on_signal) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _show_cursor() -> None:
    from pipeline.observe.live import SHOW_CURSOR

    # Straight to the descriptor: a signal may have come in the middle of a write to the stream.
    with contextlib.suppress(OSError, ValueError):
        if os.isatty(1):
            os.write(1, SHOW_CURSOR)


def show(report: RunReport) -> None:
    """Print the summary to stdout; a reader that has gone is no failure of the run."""
    from pipeline.cli import discard_stdout
    from pipeline.observe.summary import summary

    try:
        print(summary(report, encoding=sys.stdout.encoding), flush=True)  # noqa: T201 - it is the command's answer
    except BrokenPipeError:
        discard_stdout()


def _write(file: ReportFile, report: RunReport) -> None:
    try:
        file.write(report.to_json())
    except OSError as error:
        raise CampipeError(f"the run is over, but its report could not be written: {error}") from error


def _failure(error: BaseException) -> dict[str, object]:
    """A report with every key of one, for a run that has none."""
    from pipeline.observe.logs import redact
    from pipeline.report import RunReport

    if isinstance(error, UserError):
        status, problems = 2, list(error.problems)
    elif isinstance(error, KeyboardInterrupt):
        status, problems = 130, ["interrupted"]
    else:
        status, problems = 1, [f"{type(error).__name__}: {error}"]
    nothing = RunReport({}, {}, wall_s=0.0, start_s=0.0, shared_memory_bytes=0, problems=[redact(p) for p in problems])
    return nothing.to_json() | {"exit_status": status}

"""Owns one run of an engine from the command line: logs, view, report, summary. Does not own the engine."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pipeline.commands.outputs import Inputs, judge_outputs
from pipeline.commands.report import ReportFile
from pipeline.commands.standard_streams import discard_stdout
from pipeline.signals import Stoppable, stop_on_signals
from stages.errors import CampipeError, UserError

if TYPE_CHECKING:
    from pipeline.control.desk import ControlDesk
    from pipeline.observe.live import ViewKind
    from pipeline.observe.snapshot import EngineSnapshot
    from pipeline.plan import RunPlan
    from pipeline.report import RunReport
    from stages.sinks.sink import Sink


class Runnable(Stoppable, Protocol):
    """An engine: over processes or in one."""

    def run(self) -> RunReport:
        """Run until the cameras end or a stop was asked for."""


def run_to_end(
    args: argparse.Namespace,
    make: Callable[[], RunPlan],
    *,
    wait_subscribers: int = 0,
    inputs: Inputs | None = None,
    whole: bool = False,
    desk: Callable[[], ControlDesk | None] = lambda: None,
) -> int:
    """Make the plan, run it, show what is asked for, and give the exit status.

    The report is written whatever happens, a refusal included: an old report beside a new exit status would mislead.
    Only where it would overwrite one of ``inputs`` (which ``make`` may add to) or of the run's other outputs, it is
    not. ``whole``: a stop before the end of the recordings is a failure. ``desk``: asked once the plan is made, through
    which the cameras can be changed while they run.
    """
    with contextlib.ExitStack() as closing:
        report_file = ReportFile(args.report) if args.report else None
        if report_file is not None:
            closing.callback(report_file.close)
            if problems := judge_outputs(inputs or Inputs(), None, args.report).problems:
                raise UserError.of(problems)
            report_file.check()
        plan, report = _run(
            args, make, report_file, inputs or Inputs(), wait_subscribers=wait_subscribers, desk=desk, closing=closing
        )
        judge_stop(report, plan, whole=whole)
        try:
            if report_file is not None:
                _write(report_file, report)  # before the summary: that may find no room, or no terminal
        finally:
            show(report)
    return report.exit_status


def _run(
    args: argparse.Namespace,
    make: Callable[[], RunPlan],
    report_file: ReportFile | None,
    inputs: Inputs,
    *,
    wait_subscribers: int,
    desk: Callable[[], ControlDesk | None],
    closing: contextlib.ExitStack,
) -> tuple[RunPlan, RunReport]:
    from pipeline.observe import logs

    begun = False
    undo = logs.configure(args.log_format, args.log_level)
    try:
        plan = make()
        refusals = judge_outputs(inputs, plan, args.report or None)
        if refusals.of_report:
            report_file = None
        if refusals.problems:
            raise UserError.of(refusals.problems)
        begun = True
        report = run_engine(
            plan,
            view=args.view,
            every_s=args.every_s,
            in_process=args.in_process,
            wait_subscribers=wait_subscribers,
            desk=desk(),
            closing=closing,
        )
    except BaseException as error:
        # What is read is not known as long as there is no plan: then an older report is all that may be replaced.
        if report_file is not None and (begun or report_file.replaces_nothing_else):
            with contextlib.suppress(OSError):  # what failed before is the thing to tell
                report_file.write(_failure(error))
        raise
    finally:
        undo()
    return plan, report


def judge_stop(report: RunReport, plan: RunPlan, *, whole: bool) -> None:
    """Add to the problems of ``report``, which make its exit status 1, what a stop has left undone.

    A stop that found time to deliver all that was decoded is no failure of a run. Of a replay it is (``whole``), unless
    all that it stopped were recordings that are played in a loop: those have no end.
    """
    if not report.stopped_by:
        return
    by = f"stopped by {report.stopped_by}"
    dropped = sum(camera.ledger.dropped.get("stopped", 0) for camera in report.cameras.values())
    endless = {camera.name for camera in plan.cameras if camera.loop and not camera.max_frames}
    if report.cameras and not any(camera.ledger.decoded for camera in report.cameras.values()):
        report.problems.append(f"{by}: before a single frame was decoded")
    elif dropped:
        frames = "1 decoded frame was" if dropped == 1 else f"{dropped} decoded frames were"
        report.problems.append(f"{by}: {frames} dropped")
    elif whole and any(each.cause == "stopped" and name not in endless for name, each in report.cameras.items()):
        report.problems.append(f"{by}: not the whole recording was played")


def run_engine(
    plan: RunPlan,
    *,
    view: ViewKind = "auto",
    every_s: float = 5.0,
    in_process: bool = False,
    wait_subscribers: int = 0,
    desk: ControlDesk | None = None,
    closing: contextlib.ExitStack | None = None,
) -> RunReport:
    """Run the plan with its sinks, stopped by signals, shown by ``view``, begun when so many subscribers are there.

    Signals go on being taken until ``closing`` is closed: a second one must not end the process while the report that
    it asked for is written.
    """
    from pipeline.commands.gate import SubscriberGate
    from pipeline.observe import logs
    from pipeline.observe.live import make_view
    from pipeline.observe.notify import ServiceNotifier
    from pipeline.sinks import build

    for camera in plan.cameras:
        logs.register_secret(camera.password or "")
    shown = make_view(view, every_s)
    sinks: list[Sink] = list(build(plan, live_may_come=desk is not None))
    gate = SubscriberGate(sinks, wait_subscribers)
    if wait_subscribers:
        sinks.insert(0, gate)

    service = ServiceNotifier(os.environ, time.monotonic)

    def on_snapshot(snapshot: EngineSnapshot) -> None:
        service.update(snapshot)
        if snapshot.stopping:
            gate.let_through()
        shown.update(snapshot)

    engine: Runnable
    if in_process:
        from pipeline.inprocess import InProcessEngine

        engine = InProcessEngine(plan, sinks, on_snapshot)
    else:
        from pipeline.engine import Engine

        engine = Engine(plan, sinks, on_snapshot, desk=desk)
    with contextlib.ExitStack() as here:
        (closing or here).enter_context(stop_on_signals(engine))
        here.enter_context(shown)
        return engine.run()


def show(report: RunReport) -> None:
    """Print the summary to stdout; a reader that has gone is no failure of the run."""
    from pipeline.observe.summary import summary

    try:
        print(summary(report, encoding=sys.stdout.encoding), flush=True)  # noqa: T201 - it is the command's answer
    except BrokenPipeError:
        discard_stdout()
    except OSError as error:
        if error.errno != errno.EIO or signal.SIGHUP.name not in report.stopped_by:
            raise
        discard_stdout()  # the terminal is gone, which is why the run was stopped


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

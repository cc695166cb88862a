"""Owns ``campipe subscribe``: shows what a running campipe publishes. Does not own the connection (``client``)."""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from typing import TYPE_CHECKING, Final

from pipeline.commands.options import DEFAULT_PUBLISH, Subparsers, number, whole_number
from stages.errors import UserError

if TYPE_CHECKING:
    from pipeline.client import Received, Subscriber

DONE: Final = 0
TIMED_OUT: Final = 1
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells have it
LOOK_S: Final = 0.25  # how often the notes below are thought of while nothing comes
WAITING_AFTER_S: Final = 0.5  # a publisher that is there has been found by then
SILENT_AFTER_S: Final = 5.0  # five heartbeats
MOST_OBJECTS: Final = 8  # on one line


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "subscribe",
        description="Show the detections that a running campipe publishes, one line per frame, until all cameras have "
        "ended. Waits for the publisher if it is not there yet, and for its return if it goes away. What is said about "
        "the connection goes to stderr.",
        epilog="Exit status: 0 all cameras have ended or --count is reached, 1 nothing came for --timeout, 2 refused "
        "input, 130 interrupted.\n\nExamples:\n"
        f"  campipe subscribe {DEFAULT_PUBLISH} --camera gate-1\n"
        f"  campipe subscribe {DEFAULT_PUBLISH} --json --count 100 > found.jsonl",
    )
    parser.add_argument(
        "address",
        metavar="ADDRESS",
        nargs="?",
        default=DEFAULT_PUBLISH,
        help=f"where it publishes, tcp:// or ipc:// (default: {DEFAULT_PUBLISH})",
    )
    parser.add_argument(
        "--camera",
        dest="cameras",
        metavar="CAMERA",
        action="append",
        help="only this camera; may be given several times (default: all)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of text for people")
    parser.add_argument(
        "--count", metavar="N", type=whole_number(1), help="leave after the detections of N frames (default: no limit)"
    )
    parser.add_argument(
        "--timeout",
        dest="timeout_s",
        metavar="SECONDS",
        type=number(0.1, 86_400),
        help="leave with status 1 when there was nothing to show for so long, from 0.1 (default: wait for ever)",
    )


def run(args: argparse.Namespace) -> int:
    """Show until the end."""
    from pipeline.client import Subscriber

    if args.cameras and not all(args.cameras):
        raise UserError("--camera '' names no camera; leave it out to see all of them")
    for name in args.cameras or ():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"--camera {name}: is not UTF-8, which no camera is; `campipe ctl status` lists them"
            ) from None
    try:
        with Subscriber(args.address, args.cameras) as subscriber:
            return _show(subscriber, as_json=args.json, count=args.count, timeout_s=args.timeout_s)
    except KeyboardInterrupt:
        return INTERRUPTED


def _show(subscriber: Subscriber, *, as_json: bool, count: int | None, timeout_s: float | None) -> int:
    from stages.messages import Detections

    printer = _Printer(as_json=as_json)
    notes = _Notes(subscriber)
    shown_s = time.monotonic()
    while not subscriber.all_ended(subscriber.cameras):
        left_s = LOOK_S if timeout_s is None else max(0.0, min(LOOK_S, shown_s + timeout_s - time.monotonic()))
        message = subscriber.receive(left_s)
        notes.look()
        if message is not None:
            printer.show(message)
            shown_s = time.monotonic()
            if isinstance(message, Detections) and count is not None:
                count -= 1
                if count == 0:
                    return DONE
        elif timeout_s is not None and time.monotonic() - shown_s >= timeout_s:
            _note(f"nothing came from {subscriber.address} for {timeout_s:g} s")
            return TIMED_OUT
    return DONE


class _Printer:
    """Writes messages to stdout, each at once, so that a reader behind a pipe sees them in time."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def show(self, message: Received) -> None:
        """Write one line."""
        if self._as_json:
            import msgspec

            line = msgspec.json.encode(message).decode()
        else:
            from pipeline.observe.logs import printable

            line = printable(describe(message))
        # JSON is UTF-8 whatever the terminal speaks, and a label that the terminal can't show is no reason to stop.
        encoding = "utf-8" if self._as_json else sys.stdout.encoding or "utf-8"
        sys.stdout.flush()
        sys.stdout.buffer.write(f"{line}\n".encode(encoding, errors="backslashreplace"))
        sys.stdout.buffer.flush()


class _Notes:
    """Says on stderr, once each time, that nothing has come yet, that nothing comes any more, that it comes again."""

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber
        self._silent = False
        self._waiting = False
        self._named = False

    def look(self) -> None:
        """Say what is new."""
        subscriber = self._subscriber
        heard = subscriber.counts["received"] > 0
        if not heard and not self._waiting and subscriber.quiet_s >= WAITING_AFTER_S:
            self._waiting = True
            _note(f"waiting for the first message from {subscriber.address} (Ctrl-C to leave)")
        if heard and not self._silent and subscriber.quiet_s >= SILENT_AFTER_S:
            self._silent = True
            _note(f"no heartbeat from {subscriber.address} for {SILENT_AFTER_S:g} s; still waiting")
        elif self._silent and subscriber.quiet_s < SILENT_AFTER_S:
            self._silent = False
            _note(f"{subscriber.address} is heard again")
        if not self._named and subscriber.heartbeat is not None:
            self._named = True
            self._check_names(list(subscriber.heartbeat.cameras))

    def _check_names(self, known: list[str]) -> None:
        for camera in self._subscriber.cameras or ():
            if camera not in known:
                close = difflib.get_close_matches(camera, known, n=1)
                meant = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known) or 'none'}"
                _note(f"no camera {camera!r} is published at {self._subscriber.address}; {meant}")


def describe(message: Received) -> str:
    """One line for people."""
    from stages.messages import Detections, Heartbeat, Status

    match message:
        case Detections():
            names = [f"{found.label} {found.score:.2f}" for found in message.objects[:MOST_OBJECTS]]
            if len(message.objects) > MOST_OBJECTS:
                names.append(f"and {len(message.objects) - MOST_OBJECTS} more")
            place = _place(message.epoch, message.seq)
            return f"{message.camera} {place} at {message.pts_ns / 1e9:.3f} s: {', '.join(names) or 'nothing'}"
        case Heartbeat():
            return f"heartbeat: {', '.join(f'{name} {state}' for name, state in message.cameras.items())}"
        case Status(state="gap"):
            missing = _range(message.epoch, message.from_seq or 0, message.to_seq or 0)
            return f"{message.camera} {missing} dropped: {_because(message)}"
        case Status():
            counts = ""
            if message.ledger is not None:
                dropped = sum(message.ledger.dropped.values())
                counts = f"; {message.ledger.decoded} decoded, {message.ledger.published} published, {dropped} dropped"
            return f"{message.camera} {message.state}: {_because(message)}{counts}"
        case _:
            return f"{message.camera} {_range(message.epoch, message.from_seq, message.to_seq)} lost on the way"


def _because(status: object) -> str:
    from stages.messages import Status

    assert isinstance(status, Status)
    if not status.detail:
        return status.cause
    return status.detail if status.cause == status.state else f"{status.cause}, {status.detail}"


def _place(epoch: int, seq: int) -> str:
    return f"#{epoch}:{seq}" if epoch else f"#{seq}"


def _range(epoch: int, first: int, last: int) -> str:
    return _place(epoch, first) if first == last else f"{_place(epoch, first)} to {_place(epoch, last)}"


def _note(text: str) -> None:
    from pipeline.observe.logs import printable

    print(f"campipe: {printable(text)}", file=sys.stderr, flush=True)  # noqa: T201 - it is for people

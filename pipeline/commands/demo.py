"""Owns ``campipe demo``: the packaged site on the packaged clip, told in words. Does not own the site or the clip."""

from __future__ import annotations

import argparse
import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Final

from pipeline.commands.options import Subparsers

if TYPE_CHECKING:
    from pipeline.plan import RunPlan
    from pipeline.report import RunReport
    from stages.messages import Detections

USUAL_PORT: Final = 5600
SHOWN_OBJECTS: Final = 2
SHOW_EVERY: Final = 25  # frames of a camera from one line to the next
LISTEN_AFTER_S: Final = 5.0  # after the run's end, for messages on their way


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    subparsers.add_parser(
        "demo",
        description="See it work: two cameras play the street clip that comes with campipe, the model that comes with "
        "it finds people, a subscriber on ZeroMQ shows some of what is found, and the ledger says what became of every "
        f"frame. Publishes on port {USUAL_PORT}, or on a free one when that is taken. Exit status 1 if nobody was "
        "found.",
        epilog="Example:\n  campipe demo",
    )


def run(args: argparse.Namespace) -> int:
    """Run it; 0 if every decoded frame was published and people were found."""
    from pipeline import assets
    from pipeline.commands.drive import run_engine, show
    from pipeline.config import load_site, resolve
    from pipeline.observe import logs
    from pipeline.planning import make_plan

    address = f"tcp://127.0.0.1:{free_port(USUAL_PORT)}"
    plan = make_plan(resolve(load_site(assets.demo_folder() / "site.yaml", [f"publish.bind={address}"])))
    say("\n".join(introduction(plan, address)))
    undo = logs.configure("text", "warning")
    listener = Listener(address, [camera.name for camera in plan.cameras])
    listener.start()
    try:
        # Held until the listener is there: a demonstration must not lose its first messages.
        report = run_engine(plan, view="none", wait_subscribers=1)
    except BaseException:
        listener.end(0)
        raise
    finally:
        undo()
    listener.end(LISTEN_AFTER_S)
    say("")
    show(report)
    say("")
    good, sentences = verdict(report, listener.received)
    say("\n".join(sentences))
    return 0 if good else report.exit_status or 1


def free_port(usual: int) -> int:
    """``usual`` if it can be had on this machine now, else one that the system picks."""
    with contextlib.closing(socket.socket()) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", usual))
        except OSError:
            trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port


def introduction(plan: RunPlan, address: str) -> list[str]:
    """What is about to happen."""
    cameras = " and ".join(camera.name for camera in plan.cameras)
    executors = sum(device.executors for device in plan.devices)
    devices = ", ".join(device.device for device in plan.devices)
    models = ", ".join(model.name for model in plan.models)
    return [
        f"Cameras {cameras} play a recording of a street, {models} looks for people and things on {devices}:",
        f"  decode x{len(plan.cameras)} -> batcher -> executor x{executors} -> nms x{plan.nms_workers} -> publish",
        f"What is found is published on {address}. To see all of it, in another terminal:",
        f"  campipe subscribe {address}",
        "Some of it, as a subscriber gets it:",
    ]


class Listener:
    """A subscriber in a thread: prints some of what it gets, counts all of it."""

    def __init__(self, address: str, cameras: list[str]) -> None:
        self._address = address
        self._cameras = cameras
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="demo subscriber", daemon=True)
        self._next_shown = dict.fromkeys(cameras, 0)
        self.received = 0

    def start(self) -> None:
        """Connect in the background; the publisher need not be there yet."""
        self._thread.start()

    def end(self, wait_s: float) -> None:
        """Wait until every camera's end has come, at most ``wait_s``, and leave."""
        self._thread.join(wait_s)
        self._leave.set()
        self._thread.join()

    def _listen(self) -> None:
        from pipeline.client import Subscriber
        from stages.messages import Detections

        with Subscriber(self._address) as subscriber:
            while not self._leave.is_set() and not subscriber.all_ended(self._cameras):
                message = subscriber.receive(0.1)
                if isinstance(message, Detections):
                    self.received += 1
                    self._show(message)

    def _show(self, message: Detections) -> None:
        if message.objects and message.seq >= self._next_shown.get(message.camera, 0):
            self._next_shown[message.camera] = message.seq + SHOW_EVERY
            say(f"  {describe(message)}")


def describe(message: Detections) -> str:
    """One message in a line: ``gate-1, frame 25 at 2.50 s: person 0.83 at x 312 to 360, y 120 to 240``."""
    found = "; ".join(
        f"{each.label} {each.score:.2f} at x {each.box[0]:.0f} to {each.box[2]:.0f}, "
        f"y {each.box[1]:.0f} to {each.box[3]:.0f}"
        for each in message.objects[:SHOWN_OBJECTS]
    )
    rest = len(message.objects) - SHOWN_OBJECTS
    more = f"; and {rest} more" if rest > 0 else ""
    return f"{message.camera}, frame {message.seq} at {message.pts_ns / 1e9:.2f} s: {found}{more}"


def verdict(report: RunReport, received: int) -> tuple[bool, list[str]]:
    """Whether the demonstration is one, and the sentences that say so."""
    cameras = report.cameras.values()
    published = sum(camera.ledger.published for camera in cameras)
    every_frame = published > 0 and all(c.exact and c.ledger.published == c.ledger.decoded > 0 for c in cameras)
    people = sum(camera.classes.get("person", 0) for camera in cameras)
    sentences = [
        f"{'Every' if every_frame else 'NOT every'} decoded frame of {len(report.cameras)} cameras was published.",
        f"The subscriber got {received} of {published} detections messages.",
        f"People were found {people} times." if people else "NOBODY was found.",
    ]
    return every_frame and people > 0 and report.exit_status == 0, sentences


def say(text: str) -> None:
    """Print a part of the story at once."""
    print(text, flush=True)  # noqa: T201 - it is what the command is for

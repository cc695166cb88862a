"""Owns the faults that are done to cameras: how each begins and ends, and what must be told of it. Measures nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from faults.victim import OPEN_S, Victim

Act = Callable[[Victim], None]
GUARD_S = 30.0  # a refused password is tried each 30 s at most


@dataclass(frozen=True, slots=True)
class Fault:
    """``causes``: any of these LinkCauses is told; none: the stream goes on all the same.

    ``hold_s``: how long it lasts after it was told. ``back_s``: the target for being back after its end, without the
    wait for the next keyframe. ``unseen_s``: with no cause, how long it lasts.
    """

    name: str
    begin: Act
    causes: tuple[str, ...] = ()
    end: Act | None = None  # None: Victim.whole
    hold_s: float = 0.7
    back_s: float = 2.0
    lasts_s: float = 2.5
    notice_s: float = 20.0  # waited for at most
    new_size: bool = False
    flags: bool = False  # pictures are marked corrupt
    marks: tuple[str, ...] = field(default=())  # "long": only in the soak


def _mishap(*, cut: bool, **values: Any) -> Act:
    def begin(victim: Victim) -> None:
        victim.server.mishap("gate", **values)
        if cut:
            victim.server.cut("gate")

    return begin


def _silence(victim: Victim) -> None:
    victim.proxy.set("silence")
    victim.proxy.reset()


def _trickle(victim: Victim) -> None:
    victim.proxy.bytes_per_s = 1.0
    victim.proxy.reset()


def _password(victim: Victim) -> None:
    victim.server.gatekeeper.password = "changed"
    victim.server.cut()


def _path_gone(victim: Victim) -> None:
    victim.server.mounts["elsewhere"] = victim.server.mounts.pop("gate")
    victim.server.cut()


def _path_back(victim: Victim) -> None:
    victim.server.mounts["gate"] = victim.server.mounts.pop("elsewhere")


def _sound_alone(victim: Victim) -> None:
    victim.server.mishap("gate", audio=True, video=False)
    victim.server.cut()


def _redirect(victim: Victim) -> None:
    victim.other.start()
    victim.server.mishap("gate", redirect=victim.other.url())
    victim.server.cut("gate")


def _redirect_over(victim: Victim) -> None:
    victim.other.stop()  # who was told to go there, and has not come yet, is refused
    victim.whole()


def _flap(times: int) -> Act:
    def begin(victim: Victim) -> None:
        victim.proxy.flap(times, 0.15, 0.05)
        time.sleep(times * 0.2)

    return begin


ANY_SDP = ("no_video", "protocol", "unsupported", "timeout", "no_picture", "no_keyframe", "corrupt")
LOST = ("disconnected", "refused", "timeout", "protocol")

FAULTS = (
    # the network
    Fault("refuse", lambda v: v.proxy.set("refuse"), ("refused",)),
    Fault("accept and silence", _silence, ("timeout",)),
    Fault("half-open", lambda v: v.proxy.set("half_open"), ("timeout",)),
    Fault("reset mid-GOP", lambda v: v.proxy.reset() and None, ("disconnected",), hold_s=0.0),  # type: ignore[func-returns-value]
    Fault("closed by the camera", lambda v: v.server.cut("gate") and None, ("disconnected",), hold_s=0.0),  # type: ignore[func-returns-value]
    Fault("flap 10 times", _flap(10), LOST, hold_s=0.0),
    Fault("flap 100 times", _flap(100), LOST, hold_s=0.0, marks=("long",)),
    Fault("one byte a second", _trickle, ("timeout", "no_picture")),
    Fault("delay of 0.3 s", lambda v: setattr(v.proxy, "delay_s", 0.3), ()),
    # the camera as a whole
    Fault("camera restarts", lambda v: v.server.stop(), ("refused", "disconnected"), hold_s=2.0),
    Fault("freezes", _mishap(cut=False, stall=True), ("timeout", "no_picture")),
    Fault("RTCP BYE", lambda v: v.server.bye("gate"), ()),
    # what it answers
    Fault("wrong password", _password, ("unauthorised",), back_s=GUARD_S, hold_s=0.0),
    Fault("right denied", _mishap(cut=True, status={"DESCRIBE": 403}), ("forbidden",), back_s=GUARD_S, hold_s=0.0),
    Fault("unknown path", _path_gone, ("not_found",), end=_path_back),
    Fault("busy (453)", _mishap(cut=True, status={"SETUP": 453}), ("busy",)),
    # what it was asked before it came back is never answered: that try takes its open_timeout_ms
    Fault("never answers DESCRIBE", _mishap(cut=True, silent_on="DESCRIBE"), ("timeout",), back_s=2.0 + OPEN_S),
    Fault("answers with noise", _mishap(cut=True, garbage_answer=True), ("protocol", "timeout")),
    Fault("redirect", _redirect, ("disconnected",), end=_redirect_over),
    Fault("UDP alone", _mishap(cut=True, transports=("udp",)), ("disconnected",)),
    # what it says that it sends
    Fault("no video, sound alone", _mishap(cut=True, sdp="audio_only"), ("no_video",)),
    Fault("no track at all", _mishap(cut=True, sdp="no_media"), ("no_video",)),
    Fault("unknown codec", _mishap(cut=True, sdp="unknown_codec"), ("unsupported",)),
    Fault("no codec told", _mishap(cut=True, sdp="no_codec"), ("unsupported", "no_video")),
    Fault("empty description", _mishap(cut=True, sdp="empty"), ANY_SDP),
    Fault("absurd description", _mishap(cut=True, sdp="absurd"), ANY_SDP, notice_s=30),
    Fault("binary description", _mishap(cut=True, sdp="binary"), ANY_SDP),
    # pictures
    Fault("no keyframe", _mishap(cut=True, keyframes=False), ("no_keyframe",)),
    Fault("no parameter sets", _mishap(cut=True, parameter_sets=False, sprop=False), ("no_keyframe", "corrupt")),
    Fault("sound without pictures", _sound_alone, ("no_picture", "timeout")),
    Fault("nothing but noise", _mishap(cut=True, garbage_every=1), ("corrupt", "no_picture", "no_keyframe", "timeout")),
    Fault("all pictures damaged", _mishap(cut=False, damage_every=1), (), flags=True),
    Fault("each 4th packet damaged", _mishap(cut=False, damage_every=4), (), flags=True),
    Fault("each 5th packet noise", _mishap(cut=False, garbage_every=5), ()),
    Fault("5 % of packets lost", _mishap(cut=False, drop_percent=5.0), ()),
    Fault("packets twice", _mishap(cut=False, duplicate_every=3), ()),
    Fault("resolution change", _mishap(cut=False, variant="small"), (), new_size=True),
    Fault("20 times too fast", _mishap(cut=False, speed=20.0), ()),
    Fault("without any pace", _mishap(cut=False, burst=True), (), marks=("long",)),
    Fault("at half speed", _mishap(cut=False, speed=0.5), ()),
    # time
    Fault("time jumps forward", _mishap(cut=False, jump_s=3600.0), ()),
    Fault("time jumps back", _mishap(cut=False, jump_s=-3600.0), ()),
    Fault("time stands still", _mishap(cut=False, freeze_stamp=True), ()),
    Fault("wild first stamp, wrap", _mishap(cut=True, first_stamp=2**32 - 90_000), ("disconnected",), hold_s=3.0),
    Fault("clock 1 % fast", _mishap(cut=True, drift=1.01), ("disconnected",), hold_s=3.0),
    Fault("reports a wrong hour", _mishap(cut=True, report_offset_s=-7200.0), ("disconnected",), hold_s=3.0),
)  # fmt: skip
# those that are tried again slowly come first: the wait is short as long as a camera has not failed often
SHORT = tuple(sorted((fault for fault in FAULTS if "long" not in fault.marks), key=lambda fault: -fault.back_s))

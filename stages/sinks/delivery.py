"""Owns the end of a publishing context: waiting until what was sent is delivered, and knowing what was not.

Does not own the messages. ``Context.term()`` returns when every subscriber's connection has taken every message, or
linger has run out (libzmq 4.3.5); it takes no deadline of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import zmq

from stages.sinks.marks import Marks

NS_PER_MS: Final = 1_000_000
GRACE_MS: Final = 50  # linger beyond the deadline, so that what is held can be counted before it is thrown away
TERM_WAIT_S: Final = 2.0  # for the context to end after linger has run out, which takes milliseconds


def end_context(
    context: zmq.Context[zmq.Socket[bytes]],
    socket: zmq.Socket[bytes],
    marks: Marks,
    sent: int,
    *,
    began_ns: int,
    deadline_ns: int,
    behind: int,
    clock_ns: Callable[[], int],
) -> int:
    """Close the socket and end its context; how many of ``sent`` messages were not delivered, at most.

    ``behind``: how many were held at ``began_ns``, which is what is told where nothing can be known of the end.
    """
    left_ms = max(0, (deadline_ns - began_ns) // NS_PER_MS)
    thrown_away_ns = began_ns + (left_ms + GRACE_MS) * NS_PER_MS  # not before; from then on an end tells nothing
    socket.close(left_ms + GRACE_MS)
    # in a thread, nothing that libzmq does can hang the exit
    ending = threading.Thread(target=context.term, name="campipe-publish-end", daemon=True)
    ending.start()
    while ending.is_alive() and clock_ns() < deadline_ns:
        ending.join(0.01)
        marks.advance()
    held = marks.behind(sent)
    if clock_ns() < thrown_away_ns:  # else this thread was held up, and what is held no more may be lost
        behind = held
        if ending.is_alive():
            ending.join(GRACE_MS / 1000 / 2)
    if not ending.is_alive() and clock_ns() < thrown_away_ns:
        behind = 0
    ending.join(TERM_WAIT_S)
    return behind

"""The engine's socket: messages of too many parts are told as none, and those after them are read as they are."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import zmq

from pipeline.transport.channel import EngineChannel
from pipeline.transport.codec import encode
from stages.messages import Goodbye, Hello, InternalMessage


def up_to(channel: EngineChannel, last: InternalMessage) -> tuple[list[tuple[str, InternalMessage]], int]:
    """What comes until ``last`` has, and how many messages were none."""
    found: list[tuple[str, InternalMessage]] = []
    refused = 0
    deadline = time.monotonic() + 30
    while (not found or found[-1][1] != last) and time.monotonic() < deadline:
        try:
            received = channel.receive()
        except ValueError:  # msgspec.DecodeError is one
            refused += 1
            continue
        if received is None:
            time.sleep(0.001)
        else:
            found.append(received)
    return found, refused


@pytest.mark.parametrize("parts", [2, 3, 4, 5])
def test_a_message_of_too_many_parts_does_not_shift_the_next_ones(tmp_path: Path, parts: int) -> None:
    where = f"ipc://{tmp_path}/engine"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    engine = EngineChannel(context, where)
    engine.open()
    worker = context.socket(zmq.DEALER)
    worker.identity = b"nms/0#1"
    worker.connect(where)
    try:
        worker.send(encode(Hello("t", 1)))
        assert up_to(engine, Hello("t", 1)) == ([("nms/0#1", Hello("t", 1))], 0)
        worker.send_multipart([encode(Goodbye())] * parts)
        for pid in range(20):
            worker.send(encode(Hello("t", pid)))
        found, refused = up_to(engine, Hello("t", 19))
        assert refused or any(name != "nms/0#1" for name, _ in found), "a stranger's, whom the engine does not know"
        assert found[-18:] == [("nms/0#1", Hello("t", pid)) for pid in range(2, 20)]
    finally:
        worker.close(linger=0)
        engine.close()
        context.term()

"""Addresses: what is taken, what is refused, and that every refusal names the address and a remedy."""

from __future__ import annotations

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from stages.errors import UserError
from stages.sinks.address import parse_address

GOOD_TO_BIND = [
    ("tcp://127.0.0.1:5600", "127.0.0.1", 5600),
    ("tcp://127.0.0.1:0", "127.0.0.1", 0),
    ("tcp://*:5600", "*", 5600),
    ("tcp://*:*", "*", 0),
    ("tcp://eth0:65535", "eth0", 65535),
    ("tcp://[::1]:5600", "[::1]", 5600),
    ("tcp://localhost:1", "localhost", 1),
]
BAD = [
    ("", "tcp:// or ipc://"),
    ("127.0.0.1:5600", "write tcp://127.0.0.1:5600"),
    ("localhost:5600", "write tcp://localhost:5600"),
    ("tcp:/127.0.0.1:5600", "tcp:// or ipc://"),
    ("tcp://", "no port"),
    ("tcp://127.0.0.1", "no port"),
    ("tcp://127.0.0.1:", "no port"),
    ("tcp://:5600", "no host"),
    ("tcp://a b:5600", "no host"),
    ("tcp://ä:5600", "no host"),
    ("tcp://127.0.0.1:abc", "from"),
    ("tcp://127.0.0.1:-1", "from"),
    ("tcp://127.0.0.1:65536", "65535"),
    ("tcp://127.0.0.1:99999", "65535"),
    ("tcp://127.0.0.1:٥٦٠٠", "65535"),
    ("http://127.0.0.1:5600", "neither tcp nor ipc"),
    ("udp://127.0.0.1:5600", "neither tcp nor ipc"),
    ("inproc://x", "neither tcp nor ipc"),
    ("ipc://", "names no file"),
    ("ipc://@", "names no file"),
    ("ipc:///run/\0x", "can't be shown"),
    ("ipc:///run/\udcffx", "can't be shown"),
    (f"ipc:///{'a' * 200}", "107"),
    (f"ipc:///{'ä' * 60}", "107"),
    ("x" * 5000, "tcp:// or ipc://"),
]


@pytest.mark.parametrize(("text", "host", "port"), GOOD_TO_BIND)
def test_good_addresses_to_bind(text: str, host: str, port: int) -> None:
    address = parse_address(text, bind=True)
    assert (address.host, address.port, address.ipv6) == (host, port, host.startswith("["))


@pytest.mark.parametrize("bind", [True, False])
@pytest.mark.parametrize(("text", "says"), BAD)
def test_bad_addresses(text: str, says: str, bind: bool) -> None:
    with pytest.raises(UserError) as error:
        parse_address(text, bind=bind)
    [problem] = error.value.problems
    assert says in problem
    assert len(problem) < 500
    assert "\n" not in problem


@pytest.mark.parametrize("text", ["tcp://*:5600", "tcp://127.0.0.1:0", "tcp://127.0.0.1:*", "ipc://*"])
def test_wildcards_cannot_be_connected_to(text: str) -> None:
    parse_address(text, bind=True)
    with pytest.raises(UserError):
        parse_address(text, bind=False)


def test_the_longest_path_is_one_that_the_system_takes(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = str(tmp_path_factory.mktemp("s"))
    for size, good in ((107, True), (108, False)):
        text = f"ipc://{folder}/{'x' * (size - len(folder) - 1)}"
        if good:
            parse_address(text, bind=True)
        else:
            with pytest.raises(UserError):
                parse_address(text, bind=True)
        with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
            if good:
                socket.bind(text)
            else:
                with pytest.raises(zmq.ZMQError):
                    socket.bind(text)


@given(
    st.text(max_size=40)
    | st.builds("tcp://{}:{}".format, st.text("[]*:.az0-", max_size=10), st.text("0*9-", max_size=6))
)
def test_what_is_taken_libzmq_takes_and_the_rest_is_a_user_error(text: str) -> None:
    try:
        parse_address(text, bind=False)
    except UserError:
        return
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.ipv6 = True
        socket.connect(text)  # does not resolve yet, but refuses what it can't read

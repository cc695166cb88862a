"""Addresses of live sources: credentials with every symbol, options by kind, nothing secret in a repr."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.camera import CameraSpec, LinkSpec
from stages.decode.address import MAX_RTSP_USERINFO_BYTES, address_of, is_live, with_credentials

CANARY = "kanarienvogel-7"


def camera(url: str, user: str | None = None, password: str | None = None, **link) -> CameraSpec:
    return CameraSpec("gate", url, "m", user=user, password=password, network=True, link=LinkSpec(**link))


def split_as_ffmpeg_does(url: str) -> tuple[str, str, str]:
    """User, password and the rest: av_url_split of libavformat/utils.c, and the decoding of httpauth.c."""
    rest = url.partition("://")[2]
    end = min((rest.index(mark) for mark in "/?#" if mark in rest), default=len(rest))
    userinfo = rest[:end].rpartition("@")[0]
    user, _, password = unquote(userinfo, errors="surrogateescape").partition(":")
    return user, password, rest[len(userinfo) + 1 :] if userinfo else rest


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@given(user=texts.filter(lambda text: ":" not in text), password=texts)
def test_every_symbol_of_user_and_password_arrives(user, password) -> None:
    url = with_credentials("rtsp://cam:8554/a%2Fb?x=@1", user, password)
    assert split_as_ffmpeg_does(url) == (user, password, "cam:8554/a%2Fb?x=@1")
    assert url.isascii()
    assert url.isprintable()


@pytest.mark.parametrize(
    ("user", "password", "expected"),
    [
        (None, None, "rtsp://cam/x%20y"),
        ("me", None, "rtsp://me@cam/x%20y"),
        ("me", "", "rtsp://me:@cam/x%20y"),
        (None, "pw", "rtsp://:pw@cam/x%20y"),
        ("me", "\udcff", "rtsp://me:%FF@cam/x%20y"),
        ("me", "p%40", "rtsp://me:p%2540@cam/x%20y"),
        ("me", "p:w!$&'()*+,;=~", "rtsp://me:p:w!$&'()*+,;=~@cam/x%20y"),
    ],
)
def test_no_more_than_needed_is_escaped_and_the_rest_is_left_alone(user, password, expected) -> None:
    assert with_credentials("rtsp://cam/x%20y", user, password) == expected


@pytest.mark.parametrize(
    ("url", "kind", "place", "tls"),
    [
        ("rtsp://cam/x", "rtsp", "cam:554", False),
        ("RTSP://cam:8554", "rtsp", "cam:8554", False),
        ("rtsps://10.0.0.7/x", "rtsp", "10.0.0.7:322", True),
        ("rtsp://[fe80::1]:99/x", "rtsp", "[fe80::1]:99", False),
        ("http://cam/mjpeg?key=1", "http", "cam:80", False),
        ("https://cam/a.m3u8", "http", "cam:443", True),
        ("udp://239.1.1.1:5000?pkt_size=1316", "udp", "239.1.1.1:5000", False),
        ("/dev/video3", "device", "/dev/video3", False),
    ],
)
def test_kinds_and_places(url, kind, place, tls) -> None:
    address = address_of(camera(url, "u", CANARY))
    assert (address.kind, address.place, address.tls) == (kind, place, tls)
    assert is_live(url)
    assert CANARY not in repr(address)


@pytest.mark.parametrize("path", ["/data/x.mp4", "clip.mp4", "/dev/shm/x.mp4", "/a/rtsp://b", "C.mp4"])
def test_recordings_are_not_live(path) -> None:
    assert not is_live(path)


@pytest.mark.parametrize(
    ("transport", "expected"),
    [
        ("auto", {"rtsp_transport": "tcp+udp", "rtsp_flags": "prefer_tcp"}),
        ("tcp", {"rtsp_transport": "tcp"}),
        ("udp", {"rtsp_transport": "udp"}),
    ],
)
def test_transports(transport, expected) -> None:
    options = address_of(camera("rtsp://cam", transport=transport)).options
    assert {key: value for key, value in options.items() if key in {"rtsp_transport", "rtsp_flags"}} == expected


def test_trust() -> None:
    def trust(url: str, **link) -> dict[str, str]:
        options = address_of(camera(url, **link)).options
        return {key: options[key] for key in ("tls_verify", "ca_file") if key in options}

    assert trust("rtsp://cam") == {}
    assert trust("rtsps://cam", tls_verify=False) == {"tls_verify": "0"}
    assert trust("https://cam", tls_ca="/x/ca.pem") == {"tls_verify": "1", "ca_file": "/x/ca.pem"}
    assert trust("rtsps://cam")["tls_verify"] == "1"


@pytest.mark.parametrize("url", ["rtsp://cam", "https://cam", "udp://cam:1"])
def test_no_answer_can_lead_to_files(url) -> None:
    allowed = address_of(camera(url)).options["protocol_whitelist"].split(",")
    assert not {"file", "concat", "subfile", "pipe", "unix"} & set(allowed)


def test_ffmpeg_would_cut_long_credentials_off_without_a_word() -> None:
    fits = "p" * (MAX_RTSP_USERINFO_BYTES - 2)
    assert address_of(camera("rtsp://cam", "u", fits)).credentials_fit
    assert not address_of(camera("rtsp://cam", "u", fits + "p")).credentials_fit
    assert not address_of(camera("rtsp://cam", "u", "@" * 50)).credentials_fit
    assert address_of(camera("http://cam", "u", fits + "p")).credentials_fit
    assert address_of(camera("rtsp://cam/" + "x" * 500)).credentials_fit


def test_an_address_without_a_host_is_refused() -> None:
    with pytest.raises(ValueError, match="no host"):
        address_of(camera("rtsp:///x"))


def test_a_scheme_in_capitals_is_given_to_ffmpeg_as_it_knows_it() -> None:
    url = address_of(CameraSpec("a", "RTSP://host/Stream", "m", user="U", password="P", network=True)).url
    assert url == "rtsp://U:P@host/Stream"

"""Why a certificate is not trusted: asked once, kept for some minutes, then asked again."""

from __future__ import annotations

from stages.decode.address import _PROBE_US, _PROTOCOLS
from stages.decode.trust import KEPT_NS, PLACES_KEPT, Distrusts


def test_a_certificate_that_is_not_trusted_does_not_cost_seconds_at_each_try() -> None:
    asked: list[tuple[str, int, str | None]] = []

    def ask(host: str, port: int, ca_file: str | None) -> str | None:
        asked.append((host, port, ca_file))
        return f"answer {len(asked)}"

    distrusts = Distrusts(ask)
    assert [distrusts.why("cam", 322, None, at) for at in (5, 6, 5 + KEPT_NS - 1)] == ["answer 1"] * 3
    assert distrusts.why("cam", 322, "/ca.pem", 7) == "answer 2"  # other trust, another answer
    assert distrusts.why("cam", 322, None, 5 + KEPT_NS) == "answer 3"
    for number in range(2 * PLACES_KEPT):
        distrusts.why(f"cam-{number}", 322, None, 0)
    assert len(distrusts._answers) == PLACES_KEPT


def test_tables_of_the_network_name_no_device() -> None:
    assert set(_PROTOCOLS) == set(_PROBE_US) == {"rtsp", "http", "udp"}

"""Which frames a camera's sampling keeps."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.decode.clock import SECOND_NS
from stages.decode.sampling import TOLERANCE_NS, Sampler


def kept(sampler: Sampler, times):
    return [number for number, pts_ns in enumerate(times) if sampler.keep(pts_ns)]


def at(rate, count, rounding_ns=1):
    """Times of ``count`` frames at ``rate`` per second, rounded as a container would."""
    return [round(Fraction(n * SECOND_NS) / Fraction(rate) / rounding_ns) * rounding_ns for n in range(count)]


@pytest.mark.parametrize(("every", "expected"), [(1, list(range(7))), (2, [0, 2, 4, 6]), (3, [0, 3, 6]), (100, [0])])
def test_every(every, expected) -> None:
    assert kept(Sampler(every=every), at(25, 7)) == expected


@pytest.mark.parametrize(
    ("source", "fps", "expected"),
    [
        (25, 5, [0, 5, 10, 15, 20]),
        (25, 12.5, list(range(0, 25, 2))),
        (25, 25, list(range(25))),
        (25, 100, list(range(25))),
        (10, 4, [0, 3, 5, 8, 10, 13, 15, 18, 20, 23]),  # due at 0, 250, 500, 750 … ms: the first frame not before it
        (25, 0.5, [0]),
    ],
)
def test_fps(source, fps, expected) -> None:
    assert kept(Sampler(fps=fps), at(source, 25)) == expected


@pytest.mark.parametrize("rounding_ns", [1, 11_111, 1_000_000], ids=["ns", "90 kHz", "ms"])
@pytest.mark.parametrize(("source", "fps"), [(30, 30), (30, 10), (Fraction(30000, 1001), 29.97), (60, 30), (24, 12)])
def test_a_container_that_rounds_loses_no_frame_by_it(rounding_ns, source, fps) -> None:
    """MKV says 33 ms for a frame that is due at 33.33: a strict comparison would drop a third of them."""
    step = round(Fraction(source) / Fraction(fps).limit_denominator(1000))
    assert kept(Sampler(fps=fps), at(source, 300, rounding_ns)) == list(range(0, 300, step))


def test_no_drift_in_an_hour() -> None:
    assert len(kept(Sampler(fps=7), at(Fraction(30000, 1001), 107_892))) == 7 * 3600


def test_a_gap_is_not_made_up_for() -> None:
    times = [0, 40_000_000, 5 * SECOND_NS, 5 * SECOND_NS + 40_000_000, 5 * SECOND_NS + 80_000_000]
    assert kept(Sampler(fps=1), times) == [0, 2]


def test_fps_goes_before_every() -> None:
    assert kept(Sampler(every=1000, fps=25), at(25, 3)) == [0, 1, 2]


@pytest.mark.parametrize("bad", [{"every": 0}, {"fps": 0.0}, {"fps": -1.0}, {"fps": 1e-9}])
def test_nonsense_is_refused(bad) -> None:
    with pytest.raises(ValueError, match="sampling"):
        Sampler(**bad)


times = st.lists(st.integers(1, 3 * SECOND_NS), max_size=80).map(
    lambda steps: [sum(steps[:n]) for n in range(len(steps) + 1)]
)


@given(times, st.floats(0.01, 1000))
def test_fps_keeps_one_frame_of_each_interval_of_the_grid(times, fps) -> None:
    rate = Fraction(fps).limit_denominator(1_000_000)
    tolerance = min(TOLERANCE_NS, int(SECOND_NS / (4 * rate)))
    interval = [(Fraction(t + tolerance) * rate) // SECOND_NS for t in times]
    expected = [n for n, found in enumerate(interval) if n == 0 or found > interval[n - 1]]
    assert kept(Sampler(fps=fps), times) == expected


@given(times, st.integers(1, 50))
def test_every_depends_on_the_number_alone(times, every) -> None:
    assert kept(Sampler(every=every), times) == list(range(0, len(times), every))

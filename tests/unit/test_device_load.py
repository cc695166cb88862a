"""What devices need of their time: work in, whether little is left out."""

from __future__ import annotations

import pytest

from pipeline.runtime.batch_size import one_more_is_free
from pipeline.runtime.device_load import WINDOW_NS, DeviceLoad

START_NS = 10**12


def given(load: DeviceLoad, share: float, windows: int, since_ns: int = START_NS) -> int:
    """Work at this share of one device's time, in a hundred pieces a window; gives the end of it."""
    for piece in range(windows * 100):
        load.given(int(share * WINDOW_NS / 100), since_ns + piece * WINDOW_NS // 100)
    return since_ns + windows * WINDOW_NS


def test_until_a_window_is_over_little_time_may_be_left() -> None:
    load = DeviceLoad()
    assert load.pressed(1, START_NS)
    end_ns = given(load, 0.1, 1)
    assert load.pressed(1, end_ns - 1)
    assert not load.pressed(1, end_ns)


@pytest.mark.parametrize(
    ("share", "devices", "pressed"), [(0.7, 1, False), (0.9, 1, True), (1.5, 2, False), (1.7, 2, True)]
)
def test_little_time_is_left_when_more_than_four_fifths_are_needed(share: float, devices: int, pressed: bool) -> None:
    load = DeviceLoad()
    assert load.pressed(devices, given(load, share, 3)) == pressed


def test_a_rush_is_forgotten_when_it_is_over_and_so_is_a_machine_that_slept() -> None:
    load = DeviceLoad()
    end_ns = given(load, 0.95, 2)
    assert load.pressed(1, end_ns)
    calm_ns = given(load, 0.2, 2, end_ns)
    assert not load.pressed(1, calm_ns)
    busy_ns = given(load, 0.95, 2, calm_ns)
    assert not load.pressed(1, busy_ns + 3600 * WINDOW_NS)


@pytest.mark.parametrize(
    ("table", "frames", "free"),
    [
        ({1: 9.0, 2: 9.2}, 1, True),  # padded
        ({1: 5.2, 2: 12.8}, 1, False),
        ({4: 10.3, 5: 12.0}, 4, False),
        ({1: 5.2}, 1, True),  # never seen
        ({}, 1, True),
    ],
)
def test_one_more_is_free_where_it_was_not_seen_to_cost_anything(
    table: dict[int, float], frames: int, free: bool
) -> None:
    assert one_more_is_free(frames, {size: int(ms * 1e6) for size, ms in table.items()}.get) == free

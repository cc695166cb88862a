"""Many batches and many executors, with the sanitizer on: nothing grows, nothing is reported, a model is there once."""

from __future__ import annotations

import gc
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from ascend.driving import bench, in_threads, open_sim, run_batches, tiny_spec

from stages.accelerators.accelerator import RunTimes
from stages.accelerators.ascend.device import AscendDevice
from stages.model import ModelSpec

OPTIONS = {"service_ms": "1=5.2,4=12.8,8=23.5", "copy_ms": "3"}
REAL_TIME = {"clock": "real", "service_ms": "1=0.5,8=2", "copy_ms": "0.3"}
SHORT, LONG = 2_500, 100_000
PART = 500


class Gauge:
    """What must stay flat: device memory, objects of the machine and of this process, resident memory."""

    def __init__(self, machine: Any) -> None:
        self._machine = machine
        self._process = psutil.Process()
        self.samples: list[dict[str, int]] = []

    def sample(self) -> None:
        gc.collect()
        machine = self._machine
        self.samples.append(
            {
                "device bytes": machine.devices[0].used_bytes,
                "handles": len(machine.objects) + len(machine.models) + len(machine.book.blocks()),
                "python objects": len(gc.get_objects()),
                "descriptors": len(list(Path("/proc/self/fd").iterdir())),
                "threads": self._process.num_threads(),
                "resident bytes": self._process.memory_info().rss,
            }
        )

    def grown(self, key: str) -> int:
        """From the end of the first fifth, when all is warm, to the end."""
        return self.samples[-1][key] - self.samples[len(self.samples) // 5][key]


def flat(spec: ModelSpec, batches: int, **options: str) -> Gauge:
    with bench() as made:
        device = open_sim({**OPTIONS, "sample_every": "200", **options})
        device.load(spec, 8)
        lanes = device.lanes(2)
        gauge = Gauge(made.machine)
        started = time.process_time()
        for part in range(batches // PART):
            told = run_batches(lanes, spec, PART, 1 + part % 8, 2)
            assert all(isinstance(outcome, RunTimes) for _, outcome in told)
            gauge.sample()
        took_s = time.process_time() - started
        lanes.close()
        device.close()
        assert not made.left()
        assert not made.violations, made.violations
    last = gauge.samples[-1]
    print(f"{batches} batches, {took_s / batches * 1e3:.2f} ms of CPU each; at the end, and grown from a fifth on:")
    for key, value in last.items():
        print(f"  {key}: {value} {gauge.grown(key):+d}")
    return gauge


def assert_flat(gauge: Gauge) -> None:
    for key in ("device bytes", "handles", "descriptors", "threads"):
        assert gauge.grown(key) == 0, f"{key}: {[sample[key] for sample in gauge.samples]}"
    objects = [sample["python objects"] for sample in gauge.samples]
    assert gauge.grown("python objects") < 1000, objects[:: max(1, len(objects) // 20)]


@pytest.mark.parametrize("variant", [pytest.param("A", marks=pytest.mark.long), "B"])
def test_nothing_grows(tmp_path: Path, variant: str) -> None:
    assert_flat(flat(tiny_spec(tmp_path), SHORT, variant=variant))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_nothing_grows_in_100_000_batches(tmp_path: Path) -> None:
    gauge = flat(tiny_spec(tmp_path), LONG)
    assert_flat(gauge)
    assert gauge.grown("resident bytes") < 8 << 20, [sample["resident bytes"] for sample in gauge.samples[::20]]


def test_a_leak_of_the_runtime_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The counterpart of flat: memory that the device loses shows, with what this process holds."""
    spec = tiny_spec(tmp_path)
    with bench():
        device = open_sim({**OPTIONS, "sample_every": "10", "leak_bytes_per_run": str(1 << 20)})
        device.load(spec, 8)
        lanes = device.lanes(2)
        run_batches(lanes, spec, 400, 4, 2)
        lanes.close()
        device.close()
    assert "of its memory were lost" in caplog.text
    assert "weights" in caplog.text


def test_eight_executors_on_two_devices_of_one_process(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    batches = 40

    def execute(device: AscendDevice, seed: int) -> None:
        lanes = device.lanes(2)
        try:
            told = run_batches(lanes, spec, batches, 1 + seed % 8, 2, seed, asleep=True)
            assert all(isinstance(outcome, RunTimes) for _, outcome in told)
        finally:
            lanes.close()

    with bench() as made:
        devices = [open_sim(REAL_TIME, executors=4, index=index) for index in (0, 1)]
        assert len(made.simulations) == 1  # one machine
        for device in devices:
            device.load(spec, 8)
            device.load(spec, 8)
        weights = [line for line in devices[0].runtime.register.lines() if "weights" in line]
        raised = in_threads([partial(execute, devices[n % 2], n) for n in range(8)])
        for device in devices:
            device.close()
        assert not raised, raised
        assert not made.violations, made.simulations[0].checker.report()
        assert not made.left()
    # two devices with one block of weights each: the model is loaded once, its instances share
    assert len(weights) == 1, weights
    assert "x 2" in weights[0], weights

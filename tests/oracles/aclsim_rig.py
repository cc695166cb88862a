"""Owns what tests of the simulated module share: a small OM and a loaded model with its buffers. No checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.accelerators.aclsim import OmDescription
from stages.model import TensorSpec

H2D, D2H = 1, 2
IMAGE = TensorSpec("images", (3, 8, 8), "float32")
ROWS = TensorSpec("rows", (5, 4), "float32")
SERVICE = {1: 5.2, 4: 12.8, 8: 23.5}


def write_om(folder: Path, name: str = "small.om", **fields: Any) -> str:
    """An OM that needs no ONNX file as long as runs are canned."""
    given: dict[str, Any] = {"onnx": str(folder / "none.onnx"), "input": IMAGE, "outputs": (ROWS,), **fields}
    return str(OmDescription(**given).write(folder / name))


def good(result: Any) -> Any:
    """The value of a call that must succeed."""
    if isinstance(result, tuple):
        *values, code = result
        assert code == 0, code
        return values[0] if len(values) == 1 else tuple(values)
    assert result == 0, result
    return None


@dataclass
class Slot:
    """Buffers of one run."""

    inputs: int = 0
    outputs: int = 0
    fed: list[tuple[int, int]] = field(default_factory=list)  # device address, bytes
    made: list[tuple[int, int]] = field(default_factory=list)
    pinned_in: int = 0
    pinned_out: int = 0
    handles: list[int] = field(default_factory=list)


class Rig:
    """One context, one model, upload, compute and download streams, for the calling thread."""

    def __init__(self, acl: Any, path: str, device: int = 0) -> None:
        self.acl = acl
        self.device = device
        good(acl.rt.set_device(device))
        self.context = good(acl.rt.create_context(device))
        self.streams = [good(acl.rt.create_stream()) for _ in range(3)]
        self.model = good(acl.mdl.load_from_file(path))
        self.desc = acl.mdl.create_desc()
        good(acl.mdl.get_desc(self.desc, self.model))
        self.slots: list[Slot] = []

    def slot(self, gear: int = 0) -> Slot:
        """One more set of buffers."""
        acl, slot = self.acl, Slot()
        for side, sizes in (("input", slot.fed), ("output", slot.made)):
            dataset = acl.mdl.create_dataset()
            for index in range(getattr(acl.mdl, f"get_num_{side}s")(self.desc)):
                size = getattr(acl.mdl, f"get_{side}_size_by_index")(self.desc, index)
                address = good(acl.rt.malloc(size, 0))
                buffer = acl.create_data_buffer(address, size)
                good(acl.mdl.add_dataset_buffer(dataset, buffer))
                sizes.append((address, size))
                slot.handles.append(buffer)
            setattr(slot, f"{side}s", dataset)
        slot.pinned_in = good(acl.rt.malloc_host(slot.fed[0][1]))
        slot.pinned_out = good(acl.rt.malloc_host(slot.made[0][1]))
        if gear:
            good(acl.mdl.set_dynamic_batch_size(self.model, slot.inputs, 1, gear))
        self.slots.append(slot)
        return slot

    def submit(self, slot: Slot, events: Mapping[str, int]) -> None:
        """Upload, run and download on three streams, tied by ex events ``in``, ``run`` and ``out``."""
        acl, (up, compute, down) = self.acl, self.streams
        size_in, size_out = slot.fed[0][1], slot.made[0][1]
        good(acl.rt.memcpy_async(slot.fed[0][0], size_in, slot.pinned_in, size_in, H2D, up))
        good(acl.rt.record_event(events["in"], up))
        good(acl.rt.stream_wait_event(compute, events["in"]))
        good(acl.mdl.execute_async(self.model, slot.inputs, slot.outputs, compute))
        good(acl.rt.record_event(events["run"], compute))
        good(acl.rt.stream_wait_event(down, events["run"]))
        good(acl.rt.memcpy_async(slot.pinned_out, size_out, slot.made[0][0], size_out, D2H, down))
        good(acl.rt.record_event(events["out"], down))

    def events(self) -> dict[str, int]:
        """For one slot."""
        return {name: good(self.acl.rt.create_event_ex_with_flag(1)) for name in ("in", "run", "out")}

    def close(self, *events: Mapping[str, int]) -> None:
        """Release everything in order."""
        acl = self.acl
        for stream in self.streams:
            good(acl.rt.synchronize_stream(stream))
        for slot in self.slots:
            good(acl.mdl.destroy_dataset(slot.inputs))
            good(acl.mdl.destroy_dataset(slot.outputs))
            for handle in slot.handles:
                good(acl.destroy_data_buffer(handle))
            for address, _ in slot.fed + slot.made:
                good(acl.rt.free(address))
            good(acl.rt.free_host(slot.pinned_in))
            good(acl.rt.free_host(slot.pinned_out))
        good(acl.mdl.unload(self.model))
        good(acl.mdl.destroy_desc(self.desc))
        for names in events:
            for event in names.values():
                good(acl.rt.destroy_event(event))
        for stream in self.streams:
            good(acl.rt.destroy_stream(stream))
        good(acl.rt.destroy_context(self.context))
        good(acl.rt.reset_device(self.device))

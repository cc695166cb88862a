"""Owns the text file that stands for an offline model (OM): what ATC would have fixed. Does not own running it.

The file is JSON and names an ONNX file, relative to itself or absolute. ``input``, ``outputs`` and ``onnx_batch`` say
what the ONNX file takes and gives; a file without them has them found out when it is loaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stages.accelerators.aclsim.om_fields import problems_of
from stages.errors import UserError
from stages.model import TensorSpec

SCHEMA = 1
MOST_GEARS = 100
SOC = "Ascend310P3"

# Bytes per pixel of what AIPP takes, times two
AIPP_FORMATS = {"RGB888_U8": 6, "YUV420SP_U8": 3, "XRGB8888_U8": 8, "YUV400_U8": 2}

# BT.601 narrow range to RGB, as in the template of ATC's documents; rows R, G, B
BT601_NARROW = (298, 0, 409, 298, -100, -208, 298, 516, 0)


@dataclass(frozen=True, slots=True)
class Aipp:
    """Static AIPP: ``out = (in - mean) * var_reci`` per channel of the model, after swap and colour conversion.

    ``rbuv_swap``: red and blue, or U and V, change places first. ``matrix``: nine numbers times 256, rows R, G, B, for
    YUV420SP_U8. The result is rounded to float16, as on the device.
    """

    input: str = "RGB888_U8"
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    var_reci: tuple[float, ...] = (1.0, 1.0, 1.0)
    rbuv_swap: bool = False
    matrix: tuple[int, ...] = BT601_NARROW
    input_bias: tuple[int, ...] = (16, 128, 128)

    def problems(self) -> list[str]:
        """What is wrong with it, in sentences without a subject."""
        found = []
        if self.input == "BGR888_U8":
            found.append("aipp.input BGR888_U8 does not exist; give RGB888_U8 with rbuv_swap: true")
        elif self.input not in AIPP_FORMATS:
            found.append(f"aipp.input is {self.input!r}; give one of {', '.join(AIPP_FORMATS)}")
        if len(self.mean) not in (1, 3) or len(self.var_reci) not in (1, 3):
            found.append("aipp.mean and aipp.var_reci need one number per channel; give three")
        if len(self.matrix) != 9 or len(self.input_bias) != 3:
            found.append("aipp.matrix needs nine numbers and aipp.input_bias three; correct them")
        return found


@dataclass(frozen=True, slots=True)
class OmDescription:
    """What an OM is: see the module.

    ``batch``: the batch that is built in, or the gears in ascending order. ``input`` and ``outputs``: of the ONNX file,
    for one frame. ``onnx_batch``: the batch built into the ONNX file, None for any. ``output_dtype``: FP32, FP16 or
    None for what the ONNX file has. ``service_ms``: batch -> milliseconds of device time. ``weights_bytes`` and
    ``work_bytes``: what one load takes, None for a guess.
    """

    onnx: str
    batch: int | tuple[int, ...] = 1
    soc: str = SOC
    aipp: Aipp | None = None
    output_dtype: str | None = None
    service_ms: Mapping[int, float] = field(default_factory=dict)
    weights_bytes: int | None = None
    work_bytes: int | None = None
    input: TensorSpec | None = None
    outputs: tuple[TensorSpec, ...] = ()
    onnx_batch: int | None = None

    def __post_init__(self) -> None:
        problems = []
        gears = self.gears or (self.largest,)
        if list(gears) != sorted(set(gears)) or gears[0] < 1 or len(gears) > MOST_GEARS:
            problems.append(f"batch is {self.batch}; give 1 or more, or up to {MOST_GEARS} ascending gears")
        elif isinstance(self.batch, tuple) and len(self.batch) < 2:
            problems.append(f"batch has the gears {list(self.batch)}; ATC wants two or more, or give a fixed batch")
        if self.output_dtype not in (None, "FP32", "FP16"):
            problems.append(f"output_dtype is {self.output_dtype!r}; give FP32, FP16 or null")
        if self.aipp:
            problems += self.aipp.problems()
        if problems:
            raise UserError.of([f"OM of {self.onnx}: {problem}" for problem in problems])

    @property
    def gears(self) -> tuple[int, ...]:
        """Batch sizes of a dynamic model, () for a fixed one."""
        return self.batch if isinstance(self.batch, tuple) else ()

    @property
    def largest(self) -> int:
        """The fixed batch or the largest gear."""
        return max(self.batch, default=0) if isinstance(self.batch, tuple) else self.batch

    @property
    def picture(self) -> TensorSpec:
        """The input as the user of the OM sees it: uint8 pixels when AIPP is built in."""
        assert self.input is not None
        if self.aipp is None:
            return self.input
        height, width = self.size
        lines, channels = {
            "YUV420SP_U8": (height * 3 // 2, 1),
            "YUV400_U8": (height, 1),
            "XRGB8888_U8": (height, 4),
        }.get(self.aipp.input, (height, 3))
        return TensorSpec(self.input.name, (lines, width, channels), "uint8")

    @property
    def planes(self) -> bool:
        """Whether the ONNX file takes (3, height, width); otherwise (height, width, 3)."""
        assert self.input is not None
        return not (len(self.input.shape) == 3 and self.input.shape[2] in (1, 3) and self.input.shape[0] > 4)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the picture."""
        assert self.input is not None
        height, width = self.input.shape[1:3] if self.planes else self.input.shape[:2]
        return height, width

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """The outputs as the OM gives them."""
        if self.output_dtype is None:
            return self.outputs
        dtype = {"FP32": "float32", "FP16": "float16"}[self.output_dtype]
        return tuple(
            TensorSpec(t.name, t.shape, dtype if np.dtype(t.dtype).kind == "f" else t.dtype) for t in self.outputs
        )

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """Work and weight memory of one load."""
        weights = self.weights_bytes
        if weights is None:
            weights = Path(self.onnx).stat().st_size if Path(self.onnx).is_file() else 1 << 20
        work = self.work_bytes
        if work is None:
            tensors = (self.input, *self.outputs) if self.input else self.outputs
            work = 4 * self.largest * sum(t.frame_bytes for t in tensors)
        return max(work, 512), max(weights, 512)

    def service_time_ms(self, batch: int) -> float | None:
        """Device time of a batch by ``service_ms``; None when it says nothing."""
        return service_time_ms(self.service_ms, batch)

    def write(self, path: str | Path) -> Path:
        """Write the file; the ONNX file is named relative to it when it lies in the same folder."""
        target = Path(path)
        onnx = Path(self.onnx)
        beside = onnx.resolve().parent == target.resolve().parent
        content: dict[str, Any] = {
            "campipe_om": SCHEMA,
            "onnx": onnx.name if beside else str(onnx.resolve()),
            "soc": self.soc,
            "batch": {"gears": list(self.batch)} if isinstance(self.batch, tuple) else self.batch,
            "aipp": None if self.aipp is None else {name: _plain(getattr(self.aipp, name)) for name in Aipp.__slots__},
            "output_dtype": self.output_dtype,
            "service_ms": {str(size): time_ms for size, time_ms in self.service_ms.items()},
        }
        for name in ("weights_bytes", "work_bytes", "onnx_batch"):
            if getattr(self, name) is not None:
                content[name] = getattr(self, name)
        if self.input is not None:
            content["input"] = _tensor_content(self.input)
            content["outputs"] = [_tensor_content(t) for t in self.outputs]
        target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return target

    @classmethod
    def read(cls, path: str | Path) -> OmDescription:
        """Read a file. Raises UserError for what is no such file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"OM {path}: can't be read as text ({error}); give a simulated OM file") from error
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, path: str) -> OmDescription:
        """From the text of a file at ``path``. Raises UserError."""
        try:
            content = json.loads(text)
            if not isinstance(content, dict) or content.get("campipe_om") != SCHEMA:
                raise ValueError(f'"campipe_om": {SCHEMA} is missing')
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"OM {path}: is no description of a simulated OM ({error!s}); write it with OmDescription.write"
            ) from error
        if problems := problems_of(content):
            raise UserError.of([f"OM {path}: {problem}" for problem in problems])
        return cls(**_arguments(content, path))


def service_time_ms(table: Mapping[int, float], batch: int) -> float | None:
    """Time of the smallest size that holds the batch; of the largest size for a batch beyond; None: no table."""
    if not table:
        return None
    return table[min((size for size in table if size >= batch), default=max(table))]


def describe(
    onnx_path: str | Path,
    *,
    batch: int | Sequence[int] = 1,
    aipp: Aipp | None = None,
    soc: str = SOC,
    output_dtype: str | None = None,
    service_ms: Mapping[int, float] | None = None,
    weights_bytes: int | None = None,
    work_bytes: int | None = None,
    width: int | None = None,
    height: int | None = None,
) -> OmDescription:
    """What ATC would make of an ONNX file. ``batch``: one number, or the gears.

    Runs the file once to find its shapes; ``width`` and ``height`` stand in where it leaves them open. Raises
    UserError for what is no model of one picture.
    """
    found = OmDescription(
        os.fspath(onnx_path),
        batch if isinstance(batch, int) else tuple(batch),
        soc,
        aipp,
        output_dtype,
        dict(service_ms or {}),
        weights_bytes,
        work_bytes,
    )
    return completed(found, width=width, height=height)


def completed(om: OmDescription, *, width: int | None = None, height: int | None = None) -> OmDescription:
    """The description with what the ONNX file takes and gives, found out by running it when it is not told."""
    from dataclasses import replace

    from stages.accelerators.probe import describe as probe

    if om.input is not None:
        return om
    facts = probe(om.onnx, width=width, height=height)
    if len(facts.inputs) != 1 or None in facts.inputs[0].shape[1:]:
        raise UserError(
            f"OM of {om.onnx}: the simulator runs models of one input of known size, this one has "
            f"{[(t.name, t.shape) for t in facts.inputs]}; give width and height, or use another model"
        )
    shape = tuple(n for n in facts.inputs[0].shape[1:] if n)
    tensor = TensorSpec(facts.inputs[0].name, shape, facts.inputs[0].dtype)
    return replace(om, input=tensor, outputs=facts.output_specs(), onnx_batch=facts.batch)


def _arguments(content: Mapping[str, Any], path: str) -> dict[str, Any]:
    onnx = Path(content["onnx"])
    batch = content.get("batch", 1)
    aipp = content.get("aipp")
    return {
        "onnx": str(onnx if onnx.is_absolute() else Path(path).resolve().parent / onnx),
        "batch": tuple(batch["gears"]) if isinstance(batch, dict) else batch,
        "soc": content.get("soc", SOC),
        "aipp": None if aipp is None else _aipp(aipp),
        "output_dtype": content.get("output_dtype"),
        "service_ms": {int(size): float(ms) for size, ms in (content.get("service_ms") or {}).items()},
        "weights_bytes": content.get("weights_bytes"),
        "work_bytes": content.get("work_bytes"),
        "onnx_batch": content.get("onnx_batch"),
        "input": _tensor(content["input"]) if content.get("input") else None,
        "outputs": tuple(map(_tensor, content.get("outputs") or ())),
    }


def _aipp(content: Mapping[str, Any]) -> Aipp:
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
    return Aipp(**values)


def _tensor(content: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(content["name"], tuple(content["shape"]), content["dtype"])


def _tensor_content(tensor: TensorSpec) -> dict[str, Any]:
    return {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value

"""Owns what the fields of a simulated OM's file may hold, and the sentences for what they must not. Reads no file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

MOST_BYTES: Final = 1 << 40
MOST_BATCH: Final = 1 << 20
SHOWN: Final = 80  # characters of a value in a message


def problems_of(content: Mapping[str, Any]) -> list[str]:
    """What is wrong with the fields, each as ``key is VALUE; remedy``; empty: nothing."""
    return [*_wrong("", content, _FIELDS), *([] if "onnx" in content else ["onnx is missing; name the ONNX file"])]


def _wrong(
    where: str, content: Mapping[str, Any], rules: Mapping[str, tuple[Callable[[Any], Any], str]]
) -> Iterator[str]:
    for key, value in content.items():
        if key not in rules:
            yield f"{where}{key} is unknown; leave it out, or give one of {', '.join(rules)}"
            continue
        fits, remedy = rules[key]
        found = fits(value)
        if isinstance(found, list):
            yield from found
        elif not found:
            yield f"{where}{key} is {shown(value)}; give {remedy}"


def shown(value: Any) -> str:
    """A value for a message."""
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def _whole(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e30 and math.isfinite(value)


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _or_none(fits: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: True if value is None else fits(value)


def _text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 4096 and "\0" not in value


def _batch(value: Any) -> bool:
    if isinstance(value, dict):
        return set(value) == {"gears"} and _list_of(_whole(1, MOST_BATCH))(value["gears"])
    return _whole(0, MOST_BATCH)(value)


def _times(value: Any) -> bool:
    return isinstance(value, dict) and all(
        key.isascii() and key.isdecimal() and 1 <= len(key) <= 7 and int(key) and _number(ms) and ms >= 0
        for key, ms in value.items()
    )


def _dtype(value: Any) -> bool:
    try:
        return isinstance(value, str) and np.dtype(value).kind in "biuf"
    except (TypeError, ValueError):
        return False


def _aipp(value: Any) -> bool | list[str]:
    return list(_wrong("aipp.", value, _AIPP)) if isinstance(value, dict) else False


def _tensor(where: str) -> Callable[[Any], bool | list[str]]:
    def fits(value: Any) -> bool | list[str]:
        if not isinstance(value, dict):
            return False
        missing = [f"{where}{key} is missing; give {_TENSOR[key][1]}" for key in _TENSOR if key not in value]
        return [*_wrong(where, value, _TENSOR), *missing]

    return fits


def _outputs(value: Any) -> bool | list[str]:
    if not isinstance(value, list):
        return False
    problems: list[str] = []
    for index, each in enumerate(value):
        found = _tensor(f"outputs.{index}.")(each)
        problems += found if isinstance(found, list) else [f"outputs.{index} is {shown(each)}; give {_A_TENSOR}"]
    return problems


_A_TENSOR: Final = 'an object like {"name": "boxes", "shape": [100, 6], "dtype": "float32"}'
_NUMBERS: Final = "a list of numbers, one for each channel"
_TENSOR: Final[dict[str, tuple[Callable[[Any], Any], str]]] = {
    "name": (_text, "the tensor's name"),
    "shape": (
        lambda value: _list_of(_whole(1, MOST_BYTES))(value) and math.prod(value) <= MOST_BYTES,
        "a list of whole numbers of 1 or more, without the batch",
    ),
    "dtype": (_dtype, "a numpy type like float32"),
}
_AIPP: Final[dict[str, tuple[Callable[[Any], Any], str]]] = {
    "input": (_text, "a picture format like RGB888_U8"),
    "mean": (_list_of(_number), _NUMBERS),
    "var_reci": (_list_of(_number), _NUMBERS),
    "rbuv_swap": (lambda value: isinstance(value, bool), "true or false"),
    "matrix": (_list_of(_whole(-65536, 65536)), "a list of nine whole numbers"),
    "input_bias": (_list_of(_whole(-65536, 65536)), "a list of three whole numbers"),
}
_FIELDS: Final[dict[str, tuple[Callable[[Any], Any], str]]] = {
    "campipe_om": (lambda _value: True, "1"),
    "onnx": (_text, "the path of an ONNX file"),
    "soc": (_text, "a chip like Ascend310P3"),
    "batch": (_batch, 'a whole number of 1 or more, or {"gears": [1, 2, 4]}'),
    "aipp": (_or_none(_aipp), "an object, or null"),
    "output_dtype": (lambda value: value in (None, "FP32", "FP16"), "FP32, FP16 or null"),
    "service_ms": (_or_none(_times), 'milliseconds of 0 or more by batch, like {"1": 5.2, "4": 12.8}'),
    "weights_bytes": (_or_none(_whole(0, MOST_BYTES)), "a whole number of 0 or more, or null"),
    "work_bytes": (_or_none(_whole(0, MOST_BYTES)), "a whole number of 0 or more, or null"),
    "onnx_batch": (_or_none(_whole(1, MOST_BATCH)), "a whole number of 1 or more, or null"),
    "input": (_or_none(_tensor("input.")), _A_TENSOR),
    "outputs": (_or_none(_outputs), "a list of such objects as `input`"),
}

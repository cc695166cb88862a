"""Descriptions of models for tests that need one and care for a few of its fields."""

from __future__ import annotations

from typing import Any

from stages.model import ModelSpec, TensorSpec


def model_spec(**changes: Any) -> ModelSpec:
    """A model of 64x64 that takes RGB float32 as it is and has three classes; any field can be given."""
    fields: dict[str, Any] = {
        "name": "m",
        "path": "/m.onnx",
        "sha256": "",
        "width": 64,
        "height": 64,
        "channels": "rgb",
        "input_layout": "nchw",
        "input_dtype": "float32",
        "mean": (0.0, 0.0, 0.0),
        "std": (1.0, 1.0, 1.0),
        "pad_value": 114,
        "placement": "center",
        "layout": "ssd",
        "labels": ("a", "b", "c"),
        "outputs": (TensorSpec("out", (8, 7), "float32"),),
        "fixed_batch": None,
        "confidence": 0.4,
        "iou": 0.45,
    }
    return ModelSpec(**fields | changes)

"""Looking into a model's file takes a process of its own; here it is forked from one that has the libraries already.

Loading ONNX Runtime, OpenCV and NumPy takes longer than looking, and these tests look some fifty times. What starts
that process as the product does is tested in ``tests/process`` and ``tests/e2e``.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline import planning
from pipeline.models import inspect_file, verify
from pipeline.runtime.isolated import call_in_process
from pipeline.runtime.starting import stop_forkserver

LIBRARIES = ["pipeline.models.inspect_file", "pipeline.models.verify_run", "stages.accelerators.probe", "onnxruntime"]


@pytest.fixture(scope="session", autouse=True)
def _forked_instead_of_spawned() -> Iterator[None]:
    warm = multiprocessing.get_context("forkserver")

    def call(context: object, timeout_s: float, function: Callable[..., object], *args: Any, **kwargs: Any) -> object:
        warm.set_forkserver_preload(LIBRARIES)  # for the case that a test has ended the server
        return call_in_process(warm, timeout_s, function, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        for module in (planning, inspect_file, verify):
            patch.setattr(module, "call_in_process", call)
        yield
    stop_forkserver()

"""Looking into a model's file takes a process of its own; here it is forked from one that has the libraries already.

Loading ONNX Runtime, OpenCV and NumPy takes longer than looking, and these tests look some fifty times. What starts
that process as the product does is tested in ``tests/process`` and ``tests/e2e``.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made.sites import Refusal

from pipeline import planning
from pipeline.config import load_site
from pipeline.models import inspect_file, verify
from pipeline.runtime.isolated import call_in_process
from pipeline.runtime.starting import stop_forkserver
from stages.errors import UserError

LIBRARIES = ["pipeline.models.inspect_file", "pipeline.models.verify_run", "stages.accelerators.probe", "onnxruntime"]


MOST_LEFT = 8  # descriptors, of what fixtures of a file keep for its other tests


@pytest.fixture(autouse=True)
def _leaves_no_descriptors() -> Iterator[None]:
    before = _descriptors()
    yield
    if _descriptors() > before + MOST_LEFT:
        gc.collect()
        assert _descriptors() <= before + MOST_LEFT, "descriptors are left open"


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  a count, no paths


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


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with a clip, a folder and an empty clip."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clip.mp4").write_bytes(b"some bytes")
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.fixture
def refusal(here: Path) -> Refusal:
    """Writes files, loads site.yaml and gives the lines of the refusal."""

    def refuse(files: dict[str, str | bytes], *overrides: str, env: dict[str, str] | None = None) -> list[str]:
        for name, content in files.items():
            path = here / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(UserError) as caught:
            load_site("site.yaml", overrides, env=env or {})
        for line in caught.value.problems:
            assert line.isprintable()
            assert "; " in line or line.startswith("… and"), f"no remedy: {line}"
        return list(caught.value.problems)

    return refuse

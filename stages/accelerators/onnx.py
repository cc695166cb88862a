"""Owns the device ``cpu``: ONNX Runtime, its models loaded once per process. Does not own the runs (``onnx_lanes``)."""

from __future__ import annotations

import logging
import time
from typing import Any

from stages.accelerators.fold import FoldMode, NotFolded, folded_input, folded_session, pays
from stages.accelerators.onnx_check import disagreements, warm_up
from stages.accelerators.onnx_lanes import OnnxLanes, OnnxModel
from stages.accelerators.onnx_scales import with_scales
from stages.accelerators.onnx_session import check_digest, check_file, open_session, runtime, tensor_facts
from stages.accelerators.pixels import check_scaling
from stages.errors import DeviceFailed, UserError
from stages.model import ModelSpec
from stages.stage import MonotonicClock

log = logging.getLogger(__name__)


class OnnxDevice:
    """All executors share one session per model: its weights are in memory once, its runs may overlap.

    ``threads`` compute each run: the executor's own and the session's pool, which all executors share. So that
    ``executors`` times ``threads`` are busy when all run, the pool holds ``executors * (threads - 1)``.

    ``fold``: whether pre-processing becomes part of the model (see ``fold``); results are the same bits either way.
    """

    def __init__(
        self,
        threads: int,
        executors: int = 1,
        clock_ns: MonotonicClock = time.monotonic_ns,
        fold: FoldMode = "auto",
    ) -> None:
        self._fold = fold
        self._pool_threads = executors * (threads - 1) + 1  # as ONNX Runtime counts: the calling thread is one of them
        self._clock_ns = clock_ns
        self._models: dict[str, OnnxModel] = {}

    def open(self) -> None:
        """See Device."""
        runtime()  # a broken installation shows here and not at the first model

    def load(self, model: ModelSpec, max_batch: int) -> None:
        """See Device. With a fixed batch, ``max_batch`` may be larger: such batches run in several parts."""
        known = self._models.get(model.name)
        if known is not None and known.spec == model and known.max_batch >= max_batch:
            return
        if max_batch < 1:
            raise UserError(f"model {model.name}: max_batch is {max_batch}; give 1 or more")
        label = f"model {model.name}"
        check_scaling(model)
        check_file(label, model.path)
        check_digest(label, model.path, model.sha256)
        session: Any
        if known is not None and known.spec == model:
            session, fed = known.session, known.fed
        else:
            session = open_session(label, model.path, self._pool_threads)
            outputs = with_scales(tensor_facts(session.get_outputs()), model.path)
            problems = disagreements(model, tensor_facts(session.get_inputs()), outputs)
            if problems:
                raise UserError.of(problems)
            session, fed = self._folded(model, session, max_batch)
        frames_per_run = warm_up(fed, session, max_batch)
        name = session.get_inputs()[0].name
        self._models[model.name] = OnnxModel(model, session, name, max_batch, frames_per_run, fed)

    def _folded(self, model: ModelSpec, plain: Any, max_batch: int) -> tuple[Any, ModelSpec]:
        """The session to use, and what it is fed: ``plain`` and ``model`` unless folding is wanted and exact."""
        if self._fold == "off" or (self._fold == "auto" and not pays(model)):
            return plain, model

        def opened(content: bytes) -> Any:
            return open_session(f"model {model.name}", model.path, self._pool_threads, content)

        try:
            return folded_session(model, plain, max_batch, opened), folded_input(model)
        except NotFolded as why:
            log.warning("model %s: its pre-processing is not folded into it: %s", model.name, why)
            return plain, model

    def lanes(self, count: int) -> OnnxLanes:
        """See Device."""
        if not self._models:
            raise DeviceFailed("device cpu: no model is loaded")
        lanes = OnnxLanes(tuple(self._models.values()), count, self._clock_ns)
        lanes.open()
        return lanes

    def close(self) -> None:
        """See Device. LaneSets that are still open keep their models."""
        self._models.clear()

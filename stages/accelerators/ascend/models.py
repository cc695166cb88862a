"""Owns the models of one device: found, checked against their descriptions, loaded into all seats, warmed up.

Does not own contexts and seats (``device``), nor how an instance is loaded (``loaded``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from stages.accelerators.ascend.atc import missing_om, no_om
from stages.accelerators.ascend.loaded import LoadedModel, Seat, open_weights
from stages.accelerators.ascend.om_check import match_outputs, om_problems, taken_by_guess
from stages.accelerators.ascend.om_file import kind_of_om
from stages.accelerators.ascend.options import AscendOptions
from stages.accelerators.ascend.owned import Owner
from stages.accelerators.ascend.runtime import Runtime
from stages.accelerators.ascend.simulated_om import simulated_om
from stages.accelerators.ascend.warmup import warm_up
from stages.accelerators.onnx_session import check_digest
from stages.accelerators.pixels import check_scaling
from stages.errors import UserError
from stages.model import ModelSpec, OmSpec
from stages.postprocess.detect import contradictions

log = logging.getLogger(__name__)


class DeviceModels:
    """Each model once. One thread at a time calls it; it changes the thread's current context."""

    def __init__(
        self, runtime: Runtime, owner: Owner, options: AscendOptions, context: int, soc: str, *, simulated: bool
    ) -> None:
        self.loaded: dict[str, LoadedModel] = {}
        self._runtime = runtime
        self._owner = owner
        self._per_set = options.variant == "A"
        self._canned = simulated and options.compute == "canned"
        self._context = context  # the device's own, which the weights belong to
        self._soc = soc
        self._simulated = simulated

    def differs(self, spec: ModelSpec) -> bool:
        """Whether another model of this name is loaded."""
        known = self.loaded.get(spec.name)
        return known is not None and known.spec != spec

    def load(self, spec: ModelSpec, max_batch: int, seats: Sequence[Seat]) -> None:
        """Load a model into ``seats``, which nobody uses, unless it is loaded. Raises UserError, AclError."""
        if max_batch < 1:
            raise UserError(f"model {spec.name}: max_batch is {max_batch}; give 1 or more")
        known = self.loaded.get(spec.name)
        if known is not None and known.spec == spec:
            known.max_batch = max(known.max_batch, max_batch)
            return
        if known is not None:
            self._unload(known, seats)
        with ExitStack() as undo:
            stack = undo.enter_context(ExitStack())
            om = self._om(spec, max_batch, stack)
            self._runtime.enter(self._context)
            model = open_weights(self._owner, spec, om, max_batch, stack)
            undo.callback(self._unload, model, seats)
            for seat in seats:  # all loads before the first run: each of them writes the weights
                self._runtime.enter(seat.context)
                seat.load(model, per_set=self._per_set)
                self._check(model)
            self._warm_up(model, seats)
            undo.pop_all()
        self.loaded[spec.name] = model

    def fill(self, seat: Seat) -> None:
        """Load what the seat does not have yet."""
        self._runtime.enter(seat.context)
        for model in self.loaded.values():
            seat.load(model, per_set=self._per_set)

    def close(self) -> None:
        """Give all weights back; no seat has an instance any more. The device's own context is current."""
        while self.loaded:
            self.loaded.popitem()[1].stack.close()

    def _om(self, spec: ModelSpec, max_batch: int, stack: ExitStack) -> OmSpec:
        check_scaling(spec)
        if self._simulated:
            return simulated_om(spec, max_batch, stack, canned=self._canned)
        om = spec.om
        if om is None:
            raise UserError(no_om(spec, self._soc))
        if not om.path or not Path(om.path).is_file():
            raise UserError(missing_om(spec, om, self._soc))
        if kind_of_om(f"model {spec.name}: om", om.path) == "simulated":
            log.warning("model %s: OM %s is a simulated one, which a card can't load", spec.name, om.path)
        check_digest(f"model {spec.name}: om", om.path, om.sha256)
        return om

    def _check(self, model: LoadedModel) -> None:
        if model.outputs or model.facts is None:
            return
        problems = om_problems(model.spec, model.om, model.facts, self._soc)
        if problems:
            raise UserError.of(problems)
        model.outputs = tuple(match_outputs(model.spec, model.facts)[0])
        guessed = taken_by_guess(model.spec, model.facts, model.outputs)
        if guessed:
            log.warning(
                "%s: its OM has other names for its outputs and several are alike; they are taken in order: %s. Look "
                "at what is found, or convert it with --out_nodes in the description's order",
                model.label,
                guessed,
            )

    def _warm_up(self, model: LoadedModel, seats: Sequence[Seat]) -> None:
        model.ran = True
        first = True
        for seat in seats:
            self._runtime.enter(seat.context)
            for model_id in seat.instances(model.spec.name):
                outputs = warm_up(self._owner, model, model_id, every_batch=first)
                if first and not self._canned:
                    problems = contradictions(model.spec, outputs, {})
                    if problems:
                        raise UserError.of(problems)
                first = False

    def _unload(self, model: LoadedModel, seats: Sequence[Seat]) -> None:
        """From the seats, then its weights."""
        self.loaded.pop(model.spec.name, None)
        for seat in seats:
            self._runtime.enter(seat.context)
            seat.drop(model.spec.name)
        self._runtime.enter(self._context)
        model.stack.close()

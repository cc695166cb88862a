"""Owns a model that is on a device: its weights, once, and its instances, one per context and stream. Runs none.

A model id keeps the state of its run (stream, addresses, work memory), so that it may be pending on one stream only:
each further compute stream gets an instance of its own, with its own work memory and the same weights, which are only
read. Every load writes the weights, so instances share them only while none of them has run; one that is loaded later
(an executor more than was planned, a lane that is rebuilt) brings its own, which is right however loaders behave.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass

from stages.accelerators.ascend.errors import AclError, OutOfMemory
from stages.accelerators.ascend.om import OmFacts, OmTensor, read_om
from stages.accelerators.ascend.owned import Owner
from stages.accelerators.ascend.runtime import Runtime
from stages.model import ModelSpec, OmSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Weights:
    """What instances share. ``address`` 0: the vendor's loader manages the memory of each instance."""

    address: int
    weight_bytes: int
    work_bytes: int


@dataclass(slots=True)
class LoadedModel:
    """A model on one device."""

    spec: ModelSpec
    om: OmSpec
    weights: Weights
    weights_stack: ExitStack  # gives back the weights alone
    stack: ExitStack  # gives back the weights, and what stands for the file
    max_batch: int
    facts: OmFacts | None = None
    outputs: tuple[OmTensor, ...] = ()  # in the order of ``spec.outputs``
    ran: bool = False  # from then on further instances do not write into the shared weights
    sharing: int = 0  # instances that were loaded into the shared weights

    @property
    def label(self) -> str:
        """For messages."""
        return f"model {self.spec.name}"


def open_weights(owner: Owner, spec: ModelSpec, om: OmSpec, max_batch: int, stack: ExitStack) -> LoadedModel:
    """Reserve the memory that all instances share; ``stack`` gives it back. The device's own context is current."""
    try:
        work_bytes, weight_bytes = owner.acl.mdl.query_size(om.path)
    except AclError as error:
        if error.users:
            raise
        # it is documented to refuse models of open shapes; then each instance has weights of its own
        log.info("model %s: its instances don't share weights: %s", spec.name, error)
        return LoadedModel(spec, om, Weights(0, 0, 0), ExitStack(), stack, max_batch)
    address = 0
    weights = stack.enter_context(ExitStack())
    if weight_bytes:
        address = weights.enter_context(owner.device_memory(f"{spec.name}: weights", weight_bytes))
    return LoadedModel(spec, om, Weights(address, weight_bytes, work_bytes), weights, stack, max_batch)


def open_instance(owner: Owner, model: LoadedModel, name: str, stack: ExitStack) -> int:
    """Load an instance in the current context, where it has to be run and unloaded; its model id.

    Memory of our own is documented for all models but those of open shapes; whether those with several batches count as
    such is not. So a loader that refuses it is asked to manage the memory itself.
    """
    label = f"{model.spec.name} of {name}"
    if model.weights.work_bytes:
        try:
            with ExitStack() as own:
                model_id = _open_in_memory(owner, model, label, own)
                stack.push(own.pop_all())
                return model_id
        except AclError as error:
            if error.needs_new_process or isinstance(error, OutOfMemory):
                raise
            log.warning("model %s: it is not loaded into memory that is shared: %s", label, error)
            if not model.sharing:  # nor will others be
                model.weights_stack.close()
                model.weights = Weights(0, 0, 0)
    return stack.enter_context(owner.model(label, lambda: owner.acl.mdl.load_from_file(model.om.path)))


def _open_in_memory(owner: Owner, model: LoadedModel, label: str, stack: ExitStack) -> int:
    load, weights = owner.acl.mdl.load_from_file_with_mem, model.weights
    work = stack.enter_context(owner.device_memory(f"{label}: work memory", weights.work_bytes))
    address, size_bytes = weights.address, weights.weight_bytes
    shared = bool(address) and not model.ran
    if model.ran and size_bytes:
        address = stack.enter_context(owner.device_memory(f"{label}: weights", size_bytes))
    thing = owner.model(label, lambda: load(model.om.path, work, weights.work_bytes, address, size_bytes))
    model_id = stack.enter_context(thing)
    model.sharing += shared
    return model_id


def facts_of(owner: Owner, model: LoadedModel, model_id: int) -> OmFacts:
    """What the file says of itself."""
    with owner.description(model.spec.name) as desc:
        owner.acl.mdl.get_desc(desc, model_id)
        return read_om(owner.acl, model.label, model_id, desc)


class Seat:
    """One executor's place on a device: a context and the instances in it. One thread at a time uses it."""

    def __init__(self, runtime: Runtime, owner: Owner, device: int, name: str, instances: int) -> None:
        self.context = 0
        self.name = name
        self._runtime = runtime
        self._owner = owner
        self._device = device
        self._most = instances
        self._stack = ExitStack()
        self._models: dict[str, tuple[LoadedModel, tuple[int, ...], ExitStack]] = {}

    def open(self) -> None:
        """Create the context; it is current for the calling thread then."""
        self._runtime.entered(None)
        self.context = self._stack.enter_context(self._owner.context(self.name, self._device))
        self._runtime.entered(self.context)

    def instances(self, model: str) -> tuple[int, ...]:
        """The ids of a model's instances here: one, or one per set of buffers."""
        return self._models[model][1]

    def load(self, model: LoadedModel, *, per_set: bool) -> None:
        """Load a model unless it is here. The seat's context is current."""
        known = self._models.get(model.spec.name)
        if known is not None and known[0] is model:
            return
        self.drop(model.spec.name)
        with ExitStack() as undo:
            stack = undo.enter_context(ExitStack())
            first = open_instance(self._owner, model, self.name, stack)
            if model.facts is None:
                model.facts = facts_of(self._owner, model, first)
            ids = [first]
            # a model with several batches keeps the chosen one in the model: an instance per set of buffers, so that
            # a set's choice stays while it is pending, whatever the others choose
            while (per_set or model.facts.dynamic) and len(ids) < self._most:
                ids.append(open_instance(self._owner, model, self.name, stack))
            undo.pop_all()
        self._models[model.spec.name] = (model, tuple(ids), stack)

    def drop(self, model: str) -> None:
        """Unload a model if it is here. The seat's context is current."""
        known = self._models.pop(model, None)
        if known is not None:
            known[2].close()

    def close(self) -> None:
        """Unload everything, destroy the context; may be called twice. The context is current if there is one."""
        while self._models:
            self._models.popitem()[1][2].close()
        self._stack.close()
        self._stack = ExitStack()
        self._runtime.entered(None)
        self.context = 0

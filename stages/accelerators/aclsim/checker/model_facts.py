"""Owns asking a module what a loaded model wants. Does not own what is made of it."""

from __future__ import annotations

from typing import Any

from stages.accelerators.aclsim import codes
from stages.accelerators.aclsim.checker.shadows import BufferSize, ModelFacts


def read_facts(module: Any, model_id: int) -> ModelFacts:
    """Sizes, gears and AIPP of a model; nothing where the module does not say."""
    mdl = module.mdl
    facts = ModelFacts()
    if not all(hasattr(mdl, name) for name in ("create_desc", "get_desc", "destroy_desc", "get_num_inputs")):
        return facts
    desc = mdl.create_desc()
    try:
        if mdl.get_desc(desc, model_id) == codes.SUCCESS:
            _fill(mdl, desc, model_id, facts)
    finally:
        mdl.destroy_desc(desc)
    return facts


def _fill(mdl: Any, desc: int, model_id: int, facts: ModelFacts) -> None:
    count = mdl.get_num_inputs(desc)
    name = getattr(mdl, "get_input_name_by_index", None)
    facts.inputs = [
        BufferSize(name(desc, i) if name else f"input {i}", mdl.get_input_size_by_index(desc, i)) for i in range(count)
    ]
    facts.outputs = [
        BufferSize(f"output {i}", mdl.get_output_size_by_index(desc, i)) for i in range(mdl.get_num_outputs(desc))
    ]
    if hasattr(mdl, "get_dynamic_batch"):
        gears, code = mdl.get_dynamic_batch(desc)
        if code == codes.SUCCESS and gears.get("batchCount"):
            facts.gears = tuple(gears["batch"])
    for index, tensor in enumerate(facts.inputs):
        if tensor.name == codes.DYNAMIC_BATCH_INPUT:
            facts.gear_index = index
            tensor.size = 4  # eight are written when there is room
        elif hasattr(mdl, "get_aipp_type") and not facts.gears:
            kind = mdl.get_aipp_type(model_id, index)
            tensor.exact = kind[-1] == codes.SUCCESS and kind[0] == 1

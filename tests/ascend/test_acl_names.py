"""Every function of the vendor's module that the code uses is in the table of names, with its shape."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from ascend.contract_table import read_table

from stages.accelerators.aclsim import contract, simulate
from stages.accelerators.ascend.calls import CALLS, RECENT_TEXT, Gives

ROOT = Path(__file__).resolve().parents[2]
BACKEND = ROOT / "stages" / "accelerators" / "ascend"
GROUPS = ("rt", "mdl", "util", "media", "himpi", "prof", "op", "blas", "fv")
SHAPES = {Gives.CODE: 1, Gives.VALUE: 2, Gives.PAIR: 3}
TABLE = read_table()
AMBIGUOUS = ("init", "finalize", "create_tensor_desc", "memcpy2d_async", "dvpp_malloc")  # of two groups, or abbreviated


def used_names(source: str) -> set[str]:
    """Names of the vendor's functions in a text: ``….rt.malloc``, ``acl.init``, ``getattr(acl.rt, "malloc")``."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name, value=ast.Attribute(attr=group)) if group in GROUPS:
                found.add(f"{group}.{name}")
            case ast.Attribute(attr=name, value=ast.Name(id=group)) if group in GROUPS:
                found.add(f"{group}.{name}")
            case ast.Attribute(attr=name, value=ast.Name(id="acl") | ast.Attribute(attr="acl" | "_acl")):
                found.add(name)
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[owner, ast.Constant(value=str() as name), *_]):
                last = ast.unparse(owner).split(".")[-1]
                if last in (*GROUPS, "acl", "_acl"):
                    found.add(f"{last}.{name}" if last in GROUPS else name)
    return found - set(GROUPS) - {"module"}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("self._acl.rt.malloc(1, 0)", {"rt.malloc"}),
        ("acl.init()", {"init"}),
        ("acl.mdl.execute", {"mdl.execute"}),
        ("rt = acl.rt\nrt.free(1)", {"rt.free"}),
        ("getattr(acl.rt, 'stream_query', None)", {"rt.stream_query"}),
        ("self.acl.create_data_buffer(p, n)", {"create_data_buffer"}),
        ("queue.put(acl)", set()),
    ],
)
def test_uses_are_seen(source: str, names: set[str]) -> None:
    assert used_names(source) == names


def test_the_backend_uses_only_names_of_the_table() -> None:
    used: set[str] = set()
    for path in sorted(BACKEND.rglob("*.py")):
        used |= used_names(path.read_text(encoding="utf-8"))
    assert used, "no use of the module was found: the reader is blind"
    unknown = sorted(used - set(TABLE))
    assert not unknown, f"not in the table of names: {unknown}"
    assert not sorted(used - set(CALLS) - {RECENT_TEXT}), "used beside the backend's own table"


def test_the_backends_own_table_agrees() -> None:
    assert not sorted(set(CALLS) - set(TABLE))
    for name, gives in CALLS.items():
        returns = TABLE[name].returns
        if gives in SHAPES:
            assert len(returns) == SHAPES[gives], name
            assert returns[-1] == "ret", name
        else:
            assert len(returns) == 1, name
            assert "ret" not in returns, name


def test_the_simulator_has_the_functions_that_the_backend_uses() -> None:
    with_simulation = simulate()
    try:
        for name in (*CALLS, RECENT_TEXT):
            owner: object = with_simulation.acl
            for part in name.split("."):
                owner = getattr(owner, part)
            assert callable(owner), name
    finally:
        with_simulation.close()


def test_the_simulators_table_agrees() -> None:
    for name, ours in TABLE.items():
        call = contract.CONTRACT.get(name)
        if call is None:
            assert name.startswith("mdl.set_aipp_"), name  # dynamic AIPP is not simulated
            continue
        theirs = len(call.results), call.results[-1] == "ret", call.required, len(call.arguments)
        assert theirs == (len(ours.returns), ours.returns[-1] == "ret", ours.least, ours.most), name


def test_the_table_agrees_with_the_reference(shared_dir: Path) -> None:
    reference = shared_dir / "reference" / "pyacl.md"
    if not reference.is_file():
        pytest.skip("needs the reference of the module beside the models")
    text = reference.read_text(encoding="utf-8")
    signatures = {
        match[1]: len([word for word in match[2].split(",") if word.strip()])
        for match in re.finditer(r"`(?:acl\.)?(\w+)\(([^`]*?)\)`", text[text.index("### 4.1") : text.index("## 5.")])
    }
    for name, function in TABLE.items():
        last = name.split(".")[-1]
        if last.endswith("_from_exception_info"):
            continue  # the reference abbreviates these
        assert re.search(rf"\b{last}\b", text), f"{name} is not in the reference"
        if last in signatures and last not in AMBIGUOUS:
            wanted = signatures[last]
            spread = last in ("set_aipp_dtc_pixel_min", "set_aipp_pixel_var_reci")  # f0..f3
            assert spread or function.least <= wanted <= function.most, f"{name}: {wanted} parameters in the reference"

"""References that a plugin brought, in the folder of a program: run when it is loaded, or named when they cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from chains import make_engine
from fakes.plans import by_torch, chain_plan, node_of

from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.capabilities.brought import load_ops
from specc.runtime.entry.frame import Frame
from specc.runtime.errors import DamagedWheelError, PlanError
from specc.runtime.memory.arena import Arena
from specc.runtime.plan.files.manifest import Manifest
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.plan.nodes import OpSource, Reference
from specc.runtime.plan.plan import Plan
from specc.runtime.state.relay import RelayPools

FILE = "ops/toy/reference.py"
TEXT = """
from __future__ import annotations
from dataclasses import dataclass
import torch

@dataclass
class Way:
    by: int

def shift(operands, attrs, dims):
    return (operands[0] + Way(attrs["by"]).by,)

NUMBER = 3
"""


def folder_of(tmp_path: Path, text: str = TEXT) -> tuple[Manifest, Path]:
    """A package's folder with the file of a reference, and its manifest."""
    (tmp_path / FILE).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / FILE).write_text(text)
    return Manifest("toy", "0", "0", "0", None, 4, "2.11", (), {FILE: "0"}, (), {}, {}), tmp_path


def plan_with(function: str = "shift", source: str = FILE) -> Plan:
    """A plan with the op ``toy.shift``."""
    return replace(read_plan(chain_plan()), ops={"toy.shift": OpSource(source, function)})


def test_the_function_of_the_file_is_run(tmp_path: Path) -> None:
    ops = load_ops([plan_with(), plan_with()], *folder_of(tmp_path))
    (shifted,) = ops["toy.shift"]((torch.tensor([1, 2]),), {"by": 4}, {})
    assert shifted.tolist() == [5, 6]


@pytest.mark.parametrize(
    ("function", "source", "text", "message"),
    [
        ("shift", "../elsewhere.py", TEXT, "../elsewhere.py, which the wheel does not hold"),
        ("shift", "ops/other.py", TEXT, "ops/other.py, which the wheel does not hold"),
        ("shifted", FILE, TEXT, "has no function 'shifted', the reference of toy.shift"),
        ("NUMBER", FILE, TEXT, "has no function 'NUMBER'"),
        ("shift", FILE, "def shift(", "cannot be run: SyntaxError"),
        ("shift", FILE, "1 / 0", "cannot be run: ZeroDivisionError: division by zero"),
    ],
)
def test_what_cannot_be_run_is_named(tmp_path: Path, function: str, source: str, text: str, message: str) -> None:
    with pytest.raises(DamagedWheelError, match=message.replace("(", r"\(")):
        load_ops([plan_with(function, source)], *folder_of(tmp_path, text))


def test_a_node_computes_with_it(tmp_path: Path) -> None:
    """Its result is in the memory of the plan; one of another type than the plan's is refused."""
    raw = by_torch(chain_plan(), "prepare_rows")
    (slots,) = [op for op in node_of(raw, "prepare_rows")["ops"] if op["results"] == ["verify_slots"]]
    slots |= {"op": "toy.slots", "attrs": {"most": 5}}
    raw["ops"] = {"toy.slots": {"source": FILE, "function": "slots"}}
    text = "def slots(operands, attrs, dims):\n    return (operands[0][: dims['B'], :4].clamp(max=attrs['most']){},)\n"
    plan = read_plan(raw)
    (node,) = [node for node in plan.nodes("step") if isinstance(node, Reference)]
    arena = Arena(plan, torch.device("cpu"))
    for name in ("req_pool_indices", "seq_lens"):
        arena.buffer(name).zero_()
    frame = Frame(plan, arena, RelayPools(plan, arena), make_engine(raw).table, 2)
    ops = load_ops([plan], *folder_of(tmp_path, text.format(".long()")))
    ReferenceBackend(ops).launch(node, frame)
    assert torch.equal(frame.read("verify_slots"), frame.table[:2, :4].long().clamp(max=5))
    with pytest.raises(PlanError, match=r"unknown op 'toy\.slots'"):
        ReferenceBackend().launch(node, frame)
    ops = load_ops([plan], *folder_of(tmp_path, text.format("")))
    with pytest.raises(PlanError, match=r"'verify_slots' is torch\.int64\(2, 4\), its op gives torch\.int32\(2, 4\)"):
        ReferenceBackend(ops).launch(node, frame)

"""Who reads hidden rows of which type, and what is said where two sizes do not meet."""

from __future__ import annotations

import pytest

from specc.config import LoadedConfig
from specc.driver import compile_module
from specc.ir.core import Module, tensor_type
from specc.ir.nodes import is_external, node_of
from specc.ir.ops import OPS
from specc.support.diagnostics import Diagnostic, DiagnosticError


def reads(module: Module) -> dict[str, str]:
    """Type of the hidden rows that every forward reads, by node; of those that read any."""
    found: dict[str, str] = {}
    for op in (op for op in module.ops() if is_external(op)):
        slots = OPS[op.opcode].operand_names(len(op.operands), op.attrs)
        rows = [value for slot, value in zip(slots, op.operands, strict=True) if slot == "hidden"]
        found |= {node_of(op): str(tensor_type(value)) for value in rows}
    return found


def refused(loaded: LoadedConfig) -> tuple[Diagnostic, ...]:
    """What is wrong with a configuration."""
    with pytest.raises(DiagnosticError) as raised:
        compile_module(loaded)
    return raised.value.diagnostics


def check_widths(loaded: LoadedConfig, draft_key: str, target_key: str) -> None:
    """A width mismatch, in prefill and after verification, that shows the line of either model."""
    found = refused(loaded)
    assert [d.code for d in found] == ["type/width-mismatch"] * 2
    assert {d.location for d in found} == {loaded.location("draft", draft_key)}
    assert {note.location for d in found for note in d.notes} == {loaded.location("target", target_key)}
    assert all(d.hint and "aux_layers" in d.hint for d in found)

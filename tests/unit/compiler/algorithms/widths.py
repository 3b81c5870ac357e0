"""Who reads hidden rows of which type, and what is said where two sizes do not meet."""

from __future__ import annotations

import pytest

from specc.compiler.config import LoadedConfig
from specc.compiler.driver.compile import compile_module
from specc.compiler.ir.core import Module, tensor_type
from specc.compiler.ir.nodes import is_external, node_of
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError


def reads(module: Module) -> dict[str, str]:
    """Type of the hidden rows that every forward reads, by node; of those that read any."""
    hidden = {node_of(op): op.get("hidden") for op in module.ops() if is_external(op)}
    return {node: str(tensor_type(value)) for node, value in hidden.items() if value is not None}


def refused(loaded: LoadedConfig) -> tuple[Diagnostic, ...]:
    """What is wrong with a configuration."""
    with pytest.raises(DiagnosticError) as raised:
        compile_module(loaded)
    return raised.value.diagnostics


def check_widths(loaded: LoadedConfig, draft_key: str, target_key: str) -> None:
    """A width mismatch, in prefill and after verification, that shows the line of either model."""
    diagnostics = refused(loaded)
    assert [d.code for d in diagnostics] == ["type/width-mismatch"] * 2
    assert {d.location for d in diagnostics} == {loaded.location("draft", draft_key)}
    assert {note.location for d in diagnostics for note in d.notes} == {loaded.location("target", target_key)}
    assert all(d.hint and "aux_layers" in d.hint for d in diagnostics)

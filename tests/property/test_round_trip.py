"""parse(print(m)) is m: for any module at all, and for real ones after any number of passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from programs import passes_to
from strategies import configs, modules, to_yaml

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_text
from specc.compiler.driver.compile import start_module
from specc.compiler.ir.checker import check_module
from specc.compiler.ir.core import Module, Op
from specc.compiler.ir.text.parser import parse_module
from specc.compiler.ir.text.printer import print_module
from specc.compiler.pass_manager.manager import run_passes
from specc.compiler.pass_manager.pass_base import Context
from specc.compiler.support.diagnostics import Diagnostic


def facts(module: Module) -> dict[str, Any]:
    """Everything a module is, as plain values."""
    return {
        "name": module.name,
        "established": module.established,
        "dims": list(module.dims.values()),
        "inputs": [(value.name, value.type) for value in module.inputs.values()],
        "carries": [(carry, carry.location) for carry in module.carries.values()],
        "phases": {phase: [_op(op) for op in ops] for phase, ops in module.phases.items()},
        "outputs": {name: value.name for name, value in module.outputs.items()},
        "decls": module.decls,
    }


def _op(op: Op) -> tuple[object, ...]:
    attrs = {name: (type(value), value) for name, value in op.attrs.items()}
    results = [(value.name, value.type) for value in op.results]
    return op.opcode, attrs, [value.name for value in op.operands], results, op.location, op.phase


@settings(max_examples=150)
@given(modules())
def test_any_module(module: Module) -> None:
    text = print_module(module)
    again = parse_module(text)
    assert facts(again) == facts(module)
    assert print_module(again) == text


@settings(max_examples=40)
@given(modules())
def test_the_checker_takes_any_module(module: Module) -> None:
    """Whatever stands in a module, the checker answers with diagnostics."""
    assert all(isinstance(diagnostic, Diagnostic) for diagnostic in check_module(module))


@settings(max_examples=15)
@given(configs(), st.integers(0, len(passes_to("plan-graphs"))))
def test_real_modules_after_any_pass(keys: dict[str, Any], count: int) -> None:
    loaded = load_text(to_yaml(keys), Path("random.yaml"), names(), needs)
    module = start_module(loaded)
    run_passes(module, passes_to("plan-graphs", loaded)[:count], Context(loaded))
    assert facts(parse_module(print_module(module))) == facts(module)

"""Recurrent state: what a verifying forward leaves is committed once, in every program and every plugin's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from programs import compile_to, load, passes_to, planned

from specc.compiler.algorithms import names, needs
from specc.compiler.driver.compile import start_module
from specc.compiler.ir.checker import check_linear, check_module
from specc.compiler.ir.core import Module, Value, is_pending
from specc.compiler.ir.declarations import Kernel
from specc.compiler.ir.nodes import callback_of
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.ops.model import COMMIT_STATE, TARGET, runs_a_model
from specc.compiler.ir.signature import TypeMismatch
from specc.compiler.ir.text.parser import parse_module, parse_type
from specc.compiler.ir.text.printer import print_module
from specc.compiler.ir.types import StateType
from specc.compiler.pass_manager.manager import run_passes
from specc.compiler.pass_manager.pass_base import Context

HYBRID: dict[str, Any] = {"target": {"state_layers": 3, "state_bytes": 4096}}
SHAPES: dict[str, dict[str, Any]] = {"chain": {}, "tree": {"topk": 2, "num_steps": 2, "num_draft_tokens": 5}}


def pending(module: Module) -> list[Value]:
    return [value for value in module.values() if is_pending(value)]


def typed(algorithm: str = "NGRAM", **keys: Any) -> Module:
    """Return a module of a hybrid target, up to where it has its form."""
    return compile_to("select-compaction", load(algorithm, **HYBRID, **keys))


@pytest.mark.parametrize("text", ["!kv<target>", "!state<target>", "!state<target>[A]"])
def test_types_are_read_as_they_are_printed(text: str) -> None:
    type_ = parse_type(text)
    assert isinstance(type_, StateType)
    assert str(type_) == text
    assert str(type_.settled) == text.partition("[")[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("algorithm", sorted(names()))
def test_every_algorithm_commits_what_its_target_leaves(algorithm: str, shape: str) -> None:
    """The commit reads the accepted path, stands behind verification, and is called in the step, once."""
    if shape == "tree" and not needs(algorithm).trees:
        pytest.skip("drafts chains")
    module = typed(algorithm, **SHAPES[shape])
    (left,), (commit,), (target,) = pending(module), module.find(COMMIT_STATE), module.find(TARGET)
    assert left.source is target
    assert commit["state"] is left
    assert str(left.type) == ("!state<target>[N]" if shape == "tree" else "!state<target>[A]")
    assert str(commit.result.type) == "!state<target>"
    (greedy,) = module.find("verify.greedy")
    assert commit["accept_index"] is greedy.out("accept_index")
    assert commit["accept_lens"] is greedy.out("accept_lens")
    assert print_module(parse_module(print_module(module))) == print_module(module)


def test_a_target_without_one_has_no_commit() -> None:
    module = compile_to("select-compaction", load("NGRAM"))
    assert not module.find(COMMIT_STATE)
    assert "state" not in module.find(TARGET)[0].named


def test_a_rotated_step_leaves_it_to_who_runs_the_target() -> None:
    module = compile_to("rotate-step", load("NGRAM", step="rotated", **HYBRID))
    assert not module.find(COMMIT_STATE)
    assert not pending(module)


def without_commit(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if COMMIT_STATE not in line)


def committed_twice(text: str) -> str:
    (line,) = (line for line in text.splitlines() if COMMIT_STATE in line)
    return text.replace(line, f"{line}\n{line.replace('%committed_state_target =', '%again =')}")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (without_commit, "type/state-pending: %node_state_target is a state for each node, and none of them is"),
        (committed_twice, "ir/invalid: model.commit_state is node commit_state, and so is another op"),
    ],
)
def test_what_does_not_commit_one_state_does_not_pass(fault: Callable[[str], str], message: str) -> None:
    text = fault(print_module(typed()))
    module = parse_module(text)
    found = [f"{finding.code}: {finding.message}" for finding in check_module(module) + check_linear(module)]
    assert [line for line in found if line.startswith(message)], found


def test_no_forward_reads_a_pending_state() -> None:
    (target,) = typed().find(TARGET)
    types = [value.type for value in target.operands if value.type is not None]
    place = [*target.named].index("state")
    types[place] = StateType("target", "state", "A")
    with pytest.raises(TypeMismatch, match=r"state must be !state<target>, got !state<target>\[A\]"):
        OPS[TARGET].result_types({}, types, target.attrs)


def test_a_commit_reads_a_pending_state_alone() -> None:
    (commit,) = typed().find(COMMIT_STATE)
    types = [value.type for value in commit.operands if value.type is not None]
    types[0] = StateType("target", "state")
    with pytest.raises(TypeMismatch, match="one for each node, got !state<target>"):
        OPS[COMMIT_STATE].result_types({}, types, commit.attrs)


def test_the_plan_calls_the_commit_and_counts_no_forward() -> None:
    (plan,) = planned("EAGLE", **HYBRID)
    (call,) = (node for node in plan.externals("step") if node.callback == callback_of(COMMIT_STATE))
    assert not runs_a_model(call) and not call.host
    assert set(call.operands) == {"accept_index", "accept_lens", "rows", "seq_lens"}
    assert not call.results


@pytest.mark.parametrize(
    ("size", "told"), [(4096, "24,576 bytes are read and written for a request"), (0, "not known")]
)
def test_the_pass_says_who_commits_and_how_much(size: int, told: str) -> None:
    """The three layers are read and written."""
    loaded = load("NGRAM", target=HYBRID["target"] | {"state_bytes": size})
    ctx = Context(loaded)
    run_passes(start_module(loaded), passes_to("commit-states", loaded), ctx, [])
    (remark,) = (remark for remark in ctx.remarks if "recurrent state" in remark.message)
    assert told in remark.message
    assert remark.choice is not None
    assert remark.choice.cost == (6 * size * 4 if size else None)


def test_what_a_commit_moves() -> None:
    """Matrices and windows are read and written, and what each node of a path adds is read, in every layer."""
    sizes = {"kind": "GDN", "heads": 4, "rows": 8, "columns": 16, "groups": 2, "kernel": 4}
    state, record = 4 * (4 * 8 * 16 + 96 * 3), 4 * (4 + 2 * 16 + 4 * 8 + 96)
    moved = {}
    for form in ("select", "fold"):
        loaded = load("NGRAM", target={"state_layers": 3, "state_form": form, "state": sizes})
        (kernel,) = (
            kernel for kernel in compile_to("form-kernels", loaded).decls_of(Kernel) if kernel.family == f"state_{form}"
        )
        moved[form] = kernel.bytes
        ctx = Context(loaded)
        run_passes(start_module(loaded), passes_to("commit-states", loaded), ctx, [])
        (told,) = (remark.message for remark in ctx.remarks if "recurrent state" in remark.message)
        assert f"{4 * 3 * state:,}" in told
        assert f"{4 * 3 * record:,}" in told
    assert moved["fold"] - moved["select"] == 4 * 3 * 4 * record  # of 4 requests in 3 layers, 4 nodes

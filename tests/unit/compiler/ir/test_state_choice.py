"""How states are committed where a program may choose: by the bytes that a step moves, and by what is kept."""

from __future__ import annotations

from typing import Any

import pytest
from programs import compile_to, load, passes_to, planned

from specc.compiler.driver.compile import start_module
from specc.compiler.ir.ops.model import COMMIT_STATE
from specc.compiler.ir.types import StateType
from specc.compiler.pass_manager.manager import run_passes
from specc.compiler.pass_manager.pass_base import Choice, Context
from specc.compiler.passes.commit_states import CommitStates
from specc.compiler.support.diagnostics import DiagnosticError
from specc.runtime.plan.recurrent.state_tables import FOLD, POINT, SELECT, CommittedStates

LAYERS = 3
SIZES = {"kind": "GDN", "heads": 4, "rows": 8, "columns": 16, "groups": 2, "kernel": 4}
STATE = LAYERS * 4 * (4 * 8 * 16 + 96 * 3)
"""Bytes of a request: matrices, and windows of 4 * 8 + 2 * 2 * 16 channels."""
RECORD = LAYERS * 4 * (4 + 2 * 16 + 4 * 8 + 96)
"""Bytes that a node adds: decays, keys, updates and inputs."""
BATCH = 4


def target(**more: Any) -> dict[str, Any]:
    """A target whose program may choose."""
    return {"state_layers": LAYERS, "state_form": "auto", **more}


def choice(**keys: Any) -> Choice:
    """What the pass has decided."""
    loaded = load("NGRAM", **keys)
    ctx = Context(loaded)
    run_passes(start_module(loaded), passes_to("commit-states", loaded), ctx, [])
    (made,) = (r.choice for r in ctx.remarks if r.choice is not None and "recurrent state" in r.choice.of)
    return made


def form(**keys: Any) -> str:
    """The op that commits."""
    (op,) = {pool.op for plan in planned("NGRAM", **keys) if (pool := CommittedStates.of(plan)) is not None}
    return op


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_the_form_of_the_fewest_bytes_is_chosen(steps: int) -> None:
    """The table of docs/config.md, of a forward and its commit."""
    nodes = steps + 1
    bytes_of = {
        "copied": (nodes + 3) * STATE,
        "left": (nodes + 1) * STATE,
        "advanced": 3 * STATE + 2 * nodes * RECORD,
    }
    made = choice(target=target(state=SIZES), num_steps=steps)
    found = {made.chosen.partition(",")[2].split()[0] if "advanced" in made.chosen else "left": made.cost}
    found |= {other.what.split()[0]: other.cost for other in made.rejected}
    assert found == {name: BATCH * size for name, size in bytes_of.items()}
    assert made.cost == min(found.values(), key=lambda cost: cost or 0)
    ops = {"copied": SELECT, "left": POINT, "advanced": FOLD}
    assert form(target=target(state=SIZES), num_steps=steps) == ops[min(bytes_of, key=lambda name: bytes_of[name])]


def test_a_state_that_is_not_known_is_left_where_it_is() -> None:
    """However large it is, its copy moves more."""
    made = choice(target=target())
    assert form(target=target()) == POINT
    assert made.cost is None
    assert {(other.what, other.reason, other.cost) for other in made.rejected} == {
        ("copied from the last accepted node", "it moves more bytes", None),
        ("advanced by what accepted nodes add to it", "nothing says what the state of a rank is", None),
    }
    assert choice(target=target(state_bytes=4096)).cost == 5 * LAYERS * 4096 * BATCH


def test_states_of_all_requests_are_not_kept_for_those_of_a_batch() -> None:
    many = {"target": target(), "max_requests": 2 * BATCH}
    assert form(**many) == SELECT
    (left,) = (other for other in choice(**many).rejected if "left" in other.what)
    assert left.reason == "states would be pending of all requests that there may be, not of a batch"
    assert form(**many | {"target": target(state=SIZES)}) == FOLD
    assert form(**many | {"target": target(state=SIZES), "num_steps": 1}) == FOLD


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_states_of_16_bits_are_not_advanced(dtype: str) -> None:
    keys = {"target": target(state=SIZES | {"dtype": dtype})}
    assert form(**keys) == POINT
    (advanced,) = (other for other in choice(**keys).rejected if "advanced" in other.what)
    assert "16 bits" in advanced.reason


def test_all_shapes_have_one_form() -> None:
    """That of the most nodes."""
    assert form(target=target(state=SIZES), num_steps=[1, 3]) == FOLD
    assert form(target=target(state=SIZES), num_steps=[0, 1]) == POINT


def test_states_that_another_forward_leaves_are_not_left_where_they_are() -> None:
    loaded = load("NGRAM", target=target())
    module = compile_to("select-compaction", loaded)
    (commit,) = module.find(COMMIT_STATE)
    pending = module.add_input("left", commit["state"].type or StateType("target", "state", "A"))
    module.replace_operand(commit, commit["state"], pending)
    with pytest.raises(DiagnosticError, match=r"config/not-yet.*another forward than the target's own"):
        CommitStates.of(loaded).run(module, Context(loaded))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"target": {"state_form": "auto"}}, "no layer of the target keeps a recurrent state"),
        ({"target": target(), "step": "rotated"}, "a rotated step commits no state"),
        ({"target": {"state_form": "point"}}, "no layer of the target keeps a recurrent state"),
    ],
)
def test_what_has_nothing_to_choose_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(DiagnosticError, match=message):
        load("NGRAM", **keys)

"""What traits promise is what the op's signature has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specc.compiler.ir.opdef import OpDef, Trait
from specc.compiler.ir.ops import DIALECTS, OPS, add_op, has
from specc.compiler.kernels import COMPOSED
from specc.compiler.kernels.writing.compose import Composed

OWN = [op for op in OPS.values() if op.name.partition(".")[0] in DIALECTS]


def of(trait: Trait) -> list[OpDef]:
    """The ops of specc that have a trait."""
    return [op for op in OWN if trait in op.traits]


def names(op: OpDef) -> set[str]:
    """The operands of an op, without what its attributes list."""
    return {slot.name for slot in op.operands}


@pytest.mark.parametrize("trait", Trait)
def test_every_trait_is_one_of_some_op(trait: Trait) -> None:
    assert of(trait)


def test_what_loads_and_stores_names_its_field() -> None:
    assert all("field" in (op.attrs or {}) and "rows" in names(op) for op in (*of(Trait.LOADS), *of(Trait.STORES)))
    assert all(op.effect == "carry" and "value" in names(op) for op in of(Trait.STORES))
    assert not any(op.effect for op in of(Trait.LOADS))


def test_what_copies_keeps_the_element_type_and_has_one_row_operand() -> None:
    assert all(Trait.LOADS in op.traits or names(op) & {"x", "value"} for op in of(Trait.COPIES))


def test_what_picks_is_told_which_rows() -> None:
    assert all(names(op) & {"accept_index", "path", "node", "kept"} for op in of(Trait.PICKS))
    everyone = {op.name for op in OWN if names(op) & {"path", "node", "kept"} and not op.name.startswith("model.")}
    assert everyone - {op.name for op in of(Trait.PICKS)} <= {"walk.step"}  # which asks for the children of a node


def test_what_moves_keys_and_values_has_their_state_and_no_effect_else() -> None:
    moves = {op.name for op in OWN if not op.effect and any(slot.owner for slot in op.operands)}
    assert moves == {op.name for op in (*of(Trait.MOVES), *of(Trait.COMMITS))}


def test_every_reduction_has_a_family_and_every_family_a_reduction() -> None:
    families = [family for family in COMPOSED.values() if isinstance(family, Composed)]
    assert {op.name for op in of(Trait.REDUCES)} == {family.reduces for family in families} - {""}
    assert all({"logits", "rows"} <= names(op) for op in of(Trait.REDUCES))


def test_operands_read_in_the_pool_are_there() -> None:
    for op in (op for op in OWN if op.pooled):
        listed = op.parts({"parts": 2, "cut": 0}) if op.parts is not None else ""
        assert op.pooled in names(op) or f"{op.pooled}0: " in listed, op.name


def test_an_op_that_is_not_here_has_no_trait() -> None:
    assert not has("plugin.op", Trait.REDUCES)
    assert has("vocab.argmax", Trait.REDUCES)


@pytest.mark.parametrize("more", [{"traits": frozenset({Trait.PICKS})}, {"pooled": "x"}])
def test_an_op_from_outside_has_neither_traits_nor_pooled_operands(more: dict[str, object]) -> None:
    op = OpDef("traitless.op", "x: T[B] -> y: T[B]", "Nothing.", reference=lambda *_: ())
    with pytest.raises(TypeError, match="has traits, or an operand read in pool rows"):
        add_op(replace(op, **more))  # type: ignore[arg-type]
    assert "traitless.op" not in OPS

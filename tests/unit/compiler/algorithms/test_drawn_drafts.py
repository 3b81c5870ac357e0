"""Chains whose drafts are drawn: what their graphs keep of it, and algorithms that keep nothing."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from programs import EXAMPLES, compile_to, load

from specc.compiler import algorithms
from specc.compiler.driver.build import build_program
from specc.compiler.ir.core import tensor_type
from specc.compiler.ir.ops import OPS
from specc.compiler.support.diagnostics import DiagnosticError
from specc.runtime.plan.draft_head import TOKEN_ENTRIES

DRAWN = ("STANDALONE", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "MULTI_LAYER_EAGLE", "DFLASH", "DSPARK", "DFLASH2")
"""Algorithms whose drafts may be drawn."""


@pytest.mark.parametrize(
    ("algorithm", "rows"),
    [
        ("STANDALONE", 1),
        ("EAGLE", 1),
        ("EAGLE3", 1),
        ("FROZEN_KV_MTP", 0),
        ("MULTI_LAYER_EAGLE", 3),
        ("DFLASH", 0),
        ("DSPARK", 0),
        ("DFLASH2", 0),
    ],
)
def test_rows_that_are_carried(algorithm: str, rows: int) -> None:
    """Those of drafts that another step verifies; every draft has one, in the order of the columns."""
    module = compile_to("canonicalize", load(algorithm, num_steps=3, verify="rejection"))
    assert [name for name in module.carries if name.startswith("draft_logits")] == [
        f"draft_logits{i}" for i in range(rows)
    ]
    (residual,) = module.find("sample.residual")
    q, masses = (
        [value for name, value in residual.named.items() if name.rstrip("0123456789") == stem]
        for stem in ("q", "masses")
    )
    sources = [value.source for value in q if value.source]
    assert [op.opcode for op in sources[:rows]] == ["carry.load"] * rows
    made = {"DSPARK": "head.biased", "DFLASH2": "lattice.row"}.get(algorithm, "model.")
    assert all(op.opcode.startswith(made) for op in sources[rows:])
    assert len(q) == (1 if algorithm == "DFLASH" else 3)
    for i, (logits, mass) in enumerate(zip(q, masses, strict=True)):
        assert mass.source is not None
        if i < rows:
            assert mass.source.attrs["field"] == f"draft_mass{i}"
        else:
            assert (mass.source.opcode, mass.source["logits"]) == ("sample.mass", logits)
    places = [keys["positions"].source for keys in module.find("sample.keys") if keys.attrs["kind"] == 1]
    offsets = [(place.phase == "prefill", int(place.attrs["offset"]) >> 32) for place in places if place]
    drafted = [column for prefill, column in offsets if not prefill]
    assert sorted(drafted) == ([0] if algorithm == "DFLASH" else [0, 1, 2])
    strides = {int(place.attrs["stride"]) >> 32 for place in places if place}
    assert strides == ({1} if algorithm == "DFLASH" else {0})
    assert sorted(column for prefill, column in offsets if prefill) == list(range(rows))


PART = {"vocab_size": 40, "token_map": "engine"}
"""A draft that scores a part of the tokens."""


@pytest.mark.parametrize("algorithm", DRAWN)
@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_drafts_of_a_part_of_the_tokens(algorithm: str, verify: str) -> None:
    """What is drafted are tokens; what drafts were drawn from has the draft's columns, and the runtime's table."""
    loaded = load(algorithm, draft=PART, num_steps=2, verify=verify)
    module = compile_to("canonicalize", loaded)
    drawn = [op for op in module.find("sample.draw") if tensor_type(op.out("index")).of]
    assert drawn
    for op in drawn:
        readers = {user.opcode for user in module.users(op.out("index"))}
        assert readers <= {"vocab.translate", "sample.mass"}
        assert "vocab.translate" in readers
    (residual,) = module.find("sample.residual")
    assert {tensor_type(value).shape[-1] for name, value in residual.named.items() if name[0] == "q"} == {"Vd"}
    plan = build_program(loaded).plan
    assert TOKEN_ENTRIES in plan.inputs
    assert TOKEN_ENTRIES not in plan.tables()


@pytest.mark.parametrize("algorithm", DRAWN)
def test_coupled_drafts(algorithm: str) -> None:
    """Each has the noise of the token in its place; nothing is carried for it, and nothing is launched more.

    But for drafts that know the one before. A selector's path is walked in one launch, and drawn along in a launch for
    each draft. Those of a Markov head are put into the chain by one launch, and by the launch that draws each.
    """
    keys: dict[str, Any] = {"num_steps": 3, "verify": "target_only"}
    module = compile_to("canonicalize", load(algorithm, **keys, draft_sampling="coupled"))
    draws = [op for op in module.find("sample.keys") if op.phase != "prefill"]
    assert {op.attrs["kind"] for op in draws} == {0}
    places = [op["positions"].source for op in draws if op.attrs["offset"] == 0]
    offsets = [(int(place.attrs["offset"]), int(place.attrs["stride"])) for place in places if place]
    assert sorted(offsets) == ([(1, 1)] if algorithm == "DFLASH" else [(1, 0), (2, 0), (3, 0)])
    plans = [build_program(load(algorithm, **keys, draft_sampling=how)).plan for how in ("greedy", "coupled")]
    assert [*plans[0].carry] == [*plans[1].carry]
    walked, drawn = (len([*plan.nodes("step")]) for plan in plans)
    assert drawn - walked == {"DFLASH2": 3, "DSPARK": 3 - 1}.get(algorithm, 0)


def test_an_algorithm_that_keeps_them_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the example plugin, whose drafts are drawn by forwards of its own."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "plugin" / "src"))
    algorithm = importlib.import_module("specc_anchored").ANCHORED
    for forward in algorithm.forwards:  # which are forgotten afterwards
        monkeypatch.setitem(OPS, forward.name, forward)
    point = SimpleNamespace(name="ANCHORED", value="specc_anchored:ANCHORED", load=lambda: algorithm)
    monkeypatch.setattr(algorithms, "entry_points", lambda group: [point] if group == "specc.algorithms" else [])
    with pytest.raises(DiagnosticError, match="needs what drafts are drawn from, which ANCHORED lacks") as raised:
        compile_to("expand-algorithm", load("ANCHORED", verify="block"))
    (diagnostic,) = raised.value.diagnostics
    assert (diagnostic.code, diagnostic.hint) == ("legal/verify", "write verify: target_only")
    assert diagnostic.location is not None

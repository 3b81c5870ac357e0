"""Who reads which width where two meet: the draft's own recurrence, and rows of several layers of the target.

The combinations of sizes that crashed or drafted from zeros in serving engines are in test_regressions.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from programs import compile_to, load
from widths import check_widths, reads

from specc.compiler.driver.build import build_program

TREE = {"topk": 4, "num_draft_tokens": 16, "page_size": 16}


@pytest.mark.parametrize("shape", [{}, TREE], ids=["chain", "tree"])
def test_two_widths_and_two_dtypes(shape: dict[str, Any]) -> None:
    """Rows of the target have its width and dtype, rows of the draft the draft's; only the latter are carried."""
    keys = {"target": {"dtype": "bfloat16"}, "draft": {"hidden_size": 32, "target_hidden_size": 64}}
    module = compile_to("prune-dead-dataflow", load("EAGLE3", **shape, **keys))
    assert str(module.carries["hidden"].type) == "f32[B, 32]"
    assert reads(module) == {
        "prefill_draft": "bf16[T, 128]",
        "draft_0": "f32[B, K, 32]",
        "draft_1": "f32[B, K, 32]",
        "extend": "bf16[B, A, 128]",
    }


@pytest.mark.parametrize("shape", [{}, TREE], ids=["chain", "tree"])
def test_the_plan_says_which_layers(shape: dict[str, Any]) -> None:
    models = build_program(load("EAGLE3", **shape)).plan.models
    assert (models["target"].aux_layers, models["target"].spec_width) == ((1, 2), 128)
    assert models["draft"].aux_layers == ()
    assert build_program(load("EAGLE")).plan.models["target"].aux_layers == ()


def test_three_layers_are_the_default() -> None:
    loaded = load("EAGLE3", target={"num_layers": 32, "aux_layers": None}, draft={"num_aux_layers": None})
    assert loaded.config.target.aux_layers == (2, 16, 29)
    assert reads(compile_to("infer-types", loaded))["extend"] == "f32[B, A, 192]"


def test_a_head_of_one_width_does_not_take_several_layers() -> None:
    loaded = load("EAGLE", target={"hidden_source": "aux", "aux_layers": [1, 2]})
    check_widths(loaded, "hidden_source", "hidden_source")


def test_who_reads_nothing_may_have_a_target_that_hands_over_layers() -> None:
    module = compile_to("prune-dead-dataflow", load("STANDALONE", target={"aux_layers": [1]}))
    assert "hidden" not in module.carries

"""Which rows of a sampled verification are drawn: by what the configuration says, or by estimates."""

from __future__ import annotations

from typing import Any

import pytest
from programs import compile_to, load

from specc.compiler.ir.core import Module
from specc.compiler.pass_manager.pass_base import Context
from specc.compiler.passes.select_verify import CUT, DRAW, LAUNCH, TABLES, SelectVerify
from specc.compiler.support.diagnostics import DiagnosticError

REAL = {"vocab_size": 128256, "logits_dtype": "float32"}
TREE: dict[str, Any] = {"topk": 8, "num_draft_tokens": 48, "num_steps": 4, "target": REAL, "draft": REAL}
CHAIN: dict[str, Any] = {"num_steps": 7, "target": REAL, "draft": REAL}


def form(**keys: Any) -> str:
    """Which one a program has."""
    module = compile_to("select-verify", load(**{"algorithm": "EAGLE", "verify": "target_only"} | keys))
    forms = {str(op.attrs["rows"]) for op in module.find("walk.bad")} or {"lazy"}
    assert bool(module.find("vocab.row")) == (forms == {"lazy"})
    return forms.pop()


@pytest.mark.parametrize("buckets", [[1], [1, 8, 64]], ids=str)
def test_what_the_configuration_says(buckets: list[int]) -> None:
    for keys in (TREE, CHAIN):
        for rows in ("eager", "lazy"):
            assert form(**keys, buckets=buckets, verify_rows=rows) == rows


def test_large_trees_in_large_batches() -> None:
    """A launch for every level pays where it spares many rows; a chain has none to spare."""
    assert form(**TREE, buckets=[1]) == "eager"
    assert form(**TREE, buckets=[64]) == "lazy"
    assert form(**TREE, buckets=[1, 8, 64]) == "lazy"
    assert form(**TREE | {"num_draft_tokens": 6}, buckets=[8]) == "eager"
    for buckets in ([1], [64], [1, 8, 64]):
        assert form(**CHAIN, buckets=buckets) == "eager"


@pytest.mark.parametrize("sampling", [[], ["top_p"], ["penalties", "top_k"]])
def test_the_estimates(sampling: list[str]) -> None:
    """In whole numbers of launches and logits, as the documents have them."""
    context = Context()
    module = compile_to(
        "select-tree-form", load("EAGLE", **TREE, buckets=[2, 64], verify="target_only", sampling=sampling)
    )
    SelectVerify().run(module, context)
    (remark,) = (remark.message for remark in context.remarks if "lazy at most" in remark.message)

    def launches(rows: int) -> float:
        cuts, tables = bool({*sampling} - {"penalties"}), "penalties" in sampling
        return LAUNCH * (1 + cuts) + rows * 128256 * (DRAW * (TABLES if tables else 1) + CUT * cuts)

    assert f"eager {launches(2 * 48) + launches(64 * 48):.1f} us" in remark
    assert f"lazy at most {5 * launches(2) + 5 * launches(64):.1f} us" in remark


def drawn(rows: str) -> Module:
    """A tree before its verification is chosen, and something that reads the token of every node."""
    module = compile_to("select-tree-form", load("EAGLE", **TREE, verify="target_only", verify_rows=rows))
    (walk,) = module.find("verify.greedy")
    module.outputs["node_tokens"] = walk["argmax"]
    return module


def test_what_else_reads_the_tokens_keeps_all_rows() -> None:
    module, context = drawn("auto"), Context()
    SelectVerify().run(module, context)
    assert not module.find("vocab.row")
    assert any("something else reads" in remark.message for remark in context.remarks)
    with pytest.raises(DiagnosticError, match="legal/verify"):
        SelectVerify().run(drawn("lazy"), Context())


@pytest.mark.parametrize("sampling", [["top_p"], ["top_k", "min_p"], ["penalties"], []])
def test_processed_log_probabilities_read_every_cut(sampling: list[str]) -> None:
    """With a filter; without one they need nothing of the rows that are not drawn."""
    asked = TREE | {"buckets": [64], "outputs": ["logprobs"], "logprobs": "processed", "sampling": sampling}
    if {*sampling} - {"penalties"}:
        assert form(**asked) == "eager"
        with pytest.raises(DiagnosticError, match="legal/verify"):
            form(**asked, verify_rows="lazy")
    else:
        assert form(**asked) == form(**asked, verify_rows="lazy") == "lazy"


def test_no_other_word() -> None:
    module = compile_to("select-tree-form", load("EAGLE", **TREE, verify="target_only"))
    module.find("walk.bad")[0].attrs["rows"] = "late"
    with pytest.raises(DiagnosticError, match="ir/invalid"):
        SelectVerify().run(module, Context())

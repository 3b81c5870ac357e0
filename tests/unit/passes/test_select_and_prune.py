"""What the front passes promise beyond single cases: over all depths, and for what an algorithm may not say."""

from __future__ import annotations

import pytest
from programs import ROOT, compile_to, load

from specc.ir.core import Module
from specc.ir.nodes import is_external
from specc.ir.plan import KvLayout


def captures(module: Module) -> dict[str, str]:
    """Capture mode by forward, draft forwards numbered."""
    return {
        f"{op.opcode}{op.attrs.get('step', '')}": str(op.attrs["capture"]) for op in module.ops() if is_external(op)
    }


@pytest.mark.parametrize("steps", range(1, 6))
def test_capture_modes(steps: int) -> None:
    standalone = captures(compile_to("prune-dead-dataflow", load("STANDALONE", num_steps=steps)))
    assert set(standalone.values()) == {"null"}
    eagle = captures(compile_to("prune-dead-dataflow", load("EAGLE", num_steps=steps)))
    assert eagle["model.target"] == eagle["model.prefill_target"] == "full"
    drafts = [eagle[f"model.draft{step}"] for step in range(steps - 1)]
    assert drafts == ["last"] * (steps - 2) + ["null"] * (steps > 1)
    assert eagle["model.extend"] == eagle["model.prefill_draft"] == ("last" if steps > 1 else "null")


@pytest.mark.parametrize("steps", range(1, 9))
@pytest.mark.parametrize(("algorithm", "extra"), [("STANDALONE", 1), ("EAGLE", 0)])
def test_windows(algorithm: str, extra: int, steps: int) -> None:
    """One slot per verified token, one more where the draft is a token ahead; twice that in reserve."""
    (kv,) = compile_to("bind-kv-layout", load(algorithm, num_steps=steps)).decls_of(KvLayout)
    assert (kv.verify_window, kv.window, kv.reserve) == (steps + 1, steps + 1 + extra, 2 * (steps + 1 + extra))
    assert kv.first_draft_position == extra


@pytest.mark.parametrize("steps", range(1, 6))
def test_a_chain_is_filled_column_by_column(steps: int) -> None:
    module = compile_to("canonicalize", load(num_steps=steps))
    assert [op.attrs["column"] for op in module.find("chain.append")] == list(range(2, steps + 1))
    assert len(module.find("model.draft")) == steps - 1
    (target,) = module.find("model.target")
    assert target.operands[0] is (module.find("chain.append") or module.find("chain.start"))[-1].result


@pytest.mark.parametrize("name", ["prune_dead_dataflow", "select_tree_form", "select_compaction", "form_kernels"])
def test_passes_name_no_algorithm(name: str) -> None:
    source = (ROOT / "specc" / "passes" / f"{name}.py").read_text().lower()
    assert "standalone" not in source
    assert "eagle" not in source


def test_overlap_publishes_lengths_before_extend() -> None:
    module = compile_to("canonicalize", load(overlap=True))
    (publish,) = module.find("relay.publish")
    assert publish.phase == "commit"
    assert module.carries.keys() == {"bonus", "topk_index", "hidden", "seq_lens"}
    without = compile_to("canonicalize", load(overlap=False))
    assert without.find("relay.publish") == []
    assert without.carries.keys() == {"bonus", "topk_index", "hidden"}
    assert without.inputs.keys() == module.inputs.keys()

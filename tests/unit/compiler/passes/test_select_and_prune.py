"""What the front passes promise beyond single cases: over all depths, and for what an algorithm may not say."""

from __future__ import annotations

import math
from typing import Any

import pytest
from programs import ROOT, compile_to, load

from specc.compiler.algorithms import names, needs
from specc.compiler.ir.core import Module
from specc.compiler.ir.declarations import Kernel, KvLayout
from specc.compiler.ir.nodes import is_external

EVERYTHING = ["accept_index", "hidden_states", "logprobs", "routed_experts", "indexer_topk"]


def captures(module: Module) -> dict[str, str]:
    """Capture mode by forward, draft forwards numbered."""
    return {
        f"{op.opcode}{op.attrs.get('step', '')}": str(op.attrs["capture"]) for op in module.ops() if is_external(op)
    }


@pytest.mark.parametrize("steps", range(1, 6))
def test_capture_modes(steps: int) -> None:
    standalone = captures(compile_to("prune-dead-dataflow", load("STANDALONE", num_steps=steps)))
    assert set(standalone.values()) == {"null"}
    for algorithm in ("EAGLE", "EAGLE3"):
        modes = captures(compile_to("prune-dead-dataflow", load(algorithm, num_steps=steps)))
        assert modes["model.target"] == modes["model.prefill_target"] == "full"
        drafts = [modes[f"model.draft{step}"] for step in range(steps - 1)]
        assert drafts == ["last"] * (steps - 2) + ["null"] * (steps > 1)
        assert modes["model.extend"] == modes["model.prefill_draft"] == ("last" if steps > 1 else "null")


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
    source = (ROOT / "specc" / "compiler" / "passes" / f"{name}.py").read_text().lower()
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


# --- trees ------------------------------------------------------------------------------------------------------------


def tree(algorithm: str = "EAGLE", **keys: Any) -> Module:
    """The front of a small tree's program; three nodes unless said otherwise."""
    return compile_to("canonicalize", load(algorithm, **{"topk": 2, "num_draft_tokens": 3, **keys}))


@pytest.mark.parametrize("steps", range(1, 6))
def test_capture_modes_of_a_tree(steps: int) -> None:
    """As of a chain: what the last forward of the draft hands over besides logits, nobody reads."""
    eagle = captures(tree(num_steps=steps))
    drafts = [eagle[f"model.draft{step}"] for step in range(steps - 1)]
    assert drafts == ["last"] * (steps - 2) + ["null"] * (steps > 1)
    assert set(captures(tree("STANDALONE", num_steps=steps)).values()) == {"null"}


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE"])
@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("topk", [2, 8])
@pytest.mark.parametrize("steps", [1, 3, 16])
def test_windows_of_a_tree(algorithm: str, page: int, topk: int, steps: int) -> None:
    """Every slot that any length can make a step write, counted one by one; and SGLang's reserve for shifted drafts.

    With one step the draft runs no forward between two extends, so there are no branches to write.
    """
    extra = int(algorithm == "STANDALONE")
    for nodes in {2, min(64, 1 + topk + (steps - 1) * topk**2)}:
        module = tree(algorithm, page_size=page, topk=topk, num_steps=steps, num_draft_tokens=nodes)
        (kv,) = module.decls_of(KvLayout)
        written = {0}
        for base in range(page if steps > 1 else 0):  # seq_len + extra, as far as pages are concerned
            run = math.ceil((base % page + steps) / page) * page
            written |= {extra + branch * run + step for branch in range(topk) for step in range(steps)}
            written |= {extra + branch * run - base % page for branch in range(1, topk)}
            written.add(extra + topk * run - base % page - 1)  # whole pages belong to a branch
        written |= {*range(nodes), *range(extra, extra + steps + 1)}
        assert kv.window == 1 + max(written)
        room = steps if steps > 1 else 0
        assert (kv.verify_window, kv.branch_room, kv.first_draft_position) == (nodes, room, extra)
        branches = math.ceil((page - 1 + room) / page) * page * topk if room else 0
        assert kv.reserve == 2 * max(branches + extra, nodes, steps + 1 + extra)
        assert kv.reserve >= 2 * kv.window


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("steps", range(1, 5))
def test_tails_are_duplicated_once_and_before_drafting(page: int, steps: int) -> None:
    module = tree(page_size=page, num_steps=steps)
    copies = module.find("kv.duplicate_tail")
    assert len(copies) == (page > 1 and steps > 1)
    assert all(copy.phase == "prepare" for copy in copies)
    assert all(copy.results[0] in module.find("model.draft")[0].operands for copy in copies)
    (move,) = module.find("kv.move")
    (target,) = module.find("model.target")
    assert move.operands[3] in target.results


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE"])
@pytest.mark.parametrize("keys", [{}, {"page_size": 16}, {"mask": "none"}, {"overlap": False}, {"outputs": EVERYTHING}])
@pytest.mark.parametrize("steps", range(1, 6))
def test_a_tree_is_few_launches(algorithm: str, keys: dict[str, Any], steps: int) -> None:
    """Prepare, one after every draft forward, of which the last builds the tree (without one prepare does), verify,
    compact, extend; and one to duplicate tails. At most S + 4.
    """
    target = {"experts_per_token": 2, "index_topk": 3}
    shape = {"topk": 2, "num_steps": steps, "num_draft_tokens": 3}
    module = compile_to("form-kernels", load(algorithm, target=target, **shape, **keys))
    launches = [kernel.name for kernel in module.decls_of(Kernel) if kernel.phase != "prefill"]
    duplicates = "page_size" in keys and steps > 1
    assert len(launches) == steps - 1 + 4 + duplicates <= steps + 4, launches


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(
    ("algorithm", "topk"), [(name, topk) for name in names() for topk in (1, 3) if topk == 1 or needs(name).trees]
)
def test_the_sizes_of_a_program_stay_to_its_end(algorithm: str, topk: int, steps: int) -> None:
    """Whatever is pruned, and whatever axes its values have; a chain has no nodes besides its path."""
    tree = {"topk": topk, "num_draft_tokens": 4} if topk > 1 else {}
    dims = compile_to("plan-graphs", load(algorithm, num_steps=steps, max_requests=7, **tree)).dims
    wanted = {"B": 4, "K": topk, "S": steps, "D": steps - 1, "A": steps + 1, "P": 8}
    wanted |= {"N": 4} if topk > 1 else {}
    assert {name: dims[name].size for name in dims if name in {*wanted, "N"}} == wanted

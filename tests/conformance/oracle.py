"""SGLang 0.5.23's kernels in Triton's interpreter: answers for the cases of `cases.py`.

    TRITON_INTERPRET=1 .sglang/bin/python tests/conformance/oracle.py CASES.pt ANSWERS.pt

Runs in the oracle's own environment and imports nothing of specc. What SGLang does between its kernels with plain torch
ops (its workers cannot be imported without a GPU) is written out here, with the place it stands at in SGLang.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from plain_triton import plain
from sglang.kernels.ops.speculative import cache_locs, eagle, reject_sampling, spec_tree, topk1
from sglang.kernels.ops.speculative.gather_spec_extras import gather_spec_extras
from torch import Tensor

Case = dict[str, Any]
Answer = dict[str, Tensor]


# --- a chain, over several steps --------------------------------------------------------------------------------------


def chain(case: Case) -> list[Answer]:
    """Every round of a chain case; the relay buffers go from one to the next as in `FutureMap`."""
    rows = case["rows"]
    relay = {
        "topk_p": torch.ones(len(case["seq_lens"]), 1),
        "topk_index": case["topk_index"].clone(),
        "bonus": case["bonus"].to(torch.int64),
        "hidden": case["hidden"].clone() if "hidden" in case else None,
        "seq_lens": case["seq_lens"].clone(),
    }
    answers = []
    for given in case["rounds"]:
        answer = chain_round(case, given, relay)
        answers.append(answer)
        # FutureMap.publish and FutureMap.stash, managers/overlap_utils.py
        relay["seq_lens"][rows] = answer["new_seq_lens"]
        relay["bonus"][rows] = answer["bonus"].to(torch.int64)
        relay["topk_index"][rows] = answer["next_topk_index"]
        if relay["hidden"] is not None:
            relay["hidden"][rows] = given["extend_hidden"]
    return answers


def chain_round(case: Case, given: Case, relay: dict[str, Tensor]) -> Answer:
    """One decode step between and after the forwards."""
    rows, steps, table = case["rows"], case["steps"], case["table"]
    seq_lens = relay["seq_lens"][rows]
    draft_from = seq_lens + case["draft_offset"]
    fields = ("topk_p", "topk_index", "bonus", "hidden")
    _, topk_index, root, hidden = gather_spec_extras(rows, *(relay[name] for name in fields))
    answer: Answer = {"seq_lens": seq_lens, "draft_token": topk_index.clone(), "root": root}
    if hidden is not None:
        answer["draft_hidden"] = hidden
    draft_tokens = draft(case, given, draft_from, topk_index, answer)
    _, positions, index, following, sibling, tokens, slots, _ = eagle.build_chain_tree(
        root, draft_tokens, seq_lens, req_pool_indices=rows, req_to_token=table
    )
    width = steps + 1
    answer |= {"tokens": tokens, "verify_positions": positions, "verify_slots": slots}
    answer |= {"retrieve_index": index, "retrieve_next": following, "retrieve_sibling": sibling}
    # eagle_sample, speculative/eagle_utils.py: the greedy branch
    logits = given["target_logits"]
    target = torch.argmax(logits, dim=-1).reshape(len(rows), width)
    answer |= verify(tokens.reshape(len(rows), width), (index, following, sibling), target, width)
    commit = eagle.prepare_verify_commit_outputs(
        answer["predict"], answer["accept_index"], answer["accept_lens"], seq_lens, num_draft_tokens=width
    )
    answer["new_seq_lens"], answer["bonus"], _, (_, answer["select"], answer["extend_ids"]) = commit
    start = seq_lens + case["draft_offset"]
    layout = eagle.prepare_draft_extend_layout(start, width, False)
    answer["extend_positions"] = layout[3][0]
    answer["extend_slots"] = extend_slots(rows, table, start, width)
    # _draft_extend_for_decode, speculative/eagle_worker_v2.py
    answer["next_topk_index"] = torch.argmax(given["extend_logits"], dim=-1, keepdim=True)
    return answer


def draft(case: Case, given: Case, draft_from: Tensor, topk_index: Tensor, answer: Answer) -> Tensor:
    """The draft loop of `draft_forward`, K == 1: tokens i64[B, S]; every forward's slots and positions: `answer`."""
    rows, steps, table = case["rows"], case["steps"], case["table"]
    count = len(rows)
    slots, positions = torch.empty(count * steps, dtype=torch.int64), torch.empty(count, dtype=torch.int64)
    cache_locs.assign_draft_cache_locs_contiguous[(count,)](
        rows, table, draft_from, slots, table.shape[1], 1, steps, positions=positions, BS=count, WRITE_POSITIONS=True
    )
    # per_step_draft_out_cache_loc; the last of the S columns belongs to no forward
    answer["draft_slots"] = slots.view(count, 1, steps).permute(2, 0, 1)[: steps - 1].contiguous()
    tokens = torch.zeros(count, steps, dtype=torch.int64)
    tokens[:, :1].copy_(topk_index)
    seen = [positions.clone()]
    for i in range(steps - 1):
        topk1.draft_topk1_postprocess(given["draft_logits"][i], positions, tokens, i + 1)
        seen.append(positions.clone())
    answer["draft_positions"] = torch.stack(seen[: max(1, steps - 1)])
    return tokens


def extend_slots(rows: Tensor, table: Tensor, start: Tensor, width: int) -> Tensor:
    """Slots i64[B * width] of `width` positions from `start` on."""
    slots = torch.empty(len(rows) * width, dtype=torch.int64)
    upper = 1 << (len(rows) - 1).bit_length()
    cache_locs.assign_extend_cache_locs[(len(rows),)](rows, table, start, start + width, slots, table.shape[1], upper)
    uniform = torch.empty_like(slots)
    cache_locs.assign_extend_cache_locs_uniform[(len(rows),)](rows, table, start, uniform, table.shape[1], width)
    assert torch.equal(slots, uniform), "SGLang's two kernels for the same slots disagree"
    return slots


def verify(
    tokens: Tensor,
    links: tuple[Tensor, ...],
    target: Tensor,
    path: int,
    kernel: Callable[..., None] = spec_tree.verify_tree_greedy_triton,
) -> Answer:
    """Greedy verification: predict i32[B * N] by node, accept_index i32[B, path], accept_lens i32[B]."""
    predict = torch.zeros(tokens.numel(), dtype=torch.int32)
    accept_index = torch.full((len(tokens), path), -1, dtype=torch.int32)
    correct = torch.empty(len(tokens), dtype=torch.int32)
    kernel(predict, accept_index, correct, tokens, *links, target)
    return {"predict": predict, "accept_index": accept_index, "accept_lens": correct + 1}


# --- one argmax -------------------------------------------------------------------------------------------------------


def argmax(case: Case) -> Answer:
    """`draft_topk1_postprocess` alone."""
    logits, positions, tokens = case["logits"], case["positions"].clone(), case["tokens"].clone()
    probability, index = topk1.draft_topk1_postprocess(logits, positions, tokens, case["column"])
    assert bool((probability == 1).all())
    return {"index": index, "positions": positions, "tokens": tokens}


# --- trees ------------------------------------------------------------------------------------------------------------


class TreeKernels(NamedTuple):
    """SGLang's tree builder and verifier, in one of two interpreters."""

    build: Callable[..., None]
    verify: Callable[..., None]


INTERPRETED = TreeKernels(spec_tree.sgl_build_tree_kernel_triton, spec_tree.verify_tree_greedy_triton)
PLAIN = TreeKernels(
    plain(spec_tree.sgl_build_tree_kernel_triton, "sgl_build_tree_kernel_efficient_triton"),
    plain(spec_tree.verify_tree_greedy_triton, "verify_tree_greedy_kernel_triton"),
)


def tree(case: Case) -> Answer:
    """A draft tree: grown, selected, linked, masked, verified, committed."""
    parents, chosen, drafted = organize(case)
    tokens = torch.cat((case["bonus"].to(torch.int64).unsqueeze(1), drafted), dim=1)
    answer = linked(case, parents, chosen, tokens, PLAIN)
    if case["interpreted"]:
        again = linked(case, parents, chosen, tokens, INTERPRETED)
        assert {*answer} == {*again}
        assert all(torch.equal(answer[name], again[name]) for name in answer), "the two interpreters disagree"
    commit = eagle.prepare_verify_commit_outputs(
        answer["predict"], answer["accept_index"], answer["accept_lens"], case["seq_lens"]
    )
    answer["new_seq_lens"], answer["bonus"] = commit
    return answer | {"tokens": tokens, "chosen": chosen}


def linked(case: Case, parents: Tensor, chosen: Tensor, tokens: Tensor, kernels: TreeKernels) -> Answer:
    """What builder and verifier write."""
    answer: Answer = {}
    nodes, count, prefix = case["nodes"], len(case["seq_lens"]), int(case["seq_lens"].sum())
    modes = {"mask": (spec_tree.TreeMaskMode.QLEN_ONLY, count * nodes * nodes)}
    if case["full"]:
        modes["full"] = (spec_tree.TreeMaskMode.FULL_MASK, nodes * prefix + count * nodes * nodes)
    for name, (mode, size) in modes.items():
        mask, positions = torch.ones(size, dtype=torch.bool), torch.empty(count * nodes, dtype=torch.int64)
        links = tuple(torch.full((3, count, nodes), -1, dtype=torch.int64))
        kernels.build(
            parents, chosen, case["seq_lens"], mask, positions, *links, case["branches"], case["steps"], nodes, mode
        )
        built = {"positions": positions, "index": links[0], "next": links[1], "sibling": links[2]}
        assert all(torch.equal(answer[key], built[key]) for key in answer.keys() & built.keys())
        answer |= {**built, name: mask}
    links = tuple(answer[name] for name in ("index", "next", "sibling"))
    return answer | verify(tokens, links, case["target"], case["steps"] + 1, kernels.verify)


def organize(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """`select_top_k_tokens` over all steps, then `organize_draft_results`: parent_list, top_scores_index, tokens.

    Where the case gives the selection, it is used, after a check that it is one of those torch.topk may give.
    """
    branches, count, given = case["branches"], len(case["seq_lens"]), case["given"]
    squared = branches * branches
    scores = case["p"][0]
    score_list, token_list = [scores], [case["index"][0]]
    parents = [torch.arange(-1, branches).expand(count, -1)]
    for i, (p, index) in enumerate(zip(case["p"][1:], case["index"][1:], strict=True), start=1):
        expanded = (scores.unsqueeze(2) * p).flatten(1)
        scores, kept = top(expanded, branches, case["kept"][i - 1] if given else None, case["poisoned"])
        score_list.append(expanded)
        token_list.append(index.reshape(count, squared))
        parents.append(kept + (squared * (i - 1) + branches))
    pool = torch.cat(score_list, dim=1)
    _, chosen = top(pool, case["nodes"] - 1, case["chosen"] if given else None, case["poisoned"])
    chosen = chosen.sort().values
    drafted = torch.gather(torch.cat(token_list, dim=1), 1, chosen)
    kept_parents = parents[:-1] or [torch.empty(count, 0, dtype=torch.int64)]
    return torch.cat(kept_parents, dim=1).contiguous(), chosen, drafted


def top(scores: Tensor, count: int, given: Tensor | None, poisoned: bool) -> tuple[Tensor, Tensor]:
    """torch.topk; or the given places, which must hold the same scores (of poison anything may be kept)."""
    best = torch.topk(scores, count, dim=-1)
    if given is None:
        return best.values, best.indices
    values = scores.gather(1, given)
    assert poisoned or torch.equal(values.sort(dim=1).values, best.values.sort(dim=1).values)
    return values, given


# --- drafts that were drawn -------------------------------------------------------------------------------------------


def reject(case: Case) -> Answer:
    """`chain_speculative_sampling_triton` on probabilities, as eagle_sample in speculative/eagle_utils.py has them."""
    tokens, heat = case["tokens"], case["temperature"][:, None, None]
    count, nodes = tokens.shape
    p, q = ((case[name] / heat).softmax(-1) for name in ("target", "draft"))
    predict = torch.zeros(count * nodes, dtype=torch.int32)
    accept_index = torch.full((count, nodes), -1, dtype=torch.int32)
    correct = torch.empty(count, dtype=torch.int32)
    places = torch.arange(count * nodes).view(count, nodes)
    reject_sampling.chain_speculative_sampling_triton(
        predict, accept_index, correct, tokens, places, places, places, case["coins"], case["last"], p, q,
        1.0, 1.0, True, block_verification=case["block_verification"],
    )  # fmt: skip
    return {"predict": predict.view(count, nodes), "accept_lens": correct + 1}


def versions() -> dict[str, str]:
    """What the answers come from."""
    return {name: importlib.metadata.version(name) for name in ("sglang", "torch", "triton", "numpy")}


def main() -> None:
    """Answer all cases, or say the versions."""
    if sys.argv[1:] == ["--versions"]:
        print(json.dumps(versions()))
        return
    source, target = sys.argv[1:]
    warnings.filterwarnings("ignore", "Conversion of an array", DeprecationWarning)
    torch.set_num_threads(1)
    cases = torch.load(source, weights_only=True)
    kinds = {"chain": chain, "argmax": argmax, "tree": tree, "reject": reject}
    torch.save({name: [kinds[name](case) for case in group] for name, group in cases.items()}, target)


if __name__ == "__main__":
    main()

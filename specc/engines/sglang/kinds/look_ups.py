"""Drafts that are looked up in texts, by no model: NGRAM.

SGLang's tree has the form that its texts give it, up to a breadth, and no number of steps. A program has as many nodes,
of which it drafts a chain or branches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .kind import NODES, STARTS_NONE, CommandLine, KindOfDraft, Said

BREADTH = "--speculative-ngram-max-bfs-breadth"
USUAL_NODES, USUAL_BREADTH = 12, 10
"""What SGLang takes where nothing is written."""


@dataclass(frozen=True, eq=False)
class _LookUps(KindOfDraft):
    def shape(self, line: CommandLine, draft: Mapping[str, Any]) -> tuple[Said, Said, Said]:
        """Return a chain, unless a breadth is written, whose branches are as long."""
        nodes, written = line.number(NODES), line.number(BREADTH)
        count = nodes or USUAL_NODES
        branches = max(1, min(written or 1, count - 1))
        drafted = f"{branches} branches" if branches > 1 else "a chain"
        return (
            (-(-(count - 1) // branches), f"{drafted} of as many nodes as SGLang's tree has"),
            (branches, BREADTH if written else "a chain, as no breadth is written"),
            (count, NODES if nodes else "SGLang's default"),
        )

    def check(self, line: CommandLine, page_size: Said, verify: str) -> None:
        """Report pages on which SGLang looks no trees up."""
        size, origin = page_size
        if int(size) > 1 and (line.number(BREADTH) or USUAL_BREADTH) > 1 and verify != "flashinfer":
            what = f"pages of {size} tokens ({origin}) under trees that are looked up"
            line.refuse(what, f"{STARTS_NONE}; write {BREADTH} 1")

    def backends(self, drafter: Any) -> Mapping[str, Any]:
        """No forward is a draft's."""
        return {}


LOOK_UPS = _LookUps(
    algorithms=("NGRAM",),
    place="speculative.ngram_worker.NGRAMWorker",
    needs="""
speculative.ngram_worker.NGRAMWorker: draft_token_num draft_worker init_cuda_graphs req_to_token_pool target_worker
speculative.ngram_worker.NGRAMWorker.forward_batch_generation(batch on_publish pp_proxy_tensors)
speculative.ngram_info.NgramVerifyInput(draft_token_num new_seq_lens accept_tokens accept_lens)
managers.overlap_utils.FutureMap: needs_cpu_seq_lens
managers.overlap_utils.FutureMap.resolve_seq_lens_cpu(batch)
managers.overlap_utils.FutureMap.stash(future_indices payload)
managers.schedule_batch.Req: origin_input_ids
managers.schedule_batch.ScheduleBatch: seq_lens_cpu
""",
    absent="drafts that are looked up are SGLang's",
    keeps="speculative.ngram_info.NgramVerifyInput",
    state="requests.texts.TextState",
    roles={"verify": "target"},
    model_less="drafts are looked up",
    own_branches=True,
    options={"corpus": None},  # SGLang has one of its own, which its trie reads
    shaped_by=("", BREADTH, NODES),
    refused={"disaggregation_mode": "a server that looks drafts up in texts that another one prefills"},
    unstarted={"groups": STARTS_NONE},
)

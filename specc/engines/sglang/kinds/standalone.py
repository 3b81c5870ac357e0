"""A language model that drafts: STANDALONE."""

from __future__ import annotations

from .kind import STARTS_NONE, KindOfDraft

STANDALONE = KindOfDraft(
    algorithms=("STANDALONE",),
    place="speculative.standalone_worker_v2.StandaloneWorkerV2",
    needs="""
speculative.standalone_worker_v2.StandaloneWorkerV2.forward_batch_generation(batch on_publish grammar_barrier
    pp_proxy_tensors)
""",
    own_dtype=True,
    unstarted={
        "adapters": f"{STARTS_NONE}; it has adapters with NGRAM, EAGLE, EAGLE3 and DFLASH",
        "groups": STARTS_NONE,
    },
)

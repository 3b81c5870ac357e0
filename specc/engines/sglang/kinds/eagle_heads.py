"""Heads, which draft from hidden states of the target: EAGLE and EAGLE3."""

from __future__ import annotations

from .kind import KindOfDraft

HEADS = KindOfDraft(
    algorithms=("EAGLE", "EAGLE3"),
    place="speculative.eagle_worker_v2.EAGLEWorkerV2",
    needs="""
speculative.eagle_worker_v2.EAGLEWorkerV2: draft_worker init_cuda_graphs req_to_token_pool target_worker
speculative.eagle_worker_v2.EAGLEWorkerV2.forward_batch_generation(batch on_publish grammar_barrier pp_proxy_tensors)
speculative.eagle_worker_v2.EagleDraftWorker: draft_attn_backend draft_extend_attn_backend draft_runner hot_token_id
speculative.eagle_info.EagleDraftInput(bonus_tokens topk_p topk_index hidden_states capture_hidden_mode
    num_tokens_per_req num_tokens_for_logprob_per_req)
""",
    head=True,
    adaptive=True,
    weighs=("rejection", "block"),
    token_maps={"EAGLE": True, "EAGLE3": False},
)

"""DeepSeek-V4's attention, over a window and entries that several tokens share."""

from __future__ import annotations

from ...served_attention import ROLES, AttentionBackend

RECORDS = (
    AttentionBackend(
        "dsv4",
        ("compressed",),
        shapes=False,
        windows=ROLES,
        blocks=True,
        place=2,
        formerly=("compressed",),
        classes=("DeepseekV4AttnBackend",),
        prepared_by="compressed.Compressed",
        touches="""
layers.attention.deepseek_v4_backend.DeepseekV4AttnBackend: speculative_num_steps token_to_kv_pool
layers.attention.deepseek_v4_backend.DeepseekV4AttnBackend.init_forward_metadata(forward_batch)
mem_cache.deepseek_v4_memory_pool.DeepSeekV4TokenToKVPool.clear_unaccepted_c128_draft_states(req_pool_indices seq_lens
    accept_lens num_draft_tokens)
""",
    ),
)

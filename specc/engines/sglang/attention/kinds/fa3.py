"""FlashAttention 3, on Hopper. Its class in SGLang is that of `fa4`, too: `roles.name_of` tells them apart."""

from __future__ import annotations

from ...served_attention import ROLES, AttentionBackend

RECORDS = (
    AttentionBackend(
        "fa3",
        caches=("mha", "swa", "mla"),
        mask="slots",
        windows=ROLES,
        blocks=True,
        drafts_blocks=True,
        packed=True,
        packed_trees=True,
        prepared_by="flash.Flash",
        tables=True,
        touches="""
layers.attention.flashattention_backend: flash_attn_with_kvcache
layers.attention.flashattention_backend.FlashAttentionBackend: fa_impl_ver forward_metadata
    forward_metadata_spec_decode_expand has_softcap head_dim kv_cache_dtype num_attention_heads num_kv_heads num_splits
    token_to_kv_pool use_mla use_sliding_window_kv_pool _get_scheduler_metadata
layers.attention.flashattention_backend.FlashAttentionMetadata(cache_seqlens_int32 cu_seqlens_q cu_seqlens_k page_table
    max_seq_len_q max_seq_len_k swa_page_table swa_out_cache_loc)
""",
    ),
)

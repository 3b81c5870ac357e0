"""flashinfer's wrappers, of which the host plans each step."""

from __future__ import annotations

from ...served_attention import AttentionBackend

RECORDS = (
    AttentionBackend(
        "flashinfer",
        caches=("mha",),
        mask="qlen",
        planned=True,
        grouped=False,
        blocks=True,
        drafts_blocks=True,
        classes=("FlashInferAttnBackend",),
        prepared_by="flashinfer.Flashinfer",
        touches="""
layers.attention.flashinfer_backend: BatchDecodeWithPagedKVCacheWrapper BatchPrefillWithPagedKVCacheWrapper
    fast_decode_plan
layers.attention.flashinfer_backend.DecodeMetadata(decode_wrappers)
layers.attention.flashinfer_backend.PrefillMetadata(prefill_wrappers use_ragged extend_no_prefix)
layers.attention.flashinfer_backend.fast_prefill_plan(self qo_indptr paged_kv_indptr paged_kv_indices
    paged_kv_last_page_len num_qo_heads num_kv_heads head_dim_qk page_size q_data_type kv_data_type qo_indptr_host
    kv_indptr_host kv_lens_host max_q_len max_kv_len)
layers.attention.flashinfer_backend.FlashInferAttnBackend: decode_backend decode_use_tensor_cores
    disable_cuda_graph_kv_split forward_metadata indices_updater_decode indices_updater_prefill prefill_backend
    workspace_buffer
""",
    ),
)

"""What a kind of attention needs of SGLang beside that, looked for in servers that have it."""

from __future__ import annotations

ATTENTION = {
    "fa3": """
layers.attention.flashattention_backend: flash_attn_with_kvcache
layers.attention.flashattention_backend.FlashAttentionBackend: fa_impl_ver forward_metadata
    forward_metadata_spec_decode_expand has_softcap head_dim kv_cache_dtype num_attention_heads num_kv_heads num_splits
    token_to_kv_pool use_mla use_sliding_window_kv_pool _get_scheduler_metadata
layers.attention.flashattention_backend.FlashAttentionMetadata(cache_seqlens_int32 cu_seqlens_q cu_seqlens_k page_table
    max_seq_len_q max_seq_len_k swa_page_table swa_out_cache_loc)
""",
    "triton": """
layers.attention.triton_backend.TritonAttnBackend: cuda_graph_kv_indices cuda_graph_num_kv_splits forward_metadata
    get_num_kv_splits kv_index_translator kv_indptr mask_indptr sliding_window_size use_sliding_window_kv_pool
layers.attention.triton_backend.TritonMultiStepDraftBackend: attn_backends topk
layers.attention.triton_backend.TritonMultiStepDraftBackend.init_forward_metadata_out_graph(forward_batch in_capture)
layers.attention.triton_backend.ForwardMetadata(attn_logits attn_lse max_extend_len num_kv_splits kv_indptr kv_indices
    qo_indptr custom_mask mask_indptr window_kv_indptr window_kv_indices window_num_kv_splits window_kv_offsets
    swa_out_cache_loc)
mem_cache.kv_index_translator.KVIndexTranslator.pack_read_stream(plan req_pool_indices seq_lens indptr out)
""",
    "flashinfer": """
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
} | dict.fromkeys(
    ("cutedsl_mla", "dsa", "fa4", "flashmla", "trtllm_mha", "trtllm_mla"),
    """
layers.attention.base_attn_backend.AttentionBackend.init_forward_metadata_out_graph(forward_batch in_capture)
layers.attention.base_attn_backend.AttentionBackend.init_forward_metadata_in_graph(forward_batch)
""",
)

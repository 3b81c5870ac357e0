"""SGLang's Triton attention, on any GPU."""

from __future__ import annotations

from ...served_attention import AttentionBackend

RECORDS = (
    AttentionBackend(
        "triton",
        caches=("mha", "swa", "mla"),
        drafts=("mha", "mla"),
        mask="full",
        windows=("verify",),
        place=0,
        drafts_blocks=True,
        packed=True,
        classes=("TritonAttnBackend",),
        prepared_by="triton.Triton",
        graphs=True,
        touches="""
layers.attention.triton_backend.TritonAttnBackend: cuda_graph_kv_indices cuda_graph_num_kv_splits forward_metadata
    get_num_kv_splits kv_index_translator kv_indptr mask_indptr sliding_window_size use_sliding_window_kv_pool
layers.attention.triton_backend.TritonMultiStepDraftBackend: attn_backends topk
layers.attention.triton_backend.TritonMultiStepDraftBackend.init_forward_metadata_out_graph(forward_batch in_capture)
layers.attention.triton_backend.ForwardMetadata(attn_logits attn_lse max_extend_len num_kv_splits kv_indptr kv_indices
    qo_indptr custom_mask mask_indptr window_kv_indptr window_kv_indices window_num_kv_splits window_kv_offsets
    swa_out_cache_loc)
mem_cache.kv_index_translator.KVIndexTranslator.pack_read_stream(plan req_pool_indices seq_lens indptr out)
""",
    ),
)

"""All of SGLang that this adapter touches, and the check that it is there before anything is replaced.

Lines of the tables are those of `_probe`, of places below `sglang.srt`. Where something of `MUST` is missing no program
runs. `MAY` has what only a feature needs, by what is left out without it, and nothing that a request could lose without
anybody noticing. Attributes that are read while a program is fitted and bound are in no line: that fails by name. What
is entered around forwards is in `around`: versions call it in other ways.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from .._probe import absent, at, first_kind, touches
from .._probe import probe as probe_all

logger = logging.getLogger(__name__)
ROOT = "sglang.srt"
lacking = functools.partial(absent, ROOT)

MUST = """
plugins.hook_registry.HookRegistry.register(target hook hook_type)
plugins.hook_registry.HookType: AFTER AROUND BEFORE REPLACE
configs.hybrid_arch.mambaish_config(model_config)
runtime_context: get_disagg get_exec get_lora get_model get_observability get_parallel get_schedule get_spec
distributed.parallel_state.GroupCoordinator: rank_in_group world_size all_gather_into_tensor all_gather_object
    all_reduce broadcast_object
distributed.parallel_state.graph_capture(stream)
model_executor.runner_utils.capture_mode.model_capture_mode
model_executor.runner_utils.pool.get_or_create_global_graph_capture_stream

speculative.eagle_worker_v2.EAGLEWorkerV2: draft_worker init_cuda_graphs req_to_token_pool target_worker
speculative.eagle_worker_v2.EAGLEWorkerV2.forward_batch_generation(batch on_publish grammar_barrier pp_proxy_tensors)
speculative.eagle_worker_v2.EagleDraftWorker: draft_attn_backend draft_extend_attn_backend draft_runner hot_token_id
speculative.standalone_worker_v2.StandaloneWorkerV2.forward_batch_generation(batch on_publish grammar_barrier
    pp_proxy_tensors)
speculative.eagle_info.EagleDraftInput(bonus_tokens topk_p topk_index hidden_states capture_hidden_mode
    num_tokens_per_req num_tokens_for_logprob_per_req)
speculative.eagle_info.EagleVerifyInput(draft_token custom_mask positions retrieve_index retrieve_next_token
    retrieve_next_sibling retrieve_cum_len spec_steps topk draft_token_num capture_hidden_mode seq_lens_sum
    seq_lens_cpu): num_tokens_for_logprob_per_req
speculative.eagle_info.EagleDraftExtendInput(hidden_states num_correct_drafts num_accept_tokens num_tokens_per_req
    num_tokens_for_logprob_per_req select_index)
model_executor.forward_batch_info.CaptureHiddenMode: FULL LAST NULL
model_executor.forward_batch_info.ForwardMode: DECODE DRAFT_EXTEND_V2 EXTEND TARGET_VERIFY is_decode is_idle
model_executor.forward_batch_info.ForwardBatch(forward_mode batch_size input_ids req_pool_indices seq_lens seq_lens_cpu
    out_cache_loc seq_lens_sum positions spec_algorithm spec_info capture_hidden_mode extend_num_tokens extend_seq_lens
    extend_seq_lens_cpu extend_prefix_lens extend_prefix_lens_cpu extend_start_loc next_token_logits_buffer
    mrope_positions num_token_non_padded lora_ids): kv_loc_plan mark_forward_metadata_ready
model_executor.forward_batch_info.enable_num_token_non_padded()
model_executor.forward_context.ForwardContext(attn_backend)
model_executor.forward_context.forward_context(ctx)
model_executor.model_runner.ModelRunner: attn_backend decode_cuda_graph_runner graph_shared_output is_draft_worker
    kv_index_translator lora_manager model model_config recapture_decode_cuda_graph spec_algorithm token_to_kv_pool
model_executor.model_runner.ModelRunner.forward(forward_batch)
model_executor.model_runner.ModelRunner.sample(logits_output forward_batch)
layers.logits_processor.LogitsProcessor: do_tensor_parallel_all_gather use_attn_tp_group
layers.logits_processor.LogitsProcessor._get_logits(hidden_states lm_head logits_metadata)
layers.logits_processor.LogitsProcessorOutput(next_token_logits next_token_logprobs next_token_top_logprobs_val
    next_token_top_logprobs_idx): hidden_states
layers.moe.utils.speculative_moe_a2a_backend_context()
layers.moe.utils.speculative_moe_backend_context()
lora.backend.base_backend.BaseLoRABackend: batch_info
lora.lora_manager.LoRAManager: lora_backend
lora.lora_manager.LoRAManager.fetch_new_loras(new_loras)
lora.lora_manager.LoRAManager.prepare_lora_batch(forward_batch)
mem_cache.allocation_sizing.get_alloc_reserve_per_decode()
mem_cache.kv_index_translator.KVIndexTranslator: bind_runner_slots is_translating
mem_cache.memory_pool.MHATokenToKVPool: k_buffer v_buffer
mem_cache.memory_pool.ReqToTokenPool: req_to_token
state_capturer.base.BaseTopkCapturer: device_cache host_cache num_layers topk_size
state_capturer.base.TopkCaptureOutput(out_cache_loc topk host_cache)
state_capturer.indexer_topk.get_global_indexer_capturer()
state_capturer.routed_experts.get_global_experts_capturer()
managers.overlap_utils: _DEBUG_ASSERT
managers.overlap_utils.FutureMap: hidden_states_buf need_hidden_states need_topk new_seq_lens_buf output_tokens_buf
    req_pool_size topk_index_buf topk_p_buf
managers.overlap_utils.FutureMap._resolve_spec_extras(batch)
managers.schedule_batch.FINISH_ABORT(message status_code err_type)
managers.schedule_batch.MultimodalInputs: mrope_position_delta
managers.schedule_batch.Req: custom_logit_processor finished grammar kv logprob lora_id multimodal_inputs output_ids
    return_hidden_states return_logprob return_sampling_mask sampling_params set_finish_with_abort to_finish
managers.schedule_batch.ReqKvInfo: req_pool_idx
managers.schedule_batch.ReqLogprob: token_ids_logprob top_logprobs_num
managers.schedule_batch.ScheduleBatch: forward_mode req_pool_indices reqs return_logprob sampling_info seq_lens
    spec_info top_logprobs_nums
managers.scheduler.Scheduler._add_request_to_queue(req)
managers.scheduler.Scheduler: draft_worker
managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor.process_batch_result_decode(batch
    result)
managers.utils.GenerationBatchResult(logits_output next_token_ids accept_lens can_run_cuda_graph
    speculative_num_draft_tokens speculative_output_stride next_draft_input new_seq_lens copy_done accept_index
    routed_experts_output)
sampling.sampling_batch_info.SamplingBatchInfo: has_watermark_candidates
sampling.sampling_params.SamplingParams: frequency_penalty logit_bias min_new_tokens min_p presence_penalty
    repetition_penalty sampling_seed temperature top_k top_p watermark
"""

INTERNAL_STATE = "what the program did is not in the internal state"
SWITCH = "the program cannot be switched off in a running server"
RELAY = "SGLang writes the relay again behind a step, two launches"
GRAMMARS = "requests with a grammar are SGLang's"
SIMULATED = "SGLANG_SIMULATE_ACC_LEN changes SGLang's own steps alone"
LOOK_UPS = "drafts that are looked up are SGLang's"
BLOCKS = "drafts that are filled in as a block are SGLang's"
ASSISTANTS = "drafts of an assistant that reads the target's keys and values are SGLang's"
HANDOVER = "a server that decodes what another one prefills runs no program"
MODULES = "drafts of several modules are SGLang's"
LOCKSTEP = "a server whose attention is data parallel runs no program"
MAY = {
    INTERNAL_STATE: """
managers.scheduler_components.internal_state.SchedulerInternalStateController.get_internal_state(recv_req)
""",
    SWITCH: """
managers.io_struct.SetInternalStateReq: server_args
managers.io_struct.SetInternalStateReqOutput(updated)
managers.scheduler_components.internal_state.SchedulerInternalStateController: scheduler
managers.scheduler_components.internal_state.SchedulerInternalStateController.set_internal_state(recv_req)
""",
    RELAY: "managers.overlap_utils.FutureMap: _relay",
    GRAMMARS: """
constrained.base_grammar_backend.GrammarRow(row grammar)
speculative.spec_utils.generate_token_bitmask(reqs retrieve_next_token_cpu retrieve_next_sibling_cpu draft_tokens_cpu
    vocab_size)
utils.common.async_d2h(tensor)
""",
    LOOK_UPS: """
speculative.ngram_worker.NGRAMWorker: draft_token_num draft_worker init_cuda_graphs req_to_token_pool target_worker
speculative.ngram_worker.NGRAMWorker.forward_batch_generation(batch on_publish pp_proxy_tensors)
speculative.ngram_info.NgramVerifyInput(draft_token_num new_seq_lens accept_tokens accept_lens)
managers.overlap_utils.FutureMap: needs_cpu_seq_lens
managers.overlap_utils.FutureMap.resolve_seq_lens_cpu(batch)
managers.overlap_utils.FutureMap.stash(future_indices payload)
managers.schedule_batch.Req: origin_input_ids
managers.schedule_batch.ScheduleBatch: seq_lens_cpu
""",
    BLOCKS: """
speculative.dflash_worker_v2.DFlashWorkerV2: draft_worker init_cuda_graphs target_worker
speculative.dflash_worker_v2.DFlashWorkerV2.forward_batch_generation(batch on_publish grammar_barrier pp_proxy_tensors)
speculative.dflash_worker_v2.DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc(target_hidden cache_loc positions)
layers.logits_processor.LogitsMetadata.from_forward_batch(forward_batch)
models.dflash.DFlashDraftModel.forward(input_ids positions forward_batch input_embeds)
speculative.dflash_info_v2.DFlashDraftInputV2(topk_p topk_index bonus_tokens new_seq_lens hidden_states)
speculative.dflash_info.DFlashVerifyInput(draft_token positions draft_token_num capture_hidden_mode)
""",
    ASSISTANTS: """
speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPWorkerV2: draft_worker
speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPWorkerV2.forward_batch_generation(batch on_publish grammar_barrier)
speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker: draft_attn_backend draft_runner hot_token_id kv_context
speculative.frozen_kv_mtp_info.FrozenKVMTPDraftInput(bonus_tokens topk_p topk_index hidden_states)
""",
    HANDOVER: """
disaggregation.decode.DecodeReqToTokenPool: req_to_token
managers.overlap_utils.FutureMap.publish(future_indices new_seq_lens)
managers.schedule_batch.Req: hidden_states_tensor output_topk_index output_topk_p
managers.schedule_batch.ScheduleBatch: enable_overlap extend_lens extend_logprob_start_lens extend_num_tokens
    out_cache_loc prefix_lens req_to_token_pool
speculative.eagle_worker_v2.EagleDraftWorker._draft_extend_for_prefill(batch target_hidden_states next_token_ids)
speculative.spec_info.SpeculativeAlgorithm.build_disagg_draft_input(batch last_tokens_tensor future_map)
speculative.spec_registry.CustomSpecAlgo.build_disagg_draft_input(batch last_tokens_tensor future_map)
""",
    MODULES: """
speculative.multi_layer_eagle_worker_v2.MultiLayerEagleWorkerV2: draft_worker req_to_token_pool target_worker
speculative.multi_layer_eagle_worker_v2.MultiLayerEagleWorkerV2.forward_batch_generation(batch on_publish
    grammar_barrier pp_proxy_tensors)
speculative.multi_layer_eagle_worker_v2.MultiLayerEagleDraftWorker: chain_mtp_hidden_states
    draft_extend_attn_backend_list draft_runner draft_runner_list
model_executor.forward_batch_info.ForwardBatch: return_hidden_states_before_norm
""",
    LOCKSTEP: """
layers.dp_attention.DpPaddingMode: SUM_LEN get_default_mode_in_cuda_graph is_max_len
layers.dp_attention.set_dp_buffer_len(global_dp_buffer_len local_dp_buffer_len dp_max_padding global_num_tokens
    global_num_tokens_gpu)
layers.dp_attention.set_is_extend_in_batch(is_extend_in_batch)
managers.scheduler_components.dp_attn.MLPSyncBatchInfo: global_num_tokens is_extend_in_batch tp0_info_cpu
managers.scheduler_components.dp_attn.MLPSyncBatchInfo._get_local_tensor(device dtype)
managers.scheduler_components.dp_attn.MLPSyncBatchInfo._get_fallback_tensor(device dtype)
managers.scheduler_components.dp_attn.MLPSyncBatchInfo.all_gather(device group)
managers.scheduler_components.dp_attn.SchedulerDPAttnAdapter.prepare_mlp_sync_batch(local_batch)
model_executor.forward_batch_info.ForwardBatch: global_num_tokens_cpu global_num_tokens_gpu
    global_num_tokens_for_logprob_cpu global_num_tokens_for_logprob_gpu is_extend_in_batch dp_padding_mode
    global_dp_buffer_len
speculative.eagle_worker_v2.EagleDraftWorker: parallel_layout
speculative.spec_utils.draft_tp_context(layout)
""",
    SIMULATED: """
speculative.spec_utils: SIMULATE_ACC_LEN SIMULATE_ACC_METHOD
speculative.spec_utils.sample_simulated_acc_len(simulate_acc_len simulate_acc_method max_len)
""",
}

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
"""What a kind of attention needs beside `MUST`, looked for in servers that have it."""


def probe(version: str, *, tested: bool) -> None:
    """Look for all that the adapter touches. RuntimeError with everything that is missing of what must be there.

    A feature that lacks something is logged as left out, unless this version was `tested` without it.
    """
    probe_all(f"SGLang {version}", ROOT, MUST, {} if tested else MAY, logger)


def need(attention: str) -> None:
    """Look for what a kind of attention needs. RuntimeError with everything that is missing."""
    if missing := list(lacking(ATTENTION[attention])):
        raise RuntimeError(f"attention of SGLang's {attention}: {'; '.join(missing)}")


def there(feature: str) -> bool:
    """Whether all is there that a feature of `MAY` needs."""
    return not any(lacking(MAY[feature]))


def kind(feature: str) -> Any:
    """The class that a feature of `MAY` begins with; `Absent` unless all is there that the feature needs."""
    return first_kind(ROOT, MAY[feature])


def found(feature: str) -> list[Any]:
    """What is at the places of a feature of `MAY`, None where nothing is."""
    every: list[Any] = []
    for touch in touches(MAY[feature]):
        try:
            every.append(at(ROOT, touch.place))
        except (ImportError, AttributeError):
            every.append(None)
    return every

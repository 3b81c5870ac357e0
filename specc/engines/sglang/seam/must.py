"""What every program needs of SGLang: lines of places below `sglang.srt`, as `_probe` reads them."""

from __future__ import annotations

from ..kinds import KINDS

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
""" + "".join(kind.needs for kind in KINDS if not kind.absent)

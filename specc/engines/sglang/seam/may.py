"""What a feature alone needs of SGLang, by what is left out without it; a kind of draft says that in its own file."""

from __future__ import annotations

from ..kinds import KINDS

INTERNAL_STATE = "what the program did is not in the internal state"
SWITCH = "the program cannot be switched off in a running server"
RELAY = "SGLang writes the relay again behind a step, two launches"
GRAMMARS = "requests with a grammar are SGLang's"
SIMULATED = "SGLANG_SIMULATE_ACC_LEN changes SGLang's own steps alone"
HANDOVER = "a server that decodes what another one prefills runs no program"
LOCKSTEP = "a server whose attention is data parallel runs no program"
STATES = "targets that keep a recurrent state are SGLang's"
NGRAMS = "targets that look n-grams up are SGLang's"
RECORDS = "a server that keeps records of states runs no program"
WEIGHED = "a server that weighs drafts by what they were drawn from runs no program"
ADAPTIVE = "a server that changes the number of its steps runs no program"
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
    STATES: """
layers.attention.hybrid_linear_attn_backend.HybridLinearAttnBackend: attn_backend_list full_attn_backend
    linear_attn_backend
mem_cache.memory_pool.MambaPool: mamba_cache
mem_cache.memory_pool.MambaPool.clear_slots(indices)
mem_cache.memory_pool.HybridReqToTokenPool: mamba_pool req_index_to_mamba_index_mapping
speculative.spec_utils.commit_mamba_states_after_verify(target_worker batch accept_lens accept_index draft_token_num)
speculative.spec_utils.prepare_mamba_track_for_verify(batch)
runtime_context.mamba_track_grid(tree_page)
runtime_context: get_memory
""",
    NGRAMS: """
model_executor.model_runner_components.ngram_embedding_manager.NgramEmbeddingManager: engram_hasher
model_executor.model_runner_components.ngram_embedding_manager.NgramEmbeddingManager.update_after_verify(verify_ids_2d
    req_pool_indices commit_lens)
""",
    RECORDS: """
mem_cache.memory_pool.MambaPool: linear_replayssm_cache_len replayssm_cache_base replayssm_is_flush
    replayssm_spec_write_pos
""",
    WEIGHED: "speculative.eagle_info.EagleDraftInput(draft_probs)",
    ADAPTIVE: """
speculative.adaptive_runtime_state.AdaptiveController: candidate_steps
speculative.adaptive_runtime_state.AdaptiveController._activate(speculative_num_steps)
speculative.eagle_worker_v2.EAGLEWorkerV2: adaptive_controller speculative_num_steps
speculative.eagle_worker_v2.EAGLEWorkerV2.activate_step_by_batch(batch_size)
speculative.eagle_worker_v2.EAGLEWorkerV2.on_verify_complete_cpu(num_correct_drafts_per_req batch_size)
""",
} | {kind.absent: kind.needs for kind in KINDS if kind.absent}

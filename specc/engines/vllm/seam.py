"""All of vLLM that this adapter touches, and the check that it is there before anything is replaced.

Lines of the tables are those of `_probe`, of places below `vllm`. Where something of `MUST` is missing no program runs.
`MAY` has what only a feature needs, by what is left out without it. What a request could lose without anybody noticing
is never in `MAY`. Attributes that are read while a program is fitted and bound are in no line: if one is missing that
fails, by name.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from .._probe import absent, at, touches
from .._probe import probe as probe_all
from .kinds import KINDS, KindOfDraft

logger = logging.getLogger("vllm.specc")
ROOT = "vllm"
lacking = functools.partial(absent, ROOT)

MUST = """
config.compilation.CUDAGraphMode: NONE
config.model: PROCESSED_LOGPROBS_MODES
distributed.parallel_state.GroupCoordinator: all_gather all_reduce cpu_group rank_in_group world_size
distributed.parallel_state.get_tp_group()
distributed.parallel_state.graph_capture(device)
v1.worker.gpu_worker.Worker: load_model model_runner
v1.worker.gpu.model_runner.init_speculator(vllm_config device req_states)
v1.worker.gpu.model_runner.GPUModelRunner: cudagraph_manager device lora_config model output_copy_stream
    req_states sampler speculator structured_outputs_worker vllm_config
v1.worker.gpu.model_runner.GPUModelRunner.sample(hidden_states input_batch grammar_output)
v1.worker.gpu.model_runner.GPUModelRunner.add_requests(scheduler_output)
v1.core.sched.output.SchedulerOutput: scheduled_new_reqs

v1.worker.gpu.states.RequestState: all_token_ids draft_tokens last_sampled_tokens max_num_reqs num_computed_tokens
    req_id_to_index
v1.worker.gpu.block_table.BlockTables: block_sizes block_tables init_block_table_layout_tensors input_block_tables
    num_blocks
v1.kv_cache_interface.KVCacheSpec: uses_slot_mapping
v1.worker.gpu.buffer_utils.StagedWriteTensor: gpu
v1.worker.gpu.buffer_utils.UvaBackedTensor: gpu np
v1.worker.gpu.input_batch.InputBatch: cu_num_logits_np expanded_idx_mapping expanded_local_pos has_prefill
    has_structured_output_reqs idx_mapping idx_mapping_np input_ids logits_indices num_draft_tokens num_reqs num_tokens
    positions seq_lens_cpu_upper_bound
v1.worker.gpu.input_batch.InputBuffers: input_ids positions query_start_loc seq_lens
v1.worker.gpu.cudagraph_utils.BatchExecutionDescriptor(cg_mode num_tokens num_reqs)

v1.worker.gpu.sample.output.SamplerOutput(sampled_token_ids logprobs_tensors num_nans num_sampled num_rejected)
v1.worker.gpu.sample.sampler.Sampler: compute_nans logits_processors logprobs_mode needs_logits_processing
    penalties_state sampling_states thinking_budget_state
v1.worker.gpu.sample.sampler.Sampler.get_logprobs_dims(idx_mapping_np)
v1.worker.gpu.sample.states.SamplingStates: min_p num_logprobs seeds seeds_set temperature top_k top_p
v1.worker.gpu.sample.states: NO_LOGPROBS
v1.worker.gpu.sample.bad_words.BadWordsState: num_bad_words
v1.worker.gpu.sample.bad_words.BadWordsState.apply(logits ctx)
v1.worker.gpu.sample.logit_bias.LogitBiasState: num_logit_bias use_logit_bias
v1.worker.gpu.sample.logit_bias.LogitBiasState.apply(logits ctx)
v1.worker.gpu.sample.logits_processor.interface.LogitsContext(expanded_idx_mapping idx_mapping idx_mapping_np
    expanded_local_pos input_ids pos seq_lens_upper_bound_np)
v1.worker.gpu.sample.logprob.compute_topk_scores(logits num_logprobs sampled_token_ids cu_num_logits logits_mode)
v1.worker.gpu.sample.penalties.PenaltiesState: frequency_penalty output_bin_counts presence_penalty prompt_bin_mask
    repetition_penalty use_penalty
v1.worker.gpu.sample.thinking_budget.ThinkingBudgetState: enabled use_thinking_budget

v1.core.sched.output.GrammarOutput: grammar_bitmask num_acceptable_drafts structured_output_request_ids
v1.worker.gpu.structured_outputs.StructuredOutputsWorker.apply_grammar_bitmask(logits input_batch grammar_req_ids
    grammar_bitmask)
v1.worker.gpu.structured_outputs.grammar_invalid_drafts(input_batch grammar_req_ids num_acceptable_drafts)

v1.worker.gpu.spec_decode.speculator.BaseSpeculator: capture init_cudagraph_manager
v1.worker.gpu.spec_decode.speculator.BaseSpeculator.propose(input_batch attn_metadata slot_mappings last_hidden_states
    aux_hidden_states num_sampled num_rejected last_sampled next_prefill_tokens temperature seeds)
v1.worker.gpu.spec_decode.speculator.DraftModelSpeculator(vllm_config device): arange_np block_tables device
    draft_attn_layer_names draft_max_seq_len input_buffers kv_cache_config max_model_len model num_speculative_steps
    supports_decode_metadata_update vllm_config
v1.worker.gpu.spec_decode.speculator.DraftModelSpeculator._build_attn_metadata(num_reqs batch_desc query_start_loc_np
    seq_lens_cpu_upper_bound step slot_mappings)
v1.worker.gpu.spec_decode.speculator.DraftModelSpeculator.compute_draft_logits(hidden_states spec_step_idx)
model_executor.layers.logits_processor.LogitsProcessor: head_dtype logits_as_input scale soft_cap
model_executor.layers.logits_processor.LogitsProcessor.forward(lm_head hidden_states embedding_bias skip_gather)
"""

PROFILE = "memory of a program counts twice while vLLM measures what graphs take"
UPDATE = "vLLM's tables are updated in launches behind the graph that verifies"
HYBRID = "tables of hybrid targets are updated in launches behind the graph that verifies"
SHARES = "programs with budget: given do not run"
NUMBERS = "programs of several shapes draft as many tokens in every step"
TIMES = "programs of several shapes estimate how long their steps take"
RUNNER = "the log does not say where vLLM has its first model runner, which knows of no programs"
MAY = {kind.absent: kind.needs for kind in KINDS} | {
    PROFILE: "v1.worker.gpu.model_runner.GPUModelRunner.profile_cudagraph_memory()",
    UPDATE: """
config.vllm.VllmConfig: aux_output_config
v1.worker.gpu.model_runner.GPUModelRunner: model_state
v1.worker.gpu.model_runner.GPUModelRunner.postprocess_sampled(idx_mapping sampled_tokens num_sampled num_rejected
    query_start_loc)
v1.worker.gpu.model_states.interface.ModelState: postprocess_state
""",
    HYBRID: """
v1.worker.gpu.model_states.mamba_hybrid.MambaHybridModelState: recoverssm
v1.worker.gpu.model_states.mamba_hybrid.MambaHybridModelState.postprocess_state(idx_mapping num_sampled
    num_computed_tokens)
""",
    SHARES: """
config.speculative.SpeculativeConfig: enable_adaptive_verification
v1.worker.gpu.input_batch.InputBatch: cu_num_logits num_scheduled_tokens
v1.worker.gpu.spec_decode.speculator.DraftModelSpeculator: acceptance_estimator draft_token_confidence_probs temperature
v1.worker.gpu.spec_decode.speculator.DraftModelSpeculator._maybe_predict_acceptance(logits idx_mapping draft_step)
v1.worker.gpu.spec_decode.speculator.DraftModelSpeculator.observe_verification(idx_mapping num_sampled num_rejected)
""",
    NUMBERS: """
config.speculative.SpeculativeConfig: num_speculative_tokens num_speculative_tokens_per_batch_size
v1.engine.core.EngineCore: model_executor
v1.engine.core.EngineCore._initialize_kv_caches(vllm_config)
v1.executor.abstract.Executor.collective_rpc(method)
v1.worker.gpu.model_runner.GPUModelRunner: speculator vllm_config
v1.core.sched.scheduler.Scheduler: dynamic_sd_lookup
v1.core.sched.scheduler.Scheduler.update_from_output(scheduler_output model_runner_output)
v1.core.sched.output.SchedulerOutput: num_scheduled_tokens scheduled_spec_decode_tokens
v1.outputs.ModelRunnerOutput: req_id_to_index sampled_token_ids
v1.worker.gpu.spec_decode.speculator.BaseSpeculator.propose(input_batch attn_metadata slot_mappings last_hidden_states
    aux_hidden_states num_sampled num_rejected last_sampled next_prefill_tokens temperature seeds
    num_speculative_tokens)
""",
    TIMES: """
v1.core.sched.output.SchedulerOutput: num_scheduled_tokens total_num_scheduled_tokens
v1.core.sched.output.SchedulerOutput.make_empty()
v1.worker.gpu.model_runner.ExecuteModelState: aux_hidden_states hidden_states
v1.worker.gpu.model_runner.GPUModelRunner: _draft_workspace_lane execute_model_state kv_connector lora_config
    max_num_reqs max_num_tokens
v1.worker.gpu.model_runner.GPUModelRunner.execute_model(scheduler_output dummy_run randomize_inputs)
v1.worker.gpu.kv_connector.KVConnector.set_disabled(disabled)
v1.worker.gpu.spec_decode.utils.get_drafter_hidden_states(model hidden_states)
v1.worker.workspace.use_workspace_lane(lane)
""",
    RUNNER: "v1.worker.gpu_worker.Worker: use_v2_model_runner",
}


def probe(version: str, *, tested: bool) -> None:
    """Look for all that the adapter touches. RuntimeError with everything that is missing of what must be there.

    A feature that lacks something is logged as left out, unless this version was `tested` without it.
    """
    probe_all(f"vLLM {version}", ROOT, MUST, {} if tested else MAY, logger)


def there(feature: str) -> bool:
    """Whether all is there that a feature of `MAY` needs."""
    return not any(lacking(MAY[feature]))


def speculator(kind: KindOfDraft) -> Any:
    """The class of vLLM's speculators of a kind of draft, by the first line of what the kind needs."""
    return at(ROOT, touches(kind.needs)[0].place)

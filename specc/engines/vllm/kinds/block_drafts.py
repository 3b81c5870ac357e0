"""Drafts that fill in a block at once, over keys and values made of hidden states of the target: DFLASH, DSPARK."""

from __future__ import annotations

from .kind import KindOfDraft, Method

BLOCKS = KindOfDraft(
    algorithms={
        "DFLASH": (
            Method(
                "dflash", stated=True, names=("dflash",), classes=("MuseGlimmerAssistantModel",),
                formats={"dflash2": False}, at_once=True,
            ),
        ),
    },
    needs="""
v1.worker.gpu.spec_decode.dflash.speculator.DFlashSpeculator: _group_causal _layer_group_idx
    draft_kv_cache_group_ids num_query_per_req parallel_drafting_token_id
v1.worker.gpu.spec_decode.dflash.speculator.DFlashSpeculator._run_model(num_tokens attn_metadata slot_mappings
    num_tokens_across_dp)
v1.worker.gpu.input_batch.InputBuffers: is_padding
v1.worker.gpu.spec_decode.speculator.DraftModelSpeculator._build_attn_metadata(num_reqs batch_desc query_start_loc_np
    seq_lens_cpu_upper_bound step slot_mappings causal)
model_executor.models.qwen3_dflash.DFlashQwen3ForCausalLM.combine_hidden_states(hidden_states)
model_executor.models.qwen3_dflash.DFlashQwen3ForCausalLM.precompute_and_store_context_kv(context_states
    context_positions context_slot_mapping)
""",
    absent="drafts that fill in blocks are vLLM's own",
    digests={
        "v1.worker.gpu.spec_decode.dflash.speculator.DFlashSpeculator": {
            "propose": "c279d8ecaa3d 5f25284e2f92",
            "_run_model": "ddb25bfe5041 91c1f0c59851",
            "_generate_draft": "b2ee2b890cd5 4cf7ef8d29f9",
            "_precompute_context_kv": "032e7cc365f1",
        },
        "v1.worker.gpu.spec_decode.dflash.speculator": {
            "_prepare_dflash_inputs_kernel": "6b89e0b50c1e 8e0e43fda069",
        },
    },
    drafts="speculators.BlockDrafts",
    draws=True,
    settles=("parallel_drafting",),
)  # fmt: skip
MARKOV_BLOCKS = KindOfDraft(
    algorithms={
        "DSPARK": (
            Method(
                "dspark", stated=True, names=("dspark",), at_once=True, bundled=True, formats={"dspark": False},
                classes=(
                    "Qwen3DSparkModel", "Qwen3OmniDSparkModel", "MuseSparkDSparkModel", "Gemma4DSparkModel",
                    "DSparkDraftModel",
                ),
            ),
        ),
    },
    needs=f"""
v1.worker.gpu.spec_decode.dspark.speculator.DSparkSpeculator: _draft_topk
model_executor.models.qwen3_dspark.DSparkMarkovHead: markov_w1 markov_w2
model_executor.models.qwen3_dspark.Qwen3DSparkForCausalLM: draft_id_to_target_id logits_processor model
{BLOCKS.needs.replace("dflash.speculator.DFlash", "dspark.speculator.DSpark").strip()}
""",
    absent="drafts that fill in blocks and are told of the one before are vLLM's own",
    digests={
        "v1.worker.gpu.spec_decode.dspark.speculator.DSparkSpeculator": {
            "_sample_logits": "d1d6db6efead",
            "_sample_sequential": "9936e7c9a042 c83a6a0865b6",
            "_generate_draft": "c9ba8cc87dec",
        },
        "model_executor.models.qwen3_dspark.DSparkMarkovHead": {
            "embed": "8953254faf91",
            "bias": "f40332f67b3e",
        },
    },
    drafts="speculators.MarkovDrafts",
    draws=True,
    rescores=True,
    settles=BLOCKS.settles,
)  # fmt: skip

"""Modules of multi-token prediction: one, which drafts as a head of EAGLE does, or several, MULTI_LAYER_EAGLE."""

from __future__ import annotations

from .eagle_heads import AROUND, HEADS
from .kind import KindOfDraft, Method

MTP = Method("mtp", modules=True)
ONE_MODULE = KindOfDraft(
    algorithms={"EAGLE": (MTP,)},
    needs="""
v1.worker.gpu.spec_decode.mtp.speculator.MTPSpeculator: hidden_size hidden_states
v1.worker.gpu.spec_decode.mtp.speculator.MTPSpeculator._run_model(num_tokens attn_metadata slot_mappings
    num_tokens_across_dp)
"""
    + AROUND,
    absent="drafts of modules of multi-token prediction are vLLM's own",
    digests={
        **HEADS.digests,
        "v1.worker.gpu.spec_decode.mtp.speculator.MTPSpeculator": {
            "load_draft_model": "664216568abe",
            "on_prefill_begin": "56b809acadc4",
            "on_prefill_end": "361ed59c6e3c",
            "on_multi_step_decode_begin": "4839c52bd842",
            "on_multi_step_decode_end": "b1b99d28c122",
        },
    },
    drafts="speculators.HeadDrafts",
    draws=True,
    estimates=True,
)
SEVERAL_MODULES = KindOfDraft(
    algorithms={"MULTI_LAYER_EAGLE": (MTP,)},
    needs="""
v1.worker.gpu.spec_decode.multi_module_mtp.speculator.MultiModuleMTPSpeculator: cached_draft_input_ids
    cached_target_hidden_states hidden_size hidden_states inputs_embeds
v1.worker.gpu.spec_decode.multi_module_mtp.speculator.MultiModuleMTPSpeculator._run_model(num_tokens attn_metadata
    slot_mappings num_tokens_across_dp spec_module_idx)
""",
    absent="drafts of several modules of multi-token prediction, one after the other, are vLLM's own",
    digests={
        "v1.worker.gpu.spec_decode.multi_module_mtp.speculator.MultiModuleMTPSpeculator": {
            "propose": "eba1a8530441",
            "compute_draft_logits": "bc1fae0498ab",
            "_run_model": "3b14162f6a97",
            "_prepare_inputs": "7479ae6b4a8c",
            "_generate_drafts": "bd7c7ecdc682",
        },
        "v1.worker.gpu.spec_decode.multi_module_mtp.speculator": {
            "_prepare_input_buffers_kernel": "34ed37047ace",
            "_prepare_input_hidden_states_and_embeddings_kernel": "bfc8a16f444d",
            "_pad_trailing_draft_slots_kernel": "d7a53831ace9",
            "_cache_inputs_kernel": "6767863f903a",
            "_shift_input_ids_kernel": "78f12b46bf4a",
        },
    },
    drafts="speculators.ModulesDrafts",
    draws=True,
    form="several modules",
)

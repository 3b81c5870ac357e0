"""A language model that drafts: STANDALONE."""

from __future__ import annotations

from .kind import KindOfDraft, Method

LANGUAGE_MODELS = KindOfDraft(
    algorithms={"STANDALONE": (Method("draft_model", usual=True),)},
    needs="""
v1.worker.gpu.spec_decode.standalone_ar.speculator.StandaloneARSpeculator
v1.worker.gpu.spec_decode.standalone_ar.speculator.StandaloneARSpeculator._run_model(input_ids positions attn_metadata
    slot_mappings num_tokens_across_dp)
""",
    absent="drafts of a language model are vLLM's own",
    digests={
        "v1.worker.gpu.spec_decode.standalone_ar.speculator.StandaloneARSpeculator": {
            "propose": "13a6680698c5",
            "_run_model": "9694efcfeb6d",
            "_prefill": "013d3dffadba",
            "_multi_step_decode": "c49ac2203365",
        },
        "v1.worker.gpu.spec_decode.standalone_ar.speculator": {
            "_prepare_prefill_inputs_kernel": "84c7f9d0d4a2",
        },
    },
    drafts="speculators.StandaloneDrafts",
    draws=True,
    estimates=True,
)

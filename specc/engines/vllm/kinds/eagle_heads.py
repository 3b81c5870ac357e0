"""Heads, which draft from hidden states of the target: EAGLE and EAGLE3."""

from __future__ import annotations

from .kind import KindOfDraft, Method

_OWNER = "v1.worker.gpu.spec_decode.target_dependent_ar.speculator.TargetDependentARSpeculator"
_HOOKS = ("on_prefill_begin", "on_prefill_end", "on_multi_step_decode_begin", "on_multi_step_decode_end")
AROUND = "\n".join([f"{_OWNER}: last_token_indices", *(f"{_OWNER}.{hook}(num_reqs)" for hook in _HOOKS)])
"""The hooks that tell a head that its forwards begin and end."""
HEADS = KindOfDraft(
    algorithms={
        "EAGLE": (Method("eagle", stated=True, names=("eagle-",), prefix="Eagle"),),
        "EAGLE3": (
            Method("eagle3", stated=True, names=("eagle3",), formats={"peagle": True}, prefix="Eagle3", ends=True),
        ),
    },
    needs="""
v1.worker.gpu.spec_decode.eagle.speculator.EagleSpeculator: hidden_size hidden_states
v1.worker.gpu.spec_decode.eagle.speculator.EagleSpeculator._run_model(num_tokens attn_metadata slot_mappings
    num_tokens_across_dp)
"""
    + AROUND,
    absent="drafts of EAGLE heads are vLLM's own",
    digests={
        _OWNER: {
            "propose": "f3fb9d60699f be47ab9a1907",
            "_run_model": "d911c8971902 bbb22f61721c",
            "_prefill": "44c278f689e6 8cda1d255345",
            "_generate_draft": "5ce97c0c91bb",
        },
        "v1.worker.gpu.spec_decode.target_dependent_ar.speculator": {
            "_prepare_prefill_inputs_kernel": "45f6705caa9a",
            "_prepare_decode_inputs_kernel": "e2a876c8cc2f",
            "_update_draft_inputs_kernel": "8594f31c708d",
        },
    },
    drafts="speculators.HeadDrafts",
    draws=True,
    estimates=True,
)

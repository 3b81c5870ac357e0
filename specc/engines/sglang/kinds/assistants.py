"""Assistants, which draft by the target's keys and values: FROZEN_KV_MTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .kind import KindOfDraft

ASSISTANT = "an assistant, which reads the target's keys and values,"


@dataclass(frozen=True, eq=False)
class _Assistants(KindOfDraft):
    def backends(self, drafter: Any) -> Mapping[str, Any]:
        """All forwards of a step have one."""
        return {"draft": [drafter.draft_attn_backend]}


ASSISTANTS = _Assistants(
    algorithms=("FROZEN_KV_MTP",),
    place="speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPWorkerV2",
    needs="""
speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPWorkerV2: draft_worker
speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPWorkerV2.forward_batch_generation(batch on_publish grammar_barrier)
speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPDraftWorker: draft_attn_backend draft_runner hot_token_id kv_context
speculative.frozen_kv_mtp_info.FrozenKVMTPDraftInput(bonus_tokens topk_p topk_index hidden_states)
""",
    absent="drafts of an assistant that reads the target's keys and values are SGLang's",
    keeps="speculative.frozen_kv_mtp_info.FrozenKVMTPDraftInput",
    forwards="models.assisted.AssistedForwards",
    roles={"draft": "target", "verify": "target"},
    drafts=r"Gemma4(Unified)?AssistantForCausalLM",
    called="an assistant",
    refused={
        "topk": f"a tree with {ASSISTANT}",
        "adapters": f"LoRA with {ASSISTANT}",
        "groups": f"data-parallel attention with {ASSISTANT}",
        "disaggregation_mode": f"two servers with {ASSISTANT}",
    },
)

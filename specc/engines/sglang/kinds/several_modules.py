"""Drafts that have a module for each step: MULTI_LAYER_EAGLE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .kind import KindOfDraft

SHARED_OUT = "Step3p5"
"""How names of classes begin, of targets and of SGLang's models, whose modules read an embedding of their own."""


@dataclass(frozen=True, eq=False)
class _SeveralModules(KindOfDraft):
    def backends(self, drafter: Any) -> Mapping[str, Any]:
        """Each module has its own over the accepted path."""
        pairs = zip(drafter.draft_extend_attn_backend_list, drafter.draft_runner_list, strict=True)
        extend, *further = (own or runner.attn_backend for own, runner in pairs)
        return {"extend": extend, "further": further}

    def beside(self, architecture: str, projector: str = "", *, embeds: bool = False) -> str:
        """See `KindOfDraft`: all ranks together hold the embedding, as if all had the same tokens."""
        return "modules whose embedding all ranks share out" if architecture.startswith(SHARED_OUT) else ""

    def model_beside(self, model: Any) -> str:
        """See `KindOfDraft`."""
        return self.beside(type(model).__name__)

    def misfits(self, draft: Any, groups: int) -> Iterator[tuple[str, str]]:
        """See `KindOfDraft`: where ranks have tokens of their own, SGLang adds up what each looked up."""
        if draft.beside and groups > 1:
            yield "groups", f"attention under data parallelism with {draft.beside}"

    def unsegmented(self, worker: Any) -> str:
        """What a module made is somewhere else once a graph has made it."""
        return "modules that read hidden states of the target alone" if chained(worker) else ""


def chained(worker: Any) -> bool:
    """Whether each module of a draft reads what the one before it made."""
    return bool(worker.draft_worker.chain_mtp_hidden_states)


SEVERAL_MODULES = _SeveralModules(
    algorithms=("MULTI_LAYER_EAGLE",),
    place="speculative.multi_layer_eagle_worker_v2.MultiLayerEagleWorkerV2",
    needs="""
speculative.multi_layer_eagle_worker_v2.MultiLayerEagleWorkerV2: draft_worker req_to_token_pool target_worker
speculative.multi_layer_eagle_worker_v2.MultiLayerEagleWorkerV2.forward_batch_generation(batch on_publish
    grammar_barrier pp_proxy_tensors)
speculative.multi_layer_eagle_worker_v2.MultiLayerEagleDraftWorker: chain_mtp_hidden_states
    draft_extend_attn_backend_list draft_runner draft_runner_list
model_executor.forward_batch_info.ForwardBatch: return_hidden_states_before_norm
""",
    absent="drafts of several modules are SGLang's",
    forwards="models.modules.ModuleForwards",
    roles={"verify": "target", "extend": "draft"},
    weighs=("rejection", "block"),
    each_step="a module for each step",
    called="several modules",
    written="EAGLE",
    setting=("enable_multi_layer_eagle", "multi-layer EAGLE of another algorithm"),
    targets=r"MiMoV2(Flash)?ForCausalLM|Step3p|GigaChat35",
    refused={
        "topk": "a tree of several modules",
        "adapters": "LoRA beside a draft of several modules",
        "disaggregation_mode": "a draft of several modules behind a server that prefills",
    },
    whole="with a draft of several modules",
    computed=False,
)

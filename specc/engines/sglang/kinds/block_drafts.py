"""Drafts that fill in a block at once, over keys and values made of hidden states of the target: DFLASH."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..attention.kinds import backend_of
from .kind import NODES, STARTS_NONE, CommandLine, KindOfDraft, Said

SIZE = "--speculative-dflash-block-size"
"""Another name of `NODES`."""
USUAL_SIZE = 16
"""Tokens of a block where nothing is written, neither by the draft."""
PLAIN = ("DFlashDraftModel",)
"""SGLang's classes of such models that are served: layers, behind which the target's head scores."""
DRAFT = "a draft that fills in blocks"


@dataclass(frozen=True, eq=False)
class _Blocks(KindOfDraft):
    def shape(self, line: CommandLine, draft: Mapping[str, Any]) -> tuple[Said, Said, Said]:
        """Return a step for every token of a block but the first, which is no draft."""
        written = {name: size for name in (NODES, SIZE) if (size := line.number(name)) is not None}
        if len(set(written.values())) > 1:
            line.wrong(f"{NODES} and {SIZE} differ", "a block has one size: write one of them")
        own = (int(draft["block_size"].value), draft["block_size"].origin) if "block_size" in draft else None
        size, origin = next(((size, name) for name, size in written.items()), own or (USUAL_SIZE, "SGLang's default"))
        if size < 2:
            line.wrong(f"a block of {size} tokens ({origin}) has no drafts", f"write {NODES} 2 or more")
        steps = (size - 1, f"all of a block but its first token: {origin}")
        return steps, (1, "a chain, as every block is"), (size, origin)

    def attention(self, written: str, prefill: Said, *, newest: bool, on_cpu: bool) -> Said:
        """Return what is written, or that of the prefill; SGLang takes another for one that such a draft cannot have.

        On a CPU there is no such server.
        """
        name, origin = own = (written, "--speculative-draft-attention-backend") if written else prefill
        if on_cpu or backend_of(str(name)).drafts_blocks:
            return own
        other = "fa4" if name == "trtllm_mha" and newest else "flashinfer"
        return other, f"SGLang's choice for blocks in the place of {name} ({origin})"

    def beside(self, architecture: str, projector: str = "", *, embeds: bool = False) -> str:
        """See `KindOfDraft`: layers alone are served."""
        if architecture not in PLAIN:
            return f"of the class {architecture}"
        return f"with a {projector} projector" if projector else "with an embedding of its own" if embeds else ""

    def model_beside(self, model: Any) -> str:
        """See `KindOfDraft`."""
        embeds = model.get_input_embeddings() is not None
        return self.beside(type(model).__name__, getattr(model, "projector_type", None) or "", embeds=embeds)

    def misfits(self, draft: Any) -> Iterator[tuple[str, str]]:
        """See `KindOfDraft`."""
        if draft.beside:
            yield "draft", f"{DRAFT}, {draft.beside},"
        if draft.window:
            yield "draft", f"sliding windows of {DRAFT}"

    def backends(self, drafter: Any) -> Mapping[str, Any]:
        """One forward has the runner's own."""
        return {"block": drafter.draft_runner.attn_backend}


BLOCKS = _Blocks(
    algorithms=("DFLASH",),
    place="speculative.dflash_worker_v2.DFlashWorkerV2",
    needs="""
speculative.dflash_worker_v2.DFlashWorkerV2: draft_worker init_cuda_graphs target_worker
speculative.dflash_worker_v2.DFlashWorkerV2.forward_batch_generation(batch on_publish grammar_barrier pp_proxy_tensors)
speculative.dflash_worker_v2.DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc(target_hidden cache_loc positions)
layers.logits_processor.LogitsMetadata.from_forward_batch(forward_batch)
models.dflash.DFlashDraftModel.forward(input_ids positions forward_batch input_embeds)
speculative.dflash_info_v2.DFlashDraftInputV2(topk_p topk_index bonus_tokens new_seq_lens hidden_states)
speculative.dflash_info.DFlashVerifyInput(draft_token positions draft_token_num capture_hidden_mode)
""",
    absent="drafts that are filled in as a block are SGLang's",
    keeps="speculative.dflash_info_v2.DFlashDraftInputV2",
    state="requests.state.BonusState",
    forwards="models.block_forwards.BlockForwards",
    members={"req_to_token_pool": property(lambda worker: worker.target_worker.model_runner.req_to_token_pool)},
    roles={"draft": "draft", "verify": "target"},
    blocks=True,
    marks="fills_blocks",
    shaped_by=("", "", NODES),
    synonyms=(SIZE,),
    refused={
        "groups": f"attention under data parallelism with {DRAFT}",
        "disaggregation_mode": f"{DRAFT} on a server of texts that another one prefills",
    },
    unstarted={"cpu": STARTS_NONE},
    whole="with a draft that the target's head scores",
)

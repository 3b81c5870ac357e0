"""Drafts that fill in a block at once, over keys and values of the target's hidden states: DFLASH, DFLASH2, DSPARK."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..attention.kinds import backend_of
from .kind import NODES, STARTS_NONE, CommandLine, KindOfDraft, Said

DRAFT = "a draft that fills in blocks"
CHAIN = (1, "a chain, as every block is")
MARKOV = "markov_w1", "markov_w2"
"""The tables of a Markov head, by SGLang's names and a program's."""
SELECTOR = {"selector_before": "predecessor_codebook", "selector_after": "successor_codebook"}
"""The tables of a selector: a program's name -> SGLang's."""
MODE, ALL = "SGLANG_RAGGED_VERIFY_MODE", "static"
"""The environment variable that says how many drafts of a block SGLang verifies, and its word for all."""


# The table of KV slots is the target's alone.
_MEMBERS = {"req_to_token_pool": property(lambda worker: worker.target_worker.model_runner.req_to_token_pool)}
_REFUSED_BESIDE = {
    "groups": f"attention under data parallelism with {DRAFT}",
    "disaggregation_mode": f"{DRAFT} on a server of texts that another one prefills",
}


def _by_draft(worker: Any) -> KindOfDraft:
    """Return the kind of a worker that runs drafts of two kinds: its model has a selector, or none."""
    return BLOCKS if selector_of(worker.draft_model) is None else SELECTED_BLOCKS


def selector_of(model: Any) -> Any:
    """Return the selector of SGLang's model; None where it has none."""
    return getattr(model, "candidate_selector", None)


@dataclass(frozen=True, eq=False)
class _Blocks(KindOfDraft):
    """What all drafts of blocks have.

    Attributes:
        plain: SGLang's classes of such models that are served: layers, behind which the target's head scores.
        size: SGLang's argument of the size of a block.
        usual: the size where nothing is written, neither by the draft.

    """

    keeps: str = "speculative.dflash_info_v2.DFlashDraftInputV2"
    state: str = "requests.state.BonusState"
    members: Mapping[str, Any] = field(default_factory=lambda: _MEMBERS)
    roles: Mapping[str, str] = field(default_factory=lambda: {"draft": "draft", "verify": "target"})
    blocks: bool = True
    weighs: tuple[str, ...] = ("block",)
    shaped_by: tuple[str, str, str] = ("", "", NODES)
    refused: Mapping[str, str] = field(default_factory=lambda: {"topk": f"a tree of {DRAFT}", **_REFUSED_BESIDE})
    unstarted: Mapping[str, str] = field(default_factory=lambda: {"cpu": STARTS_NONE})
    whole: str = "with a draft that the target's head scores"
    plain: tuple[str, ...] = ()
    size: str = ""
    usual: int = 0

    @property
    def reads(self) -> tuple[str, ...]:
        """See `KindOfDraft`."""
        return (NODES, self.size)

    def shape(self, line: CommandLine, draft: Mapping[str, Any]) -> tuple[Said, Said, Said]:
        """Return a step for every token of a block but the first, which is no draft."""
        written = {name: size for name in self.reads if (size := line.number(name)) is not None}
        if len(set(written.values())) > 1:
            line.wrong(f"{NODES} and {self.size} differ", "a block has one size: write one of them")
        own = _own_size(draft) or (self.usual, "SGLang's default")
        size, origin = next(((size, name) for name, size in written.items()), own)
        if size < 2:
            line.wrong(f"a block of {size} tokens ({origin}) has no drafts", f"write {NODES} 2 or more")
        return (size - 1, f"all of a block but its first token: {origin}"), CHAIN, (size, origin)

    def attention(self, written: str, prefill: Said, *, newest: bool, on_cpu: bool) -> Said:
        """Return what is written, or that of the prefill; SGLang takes another for one that such a draft cannot have.

        On a CPU there is no such server.
        """
        name, origin = own = (written, "--speculative-draft-attention-backend") if written else prefill
        if on_cpu or backend_of(str(name)).drafts_blocks:
            return own
        other = self._instead_of(str(name), newest=newest)
        return own if other == name else (other, f"SGLang's choice for blocks in the place of {name} ({origin})")

    def _instead_of(self, name: str, *, newest: bool) -> str:
        """Return the backend that SGLang takes for one that is not for such drafts."""
        return "fa4" if name == "trtllm_mha" and newest else "flashinfer"

    def beside(self, architecture: str, projector: str = "", *, embeds: bool = False) -> str:
        """See `KindOfDraft`: layers alone are served."""
        if architecture not in self.plain:
            return f"of the class {architecture}"
        return f"with a {projector} projector" if projector else "with an embedding of its own" if embeds else ""

    def model_beside(self, model: Any) -> str:
        """See `KindOfDraft`."""
        embeds = model.get_input_embeddings() is not None
        return self.beside(type(model).__name__, getattr(model, "projector_type", None) or "", embeds=embeds)

    def misfits(self, draft: Any, groups: int) -> Iterator[tuple[str, str]]:
        """See `KindOfDraft`."""
        if draft.beside:
            yield "draft", f"{DRAFT}, {draft.beside},"
        if draft.cache == "swa":
            yield "draft", f"a second KV pool for windows of {DRAFT}"

    def backends(self, drafter: Any) -> Mapping[str, Any]:
        """One forward has the runner's own."""
        return {"block": drafter.draft_runner.attn_backend}

    def behind(self, drafter: Any, num_steps: int) -> int:
        """See `KindOfDraft`: those of a block."""
        return num_steps


@dataclass(frozen=True, eq=False)
class _SelectedBlocks(_Blocks):
    """Blocks of which a selector chooses drafts, each behind the one before, among the candidates of its place."""

    def tables(self, model: Any) -> Mapping[str, Any]:
        """See `KindOfDraft`."""
        return {name: getattr(selector_of(model), own).data for name, own in SELECTOR.items()}


@dataclass(frozen=True, eq=False)
class _CorrectedBlocks(_Blocks):
    """Blocks of which a Markov head tells each draft the one before. Their size is that of their drafts."""

    def shape(self, line: CommandLine, draft: Mapping[str, Any]) -> tuple[Said, Said, Said]:
        """Return a step for every draft of a block, behind which one token more is verified."""
        written, nodes = line.number(self.size), line.number(NODES)
        own = _own_size(draft) if written is None else (written, self.size)
        if own is not None and nodes not in (None, own[0] + 1):
            line.wrong(f"{NODES} is {nodes}, and a block has {own[0]} drafts ({own[1]})", f"leave {NODES} out")
        unsaid = (self.usual, "SGLang's default") if nodes is None else (nodes - 1, f"{NODES} {nodes}")
        drafts, origin = own or unsaid
        if drafts < 1:
            line.wrong(f"a block of {drafts} drafts ({origin}) has none", f"write {self.size} 1 or more")
        return (drafts, f"all drafts of a block: {origin}"), CHAIN, (drafts + 1, origin)

    def _instead_of(self, name: str, *, newest: bool) -> str:
        """See `_Blocks`."""
        return name if name == "trtllm_mha" else "flashinfer"

    def check(self, line: CommandLine, page_size: Said, verify: str) -> None:
        """See `KindOfDraft`: all drafts of a block are verified."""
        if (mode := line.environment.get(MODE, ALL)) != ALL:
            line.refuse(f"verification of some drafts of a block ({MODE}={mode[:60]})", f"leave {MODE} out")

    def model_beside(self, model: Any) -> str:
        """See `KindOfDraft`. A draft has a head of confidence where SGLang verifies some drafts of a block."""
        architecture = type(model).__name__
        if architecture not in self.plain:  # which need not have any of the rest
            return self.beside(architecture)
        projector, embeds = getattr(model, "projector_type", None), getattr(model, "is_nemotron_35_draft", False)
        if beside := self.beside(architecture, projector or "", embeds=embeds):
            return beside
        if (kind := type(model.markov_head).__name__) not in ("VanillaMarkov", "DSparkV4MarkovHead"):
            return f"with a Markov head of the class {kind}"
        return "" if model.confidence_head is None else f"of which some drafts are verified ({MODE})"

    def behind(self, drafter: Any, num_steps: int) -> int:
        """See `KindOfDraft`: in an anchored block the last token is of the first draft."""
        return num_steps - bool(drafter.draft_runner.model.sample_from_anchor)

    def tables(self, model: Any) -> Mapping[str, Any]:
        """See `KindOfDraft`."""
        return {name: getattr(model.markov_head, name).weight.data for name in MARKOV}


def _own_size(draft: Mapping[str, Any]) -> tuple[int, str] | None:
    """Return the size of a block that the draft's directory says; None where it says none."""
    return (int(draft["block_size"].value), draft["block_size"].origin) if "block_size" in draft else None


_NEEDS = """
speculative.dflash_worker_v2.DFlashWorkerV2: draft_worker init_cuda_graphs target_worker
speculative.dflash_worker_v2.DFlashWorkerV2.forward_batch_generation(batch on_publish grammar_barrier pp_proxy_tensors)
speculative.dflash_worker_v2.DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc(target_hidden cache_loc positions)
layers.logits_processor.LogitsMetadata.from_forward_batch(forward_batch)
models.dflash.DFlashDraftModel.forward(input_ids positions forward_batch input_embeds)
speculative.dflash_info_v2.DFlashDraftInputV2(topk_p topk_index bonus_tokens new_seq_lens hidden_states)
speculative.dflash_info.DFlashVerifyInput(draft_token positions draft_token_num capture_hidden_mode)
"""

BLOCKS = _Blocks(
    algorithms=("DFLASH",),
    place="speculative.dflash_worker_v2.DFlashWorkerV2",
    needs=_NEEDS,
    absent="drafts that are filled in as a block are SGLang's",
    members=_MEMBERS | {"kind": property(_by_draft)},
    forwards="models.block_forwards.BlockForwards",
    own_branches=True,
    marks="fills_blocks",
    chains_only=True,
    refused=_REFUSED_BESIDE,
    plain=("DFlashDraftModel", "DFlashLagunaForCausalLM", "MuseGlimmerAssistantModel"),
    size="--speculative-dflash-block-size",
    usual=16,
)

SELECTED_BLOCKS = _SelectedBlocks(
    algorithms=("DFLASH2",),
    place=BLOCKS.place,
    needs=f"{_NEEDS}models.dflash.DFlash2DraftModel._transform_unary_logits(logits)\n",
    absent="drafts of a block that a selector chooses are SGLang's",
    members=BLOCKS.members,
    forwards="models.block_forwards.SelectedForwards",
    written=BLOCKS.algorithms[0],
    called="a selector",
    marks="selector_rank",
    chains_only=True,
    plain=("DFlash2DraftModel", "MiniMaxDFlash2DraftModel"),
    size=BLOCKS.size,
    usual=BLOCKS.usual,
)

CORRECTED_BLOCKS = _CorrectedBlocks(
    algorithms=("DSPARK",),
    place="speculative.dspark_components.dspark_worker_v2.DSparkWorkerV2",
    needs="""
speculative.dspark_components.dspark_worker_v2.DSparkWorkerV2: draft_worker init_cuda_graphs target_worker
speculative.dspark_components.dspark_worker_v2.DSparkWorkerV2.forward_batch_generation(batch on_publish grammar_barrier
    pp_proxy_tensors)
speculative.dspark_components.dspark_kv_inject.TargetHiddenKvInjector.inject_target_hidden(target_hidden cache_loc
    positions)
models.dspark.DSparkDraftModel.compute_base_logits(hidden)
models.dspark.DSparkDraftModel.forward(input_ids positions forward_batch input_embeds)
models.dspark.DSparkDraftModel.forward_embed(input_ids)
speculative.dflash_info_v2.DFlashDraftInputV2(topk_p topk_index bonus_tokens new_seq_lens hidden_states)
speculative.dflash_info.DFlashVerifyInput(draft_token positions draft_token_num capture_hidden_mode)
""",
    absent="drafts that are filled in as a block, each told of the one before, are SGLang's",
    forwards="models.block_forwards.CorrectedForwards",
    bundled={"DeepseekV4ForCausalLM": "DeepseekV4ForCausalLMDSpark"},
    folder="dspark",
    marks="markov_rank",
    plain=("DSparkDraftModel", "DeepseekV4ForCausalLMDSpark", "LingDSparkModel", "Qwen3DSparkModel"),
    size="--speculative-dspark-block-size",
    usual=7,
)

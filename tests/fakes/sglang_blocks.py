"""SGLang's blocks: plain workers of drafts that fill in a block, over what the target's rows left.

Drafts of one (DSPARK) are told of the one before by a Markov head, those of another (DFLASH2) chosen by a selector.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from specc.runtime.plan.plan import Plan

from . import sglang_modules as sglang
from .drafts import Engine
from .sglang_modules import EagleDraftInput, ForwardBatch, ForwardMode, LogitsProcessor, ScheduleBatch, at
from .sglang_worker import ForwardContext, Model, ModelRunner, Publish, ReqToTokenPool, begun

MASK, SCALE = 77, 2.0
"""The token that stands for a place to fill, and what embeddings of blocks are multiplied by."""


def brought(plan: Plan) -> dict[str, Tensor]:
    """The tables of a Markov head or a selector that a program reads: whole numbers behind one token in eight."""
    source = torch.Generator().manual_seed(4)
    made = {
        name: torch.randint(-2, 3, (plan.size("V"), int(table.axes[-1])), generator=source).float()
        for name, table in sorted(plan.tables().items())
        if name.startswith(("markov", "selector"))
    }
    for name in made.keys() & {"markov_w1", "selector_before"}:
        made[name] *= torch.rand(len(made[name]), 1, generator=source) < 1 / 8
    return made


@at("speculative.dflash_info")
class DFlashVerifyInput:
    """SGLang tells the forward over a block this."""

    def __init__(
        self, draft_token: Tensor, positions: Tensor, draft_token_num: int, topk: int = 1,
        custom_mask: Tensor | None = None, capture_hidden_mode: Any = None,
    ) -> None:  # fmt: skip
        self.draft_token, self.positions, self.draft_token_num = draft_token, positions, draft_token_num
        self.custom_mask, self.capture_hidden_mode = custom_mask, capture_hidden_mode
        self.num_tokens_for_logprob_per_req = draft_token_num


@at("speculative.dflash_info_v2")
class DFlashDraftInputV2(EagleDraftInput):
    """What a request takes from one step to the next: its last token."""

    def __init__(
        self, topk_p: Tensor, topk_index: Tensor, bonus_tokens: Tensor, new_seq_lens: Tensor, hidden_states: Tensor
    ) -> None:
        super().__init__(topk_p, topk_index, hidden_states, bonus_tokens)
        self.new_seq_lens = new_seq_lens


@at("layers.logits_processor")
class LogitsMetadata:
    """Logits are made by this."""

    def __init__(self, batch: ForwardBatch) -> None:
        self.buffer = batch.next_token_logits_buffer

    @classmethod
    def from_forward_batch(cls, forward_batch: ForwardBatch) -> LogitsMetadata:
        return cls(forward_batch)


class Deferring(LogitsProcessor):
    """The target's, which is told to leave its gather in verification to the worker."""

    defer_verify_gather = True
    logit_scale = final_logit_softcapping = None

    def __init__(self, columns: int) -> None:
        self._columns = columns

    def _get_logits(self, hidden_states: Tensor, lm_head: Any, logits_metadata: LogitsMetadata) -> Tensor:
        """Rows of the draft that begin with their logits."""
        assert not self.defer_verify_gather and lm_head == "the target's"
        scores = hidden_states[:, : self._columns] * (self.logit_scale or 1)
        return scores if logits_metadata.buffer is None else logits_metadata.buffer.copy_(scores)


class BlockTarget(Model):
    """A target whose embeddings and head the draft has."""

    lm_head = "the target's"

    def __init__(self, engine: Engine, *, sees: bool) -> None:
        super().__init__(engine, sees=sees)
        self.processor = Deferring(engine.models["draft"].logits.shape[1])

    def modules(self) -> list[Any]:
        return [self, self.processor]

    def get_input_embeddings(self) -> Any:
        return lambda tokens: tokens[:, None].float()

    def adapt(self) -> None:
        """Wrap what the draft has of it, as SGLang does where adapters may change it."""
        plain = self.get_input_embeddings()
        self.get_input_embeddings = lambda: SimpleNamespace(base_layer=plain)
        self.lm_head = SimpleNamespace(base_layer=self.lm_head)

    def forward(self, input_ids: Tensor, positions: Tensor, batch: ForwardBatch) -> sglang.LogitsProcessorOutput:
        assert self.processor.defer_verify_gather == (batch.forward_mode is ForwardMode.EXTEND)
        buffer = batch.next_token_logits_buffer
        assert buffer is None or not buffer[: batch.batch_size].isnan().any(), "drafts had memory of their own"
        return super().forward(input_ids, positions, batch)


@at("models.dflash")
class DFlashDraftModel(Model):
    """The draft: rows behind a block's first are logits here."""

    projector_type = None
    scale, unused = SCALE, 1
    """Embeddings are multiplied by the first; so many rows of a block as the second are no draft's."""

    def get_input_embeddings(self) -> None:
        return None

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input_ids: Tensor, positions: Tensor, forward_batch: ForwardBatch, input_embeds: Tensor | None = None
    ) -> sglang.LogitsProcessorOutput:
        batch, backend = forward_batch, ForwardContext.current.attn_backend
        rows = batch.batch_size
        assert backend.ready_for == (batch.req_pool_indices.tolist(), batch.forward_mode)
        assert batch.forward_mode is ForwardMode.TARGET_VERIFY and input_embeds is not None
        tokens = input_ids.view(rows, -1)
        assert bool((tokens[:, 1:] == MASK).all()) and torch.equal(input_embeds, self.scale * input_ids[:, None])
        buffer = batch.next_token_logits_buffer
        drafts = tokens.shape[1] - self.unused
        assert buffer is None or len(buffer) == rows * drafts
        places, slots = positions.view(rows, -1), batch.out_cache_loc.view(rows, -1)
        if not self.unused:  # what is behind is nobody's
            places = torch.cat((places, places[:, -1:] + 1), 1)
            slots = torch.cat((slots, self.engine.table[batch.req_pool_indices[:, None], places[:, -1:]].long()), 1)
        made = self._rows(
            bonus=tokens[:, 0], positions=places, slots=slots, rows=batch.req_pool_indices, seq_lens=batch.seq_lens
        )
        states = torch.cat((torch.full_like(made[:, : self.unused], torch.nan), made), 1)
        return sglang.LogitsProcessorOutput(None, states.flatten(0, 1))

    def _rows(self, **call: Tensor) -> Tensor:
        """The rows [b, S, ...] of drafts."""
        logits: Tensor = self.engine.block(**call, capture="null").logits
        return logits


class Selector:
    """A selector of so many tokens; a row behind its logits is what it reads of a place."""

    def __init__(self, tables: dict[str, Tensor]) -> None:
        self.predecessor_codebook, self.successor_codebook = tables["selector_before"], tables["selector_after"]

    def hidden_projection(self, rows: Tensor) -> Tensor:
        """What it reads of rows [..., V + r]."""
        return rows[..., len(self.predecessor_codebook) :]


@at("models.dflash")
class DFlash2DraftModel(DFlashDraftModel):
    """The same with a selector, whose scores are multiplied."""

    lm_head = None

    def __init__(self, engine: Engine, tables: dict[str, Tensor]) -> None:
        super().__init__(engine, sees=False)
        self.candidate_selector = Selector(tables)
        self.draft_config = SimpleNamespace(output_multiplier=1 / 64, final_logit_softcapping=None)

    def _rows(self, **call: Tensor) -> Tensor:
        """Logits, before they are multiplied, and what a selector reads."""
        made = self.engine.block(**call, capture="full")
        return torch.cat((made.logits / self.draft_config.output_multiplier, made.hidden), -1)

    def _transform_unary_logits(self, logits: Tensor) -> Tensor:
        return logits.mul_(self.draft_config.output_multiplier)


class VanillaMarkov:
    """A head that corrects scores by the token before."""

    def __init__(self, tables: dict[str, Tensor]) -> None:
        vars(self).update({name: SimpleNamespace(weight=table) for name, table in tables.items()})


@at("models.dspark")
class DSparkDraftModel(DFlashDraftModel):
    """The same, which embeds and scores, and has a Markov head."""

    is_nemotron_35_draft, confidence_head, scale = False, None, 1

    def __init__(self, engine: Engine, tables: dict[str, Tensor], *, anchored: bool) -> None:
        super().__init__(engine, sees=False)
        self.markov_head, self.sample_from_anchor, self.unused = VanillaMarkov(tables), anchored, int(not anchored)

    def forward_embed(self, input_ids: Tensor) -> Tensor:
        return input_ids[:, None].float()

    def compute_base_logits(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Rows that are their scores, and for a head of confidence."""
        assert not hidden.isnan().any()
        return hidden, hidden


@at("speculative.dspark_components.dspark_kv_inject")
class TargetHiddenKvInjector:
    """Writes the context of a draft."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def inject_target_hidden(self, *, target_hidden: Tensor, cache_loc: Tensor, positions: Tensor) -> None:
        self._engine.forward_inject(
            positions=positions, slots=cache_loc, rows=positions, seq_lens=positions, hidden=target_hidden,
            capture="null",
        )  # fmt: skip


@at("speculative.dflash_worker_v2")
class DFlashWorkerV2:
    """Prefills, and makes decode steps of blocks. The target alone has the table of slots."""

    recurs, _mask_token_id, _noise_embed_scale = True, MASK, SCALE

    def __init__(self, engine: Engine, target: ModelRunner, draft: ModelRunner, plan: Plan) -> None:
        block = plan.size("N")
        self.draft_model: Any = self._model(engine, plan)
        target.model, draft.model = BlockTarget(engine, sees=False), self.draft_model
        vars(target)["req_to_token_pool"] = ReqToTokenPool(engine.table)
        self.target_worker = SimpleNamespace(model_runner=target)
        self.draft_worker, self._block = SimpleNamespace(draft_runner=draft), block
        self.server_args, self._engine = SimpleNamespace(lora_backend="csgmv"), engine

    def _model(self, engine: Engine, plan: Plan) -> DFlashDraftModel:
        tables, self._kept = brought(plan), plan.size("L") if plan.algorithm == "DFLASH2" else 0
        return DFlash2DraftModel(engine, tables) if self._kept else DFlashDraftModel(engine, sees=False)

    def _drafts(self, bonus: Tensor, block: Any) -> Tensor:
        """Drafts i64[b, S] behind bonus tokens, of scores [b, S, V] and of what a selector reads [b, S, r]."""
        if not self._kept:
            return block.logits.argmax(-1)
        selector, drafts = self.draft_model.candidate_selector, [bonus.long()]
        for place in range(block.logits.shape[1]):
            scores, kept = block.logits[:, place].topk(self._kept)
            known = selector.predecessor_codebook[drafts[-1]] * block.hidden[:, place]
            behind = (selector.successor_codebook[kept] @ known[:, :, None])[..., 0]
            drafts.append(kept.gather(1, (scores + behind).argmax(-1, keepdim=True))[:, 0])
        return torch.stack(drafts[1:], 1)

    def init_cuda_graphs(self) -> None:
        """Nothing is captured here. By now layers are wrapped where requests may have adapters."""
        if (target := self.target_worker.model_runner).lora_manager is not None:
            target.model.adapt()

    def _append_target_hidden_to_draft_kv_by_loc(
        self, *, target_hidden: Tensor, cache_loc: Tensor, positions: Tensor
    ) -> None:
        self._engine.forward_inject(
            positions=positions, slots=cache_loc, rows=positions, seq_lens=positions, hidden=target_hidden,
            capture="null",
        )  # fmt: skip

    def forward_batch_generation(
        self, batch: ScheduleBatch, on_publish: Publish | None = None, grammar_barrier: Any = None,
        pp_proxy_tensors: Any = None,
    ) -> sglang.GenerationBatchResult:  # fmt: skip
        publish, rows, lens = on_publish or (lambda _: None), batch.req_pool_indices, batch.seq_lens
        if batch.forward_mode is ForwardMode.EXTEND:
            output, tokens = begun(self, batch)
            publish(lens)
            assert output.hidden_states is not None
            self._engine.prefill_inject(rows=rows, seq_lens=lens, hidden=output.hidden_states, capture="null")
            return self._result(output, tokens, tokens, torch.ones_like(lens), lens)
        assert batch.spec_info is not None and batch.spec_info.bonus_tokens is not None
        bonus, positions = batch.spec_info.bonus_tokens, lens[:, None] + torch.arange(self._block)
        slots = self.target_worker.model_runner.req_to_token_pool.req_to_token[rows[:, None], positions].long()
        at = {"positions": positions, "slots": slots, "rows": rows, "seq_lens": lens}
        block = self._engine.block(bonus=bonus, **at, capture="full" if self._kept else "null")
        drafts = self._drafts(bonus, block)
        nodes = torch.cat((bonus[:, None].long(), drafts), 1)
        output = self._engine.target(tokens=nodes, **at, capture="full")
        best = output.logits.argmax(-1)
        right = (best[:, :-1] == nodes[:, 1:]).long().cumprod(1).sum(1)
        publish(lens + right + 1)
        self._engine.inject(**at, hidden=output.hidden, capture="null")
        last = best.gather(1, right[:, None])[:, 0]
        return self._result(sglang.LogitsProcessorOutput(None), best.flatten(), last, right + 1, lens + right + 1)

    def _result(
        self, output: sglang.LogitsProcessorOutput, tokens: Tensor, last: Tensor, counts: Tensor, ends: Tensor
    ) -> sglang.GenerationBatchResult:
        nothing = torch.empty(len(last), 0)
        left: Any = DFlashDraftInputV2(nothing, nothing, last, ends, nothing)
        return sglang.GenerationBatchResult(
            output, tokens, counts, speculative_num_draft_tokens=self._block, next_draft_input=left, new_seq_lens=ends
        )


@at("speculative.dspark_components.dspark_worker_v2")
class DSparkWorkerV2(DFlashWorkerV2):
    """Corrects drafts one after the other. `anchored`: whether the first row of a block is a draft's."""

    anchored, _kept = True, 0

    def __init__(self, engine: Engine, target: ModelRunner, draft: ModelRunner, plan: Plan) -> None:
        super().__init__(engine, target, draft, plan)
        self._kv_injector = TargetHiddenKvInjector(engine)

    def _model(self, engine: Engine, plan: Plan) -> DFlashDraftModel:
        return DSparkDraftModel(engine, brought(plan), anchored=self.anchored)

    def _drafts(self, bonus: Tensor, block: Any) -> Tensor:
        head = self.draft_model.markov_head
        drafts = [bonus.long()]
        for scores in block.logits.unbind(1):
            drafts.append((scores + head.markov_w1.weight[drafts[-1]] @ head.markov_w2.weight.T).argmax(-1))
        return torch.stack(drafts[1:], 1)

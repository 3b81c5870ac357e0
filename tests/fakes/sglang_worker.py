"""A worker of SGLang's that drafts chains, over the fake engine's models."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from . import sglang_modules as sglang
from .drafts import Engine
from .memory import Memory
from .models import NO_HIDDEN, draft_code
from .sglang_lora import LoRAManager
from .sglang_modules import SETTINGS, CaptureHiddenMode, EagleDraftInput, ForwardBatch, ForwardMode, ScheduleBatch, at
from .sglang_parallel import check_counts
from .sglang_routed import BaseTopkCapturer

Publish = Callable[[Tensor], None]


# --- memory -----------------------------------------------------------------------------------------------------------


@at("mem_cache.memory_pool")
class MHATokenToKVPool:
    """Keys and values of every layer; slot 0 is that of padding."""

    def __init__(self, memory: Memory) -> None:
        self.k_buffer, self.v_buffer = memory.buffers[0::2], memory.buffers[1::2]
        self.size = len(self.k_buffer[0]) - 1


@at("mem_cache.memory_pool")
class ReqToTokenPool:
    def __init__(self, table: Tensor) -> None:
        self.req_to_token = table


@at("mem_cache.kv_index_translator")
class KVIndexTranslator:
    is_translating = False

    def bind_runner_slots(self, batch: ForwardBatch) -> None:
        batch.kv_loc_plan = None


# --- forwards ---------------------------------------------------------------------------------------------------------


@at("model_executor.forward_context")
class ForwardContext:
    """What layers find while a forward runs."""

    current: Any = None

    def __init__(self, attn_backend: Any) -> None:
        self.attn_backend = attn_backend


@at("model_executor.forward_context")
@contextlib.contextmanager
def forward_context(ctx: ForwardContext, *, forward_batch: ForwardBatch | None = None) -> Iterator[None]:
    before, ForwardContext.current = ForwardContext.current, ctx
    try:
        yield
    finally:
        ForwardContext.current = before


class IntelAMXAttnBackend:
    """Attention that reads the text of those whom it was prepared for, and a mask [b, N, N] of nodes."""

    def __init__(self, step: int = 0) -> None:
        self.step, self.ready_for, self.read = step, None, 0

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        self.ready_for, self.read = (batch.req_pool_indices.tolist(), batch.forward_mode), 0

    def mask(self, mask: Tensor | None, rows: int, nodes: int) -> Tensor | None:
        return None if mask is None else mask.view(rows, nodes, nodes)


class TritonAttnBackend(IntelAMXAttnBackend):
    """The same, of a mask over the whole text."""

    sliding_window_size, use_sliding_window_kv_pool = None, False

    def mask(self, mask: Tensor | None, rows: int, nodes: int) -> Tensor | None:
        return mask


class MultiStepDraftBackend:
    """Backends of the draft's forwards."""

    def __init__(self, kind: type[IntelAMXAttnBackend], steps: int) -> None:
        self.attn_backends = [kind(step) for step in range(steps)]

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        for backend in self.attn_backends:
            backend.init_forward_metadata(batch)


class Model:
    """One of the fake engine's models as SGLang calls it: what it is to do is in the batch.

    Attributes:
        deltas: of one that sees pictures, how far texts are from their places, by pool row.
        lora_manager: of one whose requests have adapters.
        counted: where forwards of so many tokens a request have found how many of their rows are tokens.

    """

    def __init__(self, engine: Engine, *, sees: bool) -> None:
        self.engine, self.deltas = engine, dict[int, int]() if sees else None
        self.counted = dict[int, set[int]]()
        self.lora_manager: LoRAManager | None = None

    def modules(self) -> list[Any]:
        return [self]

    def forward(self, input_ids: Tensor, positions: Tensor, batch: ForwardBatch) -> sglang.LogitsProcessorOutput:
        backend, rows = ForwardContext.current.attn_backend, batch.batch_size
        assert backend.ready_for == (batch.req_pool_indices.tolist(), batch.forward_mode)
        self._check_positions(positions, batch)
        self._check_padding(batch)
        if self.lora_manager is not None:
            self.lora_manager.check(batch)
        place: dict[str, Any] = {
            "positions": positions, "slots": batch.out_cache_loc, "tokens": input_ids
        } if batch.forward_mode is not ForwardMode.EXTEND else {}  # fmt: skip
        given = {name: tensor.view(rows, -1) for name, tensor in place.items() if tensor is not None}
        given |= {"rows": batch.req_pool_indices, "seq_lens": batch.seq_lens}
        assert batch.capture_hidden_mode is not None
        given["capture"] = batch.capture_hidden_mode.name.lower()
        output = self._ran(given, batch, backend)
        note_experts(output)
        logits, hidden = output.logits.flatten(0, -2), getattr(output, "hidden", None)
        check_counts(batch, len(logits))
        if batch.next_token_logits_buffer is not None:
            logits = batch.next_token_logits_buffer.copy_(logits)
        return sglang.LogitsProcessorOutput(logits, None if hidden is None else hidden.flatten(0, -2))

    def _check_positions(self, positions: Tensor, batch: ForwardBatch) -> None:
        """Those for time, height and width, which a model that sees reads in the place of the others."""
        if self.deltas is None:
            assert batch.mrope_positions is None
            return
        apart = torch.tensor([self.deltas.get(row, 0) for row in batch.req_pool_indices.tolist()])
        if batch.forward_mode is not ForwardMode.EXTEND:
            positions = (positions.view(batch.batch_size, -1) + apart[:, None]).flatten()
        assert batch.mrope_positions is not None and batch.mrope_positions.is_contiguous()
        assert batch.mrope_positions.tolist() == [positions.tolist()] * 3

    def _check_padding(self, batch: ForwardBatch) -> None:
        """Where experts are shared out, rows of a step that are no tokens; SGLang's prefill has none of those.

        A step of padding alone is one whose time is measured, as if all rows were tokens.
        """
        if SETTINGS.parallel.moe_ep_size == 1 or batch.forward_mode is ForwardMode.EXTEND:
            assert batch.num_token_non_padded is None
            return
        width, real = len(batch.input_ids) // batch.batch_size, int(batch.req_pool_indices.count_nonzero())
        assert not batch.req_pool_indices[real:].any()
        assert batch.num_token_non_padded is not None and batch.num_token_non_padded.dtype == torch.int32
        assert batch.num_token_non_padded.tolist() == [(real or batch.batch_size) * width]
        self.counted.setdefault(width, set()).add(batch.num_token_non_padded.data_ptr())

    def _ran(self, given: dict[str, Any], batch: ForwardBatch, backend: IntelAMXAttnBackend) -> Any:
        mode, info, engine = batch.forward_mode, batch.spec_info, self.engine
        if mode is ForwardMode.EXTEND:
            return self._prefilled(given, batch)
        if mode is ForwardMode.TARGET_VERIFY:
            mask = backend.mask(info.custom_mask, batch.batch_size, info.draft_token_num)
            return engine.target(**given, mask=mask)
        hidden = info.hidden_states
        if hidden is not None:
            given["hidden"] = hidden.view(*given["tokens"].shape, -1)
        if "slots" not in given:  # of an assistant, whose forwards are prepared for once
            assert backend.token_to_kv_pool is not None, "an assistant reads the target's pool"
            assert int(batch.seq_lens.min()) > 0, "a row that reads nothing"
            backend.read += 1
            return engine.assist(step=backend.read - 1, **given)
        if mode is ForwardMode.DECODE:
            return engine.draft(step=backend.step, **given)
        assert batch.extend_prefix_lens is not None and batch.extend_seq_lens is not None
        assert torch.equal(batch.seq_lens, batch.extend_prefix_lens + batch.extend_seq_lens)
        given["seq_lens"] = batch.extend_prefix_lens.long()
        return self._extended(given, batch)

    def _extended(self, given: dict[str, Any], batch: ForwardBatch) -> Any:
        """Over the accepted path."""
        info = batch.spec_info
        return self.engine.extend(select=info.select_index, accept_lens=info.num_accept_tokens, **given)

    def _prefilled(self, given: dict[str, Any], batch: ForwardBatch) -> Any:
        """Of whole texts, which the fake engine knows by their rows."""
        assert batch.extend_seq_lens_cpu == batch.seq_lens.tolist()
        texts = batch.input_ids.split(batch.extend_seq_lens_cpu)
        self.engine.prompts |= dict(
            zip(batch.req_pool_indices.tolist(), (text.tolist() for text in texts), strict=True)
        )
        slots = [self.engine.table[row, : len(text)] for row, text in zip(batch.req_pool_indices, texts, strict=True)]
        assert torch.equal(torch.cat(slots).long(), batch.out_cache_loc)
        return self.engine.prefill_target(**given)


def note_experts(output: Any) -> None:
    """Keep the experts of a forward that has any, where the server returns them."""
    if BaseTopkCapturer.current is not None and hasattr(output, "routed_experts"):
        BaseTopkCapturer.current.capture(output.routed_experts.flatten(0, 1))


@at("model_executor.model_runner")
class ModelRunner:
    """A model, its memory and its attention."""

    device, sliding_window_size, canary_manager = "cpu", None, None
    decode_cuda_graph_runner: Any = None
    graph_shared_output: Any = None
    lora_manager: LoRAManager | None = None

    def __init__(self, engine: Engine, config: Any, attention: Any, *, is_draft_worker: bool) -> None:
        role = "draft" if is_draft_worker else "target"
        self.model, self.model_config, self.attn_backend = Model(engine, sees=config.model_is_mrope), config, attention
        self.is_draft_worker, self.dtype = is_draft_worker, config.dtype
        memory = engine.memory.get(role, engine.memory["target"])
        self.token_to_kv_pool, self.kv_index_translator = MHATokenToKVPool(memory), KVIndexTranslator()
        self.spec_algorithm = "EAGLE"

    def forward(self, forward_batch: ForwardBatch) -> Any:
        self.attn_backend.init_forward_metadata(forward_batch)
        with forward_context(ForwardContext(self.attn_backend)):
            output = self.model.forward(forward_batch.input_ids, forward_batch.positions, forward_batch)
        return SimpleNamespace(logits_output=output)

    def sample(self, logits_output: Any, forward_batch: Any) -> Tensor:
        """The most probable tokens that grammars allow. Of the logits nothing is left."""
        logits = logits_output.next_token_logits
        for row, req in zip(logits, forward_batch.reqs, strict=True):
            if req.grammar is not None:
                mask = req.grammar.allocate_vocab_mask(vocab_size=len(row), batch_size=1, device="cpu")
                req.grammar.fill_vocab_mask(mask, 0)
                bits = mask[0, :, None] >> torch.arange(32) & 1
                row[bits.flatten()[: len(row)] == 0] = -torch.inf
        tokens = logits.argmax(-1)
        logits.zero_()
        return tokens

    def recapture_decode_cuda_graph(self) -> None:
        """Nothing is captured here."""


# --- the worker -------------------------------------------------------------------------------------------------------


def begun(worker: Any, batch: ScheduleBatch) -> tuple[sglang.LogitsProcessorOutput, Tensor]:
    """Prefill whole texts by the target of a worker: what it says, and first tokens i64[b]."""
    assert batch.input_ids is not None
    rows, lens, counts = batch.req_pool_indices, batch.seq_lens, batch.seq_lens.tolist()
    runner, table = worker.target_worker.model_runner, worker.req_to_token_pool.req_to_token
    forward_batch = ForwardBatch(
        forward_mode=ForwardMode.EXTEND, batch_size=len(rows), input_ids=batch.input_ids, req_pool_indices=rows,
        seq_lens=lens, seq_lens_sum=sum(counts), positions=torch.cat([torch.arange(count) for count in counts]),
        out_cache_loc=torch.cat([table[row, :count] for row, count in zip(rows, counts, strict=True)]).long(),
        extend_seq_lens_cpu=counts,
        capture_hidden_mode=CaptureHiddenMode.FULL if worker.recurs else CaptureHiddenMode.NULL, reqs=batch.reqs,
    )  # fmt: skip
    if runner.model_config.model_is_mrope:
        forward_batch.mrope_positions = forward_batch.positions.repeat(3, 1)
    if runner.lora_manager is not None:
        runner.lora_manager.begin(forward_batch)
    output = runner.forward(forward_batch).logits_output
    return output, runner.sample(output, forward_batch)


@at("speculative.eagle_worker_v2")
class EagleDraftWorker:
    """What drafts, and the target's tokens that it scores, in the order of its head; None for all of them."""

    parallel_layout = "of drafts"

    def __init__(self, runner: ModelRunner, backends: Any, scored: Tensor | None, topk: int) -> None:
        self.draft_runner, self.draft_attn_backend, self.hot_token_id = runner, backends, scored
        self.draft_extend_attn_backend, self._topk = runner.attn_backend, topk

    def _draft_extend_for_prefill(
        self, batch: ScheduleBatch, target_hidden_states: Tensor | None, next_token_ids: Tensor
    ) -> EagleDraftInput:
        """Behind what the draft has read of texts: of the last position of each alone, and of no hidden states."""
        rows, count, engine = batch.req_pool_indices, len(batch.reqs), self.draft_runner.model.engine
        assert batch.forward_mode is ForwardMode.EXTEND and target_hidden_states is None and not batch.return_logprob
        assert batch.extend_lens == [1] * count and batch.extend_num_tokens == count
        assert batch.prefix_lens == (batch.seq_lens - 1).tolist() and batch.extend_logprob_start_lens == [0] * count
        assert batch.input_ids is not None and batch.out_cache_loc is not None
        assert torch.equal(batch.out_cache_loc, engine.table[rows, batch.seq_lens - 1].long())
        codes = draft_code(next_token_ids, batch.seq_lens - 1, NO_HIDDEN)
        engine.memory["draft"].write(batch.out_cache_loc, codes)
        states = engine.texts("draft", rows, batch.seq_lens)
        logits = engine.answer("draft", "null", states, next_token_ids, rows).logits
        return EagleDraftInput(*logits.softmax(-1).topk(self._topk, -1), None, next_token_ids)

    def token(self, numbers: Tensor) -> Tensor:
        """Tokens by the numbers that the draft's head has for them."""
        return numbers if self.hot_token_id is None else self.hot_token_id[numbers]


@at("speculative.eagle_worker_v2")
class EAGLEWorkerV2:
    """Prefills, and makes decode steps of chains; `recurs`: drafts read hidden states."""

    recurs = True
    adaptive_controller: Any = None

    def __init__(self, engine: Engine, target: ModelRunner, drafter: EagleDraftWorker, topk: int, steps: int) -> None:
        self.target_worker, self.draft_worker = SimpleNamespace(model_runner=target), drafter
        self.req_to_token_pool, self.server_args = ReqToTokenPool(engine.table), SimpleNamespace(lora_backend="csgmv")
        self.topk, self.speculative_num_steps, self._engine = topk, steps, engine

    def init_cuda_graphs(self) -> None:
        """Nothing is captured here."""

    def forward_batch_generation(
        self, batch: ScheduleBatch, on_publish: Publish | None = None, grammar_barrier: Any = None,
        pp_proxy_tensors: Any = None,
    ) -> sglang.GenerationBatchResult:  # fmt: skip
        if batch.forward_mode.is_idle():
            return sglang.GenerationBatchResult()
        if batch.forward_mode.is_decode():
            self.activate_step_by_batch(len(batch.seq_lens))
        run = self._prefill if batch.forward_mode is ForwardMode.EXTEND else self._decode
        return run(batch, on_publish or (lambda _: None))

    def activate_step_by_batch(self, batch_size: int) -> None:
        """Have as many steps as the controller says, if there is one."""
        if self.adaptive_controller is not None:
            self.adaptive_controller._activate(self.adaptive_controller.steps[batch_size])

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        """Nothing is learnt here."""

    def _prefill(self, batch: ScheduleBatch, publish: Publish) -> sglang.GenerationBatchResult:
        rows, lens = batch.req_pool_indices, batch.seq_lens
        output, tokens = begun(self, batch)
        publish(lens)
        given = {"rows": rows, "seq_lens": lens} | ({"hidden": output.hidden_states} if self.recurs else {})
        state = self._begun(tokens, given)
        return sglang.GenerationBatchResult(output, tokens, next_draft_input=state, new_seq_lens=lens)

    def _decode(self, batch: ScheduleBatch, publish: Publish) -> sglang.GenerationBatchResult:
        state, lens, drafts = batch.spec_info, batch.seq_lens, self._drafts(batch)
        assert state is not None and state.bonus_tokens is not None
        nodes = torch.cat((state.bonus_tokens[:, None].long(), *drafts), 1)
        at = self._at(batch, torch.arange(nodes.shape[1]))
        capture = "full" if self.recurs else "null"
        output = self._engine.target(tokens=nodes, **at, capture=capture)
        note_experts(output)
        best = output.logits.argmax(-1)
        right = (best[:, :-1] == nodes[:, 1:]).long().cumprod(1).sum(1)
        publish(lens + right + 1)
        given = {"hidden": output.hidden} if self.recurs else {}
        first, places = torch.arange(len(lens)) * nodes.shape[1], torch.arange(nodes.shape[1])
        path = torch.where(places <= right[:, None], first[:, None] + places, -1)
        select = first + right
        return sglang.GenerationBatchResult(
            sglang.LogitsProcessorOutput(None),
            next_token_ids=best.flatten(),
            accept_lens=right + 1,
            speculative_num_draft_tokens=nodes.shape[1],
            next_draft_input=self._followed(best, select, right, at | given),
            new_seq_lens=lens + right + 1,
            accept_index=path,
        )

    def _begun(self, first: Tensor, given: dict[str, Any]) -> EagleDraftInput:
        """What drafts leave behind prompts, and the `first` tokens i64[b]."""
        return self._state(self._engine.prefill_draft(first=first, capture=self._capture, **given), first)

    def _followed(self, best: Tensor, select: Tensor, right: Tensor, given: dict[str, Any]) -> EagleDraftInput:
        """The same behind tokens i64[b, N], of which the flat rows `select` i64[b] are the last of each text."""
        fed = self._engine.extend(tokens=best, select=select, accept_lens=right + 1, capture=self._capture, **given)
        return self._state(fed, best.gather(1, right[:, None])[:, 0])

    def _drafts(self, batch: ScheduleBatch) -> list[Tensor]:
        """The drafts i64[b, 1] of a chain."""
        assert batch.spec_info is not None and batch.spec_info.topk_index is not None
        self._check_drawn(batch.spec_info)
        hidden, drafts = batch.spec_info.hidden_states, [self.draft_worker.token(batch.spec_info.topk_index[:, :1])]
        for step in range(self.speculative_num_steps - 1):
            given = {"hidden": hidden.view(len(drafts[0]), 1, -1)} if hidden is not None else {}
            at = self._at(batch, torch.tensor([step]))
            output = self._engine.draft(step=step, tokens=drafts[-1], **at, capture=self._capture, **given)
            drafts.append(self.draft_worker.token(output.logits.argmax(-1)))
            hidden = getattr(output, "hidden", None)
        return drafts

    def _check_drawn(self, given: EagleDraftInput) -> None:
        """See that drafts come with what they may be drawn from, where steps weigh them by that."""
        assert (given.draft_probs is not None) == SETTINGS.spec.speculative_use_rejection_sampling
        if given.draft_probs is not None:
            assert given.topk_index is not None and given.draft_probs.shape == (len(given.topk_index), self._columns)
            torch.testing.assert_close(given.draft_probs.sum(-1), torch.ones(len(given.topk_index)))
            assert (given.draft_probs.gather(1, given.topk_index[:, :1]) > 0).all()

    @property
    def _columns(self) -> int:
        return self.target_worker.model_runner.model_config.vocab_size

    def _at(self, batch: ScheduleBatch, places: Tensor) -> dict[str, Tensor]:
        """Where tokens are, so many behind the committed text."""
        rows, positions = batch.req_pool_indices, batch.seq_lens[:, None] + places
        slots = self.req_to_token_pool.req_to_token[rows[:, None], positions].long()
        return {"rows": rows, "seq_lens": batch.seq_lens, "positions": positions, "slots": slots}

    def _state(self, output: Any, bonus: Tensor) -> EagleDraftInput:
        all_chances = output.logits.softmax(-1)
        chances, numbers = all_chances.topk(self.topk, -1)
        drawn = all_chances if SETTINGS.spec.speculative_use_rejection_sampling else None
        return EagleDraftInput(chances, numbers, getattr(output, "hidden", None), bonus, drawn)

    @property
    def _capture(self) -> str:
        return "last" if self.recurs else "null"


@at("speculative.standalone_worker_v2")
class StandaloneWorkerV2(EAGLEWorkerV2):
    """Drafts are a language model's."""

    recurs = False

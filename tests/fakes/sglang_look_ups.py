"""SGLang's look-ups (NGRAM): a worker without a draft, whose host looks through texts as far as it knows them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from . import sglang_modules as sglang
from .drafts import Engine
from .models import target_next
from .sglang_modules import SETTINGS, ForwardMode, ScheduleBatch, at
from .sglang_worker import ModelRunner, Publish, ReqToTokenPool, begun, note_experts
from .vllm_modules import looked_up

LONGEST, SHORTEST = 4, 1
"""How many last tokens are looked up; where nothing follows, the last token is drafted."""


@at("speculative.ngram_info")
class NgramVerifyInput:
    """What a request takes from one step to the next: tokens that the host does not know yet, [b * nodes], and counts.

    `future_indices` are rows of the relay.
    """

    def __init__(
        self, draft_token_num: int, new_seq_lens: Tensor, accept_tokens: Tensor | None = None,
        accept_lens: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.draft_token_num, self.new_seq_lens, self.device = draft_token_num, new_seq_lens, new_seq_lens.device
        self.accept_tokens, self.accept_lens = accept_tokens, accept_lens
        self.future_indices: Tensor | None = None

    def filter_batch(self, new_indices: Tensor) -> None:
        assert self.accept_tokens is not None and self.accept_lens is not None
        self.new_seq_lens = self.new_seq_lens[new_indices]
        self.accept_tokens = self.accept_tokens.reshape(-1, self.draft_token_num)[new_indices, :].flatten()
        self.accept_lens = self.accept_lens[new_indices]

    def merge_batch(self, spec_info: NgramVerifyInput) -> None:
        for name in ("new_seq_lens", "accept_tokens", "accept_lens"):
            setattr(self, name, torch.cat((getattr(self, name), getattr(spec_info, name))))


@at("speculative.ngram_worker")
class NGRAMWorker:
    """Prefills, and makes decode steps of chains, of which the host must know how long texts are."""

    recurs, draft_worker = False, None

    def __init__(self, engine: Engine, target: ModelRunner, nodes: int) -> None:
        self.target_worker, self.draft_token_num = SimpleNamespace(model_runner=target), nodes
        self.req_to_token_pool, self.server_args = ReqToTokenPool(engine.table), SimpleNamespace(lora_backend="csgmv")
        self._engine = engine

    def init_cuda_graphs(self) -> None:
        """Nothing is captured here."""

    def forward_batch_generation(
        self, batch: ScheduleBatch, on_publish: Publish | None = None, pp_proxy_tensors: Any = None
    ) -> sglang.GenerationBatchResult:
        publish, lens = on_publish or (lambda _: None), batch.seq_lens
        if batch.forward_mode is ForwardMode.EXTEND:
            output, tokens = begun(self, batch)
            publish(lens)
            padded = torch.nn.functional.pad(tokens[:, None], (0, self.draft_token_num - 1))
            return self._result(output, tokens, padded, torch.ones_like(lens, dtype=torch.int32), lens)
        nodes = torch.tensor([self._nodes(batch, place) for place in range(len(batch.reqs))])
        rows, positions = batch.req_pool_indices, lens[:, None] + torch.arange(self.draft_token_num)
        slots = self.req_to_token_pool.req_to_token[rows[:, None], positions].long()
        output = self._engine.target(
            tokens=nodes, rows=rows, seq_lens=lens, positions=positions, slots=slots, capture="null"
        )
        note_experts(output)
        best = output.logits.argmax(-1)
        counts = (best[:, :-1] == nodes[:, 1:]).long().cumprod(1).sum(1) + 1
        publish(lens + counts)
        none = sglang.LogitsProcessorOutput(None)
        return self._result(none, best.flatten(), best, counts.to(torch.int32), lens + counts)

    def _result(
        self, output: sglang.LogitsProcessorOutput, tokens: Tensor, accepted: Tensor, counts: Tensor, ends: Tensor
    ) -> sglang.GenerationBatchResult:
        left: Any = NgramVerifyInput(self.draft_token_num, ends, accepted.to(torch.int32).flatten(), counts)
        return sglang.GenerationBatchResult(
            output, tokens, counts, speculative_num_draft_tokens=self.draft_token_num, next_draft_input=left,
            new_seq_lens=ends,
        )  # fmt: skip

    def _nodes(self, batch: ScheduleBatch, place: int) -> list[int]:
        """The last token of a request and drafts, of a text that must be what the target alone would have emitted."""
        req, given = batch.reqs[place], batch.spec_info
        text = [*req.origin_input_ids, *req.output_ids]
        if SETTINGS.overlap:
            assert given is not None and batch.seq_lens_cpu is not None
            mine = given.accept_tokens.view(-1, self.draft_token_num)[place].tolist()
            text += mine[: int(given.accept_lens[place])]
        assert len(text) == int(batch.seq_lens[place]) + 1, "the host knows another text than the device"
        own = [*req.origin_input_ids]
        while len(own) < len(text):
            own.append(target_next(self._engine.models["target"], own))
        assert text == own
        return [text[-1], *looked_up(text, self.draft_token_num - 1, LONGEST, SHORTEST)]

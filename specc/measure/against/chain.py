"""A chain's step as SGLang 0.5.23 orders it; what it leaves to kernels is left open."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from specc.measure.against.sequence import Named, Sequence, grouped_copy
from specc.measure.against.work import Work


class ChainSequence(Sequence):
    """A chain, K = 1."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.draft_tokens = torch.zeros(work.shape.batch, work.shape.steps, dtype=torch.int64, device=work.device)

    def prepare(self) -> None:
        """Relay gather, draft slots and positions, copies to the draft runner's buffers."""
        self.seq_lens = self.pools["seq_lens"][self.rows]  # FutureMap.resolve_seq_lens
        topk_p, topk_index, self.bonus, hidden = self.gather()
        self.window, positions = self.draft_window()
        slots = self.window[:, : self.shape.steps].contiguous()  # KVLocPlan: the draft's columns of the window
        # EAGLEDraftCudaGraphRunner: grouped copy, then the hidden states
        static = [self.draft_lens, self.draft_rows, self.draft_slots, self.draft_index, self.draft_positions]
        grouped_copy(static, [self.seq_lens, self.rows, slots, topk_index, positions])
        self.draft_p.copy_(topk_p)
        self.hidden.copy_(hidden)
        # draft_forward
        self.per_step = slots.t().contiguous()
        self.draft_tokens[:, :1].copy_(self.draft_index)

    @abstractmethod
    def draft_window(self) -> tuple[Tensor, Tensor]:
        """+ assign_draft_cache_locs_contiguous: slots i64[B, N] of the verify window, positions i64[B]."""

    def verify_inputs(self) -> None:
        """The chain, and its copy to the target runner's buffers."""
        tokens, positions = self.build_chain()
        self.copy_verify_inputs(tokens, positions, self.window)

    @abstractmethod
    def build_chain(self) -> tuple[Tensor, Tensor]:
        """+ build_chain_tree: tokens and positions, i64[B, N]."""

    def verify_commit(self) -> None:
        """eagle_sample's greedy branch, commit, FutureMap.publish."""
        shape = self.shape
        count = shape.batch * shape.nodes
        self.predict = torch.zeros(count, dtype=torch.int32, device=self.rows.device)
        self.accept_index = torch.full((shape.batch, shape.nodes), -1, dtype=torch.int32, device=self.rows.device)
        target = torch.argmax(self.work.target_logits.view(count, -1), dim=-1).view(shape.batch, shape.nodes)
        self.accept_lens = self.walk(target) + 1
        self.commit()
        self.publish()

    @abstractmethod
    def walk(self, target: Tensor) -> Tensor:
        """+ VerifyTreeGreedy: correct drafts i32[B]; fills predict and accept_index."""

    @abstractmethod
    def commit(self) -> None:
        """+ prepare_verify_commit_outputs."""

    def extend_stash(self) -> None:
        """The tail of the extend graph, and FutureMap.stash."""
        hidden = self.work.extend_hidden.clone()
        index = torch.argmax(self.work.extend_logits, dim=-1, keepdim=True)
        self.stash(torch.ones_like(index, dtype=torch.float32), index, hidden)

    def draft_inputs(self, i: int) -> Named:
        """What draft forward i reads."""
        yield "tokens", self.draft_tokens[:, i : i + 1]
        yield "positions", self.draft_positions[:, None]
        yield "slots", self.per_step[: self.shape.steps - 1, :, None]
        yield "hidden", (self.work.draft_hidden[i - 1] if i else self.hidden[:, None])

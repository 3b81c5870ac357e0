"""A chain's step as SGLang 0.5.23 orders it."""

from __future__ import annotations

import torch
from sglang.kernels.ops.speculative import cache_locs, eagle, topk1
from torch import Tensor

from specc.lab.measure.against.sequence import Named, Sequence, grouped_copy
from specc.lab.measure.against.work import Work


class SglangChain(Sequence):
    """A chain, K = 1."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        shape, device = work.shape, work.device
        self.draft_tokens = torch.zeros(shape.batch, shape.steps, dtype=torch.int64, device=device)
        self.mask = torch.empty(shape.batch * shape.nodes**2, dtype=torch.bool, device=device)

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

    def draft_window(self) -> tuple[Tensor, Tensor]:
        """assign_draft_cache_locs_contiguous: slots i64[B, N] of the verify window, positions i64[B]."""
        batch, nodes = self.shape.batch, self.shape.nodes
        window = torch.empty(batch * nodes, dtype=torch.int64, device=self.rows.device)
        positions = torch.empty_like(self.seq_lens)
        cache_locs.assign_draft_cache_locs_contiguous_func(
            self.rows, self.work.table, self.seq_lens, window, 1, nodes, positions=positions
        )
        return window.view(batch, nodes), positions

    def draft_step(self, i: int) -> None:
        """draft_topk1_postprocess."""
        topk1.draft_topk1_postprocess(self.work.draft_logits[i][:, 0], self.draft_positions, self.draft_tokens, i + 1)

    def verify_inputs(self) -> None:
        """The chain, and its copy to the target runner's buffers."""
        tokens, positions = self.build_chain()
        self.copy_verify_inputs(tokens, positions, self.window)

    def build_chain(self) -> tuple[Tensor, Tensor]:
        """build_chain_tree: tokens and positions, i64[B, N]."""
        built = eagle.build_chain_tree(self.bonus, self.draft_tokens, self.seq_lens, self.mask)
        self.links = list(built[2:5])
        shape = (self.shape.batch, self.shape.nodes)
        return built[5].view(shape), built[1].view(shape)

    def verify_commit(self) -> None:
        """eagle_sample's greedy branch, commit, FutureMap.publish."""
        shape = self.shape
        count = shape.batch * shape.nodes
        self.predict = torch.zeros(count, dtype=torch.int32, device=self.rows.device)
        self.accept_index = torch.full((shape.batch, shape.nodes), -1, dtype=torch.int32, device=self.rows.device)
        target = torch.argmax(self.work.target_logits.view(count, -1), dim=-1).view(shape.batch, shape.nodes)
        self.accept_lens = self.walk(target, self.predict, self.accept_index) + 1
        self.commit()
        self.publish()

    def commit(self) -> None:
        """prepare_verify_commit_outputs."""
        outputs = eagle.prepare_verify_commit_outputs(
            self.predict, self.accept_index, self.accept_lens, self.seq_lens, num_draft_tokens=self.shape.nodes
        )
        self.new_seq_lens, self.new_bonus, _, (_, self.select, self.extend_ids) = outputs

    def extend_inputs(self) -> None:
        """prepare_draft_extend_layout, and the copies to the extend runner's buffers."""
        layout = eagle.prepare_draft_extend_layout(self.seq_lens, self.shape.nodes, False)
        positions, lens = layout[3][0], layout[2]
        self.copy_extend_inputs(self.extend_ids, positions, lens, self.select, self.work.target_hidden)

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

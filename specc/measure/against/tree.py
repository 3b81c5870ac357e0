"""A tree's step as SGLang 0.5.23 orders it; what it leaves to kernels is left open.

Where this differs from SGLang it is the faster of the two: logits are read as the models give them (bf16), SGLang first
copies them to f32; the table that it gathers whole rows of is as narrow as the work's texts. Mask: N x N, as specc
writes it.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from specc.measure.against.sequence import Named, Sequence, grouped_copy
from specc.measure.against.work import Work

MOST_SLOTS, TILE_BYTES = 256, 128
"""MHATokenToKVPool: slots that one launch moves, bytes of a row per program (for rows of less than 4096 bytes)."""


class TreeSequence(Sequence):
    """A tree, K > 1."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        shape, device = work.shape, work.device
        self.mask = torch.empty(shape.batch, shape.nodes, shape.nodes, dtype=torch.bool, device=device)
        self.pointers = {
            owner: torch.tensor([buffer.data_ptr() for buffer in buffers], device=device)
            for owner, buffers in self.kv.items()
        }
        self.valid = torch.zeros(0, dtype=torch.int64, device=device)
        # What each draft step leaves, by step: hidden rows and tokens of the frontier, and the lists of candidates.
        self.frontier: dict[int, tuple[Tensor, Tensor]] = {}
        self.scores: dict[int, Tensor] = {}
        self.tree_scores: dict[int, Tensor] = {}
        self.tree_tokens: dict[int, Tensor] = {}
        self.tree_parents: dict[int, Tensor] = {}

    def prepare(self) -> None:
        """Relay gather, draft slots and positions, copies to the draft runner's buffers."""
        shape = self.shape
        self.seq_lens = self.pools["seq_lens"][self.rows]  # FutureMap.resolve_seq_lens
        topk_p, topk_index, self.bonus, hidden = self.gather()
        slots = self.slots(shape.topk * shape.steps) if shape.page == 1 else self.paged_slots()
        positions = self.seq_lens.repeat_interleave(shape.topk)
        # EAGLEDraftCudaGraphRunner: grouped copy (the probabilities as i64 too, so that it is one launch), then hidden
        static = [self.draft_lens, self.draft_rows, self.draft_slots, self.draft_index, self.draft_positions]
        sources = [self.seq_lens, self.rows, slots, topk_index, positions, topk_p.view(torch.int64)]
        grouped_copy([*static, self.draft_p.view(torch.int64)], sources)
        self.hidden.copy_(hidden)
        # draft_forward: per_step_draft_out_cache_loc, _select_top_k_tokens_first
        self.per_step = self.draft_slots.view(-1, shape.topk, shape.steps).permute(2, 0, 1).reshape(shape.steps, -1)
        self.frontier[0] = self.draft_index.flatten(), self.hidden.repeat_interleave(shape.topk, dim=0)
        self.scores[0] = self.draft_p
        self.tree_scores[0], self.tree_tokens[0] = self.draft_p.unsqueeze(1), self.draft_index
        self.tree_parents[0] = torch.arange(-1, shape.topk, device=self.rows.device).expand(shape.batch, -1)

    @abstractmethod
    def slots(self, width: int) -> Tensor:
        """+ assign_draft_cache_locs_contiguous, assign_extend_cache_locs_uniform: i64[B, width] from seq_len on."""

    def paged_slots(self) -> Tensor:
        """prepare_for_draft for pages: every branch in pages of its own; then the prefix's last page is duplicated."""
        shape, device = self.shape, self.rows.device
        table = self.work.table[self.rows]
        last = self.seq_lens % shape.page
        base = self.seq_lens - last
        pages = (last + shape.steps + shape.page - 1) // shape.page
        branches = torch.arange(shape.topk, device=device)
        starts = base[:, None] + branches * (pages[:, None] * shape.page) + last[:, None]
        places = starts[:, :, None] + torch.arange(shape.steps, device=device)
        slots = torch.gather(table, 1, places.view(shape.batch, -1)).to(torch.int64)
        self.duplicate_tail(table, base, last, pages)
        return slots

    def duplicate_tail(self, table: Tensor, base: Tensor, last: Tensor, pages: Tensor) -> None:
        """duplicate_prefix_tail_to_draft_branches.

        SGLang selects with a boolean mask twice, each time waiting for the device to say how many entries are set; here
        it waits once. A capture cannot wait: it takes the entries that the last eager run found, and as many moves.
        """
        shape, device = self.shape, self.rows.device
        others = (shape.batch, shape.topk - 1, shape.page)
        within = torch.arange(shape.page, device=device)
        branches = torch.arange(1, shape.topk, device=device)[:, None]
        sources = (base[:, None, None] + within).expand(others)
        targets = base[:, None, None] + branches * (pages[:, None, None] * shape.page) + within
        mask = (within < last[:, None, None]).expand(others)
        sources = torch.gather(table, 1, sources.reshape(shape.batch, -1)).view(others)
        targets = torch.gather(table, 1, targets.reshape(shape.batch, -1)).view(others)
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            self.valid = mask.flatten().nonzero()[:, 0]
        sources, targets = sources.flatten()[self.valid], targets.flatten()[self.valid]
        self.move("draft", targets, sources)

    @abstractmethod
    def move(self, owner: str, targets: Tensor, sources: Tensor) -> None:
        """+ move_kv_cache: all layers in one launch, MOST_SLOTS slots at a time."""

    def verify_inputs(self) -> None:
        """The slots, the tree, and the copy to the target runner's buffers."""
        self.verify_slots()
        self.build()

    @abstractmethod
    def verify_slots(self) -> None:
        """The slots of the verify window; in `prepare` on specc's side."""

    @abstractmethod
    def build(self) -> None:
        """organize_draft_results, build_tree_kernel_efficient, and the copy to the target runner's buffers."""

    def verify_commit(self) -> None:
        """eagle_sample's greedy branch, commit, the accepted path in front, FutureMap.publish."""
        shape, device = self.shape, self.rows.device
        batch, count = shape.batch, shape.batch * shape.nodes
        predict = torch.zeros(count, dtype=torch.int32, device=device)
        accept_index = torch.full((batch, shape.path), -1, dtype=torch.int32, device=device)
        target = torch.argmax(self.work.target_logits.view(count, -1), dim=-1)
        self.accept_lens = self.walk(target, predict, accept_index) + 1
        self.new_seq_lens, self.new_bonus = self.commit(predict, accept_index)
        # _finalize_accept_tree_path
        self.move_accepted(accept_index, self.accept_lens - 1)
        self.predict = self.to_front(predict, accept_index)
        hidden = self.work.target_hidden
        self.path_hidden = self.to_front(hidden.view(count, -1), accept_index).view_as(hidden)
        self.accept_index = accept_index
        self.publish()

    @abstractmethod
    def walk(self, target: Tensor, predict: Tensor, accept_index: Tensor) -> Tensor:
        """+ VerifyTreeGreedy: correct drafts i32[B]; fills predict and accept_index."""

    @abstractmethod
    def commit(self, predict: Tensor, accept_index: Tensor) -> tuple[Tensor, Tensor]:
        """+ prepare_verify_commit_outputs: new lengths i64[B] and bonus i32[B]."""

    def move_accepted(self, accept_index: Tensor, correct: Tensor) -> None:
        """move_accept_tokens_to_target_kvcache: entries that hold no accepted node copy slot 0 to itself."""
        size, slots = accept_index.numel(), self.verify_static[2]
        targets = torch.zeros(size, dtype=torch.int64, device=slots.device)
        sources = torch.zeros(size, dtype=torch.int64, device=slots.device)
        self.pack_slots(accept_index, correct + 1, slots, targets, sources)
        self.move("target", targets, sources)

    @abstractmethod
    def pack_slots(self, accept_index: Tensor, counts: Tensor, slots: Tensor, targets: Tensor, sources: Tensor) -> None:
        """+ fill_front_out_cache_loc, + fill_accept_out_cache_loc: where the accepted rows go, and come from."""

    @abstractmethod
    def to_front(self, values: Tensor, accept_index: Tensor) -> Tensor:
        """_compact_accept_to_front: the path's rows of values [B * N, ...] at the front of each request's block."""

    def extend_stash(self) -> None:
        """The tail of the extend graph, and FutureMap.stash."""
        hidden = self.work.extend_hidden.clone()
        p = torch.softmax(self.work.extend_logits, dim=-1, dtype=torch.float32)
        self.stash(*torch.topk(p, self.shape.topk, dim=-1), hidden)

    def draft_inputs(self, i: int) -> Named:
        """What draft forward i reads."""
        shape = (self.shape.batch, self.shape.topk)
        ids, hidden = self.frontier[i]
        yield "tokens", ids.view(shape)
        yield "positions", self.draft_positions.view(shape)
        yield "slots", self.per_step[:-1].view(-1, *shape)
        yield "hidden", hidden.view(*shape, -1)

    def target_inputs(self) -> Named:
        """What the verify forward reads."""
        yield from super().target_inputs()
        yield "mask", self.mask

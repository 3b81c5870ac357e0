"""A tree step's glue as SGLang 0.5.23 orders it: its torch ops, and kernels of ours where it has kernels (marked +).

Where this differs from SGLang it is the faster of the two. Logits are read as the models give them (bf16), SGLang
first copies them to f32; what torch.compile makes of _select_top_k_tokens_later is one launch after its top-k, not
three; the table that it gathers whole rows of is as narrow as the benchmark's texts. Mask: N x N, as specc writes it.
"""

from __future__ import annotations

import torch
import triton
from baseline import Named, Sequence
from baseline_kernels import (
    build_tree,
    commit_outputs,
    extend_layout,
    follow_kept,
    gather_extras,
    move_rows,
    pack_accepted,
    pack_windows,
    walk_tree,
    window_slots,
)
from torch import Tensor
from work import Work

BLOCK = 1024
MOST_SLOTS, TILE_BYTES = 256, 128
"""MHATokenToKVPool: slots that one launch moves, bytes of a row per program (for rows of less than 4096 bytes)."""


class TreeSequence(Sequence):
    """A tree, K > 1."""

    name = "torch and Triton sequence after SGLang 0.5.23"

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
        shape = self.shape
        self.seq_lens = self.pools["seq_lens"][self.rows]  # FutureMap.resolve_seq_lens
        topk_p, topk_index, self.bonus, hidden = self.gather()
        slots = self.slots(shape.topk * shape.steps) if shape.page == 1 else self.paged_slots()
        positions = self.seq_lens.repeat_interleave(shape.topk)
        # EAGLEDraftCudaGraphRunner: grouped copy (the probabilities as i64 too, so that it is one launch), then hidden
        static = [self.draft_lens, self.draft_rows, self.draft_slots, self.draft_index, self.draft_positions]
        sources = [self.seq_lens, self.rows, slots, topk_index, positions, topk_p.view(torch.int64)]
        torch._foreach_copy_([*static, self.draft_p.view(torch.int64)], sources)
        self.hidden.copy_(hidden)
        # draft_forward: per_step_draft_out_cache_loc, _select_top_k_tokens_first
        self.per_step = self.draft_slots.view(-1, shape.topk, shape.steps).permute(2, 0, 1).reshape(shape.steps, -1)
        self.frontier[0] = self.draft_index.flatten(), self.hidden.repeat_interleave(shape.topk, dim=0)
        self.scores[0] = self.draft_p
        self.tree_scores[0], self.tree_tokens[0] = self.draft_p.unsqueeze(1), self.draft_index
        self.tree_parents[0] = torch.arange(-1, shape.topk, device=self.rows.device).expand(shape.batch, -1)

    def gather(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """+ gather_spec_extras."""
        shape = self.shape
        fields = [self.pools[name] for name in ("topk_p", "topk_index", "bonus", "hidden")]
        out = [field.new_empty(shape.batch, *field.shape[1:]) for field in fields]
        grid = (shape.batch, triton.cdiv(max(shape.width, shape.topk), BLOCK))
        gather_extras[grid](self.rows, *fields, *out, shape.topk, shape.width, BLOCK)
        p, index, bonus, hidden = out
        return p, index, bonus, hidden

    def slots(self, width: int) -> Tensor:
        """+ assign_draft_cache_locs_contiguous, assign_extend_cache_locs_uniform: i64[B, width] from seq_len on."""
        out = torch.empty(self.shape.batch, width, dtype=torch.int64, device=self.rows.device)
        table = self.work.table
        window_slots[(self.shape.batch,)](self.rows, table, self.seq_lens, out, table.stride(0), width, 128)
        return out

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

    def move(self, owner: str, targets: Tensor, sources: Tensor) -> None:
        """+ move_kv_cache: all layers in one launch, MOST_SLOTS slots at a time."""
        words, buffers = self.shape.row_bytes // 8, self.pointers[owner]
        tile = min(TILE_BYTES // 8, triton.next_power_of_2(words))
        for start in range(0, len(targets), MOST_SLOTS):
            count = min(MOST_SLOTS, len(targets) - start)
            chunk = (targets[start : start + count], sources[start : start + count], count)
            upper = triton.next_power_of_2(count)
            move_rows[(len(buffers), triton.cdiv(words, tile))](buffers, *chunk, words, tile, upper, num_warps=4)

    def draft_step(self, i: int) -> None:
        """Softmax, top-k, and _select_top_k_tokens_later of step i + 1."""
        shape = self.shape
        topk, batch = shape.topk, shape.batch
        logits = self.work.draft_logits[i].view(batch * topk, -1)
        p, index = torch.topk(torch.softmax(logits, dim=-1, dtype=torch.float32), topk, dim=-1)
        self.draft_positions.add_(1)
        expanded = self.scores[i].unsqueeze(2) * p.view(-1, topk, topk)
        self.scores[i + 1], kept = torch.topk(expanded.flatten(1), topk, dim=-1)
        # + torch.compile's gathers
        ids, parents = torch.empty_like(kept), torch.empty_like(kept)
        hidden = self.work.draft_hidden[i]
        following = hidden.new_empty(batch * topk, shape.width)
        grid = (batch * topk, triton.cdiv(shape.width, BLOCK))
        offset = topk * topk * i + topk
        follow_kept[grid](kept, index, hidden, ids, parents, following, offset, topk, shape.width, BLOCK)
        self.frontier[i + 1] = ids.flatten(), following
        self.tree_scores[i + 1], self.tree_tokens[i + 1] = expanded, index.view(batch, -1)
        self.tree_parents[i + 1] = parents

    def organize(self) -> tuple[Tensor, Tensor, Tensor]:
        """organize_draft_results: parents i64[B, K * (S - 1) + 1], candidates and their tokens i64[B, N - 1]."""
        steps = range(self.shape.steps)
        scores = torch.cat([self.tree_scores[i] for i in steps], dim=1).flatten(1)
        tokens = torch.cat([self.tree_tokens[i] for i in steps], dim=1)
        chosen = torch.sort(torch.topk(scores, self.shape.nodes - 1, dim=-1).indices).values
        drafts = torch.gather(tokens, index=chosen, dim=1)
        return torch.cat([self.tree_parents[i] for i in steps[:-1]], dim=1), chosen, drafts

    def verify_inputs(self) -> None:
        self.verify_slots()
        self.build()

    def verify_slots(self) -> None:
        """The slots of the verify window; in `prepare` on specc's side."""
        self.window = self.slots(self.shape.nodes)

    def build(self) -> None:
        """organize_draft_results, build_tree_kernel_efficient, and the copy to the target runner's buffers."""
        shape = self.shape
        parents, chosen, drafts = self.organize()
        self.draft_positions.sub_(shape.steps - 1)
        tokens = torch.cat((self.bonus.unsqueeze(1), drafts), dim=1)
        self.mask.fill_(True)
        links = torch.full((3, shape.batch, shape.nodes), -1, dtype=torch.int64, device=tokens.device)
        positions = torch.empty_like(tokens)
        wide = triton.next_power_of_2(shape.nodes)
        out = (self.mask.view(torch.uint8), positions, *links)
        sizes = (shape.topk, shape.steps, shape.nodes, wide)
        build_tree[(shape.batch,)](parents, chosen, self.seq_lens, *out, *sizes, num_warps=8)  # +
        self.links = links
        self.copy_verify_inputs(tokens, positions, self.window)

    def verify_commit(self) -> None:
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

    def walk(self, target: Tensor, predict: Tensor, accept_index: Tensor) -> Tensor:
        """+ VerifyTreeGreedy: correct drafts i32[B]; fills predict and accept_index."""
        correct = torch.empty(self.shape.batch, dtype=torch.int32, device=target.device)
        results, shape = (predict, accept_index, correct), self.shape
        walk_tree[(shape.batch,)](self.verify_static[0], target, *self.links, *results, shape.nodes, shape.path)
        return correct

    def commit(self, predict: Tensor, accept_index: Tensor) -> tuple[Tensor, Tensor]:
        """+ prepare_verify_commit_outputs: new lengths i64[B] and bonus i32[B]."""
        new_seq_lens, bonus = torch.empty_like(self.seq_lens), torch.empty_like(self.accept_lens)
        outputs = (new_seq_lens, bonus, self.shape.batch, self.shape.path, 128)
        grid = (triton.cdiv(self.shape.batch, 128),)
        commit_outputs[grid](predict, accept_index, self.accept_lens, self.seq_lens, *outputs)
        return new_seq_lens, bonus

    def move_accepted(self, accept_index: Tensor, correct: Tensor) -> None:
        """move_accept_tokens_to_target_kvcache: entries that hold no accepted node copy slot 0 to itself."""
        size, slots = accept_index.numel(), self.verify_static[2]
        targets = torch.zeros(size, dtype=torch.int64, device=slots.device)
        sources = torch.zeros(size, dtype=torch.int64, device=slots.device)
        self.pack_slots(accept_index, correct + 1, slots, targets, sources)
        self.move("target", targets, sources)

    def pack_slots(self, accept_index: Tensor, counts: Tensor, slots: Tensor, targets: Tensor, sources: Tensor) -> None:
        """+ fill_front_out_cache_loc, + fill_accept_out_cache_loc: where the accepted rows go, and come from."""
        batch, size = self.shape.batch, accept_index.numel()
        rows, starts = torch.arange(batch, device=slots.device), torch.zeros_like(counts)
        upper, wide = triton.next_power_of_2(batch), triton.next_power_of_2(self.shape.path)
        pack_windows[(batch,)](rows, slots, starts, counts, targets, slots.stride(0), upper, wide)
        pack_accepted[(size,)](accept_index, slots, sources, triton.next_power_of_2(size))

    def to_front(self, values: Tensor, accept_index: Tensor) -> Tensor:
        """_compact_accept_to_front: the path's rows of values [B * N, ...] at the front of each request's block."""
        nodes, path = self.shape.nodes, self.shape.path
        gathered = values[accept_index.to(torch.int64).clamp(min=0).reshape(-1)]
        out = values.clone()
        out.view(-1, nodes, *values.shape[1:])[:, :path] = gathered.view(-1, path, *values.shape[1:])
        return out

    def extend_inputs(self) -> None:
        """+ prepare_draft_extend_inputs, + prepare_draft_extend_layout, and the copies to the runner's buffers."""
        batch, nodes = self.shape.batch, self.shape.nodes
        ids, positions = torch.empty_like(self.verify_static[0]), torch.empty_like(self.verify_static[0])
        select, lens = torch.empty_like(self.rows), torch.empty_like(self.rows)
        out = (ids, positions, select, lens, batch, nodes, 128)
        extend_layout[(triton.cdiv(batch * nodes, 128),)](self.predict, self.accept_lens, self.seq_lens, *out)
        self.copy_extend_inputs(ids, positions, lens, select, self.path_hidden)

    def extend_stash(self) -> None:
        hidden = self.work.extend_hidden.clone()
        p = torch.softmax(self.work.extend_logits, dim=-1, dtype=torch.float32)
        self.stash(*torch.topk(p, self.shape.topk, dim=-1), hidden)

    def draft_inputs(self, i: int) -> Named:
        shape = (self.shape.batch, self.shape.topk)
        ids, hidden = self.frontier[i]
        yield "tokens", ids.view(shape)
        yield "positions", self.draft_positions.view(shape)
        yield "slots", self.per_step[:-1].view(-1, *shape)
        yield "hidden", hidden.view(*shape, -1)

    def target_inputs(self) -> Named:
        yield from super().target_inputs()
        yield "mask", self.mask

"""A tree step's glue as SGLang 0.5.23 orders it: its torch ops, and kernels of ours where it has kernels (marked +).

Where this differs from SGLang it is the faster of the two: what torch.compile makes of _select_top_k_tokens_later is
one launch after its top-k, not three.
"""

from __future__ import annotations

import torch
import triton
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

from specc.measure.against.tree import MOST_SLOTS, TILE_BYTES, TreeSequence

BLOCK = 1024


class TorchTree(TreeSequence):
    """A tree in torch ops, and kernels of ours."""

    name = "torch and Triton sequence after SGLang 0.5.23"

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

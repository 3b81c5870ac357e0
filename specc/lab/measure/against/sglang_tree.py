"""A tree's step as SGLang 0.5.23 orders it.

Where this differs from SGLang it is the faster of the two: logits are read as the models give them (bf16), SGLang first
copies them to f32; the table that it gathers whole rows of is as narrow as the work's texts. Mask: N x N, as specc
writes it.
"""

from __future__ import annotations

import sglang.srt.speculative.eagle_utils as eagle_utils
import torch
from sglang.kernels.ops.kvcache.cache_move import copy_all_layer_kv_cache_func
from sglang.kernels.ops.speculative import cache_locs, eagle, spec_tree
from sglang.srt.speculative import eagle_worker_common, spec_utils
from torch import Tensor

from specc.lab.measure.against.sequence import TREE_KERNELS, Named, Sequence, grouped_copy
from specc.lab.measure.against.work import Work

MOST_SLOTS, TILE_BYTES = 256, 128
"""MHATokenToKVPool: slots that one launch moves, bytes of a row per program (for rows of less than 4096 bytes)."""
TREE_MASK = spec_tree.TreeMaskMode.QLEN_ONLY
VARIANTS_OF_A_FUNCTION = 64
"""What torch.compile may keep: one process may have more shapes here than a server has."""

if not TREE_KERNELS:  # SGLang's wrapper knows of those alone, where there is CUDA
    spec_tree.sgl_build_tree_kernel_efficient = spec_tree.sgl_build_tree_kernel_triton
    spec_tree._is_cuda = True
if not torch.cuda.is_available():
    torch.compiler.set_stance("force_eager")


class SglangTree(Sequence):
    """A tree, K > 1."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        torch._dynamo.config.recompile_limit = VARIANTS_OF_A_FUNCTION
        shape, device = work.shape, work.device
        self.mask = torch.empty(shape.batch, shape.nodes, shape.nodes, dtype=torch.bool, device=device)
        # data_ptrs and data_strides of SGLang's pool, and what it chooses for rows of this size
        self.pointers = {
            owner: torch.tensor([buffer.data_ptr() for buffer in buffers], device=device).to(torch.uint64)
            for owner, buffers in self.kv.items()
        }
        self.strides = {
            owner: torch.full(pointers.shape, shape.row_bytes, device=device)
            for owner, pointers in self.pointers.items()
        }
        self.copy_config = {
            "bytes_per_tile": TILE_BYTES,
            "byte_tiles": -(-shape.row_bytes // TILE_BYTES),
            "num_warps": 4,
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

    def slots(self, width: int) -> Tensor:
        """assign_draft_cache_locs_contiguous: i64[B, width] from seq_len on."""
        out = torch.empty(self.shape.batch, width, dtype=torch.int64, device=self.rows.device)
        sizes = (self.shape.topk, width // self.shape.topk)
        cache_locs.assign_draft_cache_locs_contiguous_func(
            self.rows, self.work.table, self.seq_lens, out.view(-1), *sizes
        )
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
        """move_kv_cache: all layers in one launch, MOST_SLOTS slots at a time."""
        for start in range(0, len(targets), MOST_SLOTS):
            chunk = [slots[start : start + MOST_SLOTS] for slots in (targets, sources)]
            count = len(chunk[0])
            upper = 1 << (count - 1).bit_length()
            copy_all_layer_kv_cache_func(
                self.pointers[owner], self.strides[owner], *chunk, count, upper, self.copy_config
            )

    def draft_step(self, i: int) -> None:
        """sampling_softmax, fast_topk, positions, select_top_k_tokens of step i + 1."""
        topk = self.shape.topk
        logits = self.work.draft_logits[i].view(self.shape.batch * topk, -1)
        p, index = torch.topk(torch.softmax(logits, dim=-1, dtype=torch.float32), topk, dim=-1)
        self.draft_positions.add_(1)
        hidden = self.work.draft_hidden[i].view(-1, self.shape.width)
        selected = spec_utils.select_top_k_tokens(i + 1, p, index, hidden, self.scores[i], topk)
        ids, following, self.scores[i + 1], (scores, tokens, parents) = selected
        self.frontier[i + 1] = ids, following
        self.tree_scores[i + 1], self.tree_tokens[i + 1], self.tree_parents[i + 1] = scores, tokens, parents

    def verify_inputs(self) -> None:
        """The slots, the tree, and the copy to the target runner's buffers."""
        self.verify_slots()
        self.build()

    def verify_slots(self) -> None:
        """assign_extend_cache_locs_uniform, the slots of the verify window; in `prepare` on specc's side."""
        shape, table = self.shape, self.work.table
        self.window = torch.empty(shape.batch, shape.nodes, dtype=torch.int64, device=self.rows.device)
        kernel = cache_locs.assign_extend_cache_locs_uniform[(shape.batch,)]
        kernel(self.rows, table, self.seq_lens, self.window, table.shape[1], shape.nodes)

    def build(self) -> None:
        """organize_draft_results, build_tree_kernel_efficient, and the copy to the target runner's buffers."""
        shape = self.shape
        lists = [
            [values[i] for i in range(shape.steps)]
            for values in (self.tree_scores, self.tree_tokens, self.tree_parents)
        ]
        parents, chosen, drafts = eagle_utils.organize_draft_results(*lists, shape.nodes)
        self.draft_positions.sub_(shape.steps - 1)
        _, positions, *links, tokens = eagle_utils.build_tree_kernel_efficient(
            self.bonus,
            parents,
            chosen,
            drafts,
            self.seq_lens,
            0,  # the sum of lengths, of which a mask of this form knows nothing
            shape.topk,
            shape.steps,
            shape.nodes,
            TREE_MASK,
            self.mask.view(-1),
        )
        self.links = links
        self.copy_verify_inputs(tokens.view(-1, shape.nodes), positions.view(-1, shape.nodes), self.window)

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

    def commit(self, predict: Tensor, accept_index: Tensor) -> tuple[Tensor, Tensor]:
        """prepare_verify_commit_outputs: new lengths i64[B] and bonus i32[B]."""
        return eagle.prepare_verify_commit_outputs(predict, accept_index, self.accept_lens, self.seq_lens)

    def move_accepted(self, accept_index: Tensor, correct: Tensor) -> None:
        """move_accept_tokens_to_target_kvcache: entries that hold no accepted node copy slot 0 to itself."""
        size, slots = accept_index.numel(), self.verify_static[2]
        targets = torch.zeros(size, dtype=torch.int64, device=slots.device)
        sources = torch.zeros(size, dtype=torch.int64, device=slots.device)
        self.pack_slots(accept_index, correct + 1, slots, targets, sources)
        self.move("target", targets, sources)

    def pack_slots(self, accept_index: Tensor, counts: Tensor, slots: Tensor, targets: Tensor, sources: Tensor) -> None:
        """fill_front_out_cache_loc, fill_accept_out_cache_loc: where the accepted rows go, and come from."""
        cache_locs.fill_front_out_cache_loc_func(counts, slots.view(-1), targets)
        eagle.fill_accept_out_cache_loc_func(accept_index, slots.view(-1), sources, accept_index.numel())

    def to_front(self, values: Tensor, accept_index: Tensor) -> Tensor:
        """_compact_accept_to_front: the path's rows of values [B * N, ...] at the front of each request's block."""
        return eagle_worker_common._compact_accept_to_front(
            values, accept_index, self.shape.batch, num_draft_tokens=self.shape.nodes
        )

    def extend_inputs(self) -> None:
        """prepare_draft_extend_inputs, prepare_draft_extend_layout, and the copies."""
        _, select, ids = eagle.prepare_draft_extend_inputs(self.accept_lens, self.predict, self.shape.nodes)
        _, _, lens, (positions, _, _) = eagle.prepare_draft_extend_layout(self.seq_lens, self.shape.nodes, False)
        self.copy_extend_inputs(ids, positions, lens, select, self.path_hidden)

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

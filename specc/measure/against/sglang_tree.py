"""Trees with SGLang's own functions and kernels. Importing this fails where SGLang 0.5.23 is not installed."""

from __future__ import annotations

import sglang.srt.speculative.eagle_utils as eagle_utils
import torch
from sglang.kernels.ops.kvcache.cache_move import copy_all_layer_kv_cache_func
from sglang.kernels.ops.speculative import cache_locs, eagle, spec_tree
from sglang.kernels.ops.speculative.gather_spec_extras import gather_spec_extras
from sglang.srt.speculative import eagle_worker_common, spec_utils
from torch import Tensor

from specc.measure.against.sglang_chain import NAME, TREE_KERNELS
from specc.measure.against.tree import MOST_SLOTS, TILE_BYTES, TreeSequence
from specc.measure.against.work import Work

TREE_MASK = spec_tree.TreeMaskMode.QLEN_ONLY
VARIANTS_OF_A_FUNCTION = 64
"""What torch.compile may keep: one process may have more shapes here than a server has."""

if not TREE_KERNELS:  # SGLang's wrapper knows of those alone, where there is CUDA
    spec_tree.sgl_build_tree_kernel_efficient = spec_tree.sgl_build_tree_kernel_triton
    spec_tree._is_cuda = True
if not torch.cuda.is_available():
    torch.compiler.set_stance("force_eager")


class SglangTree(TreeSequence):
    """SGLang's Python functions with the kernels that they launch, and its torch ops where it has those inline.

    Two things stay those of TreeSequence: logits are read in the model's dtype, and the prefix's last page is
    duplicated with one wait for the device instead of two.
    """

    name = NAME

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        torch._dynamo.config.recompile_limit = VARIANTS_OF_A_FUNCTION
        device = work.device
        # data_ptrs and data_strides of SGLang's pool, and what it chooses for rows of this size
        self.pointers = {owner: pointers.to(torch.uint64) for owner, pointers in self.pointers.items()}
        self.strides = {
            owner: torch.full(p.shape, work.shape.row_bytes, device=device) for owner, p in self.pointers.items()
        }
        self.copy_config = {
            "bytes_per_tile": TILE_BYTES,
            "byte_tiles": -(-work.shape.row_bytes // TILE_BYTES),
            "num_warps": 4,
        }

    def gather(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """gather_spec_extras."""
        fields = (self.pools[name] for name in ("topk_p", "topk_index", "bonus", "hidden"))
        return gather_spec_extras(self.rows, *fields)

    def slots(self, width: int) -> Tensor:
        """assign_draft_cache_locs_contiguous, in `prepare`."""
        out = torch.empty(self.shape.batch, width, dtype=torch.int64, device=self.rows.device)
        sizes = (self.shape.topk, width // self.shape.topk)
        cache_locs.assign_draft_cache_locs_contiguous_func(
            self.rows, self.work.table, self.seq_lens, out.view(-1), *sizes
        )
        return out

    def verify_slots(self) -> None:
        """assign_extend_cache_locs_uniform."""
        shape, table = self.shape, self.work.table
        self.window = torch.empty(shape.batch, shape.nodes, dtype=torch.int64, device=self.rows.device)
        kernel = cache_locs.assign_extend_cache_locs_uniform[(shape.batch,)]
        kernel(self.rows, table, self.seq_lens, self.window, table.shape[1], shape.nodes)

    def move(self, owner: str, targets: Tensor, sources: Tensor) -> None:
        """move_kv_cache."""
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
        found = spec_utils.select_top_k_tokens(i + 1, p, index, hidden, self.scores[i], topk)
        ids, following, self.scores[i + 1], (scores, tokens, parents) = found
        self.frontier[i + 1] = ids, following
        self.tree_scores[i + 1], self.tree_tokens[i + 1], self.tree_parents[i + 1] = scores, tokens, parents

    def build(self) -> None:
        """organize_draft_results, build_tree_kernel_efficient."""
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

    def walk(self, target: Tensor, predict: Tensor, accept_index: Tensor) -> Tensor:
        """VerifyTreeGreedy."""
        correct = torch.empty(self.shape.batch, dtype=torch.int32, device=target.device)
        verify = spec_tree.verify_tree_greedy_func if TREE_KERNELS else spec_tree.verify_tree_greedy_triton
        verify(predict, accept_index, correct, self.verify_static[0], *self.links, target.view(-1, self.shape.nodes))
        return correct

    def commit(self, predict: Tensor, accept_index: Tensor) -> tuple[Tensor, Tensor]:
        """prepare_verify_commit_outputs."""
        return eagle.prepare_verify_commit_outputs(predict, accept_index, self.accept_lens, self.seq_lens)

    def pack_slots(self, accept_index: Tensor, counts: Tensor, slots: Tensor, targets: Tensor, sources: Tensor) -> None:
        """fill_front_out_cache_loc, fill_accept_out_cache_loc."""
        cache_locs.fill_front_out_cache_loc_func(counts, slots.view(-1), targets)
        eagle.fill_accept_out_cache_loc_func(accept_index, slots.view(-1), sources, accept_index.numel())

    def to_front(self, values: Tensor, accept_index: Tensor) -> Tensor:
        """_compact_accept_to_front."""
        return eagle_worker_common._compact_accept_to_front(
            values, accept_index, self.shape.batch, num_draft_tokens=self.shape.nodes
        )

    def extend_inputs(self) -> None:
        """prepare_draft_extend_inputs, prepare_draft_extend_layout, and the copies."""
        _, select, ids = eagle.prepare_draft_extend_inputs(self.accept_lens, self.predict, self.shape.nodes)
        _, _, lens, (positions, _, _) = eagle.prepare_draft_extend_layout(self.seq_lens, self.shape.nodes, False)
        self.copy_extend_inputs(ids, positions, lens, select, self.path_hidden)

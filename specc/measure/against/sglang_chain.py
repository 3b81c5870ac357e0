"""Chains with SGLang's own kernels. Importing this fails where SGLang 0.5.23 is not installed."""

from __future__ import annotations

import torch
from sglang.kernels.ops.speculative import cache_locs, eagle, spec_tree, topk1, tree
from sglang.kernels.ops.speculative.gather_spec_extras import gather_spec_extras
from torch import Tensor

from specc.measure.against.chain import ChainSequence
from specc.measure.against.work import Work


def compile_tree_kernels() -> bool:
    """Whether SGLang's CUDA kernels of trees are there: it compiles them when they are first called, with nvcc."""
    if not torch.cuda.is_available():
        return False
    try:
        tree._jit_tree_module()
    except Exception:  # whatever nvcc and what calls it raise
        return False
    return True


TREE_KERNELS = compile_tree_kernels()
NAME = "SGLang 0.5.23's own functions and kernels" + (
    "" if TREE_KERNELS else ", Triton's where its CUDA does not compile"
)


class SglangChain(ChainSequence):
    """SGLang's Triton and CUDA kernels, and torch ops where SGLang has those."""

    name = NAME

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        shape = work.shape
        self.mask = torch.empty(shape.batch * shape.nodes**2, dtype=torch.bool, device=work.device)

    def gather(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """gather_spec_extras."""
        fields = (self.pools[name] for name in ("topk_p", "topk_index", "bonus", "hidden"))
        return gather_spec_extras(self.rows, *fields)

    def draft_window(self) -> tuple[Tensor, Tensor]:
        """assign_draft_cache_locs_contiguous."""
        batch, nodes = self.shape.batch, self.shape.nodes
        window, positions = torch.empty(batch * nodes, dtype=torch.int64, device=self.rows.device), None
        positions = torch.empty_like(self.seq_lens)
        cache_locs.assign_draft_cache_locs_contiguous_func(
            self.rows, self.work.table, self.seq_lens, window, 1, nodes, positions=positions
        )
        return window.view(batch, nodes), positions

    def draft_step(self, i: int) -> None:
        """draft_topk1_postprocess."""
        topk1.draft_topk1_postprocess(self.work.draft_logits[i][:, 0], self.draft_positions, self.draft_tokens, i + 1)

    def build_chain(self) -> tuple[Tensor, Tensor]:
        """build_chain_tree."""
        built = eagle.build_chain_tree(self.bonus, self.draft_tokens, self.seq_lens, self.mask)
        self.links = built[2:5]
        shape = (self.shape.batch, self.shape.nodes)
        return built[5].view(shape), built[1].view(shape)

    def walk(self, target: Tensor) -> Tensor:
        """VerifyTreeGreedy."""
        correct = torch.empty(self.shape.batch, dtype=torch.int32, device=target.device)
        verify = spec_tree.verify_tree_greedy_func if TREE_KERNELS else spec_tree.verify_tree_greedy_triton
        verify(self.predict, self.accept_index, correct, self.verify_static[0], *self.links, target)
        return correct

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

"""A step's glue as SGLang 0.5.23 orders it, greedy, overlap scheduling, unpadded batch: what chains and trees share.

Its own functions, Triton and CUDA kernels are called, and torch ops stand where SGLang has those. Comments name what a
block stands for in its source. Left out on both sides: attention metadata, and what exists only with penalties,
grammars, sampling or padding. Importing this fails where SGLang 0.5.23 is not installed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from sglang.kernels.ops.speculative import spec_tree, tree
from sglang.kernels.ops.speculative.gather_spec_extras import gather_spec_extras
from torch import Tensor

from specc.lab.measure.against.work import Work, observed

Named = Iterator[tuple[str, Tensor]]


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


def grouped_copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Several copies in one launch, as far as dtypes and shapes allow."""
    torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]


class Sequence(ABC):
    """The order of a step, SGLang's relay buffers, and the static buffers of its three graph runners."""

    name = "SGLang 0.5.23's own functions and kernels" + (
        "" if TREE_KERNELS else ", Triton's where its CUDA does not compile"
    )
    seq_lens: Tensor
    """Of this step; the others are there after `verify_commit`."""
    links: list[Tensor]
    predict: Tensor
    accept_lens: Tensor
    new_seq_lens: Tensor
    new_bonus: Tensor

    def __init__(self, work: Work) -> None:
        self.work, self.rows, self.shape = work, work.rows, work.shape
        shape, device = work.shape, work.device
        batch, nodes, steps, topk = shape.batch, shape.nodes, shape.steps, shape.topk
        self.pools = {name: pool.clone() for name, pool in work.pools.items()}
        self.pools["bonus"] = self.pools["bonus"].to(torch.int64)
        self.pools.setdefault("topk_p", torch.ones(shape.pool, topk, device=device))
        self.kv = {owner: [buffer.clone() for buffer in buffers] for owner, buffers in work.kv.items()}
        whole = {"dtype": torch.int64, "device": device}
        self.draft_lens, self.draft_rows = torch.zeros(batch, **whole), torch.zeros(batch, **whole)
        self.draft_slots = torch.zeros(batch, topk * steps, **whole)
        self.draft_positions = torch.zeros(batch * topk, **whole)
        self.draft_index, self.draft_p = torch.zeros(batch, topk, **whole), torch.zeros(batch, topk, device=device)
        self.hidden = torch.zeros_like(work.extend_hidden)
        self.verify_static = [torch.zeros(batch, nodes, **whole) for _ in range(3)]
        self.verify_static += [torch.zeros(batch, **whole) for _ in range(2)]
        self.extend_static = [torch.zeros(batch, nodes, **whole) for _ in range(3)]
        self.extend_static += [torch.zeros(batch, **whole) for _ in range(2)]
        self.extend_hidden = torch.zeros_like(work.target_hidden)

    def reset(self) -> None:
        """Back to the state that the work starts from."""
        for name, pool in self.work.pools.items():
            self.pools[name].copy_(pool)

    @abstractmethod
    def prepare(self) -> None:
        """Relay gather, draft slots and positions, copies to the draft runner's buffers."""

    def gather(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """gather_spec_extras: probabilities, tokens, bonus and hidden states of the requests."""
        return gather_spec_extras(
            self.rows, *(self.pools[name] for name in ("topk_p", "topk_index", "bonus", "hidden"))
        )

    def walk(self, target: Tensor, predict: Tensor, accept_index: Tensor) -> Tensor:
        """VerifyTreeGreedy: correct drafts i32[B]; fills predict and accept_index."""
        correct = torch.empty(self.shape.batch, dtype=torch.int32, device=target.device)
        verify = spec_tree.verify_tree_greedy_func if TREE_KERNELS else spec_tree.verify_tree_greedy_triton
        verify(predict, accept_index, correct, self.verify_static[0], *self.links, target.view(-1, self.shape.nodes))
        return correct

    @abstractmethod
    def draft_step(self, i: int) -> None:
        """What follows draft forward i."""

    @abstractmethod
    def verify_inputs(self) -> None:
        """The verify inputs, and their copy to the target runner's buffers."""

    @abstractmethod
    def verify_commit(self) -> None:
        """eagle_sample's greedy branch, commit, FutureMap.publish."""

    @abstractmethod
    def extend_inputs(self) -> None:
        """The extend inputs, and their copy to the extend runner's buffers."""

    @abstractmethod
    def extend_stash(self) -> None:
        """The tail of the extend graph, and FutureMap.stash."""

    @abstractmethod
    def draft_inputs(self, i: int) -> Named:
        """What draft forward i reads."""

    def copy_verify_inputs(self, tokens: Tensor, positions: Tensor, slots: Tensor) -> None:
        """The grouped copy before the verify graph."""
        grouped_copy(self.verify_static, [tokens, positions, slots, self.seq_lens, self.rows])

    def publish(self) -> None:
        """FutureMap.publish."""
        self.pools["seq_lens"][self.rows] = self.new_seq_lens

    def copy_extend_inputs(self, ids: Tensor, positions: Tensor, lens: Tensor, select: Tensor, hidden: Tensor) -> None:
        """The grouped copy before the extend graph, and the hidden states."""
        shape = (-1, self.shape.nodes)
        sources = [ids.view(shape), positions.view(shape), self.verify_static[2], lens, select]
        grouped_copy(self.extend_static, sources)
        self.extend_hidden.copy_(hidden)

    def stash(self, topk_p: Tensor, index: Tensor, hidden: Tensor) -> None:
        """FutureMap.stash."""
        self.pools["bonus"][self.rows] = self.new_bonus.to(torch.int64)
        self.pools["topk_p"][self.rows] = topk_p
        self.pools["topk_index"][self.rows] = index
        self.pools["hidden"][self.rows] = hidden

    def step(self) -> None:
        """All of it, in order, without the forwards."""
        self.prepare()
        for i in range(self.shape.steps - 1):
            self.draft_step(i)
        self.verify_inputs()
        self.verify_commit()
        self.extend_inputs()
        self.extend_stash()

    def observed_step(self) -> dict[str, Tensor]:
        """Run a step; what it decided, by the names that both sides use."""
        return observed(self._watched())

    def _watched(self) -> Named:
        self.prepare()
        for i in range(self.shape.steps - 1):
            yield from ((f"draft_{i}.{name}", tensor) for name, tensor in self.draft_inputs(i))
            self.draft_step(i)
        self.verify_inputs()
        yield from ((f"target.{name}", tensor) for name, tensor in self.target_inputs())
        self.verify_commit()
        self.extend_inputs()
        path, nodes = self.shape.path, self.shape.nodes
        yield from zip(
            ("extend.tokens", "extend.positions", "extend.slots"),
            (tensor[:, :path] for tensor in self.extend_static[:3]),
            strict=True,
        )
        last = self.extend_static[4]
        yield "extend.select", last // nodes * path + last % nodes
        yield "extend.hidden", self.extend_hidden[:, :path]
        self.extend_stash()
        yield "predict", self.predict.view(-1, nodes)[:, :path]
        yield from (("accept_lens", self.accept_lens), ("new_seq_lens", self.new_seq_lens), ("bonus", self.new_bonus))
        yield from ((f"relay.{name}", self.pools[name][self.rows]) for name in self.work.pools)

    def target_inputs(self) -> Named:
        """What the verify forward reads."""
        yield from zip(("tokens", "positions", "slots"), self.verify_static[:3], strict=True)

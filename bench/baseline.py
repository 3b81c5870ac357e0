"""A step's glue as SGLang 0.5.23 orders it, greedy, overlap scheduling, unpadded batch.

Comments name what each block stands for in SGLang's source; + marks what is a Triton or CUDA kernel of its own there.
Left out on both sides: attention metadata, and what exists only with penalties, grammars, sampling or padding.

`Sequence` is what chains and trees share. `TorchSequence` writes every step of a chain in torch ops, of which a +
takes several, so it is slower than SGLang; `SglangKernels` (baseline_sglang.py) calls the real ones. It also leaves
out masks and links, which SGLang writes every step although they are constants of a chain. `TreeSequence` is in
baseline_tree.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor
from work import Work, observed

Named = Iterator[tuple[str, Tensor]]


class Sequence(ABC):
    """The order of a step, SGLang's relay buffers, and the static buffers of its three graph runners."""

    name: str

    def __init__(self, work: Work) -> None:
        self.work, self.rows, self.shape = work, work.rows, work.shape
        shape, device = work.shape, work.device
        batch, nodes, steps, topk = shape.batch, shape.nodes, shape.steps, shape.topk
        self.pools = {name: pool.clone() for name, pool in work.pools.items()}
        self.pools["bonus"] = self.pools["bonus"].to(torch.int64)
        self.pools.setdefault("topk_p", torch.ones(shape.pool, topk, device=device))
        self.kv = {owner: [buffer.clone() for buffer in buffers] for owner, buffers in work.kv.items()}
        self.columns = torch.arange(nodes, device=device)
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
        torch._foreach_copy_(self.verify_static, [tokens, positions, slots, self.seq_lens, self.rows])

    def publish(self) -> None:
        """FutureMap.publish."""
        self.pools["seq_lens"][self.rows] = self.new_seq_lens

    def copy_extend_inputs(self, ids: Tensor, positions: Tensor, lens: Tensor, select: Tensor, hidden: Tensor) -> None:
        """The grouped copy before the extend graph, and the hidden states."""
        shape = (-1, self.shape.nodes)
        sources = [ids.view(shape), positions.view(shape), self.verify_static[2], lens, select]
        torch._foreach_copy_(self.extend_static, sources)
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


class TorchSequence(Sequence):
    """A chain in torch ops alone."""

    name = "torch sequence after SGLang 0.5.23"

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.draft_tokens = torch.zeros(work.shape.batch, work.shape.steps, dtype=torch.int64, device=work.device)

    def prepare(self) -> None:
        self.seq_lens = self.pools["seq_lens"][self.rows]  # FutureMap.resolve_seq_lens
        topk_p, topk_index, self.bonus, hidden = self.gather()
        self.window, positions = self.draft_window()
        slots = self.window[:, : self.shape.steps].contiguous()  # KVLocPlan: the draft's columns of the window
        # EAGLEDraftCudaGraphRunner: grouped copy, then the hidden states
        static = [self.draft_lens, self.draft_rows, self.draft_slots, self.draft_index, self.draft_positions]
        torch._foreach_copy_(static, [self.seq_lens, self.rows, slots, topk_index, positions])
        self.draft_p.copy_(topk_p)
        self.hidden.copy_(hidden)
        # draft_forward
        self.per_step = slots.t().contiguous()
        self.draft_tokens[:, :1].copy_(self.draft_index)

    def gather(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """+ gather_spec_extras."""
        p, index, bonus, hidden = (self.pools[name][self.rows] for name in ("topk_p", "topk_index", "bonus", "hidden"))
        return p, index, bonus, hidden

    def draft_window(self) -> tuple[Tensor, Tensor]:
        """+ assign_draft_cache_locs_contiguous: slots i64[B, N] of the verify window, positions i64[B]."""
        places = self.seq_lens[:, None] + self.columns
        return self.work.table[self.rows[:, None], places].to(torch.int64), self.seq_lens.clone()

    def draft_step(self, i: int) -> None:
        """+ draft_topk1_postprocess."""
        token = torch.argmax(self.work.draft_logits[i][:, 0], dim=-1, keepdim=True)
        self.draft_tokens[:, i + 1 : i + 2].copy_(token)
        self.draft_positions.add_(1)

    def verify_inputs(self) -> None:
        tokens, positions = self.build_chain()
        self.copy_verify_inputs(tokens, positions, self.window)

    def build_chain(self) -> tuple[Tensor, Tensor]:
        """+ build_chain_tree."""
        tokens = torch.cat((self.bonus[:, None], self.draft_tokens), dim=1)
        return tokens, self.seq_lens[:, None] + self.columns

    def verify_commit(self) -> None:
        shape = self.shape
        count = shape.batch * shape.nodes
        self.predict = torch.zeros(count, dtype=torch.int32, device=self.rows.device)
        self.accept_index = torch.full((shape.batch, shape.nodes), -1, dtype=torch.int32, device=self.rows.device)
        target = torch.argmax(self.work.target_logits.view(count, -1), dim=-1).view(shape.batch, shape.nodes)
        self.accept_lens = self.walk(target) + 1
        self.commit()
        self.publish()

    def walk(self, target: Tensor) -> Tensor:
        """+ VerifyTreeGreedy: correct drafts i32[B]; fills predict and accept_index."""
        tokens = self.verify_static[0]
        correct = (tokens[:, 1:] == target[:, :-1]).to(torch.int32).cumprod(1).sum(1, dtype=torch.int32)
        on_path = self.columns <= correct[:, None]
        first = torch.arange(self.shape.batch, device=target.device)[:, None] * self.shape.nodes
        self.predict.copy_(torch.where(on_path, target, 0).flatten())
        self.accept_index.copy_(torch.where(on_path, first + self.columns, -1))
        return correct

    def commit(self) -> None:
        """+ prepare_verify_commit_outputs."""
        last = self.accept_lens.to(torch.int64) - 1
        self.new_seq_lens = self.seq_lens + self.accept_lens
        nodes = self.shape.nodes
        self.new_bonus = self.predict.view(-1, nodes).gather(1, last[:, None])[:, 0]
        self.select = torch.arange(len(last), device=last.device) * nodes + last
        self.extend_ids = self.predict.to(torch.int64)

    def extend_inputs(self) -> None:
        """+ prepare_draft_extend_layout, and the copies to the extend runner's buffers."""
        positions = self.seq_lens[:, None] + self.columns
        self.copy_extend_inputs(self.extend_ids, positions, self.new_seq_lens, self.select, self.work.target_hidden)

    def extend_stash(self) -> None:
        hidden = self.work.extend_hidden.clone()
        index = torch.argmax(self.work.extend_logits, dim=-1, keepdim=True)
        self.stash(torch.ones_like(index, dtype=torch.float32), index, hidden)

    def draft_inputs(self, i: int) -> Named:
        yield "tokens", self.draft_tokens[:, i : i + 1]
        yield "positions", self.draft_positions[:, None]
        yield "slots", self.per_step[: self.shape.steps - 1, :, None]
        yield "hidden", (self.work.draft_hidden[i - 1] if i else self.hidden[:, None])

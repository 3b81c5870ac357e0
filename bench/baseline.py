"""A chain step's glue as SGLang 0.5.23 orders it, greedy, topk 1, overlap scheduling, unpadded batch.

Comments name what each block stands for in SGLang's source. `TorchSequence` writes every step in torch ops. SGLang has
Triton or CUDA kernels of its own for some of them (marked +), each of which is several launches here, so this sequence
is slower than SGLang; `SglangKernels` (baseline_sglang.py) calls the real ones. Left out on both sides: attention
metadata, and what exists only with penalties, grammars, sampling or padding. The torch sequence also leaves out masks
and links, which SGLang writes every step although they are constants of a chain.
"""

from __future__ import annotations

import torch
from torch import Tensor
from work import Work

Rows = list[Tensor]


class TorchSequence:
    """Torch ops alone."""

    name = "torch sequence after SGLang 0.5.23"

    def __init__(self, work: Work) -> None:
        self.work, self.rows, self.shape = work, work.rows, work.shape
        shape, device = work.shape, work.device
        batch, nodes, steps = shape.batch, shape.nodes, shape.steps
        self.pools = {name: pool.clone() for name, pool in work.pools.items()}
        self.pools["bonus"] = self.pools["bonus"].to(torch.int64)
        self.topk_p = torch.ones(shape.pool, 1, device=device)
        self.columns = torch.arange(nodes, device=device)
        whole = {"dtype": torch.int64, "device": device}
        # The static buffers of SGLang's three graph runners.
        self.draft_tokens, self.positions = torch.zeros(batch, steps, **whole), torch.zeros(batch, **whole)
        self.draft_static = [torch.zeros(batch, **whole) for _ in range(2)]
        self.draft_static += [torch.zeros(batch, steps, **whole), torch.zeros(batch, 1, **whole)]
        self.draft_p, self.hidden = torch.zeros(batch, 1, device=device), torch.zeros_like(work.extend_hidden)
        self.verify_static = [torch.zeros(batch, nodes, **whole) for _ in range(3)]
        self.verify_static += [torch.zeros(batch, **whole) for _ in range(2)]
        self.extend_static = [torch.zeros(batch, nodes, **whole) for _ in range(3)]
        self.extend_static += [torch.zeros(batch, **whole) for _ in range(2)]
        self.extend_hidden = torch.zeros_like(work.target_hidden)

    def reset(self) -> None:
        """Back to the state that the work starts from."""
        for name, pool in self.pools.items():
            pool.copy_(self.work.pools[name])

    def prepare(self) -> None:
        """Relay gather, draft slots and positions, copies to the draft runner's buffers."""
        steps = self.shape.steps
        self.seq_lens = self.pools["seq_lens"][self.rows]  # FutureMap.resolve_seq_lens
        topk_p, topk_index, self.bonus, hidden = self.gather()
        self.window, positions = self.draft_window()
        slots = self.window[:, :steps].contiguous()  # KVLocPlan: the draft's columns of the window
        # EAGLEDraftCudaGraphRunner: grouped copy, then the hidden states
        torch._foreach_copy_(
            [*self.draft_static, self.positions], [self.seq_lens, self.rows, slots, topk_index, positions]
        )
        self.draft_p.copy_(topk_p)
        self.hidden.copy_(hidden)
        # draft_forward
        self.per_step = slots.t().contiguous()
        self.draft_tokens[:, :1].copy_(self.draft_static[3])

    def gather(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """+ gather_spec_extras."""
        fields = (self.pools[name][self.rows] for name in ("topk_index", "bonus", "hidden"))
        return self.topk_p[self.rows], *fields

    def draft_window(self) -> tuple[Tensor, Tensor]:
        """+ assign_draft_cache_locs_contiguous: slots i64[B, N] of the verify window, positions i64[B]."""
        places = self.seq_lens[:, None] + self.columns
        return self.work.table[self.rows[:, None], places].to(torch.int64), self.seq_lens.clone()

    def draft_step(self, i: int) -> None:
        """+ draft_topk1_postprocess."""
        token = torch.argmax(self.work.draft_logits[i][:, 0], dim=-1, keepdim=True)
        self.draft_tokens[:, i + 1 : i + 2].copy_(token)
        self.positions.add_(1)

    def chain(self) -> None:
        """The verify inputs, and their copy to the target runner's buffers."""
        tokens, positions = self.build_chain()
        sources = [tokens, positions, self.window, self.seq_lens, self.rows]
        torch._foreach_copy_(self.verify_static, sources)

    def build_chain(self) -> tuple[Tensor, Tensor]:
        """+ build_chain_tree."""
        tokens = torch.cat((self.bonus[:, None], self.draft_tokens), dim=1)
        return tokens, self.seq_lens[:, None] + self.columns

    def verify_commit(self) -> None:
        """eagle_sample's greedy branch, commit, FutureMap.publish."""
        shape = self.shape
        count = shape.batch * shape.nodes
        self.predict = torch.zeros(count, dtype=torch.int32, device=self.rows.device)
        self.accept_index = torch.full((shape.batch, shape.nodes), -1, dtype=torch.int32, device=self.rows.device)
        target = torch.argmax(self.work.target_logits.view(count, -1), dim=-1).view(shape.batch, shape.nodes)
        self.accept_lens = self.walk(target) + 1
        self.commit()
        self.pools["seq_lens"][self.rows] = self.new_seq_lens

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
        shape = (-1, self.shape.nodes)
        positions = self.seq_lens[:, None] + self.columns
        sources = [self.extend_ids.view(shape), positions, self.window, self.new_seq_lens, self.select]
        torch._foreach_copy_(self.extend_static, sources)
        self.extend_hidden.copy_(self.work.target_hidden)

    def extend_stash(self) -> None:
        """The tail of the extend graph, and FutureMap.stash."""
        hidden = self.work.extend_hidden.clone()
        index = torch.argmax(self.work.extend_logits, dim=-1, keepdim=True)
        topk_p = torch.ones_like(index, dtype=torch.float32)
        self.pools["bonus"][self.rows] = self.new_bonus.to(torch.int64)
        self.topk_p[self.rows] = topk_p
        self.pools["topk_index"][self.rows] = index
        self.pools["hidden"][self.rows] = hidden

    def step(self) -> None:
        """All of it, in order, without the forwards."""
        self.prepare()
        for i in range(self.shape.steps - 1):
            self.draft_step(i)
        self.chain()
        self.verify_commit()
        self.extend_inputs()
        self.extend_stash()

    def observed_step(self) -> dict[str, Tensor]:
        """Run a step; what it decided, by the names that both sides use."""
        self.step()
        tokens, positions, slots = self.verify_static[:3]
        values = {"tokens": tokens, "verify_positions": positions, "verify_slots": slots}
        values |= {"draft_slots": self.per_step[: self.shape.steps - 1], "predict": self.predict.view_as(tokens)}
        values |= {"accept_lens": self.accept_lens, "new_seq_lens": self.new_seq_lens, "bonus": self.new_bonus}
        values |= {"extend_ids": self.extend_ids.view_as(tokens), "select": self.select}
        return values | {f"relay.{name}": pool[self.rows] for name, pool in self.pools.items()}

"""The target's side of a program's callbacks, and what all callbacks share (docs/runtime.md, "Callbacks")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specc.engine.attention import PagedContext
from specc.engine.errors import ContractError
from specc.engine.kv_pool import KVPool
from specc.engine.models import ModelFacts, TargetModel
from specc.engine.plan_facts import DTYPES, PlanFacts
from specc.engine.tree_attention import TreeContext, visible_keys


class Forward(NamedTuple):
    """What a callback returns: logits, and hidden states where the program captures them."""

    logits: Tensor
    hidden: Tensor | None = None


class Prompt(NamedTuple):
    """What to prefill: all tokens of a text, of which the first `shared` have keys and values in all pools."""

    tokens: Sequence[int]
    shared: int = 0


class Prefix(NamedTuple):
    """A prompt on the device: its pool row, tokens i64[n], and how many of them are shared."""

    row: int
    tokens: Tensor
    shared: int


class Memory:
    """What an engine's forwards work on: paged pools by owner, the request table i32[P, C], prompts by pool row.

    `width` is how many positions the decode forwards attend to. A captured forward needs it constant; else
    the engine sets it before each step to something above every length in the batch.
    """

    def __init__(self, pools: Mapping[str, KVPool], req_to_token: Tensor, prompts: Mapping[int, Prompt]) -> None:
        """Use the pools of ``target`` and, if it has one, ``draft``; `prompts`: what to prefill, by pool row."""
        self.pools, self.req_to_token, self.prompts = pools, req_to_token, prompts
        self.width = req_to_token.shape[1]

    def prefixes(self, rows: Tensor, seq_lens: Tensor) -> Iterator[Prefix]:
        """The prompts of pool rows i64[b]; ContractError where one has another length than i64[b] says."""
        for row, length in zip(rows.tolist(), seq_lens.tolist(), strict=True):
            tokens, shared = self.prompts.get(row, Prompt(()))
            if len(tokens) != length:
                found = f"pool row {row} has {len(tokens)} tokens to prefill"
                raise ContractError(f"{found}, the program asks for {length}")
            host = torch.tensor(tokens, dtype=torch.int64, pin_memory=self.req_to_token.is_cuda)
            yield Prefix(row, host.to(self.req_to_token.device, non_blocking=True), shared)

    def rest(self, owner: str, row: int, start: int, end: int) -> tuple[Tensor, PagedContext]:
        """Positions i64[1, end - start] and the context of a forward of one pool row over them."""
        positions = torch.arange(start, end, device=self.req_to_token.device)[None]
        rows = torch.full((1,), row, device=positions.device)
        slots = self.req_to_token[rows, start:end].long()
        return positions, PagedContext(self.pools[owner], self.req_to_token, rows, positions, slots, end)

    def joined(self, rows: Iterable[Tensor], facts: ModelFacts, width: int | None = None) -> Tensor:
        """What a model gave for one prompt after the other, T[n, width]; of no prompts no rows.

        width: by default that of the model's hidden states.
        """
        shape = (0, width or facts.hidden_size)
        return torch.cat((torch.empty(shape, dtype=DTYPES[facts.dtype], device=self.req_to_token.device), *rows))


class TargetCallbacks:
    """The target on static inputs over its paged pool; all there is for a program without draft model."""

    def __init__(self, target: TargetModel, memory: Memory, facts: PlanFacts) -> None:
        """Bind the model to memory."""
        self.target_model, self.memory, self.mask_mode = target, memory, facts.mask_mode

    @property
    def capturable(self) -> bool:
        """Whether the decode forwards wait for the device nowhere and keep their shapes."""
        return self.target_model.capturable

    @torch.no_grad()
    def target(
        self,
        *,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        capture: str,
        mask: Tensor | None = None,
    ) -> Forward:
        """The target on the verify window i64[b, N]: logits T[b, N, V], hidden T[b, N, W].

        mask: the tree, as `visible_keys` reads it; without one the window is a chain, and causal.
        """
        where = (self.memory.pools["target"], self.memory.req_to_token, rows)
        width = self.memory.width
        if mask is None or self.mask_mode is None:
            paged = PagedContext(*where, positions, slots, width)
        else:
            visible = visible_keys(mask, self.mask_mode, seq_lens, tokens.shape[1], width)
            paged = TreeContext(*where, seq_lens, positions, slots, width, visible)
        states = self.target_model.forward(tokens, positions, paged)
        return captured(self.target_model.logits(states), self.target_model.handed_over(states), capture)

    @torch.no_grad()
    def prefill_target(self, *, rows: Tensor, seq_lens: Tensor, capture: str) -> Forward:
        """Prefill prompt by prompt: logits T[b, V] of each last token, hidden T[sum of lengths, W].

        With `capture` ``last`` hidden is T[b, W], of the last tokens.

        Shared tokens are not run again. Their hidden states are zeros, which nobody reads: the draft, too, has
        keys and values of everything shared.
        """
        memory, model = self.memory, self.target_model
        found = [self._run(prefix, capture) for prefix in memory.prefixes(rows, seq_lens)]
        last = memory.joined((row for row, _ in found), model.facts)
        kept = memory.joined((handed for _, handed in found), model.facts, model.handed_width)
        return captured(model.logits(last), kept, capture)

    def _run(self, prefix: Prefix, capture: str) -> tuple[Tensor, Tensor]:
        """Run one prompt: its last hidden state T[1, H], and its rows to hand over."""
        positions, paged = self.memory.rest("target", prefix.row, prefix.shared, len(prefix.tokens))
        states = self.target_model.forward(prefix.tokens[None, prefix.shared :], positions, paged)
        handed = self.target_model.handed_over(states)[0]
        if capture == "full":
            handed = torch.cat((handed.new_zeros(prefix.shared, handed.shape[1]), handed))
        return states[0, -1:].clone(), handed if capture == "full" else handed[-1:].clone()


def captured(logits: Tensor, hidden: Tensor, capture: str) -> Forward:
    """Hand over hidden states only where the program captures them."""
    return Forward(logits, None if capture == "null" else hidden)

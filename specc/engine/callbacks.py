"""The engine's side of a program: its five model forwards (docs/runtime.md, "Callbacks")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specc.engine.attention import PagedContext
from specc.engine.errors import ContractError
from specc.engine.kv_pool import KVPool
from specc.engine.models import DraftModel, TargetModel
from specc.engine.plan_facts import PlanFacts
from specc.engine.tree_attention import BranchContext, Branches, TreeContext, visible_keys


class Forward(NamedTuple):
    """What a callback returns: logits, and hidden states where the program captures them."""

    logits: Tensor
    hidden: Tensor | None = None


class Prompt(NamedTuple):
    """What to prefill: all tokens of a text, of which the first `shared` have keys and values in both pools."""

    tokens: Sequence[int]
    shared: int = 0


class EngineCallbacks:
    """Runs target and draft on static inputs over their paged pools.

    `width` is how many positions the decode forwards attend to. A captured forward needs it constant; else
    the engine sets it before each step to something above every length in the batch.
    """

    def __init__(
        self,
        target: TargetModel,
        draft: DraftModel,
        target_pool: KVPool,
        draft_pool: KVPool,
        req_to_token: Tensor,
        prompts: Mapping[int, Prompt],
        facts: PlanFacts,
    ) -> None:
        """Bind models and pools to the table i32[P, C]; `prompts`: what to prefill, by pool row."""
        self.target_model, self.draft_model = target, draft
        self.target_pool, self.draft_pool = target_pool, draft_pool
        self.req_to_token, self.prompts = req_to_token, prompts
        self.shifted, self.mask_mode = facts.shifted, facts.mask_mode
        self.branches = Branches(int(not facts.shifted), facts.page_size, facts.branch_room)
        self.width = req_to_token.shape[1]

    @property
    def capturable(self) -> bool:
        """Whether the decode forwards wait for the device nowhere and keep their shapes."""
        return self.target_model.capturable and self.draft_model.capturable

    @torch.no_grad()
    def draft(
        self,
        *,
        step: int,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        capture: str,
        hidden: Tensor | None = None,
    ) -> Forward:
        """One draft forward of tokens, positions, slots i64[b, K]: logits T[b, K, Vd], hidden T[b, K, W].

        The K branches of a request do not see each other: each is a row of the model's batch.
        """
        paged = BranchContext(
            self.draft_pool, self.req_to_token, rows, seq_lens, positions, slots, self.width, self.branches
        )
        ones = (tokens.reshape(-1, 1), positions.reshape(-1, 1))
        states = self.draft_model.forward(*ones, paged, None if hidden is None else hidden.flatten(0, 1)[:, None])
        states = states.view(*tokens.shape, -1)
        return _forward(self.draft_model.logits(states), states, capture)

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
        memory = (self.target_pool, self.req_to_token, rows)
        if mask is None or self.mask_mode is None:
            paged = PagedContext(*memory, positions, slots, self.width)
        else:
            visible = visible_keys(mask, self.mask_mode, seq_lens, tokens.shape[1], self.width)
            paged = TreeContext(*memory, seq_lens, positions, slots, self.width, visible)
        states = self.target_model.forward(tokens, positions, paged)
        return _forward(self.target_model.logits(states), states, capture)

    @torch.no_grad()
    def extend(
        self,
        *,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        select: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        capture: str,
        hidden: Tensor | None = None,
    ) -> Forward:
        """The draft on the accepted path i64[b, A]: logits T[b, Vd], hidden T[b, W] of flat rows `select`."""
        paged = PagedContext(self.draft_pool, self.req_to_token, rows, positions, slots, self.width)
        states = self.draft_model.forward(tokens, positions, paged, hidden)
        last = states.flatten(0, 1).index_select(0, select)
        return _forward(self.draft_model.logits(last), last, capture)

    @torch.no_grad()
    def prefill_target(self, *, rows: Tensor, seq_lens: Tensor, capture: str) -> Forward:
        """Prefill prompt by prompt: logits T[b, V] of each last token, hidden T[sum of lengths, W].

        Shared tokens are not run again. Their hidden states are zeros, which nobody reads: the draft, too, has
        keys and values of everything shared.
        """
        keep = 1 if capture in (None, "null") else None
        states = [self._prompt(row, length, keep) for row, length in _pairs(rows, seq_lens)]
        last = torch.stack([state[-1] if len(state) else state.new_zeros(state.shape[-1]) for state in states])
        return Forward(self.target_model.logits(last), torch.cat(states) if keep is None else None)

    @torch.no_grad()
    def prefill_draft(
        self, *, first: Tensor, rows: Tensor, seq_lens: Tensor, capture: str, hidden: Tensor | None = None
    ) -> Forward:
        """Prefill the draft with prompts and first tokens i32[b].

        hidden T[sum of lengths, W]: the target's, where the draft reads them. Returns logits T[b, Vd] and
        hidden T[b, W] of each last row.
        """
        pairs = _pairs(rows, seq_lens)
        chunks = hidden.split([length for _, length in pairs]) if hidden is not None else [None] * len(pairs)
        last = torch.stack(
            [self._draft_prompt(*pair, token, chunk) for pair, token, chunk in zip(pairs, first, chunks, strict=True)]
        )
        return _forward(self.draft_model.logits(last), last, capture)

    def _prompt(self, row: int, length: int, keep: int | None) -> Tensor:
        """Run one request's tokens through the target: hidden T[length, W], or only the last `keep` rows."""
        tokens, shared = self._tokens(row, length)
        if not length:
            width = self.target_model.facts.hidden_size
            return torch.zeros((0, width), dtype=self.target_pool.shape.dtype, device=tokens.device)
        positions, paged = self._rest(self.target_pool, row, shared, length)
        states = self.target_model.forward(tokens[None, shared:], positions, paged)[0]
        if keep is not None:
            return states[-keep:].clone()
        return torch.cat((states.new_zeros(shared, states.shape[1]), states))

    def _draft_prompt(self, row: int, length: int, first: Tensor, hidden: Tensor | None) -> Tensor:
        """Run one request's draft prefill; the last hidden row T[W]."""
        if not length:
            width = self.draft_model.facts.hidden_size
            return torch.zeros(width, dtype=self.draft_pool.shape.dtype, device=first.device)
        tokens, shared = self._tokens(row, length)
        tokens = torch.cat((tokens[int(self.shifted) :], first.long()[None]))
        positions, paged = self._rest(self.draft_pool, row, shared, len(tokens))
        rest = None if hidden is None else hidden[None, shared:]
        return self.draft_model.forward(tokens[None, shared:], positions, paged, rest)[0, -1]

    def _tokens(self, row: int, length: int) -> tuple[Tensor, int]:
        """Return the tokens i64[length] of a pool row and how many are shared; ContractError on another length."""
        tokens, shared = self.prompts.get(row, Prompt(())) if row else Prompt(())
        if len(tokens) != length:
            raise ContractError(f"pool row {row} has {len(tokens)} tokens to prefill, the program asks for {length}")
        return torch.tensor(tokens, dtype=torch.int64, device=self.req_to_token.device), shared

    def _rest(self, pool: KVPool, row: int, start: int, end: int) -> tuple[Tensor, PagedContext]:
        """Return positions i64[1, end - start] and the context of a forward of one row over them."""
        positions = torch.arange(start, end, device=self.req_to_token.device)[None]
        rows = torch.tensor([row], device=positions.device)
        slots = self.req_to_token[rows, start:end].long()
        return positions, PagedContext(pool, self.req_to_token, rows, positions, slots, end)


def _forward(logits: Tensor, hidden: Tensor, capture: str | None) -> Forward:
    """Hand over hidden states only where the program captures them."""
    return Forward(logits, None if capture in (None, "null") else hidden)


def _pairs(rows: Tensor, seq_lens: Tensor) -> list[tuple[int, int]]:
    """Read (pool row, length) of every request back to the host."""
    return list(zip(rows.tolist(), seq_lens.tolist(), strict=True))

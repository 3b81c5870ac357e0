"""Grammars of requests: what may follow each node that a program verifies, by SGLang's own grammar objects.

SGLang compiles grammars, lets each follow the text of its request, and ends the request where the grammar does. Here
they only fill masks, along the nodes of a step, as SGLang's own verification has them do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from sglang.srt.runtime_context import get_exec
from torch import Tensor

from .. import seam

GrammarRow, generate_token_bitmask, async_d2h = seam.found(seam.GRAMMARS)
BACKENDS = ("xgrammar", "llguidance")
"""Grammar backends of SGLang that fill bitmasks, and take tokens back."""
ALL = -1
"""A word of a mask that allows all of its tokens."""


class Bitmask(NamedTuple):
    """What these callbacks return: i32[..., W], one bit for every token."""

    bitmask: Tensor


class Masks:
    """The callbacks of a program with grammars (docs/runtime.md), for one launch after the other.

    As long as no request has a grammar nothing is copied, and nobody waits.
    """

    def __init__(self, plans: Sequence[Any], device: torch.device) -> None:
        """Allocate the masks of the largest batch, if the program of these plans reads any; all tokens are allowed."""
        self._vocabulary = plans[0].size("V")
        self._words = -(-self._vocabulary // 32)
        most = max(plan.buckets[-1] * plan.size("N") for plan in plans) * self._words * plans[0].restricts
        self._masks = torch.full((most,), ALL, dtype=torch.int32, device=device)
        self._written = 0
        self._requests: Sequence[Any] = ()
        self._barrier: Callable[[], None] | None = None
        self._nodes: list[Tensor] = []
        self._arrived: Any = None

    def restrict(self, requests: Sequence[Any], barrier: Callable[[], None] | None = None) -> None:
        """Say whose grammars the next launch obeys, row by row of its batch.

        `barrier` lets the grammars follow what the step before has emitted, for which it waits. Not called if there is
        no grammar.
        """
        self._requests = requests if any(request.grammar is not None for request in requests) else ()
        self._barrier = barrier

    def begin(self, *, tokens: Tensor, rows: Tensor, seq_lens: Tensor, parent: Tensor | None = None) -> Bitmask:
        """Start to bring the nodes i64[b, N] to the host; where their masks i32[b, N, W] will be."""
        if self._requests:
            self._nodes = [async_d2h(rows) for rows in (tokens, parent) if rows is not None]
            self._arrived = torch.cuda.Event() if tokens.is_cuda else None
            if self._arrived is not None:
                self._arrived.record()
        return Bitmask(self._of(*tokens.shape))

    def end(self, *, begun: Tensor, rows: Tensor) -> Bitmask:
        """Wait for the nodes and for the step before, not for what was queued since, and make the masks."""
        requests, self._requests = self._requests, ()
        if requests:
            if self._barrier is not None:
                self._barrier()
            if self._arrived is not None:
                self._arrived.synchronize()
            tokens, *parents = (rows[: len(requests)] for rows in self._nodes)
            children, siblings = links(
                parents[0].tolist() if parents else [range(-1, tokens.shape[1] - 1)] * len(tokens)
            )
            self._send(begun, generate_token_bitmask(requests, children, siblings, tokens, self._vocabulary)[0])
        return Bitmask(begun)

    def prefill(self, *, rows: Tensor, seq_lens: Tensor) -> Bitmask:
        """The masks i32[b, W] of first tokens."""
        masks, requests, self._requests = self._of(len(rows), 1), self._requests, ()
        if requests:
            named = [
                GrammarRow(row, request.grammar) for row, request in enumerate(requests) if request.grammar is not None
            ]
            first = named[0].grammar
            filled = first.allocate_vocab_mask(vocab_size=self._vocabulary, batch_size=len(requests), device="cpu")
            first.fill_vocab_mask_batched([row for row in named if not row.grammar.is_terminated()], filled)
            self._send(masks, filled)
        return Bitmask(masks[:, 0])

    def _of(self, rows: int, nodes: int) -> Tensor:
        """The memory of some masks; all tokens are allowed, unless they are about to be written."""
        if self._written:
            self._masks[: self._written].fill_(ALL)
            self._written = 0
        return self._masks[: rows * nodes * self._words].view(rows, nodes, self._words)

    def _send(self, masks: Tensor, filled: Tensor | None) -> None:
        """Copy masks i32[n, W], which are pinned on the host, to the first of `masks`."""
        if filled is not None:
            self._written = filled.numel()
            masks.view(-1, self._words)[: len(filled)].copy_(filled, non_blocking=True)


def links(parents: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """The first child and the next sibling i64[b, N] of each node of trees, from their parents; -1 for none."""
    children = torch.full((len(parents), len(parents[0])), -1)
    siblings = children.clone()
    for tree, of in enumerate(parents):
        for column in range(len(of) - 1, 0, -1):
            if 0 <= of[column] < column:
                siblings[tree, column] = children[tree, of[column]]
                children[tree, of[column]] = column
    return children, siblings


def fills_bitmasks() -> bool:
    """Whether this server's grammars fill bitmasks, with what this SGLang has for it."""
    return seam.there(seam.GRAMMARS) and get_exec().kernel.grammar_backend in BACKENDS

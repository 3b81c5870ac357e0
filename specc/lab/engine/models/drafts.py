"""Drafts over paged memory. Which kind a program needs follows from the forwards that it calls.

| forwards | drafts |
|---|---|
| `draft`, `extend`, `prefill_draft` | `StandaloneDraft`, `EagleDraft`, `Eagle3Draft`: go on from what they gave |
| `assist` | `FrozenKvDraft`: reads the target's keys and values |
| `extend_module`, `prefill_module` | `MtpDraft`: a module for every step |
| `block`, `inject`, `prefill_inject` | `DflashDraft`: all drafts in one forward, perhaps with a Markov head |
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor
from transformers import PreTrainedModel

from specc.lab.engine.errors import UnsupportedModelError
from specc.lab.engine.memory.attention import PAGED
from specc.lab.engine.memory.context import PagedContext
from specc.lab.engine.memory.probing import CACHE, RECURRENT
from specc.lab.engine.models.causal_models import CausalModel, ModelSizes, has_static_rope
from specc.lab.engine.models.heads.dflash2_head import Dflash2Head
from specc.lab.engine.models.heads.dflash_head import DflashHead
from specc.lab.engine.models.heads.eagle3_head import Eagle3Head
from specc.lab.engine.models.heads.eagle_head import EagleHead, SharingHead
from specc.lab.engine.models.heads.frozen_kv_head import Attend, FrozenKvHead
from specc.lab.engine.models.heads.mtp_heads import ModuleHead, MtpHeads
from specc.lab.engine.models.scores import LmHead

HeadT = TypeVar("HeadT", bound=SharingHead)


class Draft(Protocol):
    """What an engine needs to know of any draft."""

    @property
    def facts(self) -> ModelSizes:
        """Its sizes."""
        ...

    @property
    def token_map(self) -> Tensor | None:
        """The target's tokens i64[Vd] that it scores, ascending; None for all."""
        ...

    def score_only(self, tokens: Tensor) -> None:
        """Score tokens i64[Vd] of the target alone, of a draft that scores all."""
        ...

    @property
    def capturable(self) -> bool:
        """Whether a forward can be captured as a CUDA graph."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the scores T[..., V] of the token after each hidden state T[..., H]."""
        ...

    def states(self, hidden: Tensor) -> Tensor:
        """Return what its head reads, T[..., H], of hidden states T[..., H]."""
        ...

    @property
    def weight(self) -> Tensor:
        """The weights T[V, H] of its head."""
        ...


class RecurrentDraft(Draft, Protocol):
    """A draft that goes on from what it gave before, with keys and values of its own."""

    reads_hidden: bool

    def forward(self, tokens: Tensor, positions: Tensor, paged: PagedContext, hidden: Tensor | None = None) -> Tensor:
        """Run tokens i64[b, n] at positions i64[b, n] through the layers: last hidden states T[b, n, H]."""
        ...

    def from_target(self, rows: Tensor) -> Tensor:
        """Bring rows that the target hands over, T[..., W], to what `forward` takes as hidden states."""
        ...


class StandaloneDraft(CausalModel):
    """An ordinary, smaller language model as draft."""

    reads_hidden = False
    token_map: Tensor | None = None
    _part: LmHead | None = None

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        """Take over a loaded model; UnsupportedModelError for one that keeps a recurrent state."""
        super().__init__(model, tokenizer)
        if self.facts.states:
            raise RECURRENT

    def score_only(self, tokens: Tensor) -> None:
        """See `Draft`."""
        self._part, self.token_map = LmHead(self.model, tokens), tokens
        self.facts = replace(self.facts, vocab_size=len(tokens))

    def logits(self, hidden: Tensor) -> Tensor:
        """The scores T[..., Vd] of the tokens that it scores."""
        return super().logits(hidden) if self._part is None else self._part(hidden)

    def states(self, hidden: Tensor) -> Tensor:
        """As they are: the last norm is behind its layers."""
        return hidden

    @property
    def weight(self) -> Tensor:
        """The weights T[Vd, H] of the tokens that it scores."""
        return (self._part or self._head).weight

    def forward(self, tokens: Tensor, positions: Tensor, paged: PagedContext, hidden: Tensor | None = None) -> Tensor:
        """Run tokens i64[b, n] at positions i64[b, n]: hidden states T[b, n, H]. Takes no `hidden`."""
        if hidden is not None:
            raise UnsupportedModelError("the program hands hidden states to a draft that reads none")
        return super().forward(tokens, positions, paged)

    def from_target(self, rows: Tensor) -> Tensor:
        """As they are: `forward` takes none."""
        return rows


class HeadDraft(Generic[HeadT]):
    """What drafts that are heads of the target have in common: they embed as it does."""

    def __init__(self, head: HeadT) -> None:
        """Take over a head that already shares its target's modules."""
        head.config._attn_implementation = PAGED
        self.head = head.eval()
        self.facts = ModelSizes.of(head.config, head.dtype)
        self.token_map: Tensor | None = None

    def score_only(self, tokens: Tensor) -> None:
        """See `Draft`."""
        if self.own_tokens is None:
            self.head.score_only(tokens)
        self.token_map, self.facts = tokens, replace(self.facts, vocab_size=len(tokens))

    @property
    def own_tokens(self) -> list[int] | None:
        """The target's tokens that the head's weights were made for; None for all."""
        return getattr(self.head, "own_tokens", None)

    @property
    def capturable(self) -> bool:
        """Whether a forward can be captured."""
        return has_static_rope(self.head.config)

    def logits(self, hidden: Tensor) -> Tensor:
        """The scores T[..., V] of each hidden state T[..., H]."""
        return self.head.logits(hidden)

    def states(self, hidden: Tensor) -> Tensor:
        """What `weight` multiplies, T[..., H], of hidden states T[..., H]."""
        return self.head.states(hidden)

    @property
    def weight(self) -> Tensor:
        """The weights T[V, H] of its head, the target's own or a copy of a part of it."""
        return self.head.weight


class RecurrentHead(HeadDraft[HeadT]):
    """A head that reads hidden states: the target's to begin with, then its own."""

    reads_hidden = True

    def forward(self, tokens: Tensor, positions: Tensor, paged: PagedContext, hidden: Tensor | None = None) -> Tensor:
        """Run the pairs (tokens i64[b, n], hidden T[b, n, H]) at positions i64[b, n]: hidden T[b, n, H]."""
        if hidden is None:
            raise UnsupportedModelError("the draft reads hidden states, and the program hands it none")
        with paged:
            return self.head(tokens, hidden, positions, **{CACHE: paged})

    def from_target(self, rows: Tensor) -> Tensor:
        """As they are: target and head have one width."""
        return rows


class EagleDraft(RecurrentHead[EagleHead | ModuleHead]):
    """An EAGLE head (arXiv 2401.15077): continues the target's hidden states, scores with the target's module.

    Or the module of multi-token prediction that the target is published with, which does the same.
    """


class Eagle3Draft(RecurrentHead[Eagle3Head]):
    """An EAGLE3 head (arXiv 2503.01840): starts from several layers of the target, scores with its own module."""

    def from_target(self, rows: Tensor) -> Tensor:
        """Project outputs of the target's layers T[..., aux * E] to the head's width."""
        return self.head.project(rows)


class FrozenKvDraft(HeadDraft[FrozenKvHead]):
    """A head without keys and values of its own, which asks the target's."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, hidden: Tensor) -> Tensor:
        """Ask for tokens i64[b, n] with hidden rows T[b, n, W] at positions i64[b, n]: hidden rows T[b, n, W]."""
        return self.head(tokens, hidden, positions, attend)


class MtpDraft(HeadDraft[MtpHeads]):
    """A module for every step, each over the target's hidden states and a KV layer of its own."""

    def forward(self, module: int, tokens: Tensor, positions: Tensor, paged: PagedContext, hidden: Tensor) -> Tensor:
        """Run a module on the pairs (tokens i64[b, n], hidden T[b, n, H]) at positions i64[b, n]: T[b, n, H]."""
        with paged:
            return self.head(module, tokens, hidden, positions, **{CACHE: paged})


class DflashDraft(HeadDraft[DflashHead]):
    """A head that fills in a whole block, over keys and values made of the target's layers."""

    def write(self, hidden: Tensor, positions: Tensor, paged: PagedContext) -> None:
        """Write keys and values of positions i64[b, n] from rows of the target T[b, n, aux * W]."""
        self.head.write(hidden, positions, paged=paged)

    @property
    def places(self) -> slice:
        """Which of the positions of bonus and drafts its block has."""
        return slice(-1) if self.head.anchored else slice(None)

    def forward(self, bonus: Tensor, positions: Tensor, paged: PagedContext) -> Tensor:
        """Fill in what follows the tokens bonus i64[b], at the `places` of positions i64[b, A]: rows T[b, A - 1, W]."""
        with paged:
            return self.head(bonus, positions, **{CACHE: paged})[:, int(not self.head.anchored) :]

    def selector_rows(self, rows: Tensor) -> Tensor:
        """What a head's selector makes of places' rows T[b, S, W], T[b, S, r]; TypeError of a head without one."""
        if not isinstance(self.head, Dflash2Head):
            raise TypeError(f"{type(self.head).__name__} has no selector")
        return self.head.selector_rows(rows)

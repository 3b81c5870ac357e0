"""A DSpark draft head: a DFlash head whose drafts are told, one after the other, which token stands before.

DSpark (arXiv 2607.05147) adds a Markov head of rank r to the block: a table ``markov_w1`` [V, r] has a row of every
token, and ``markov_w2`` times the row of the token before is added to the scores of the next one. The program adds it;
the head hands over scores without it, and both tables.

A draft may be *anchored*, as published ones are: the block is the bonus token and S - 1 masks, and every row gives the
scores of the token behind its own. Otherwise it is the block of a DFlash head. A head of confidence, which says how
many drafts are worth verifying, is left out: it changes none.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import PretrainedConfig

from specc.lab.engine.models.heads.dflash_head import DflashHead
from specc.lab.engine.models.heads.eagle_head import rows_of


class MarkovHead(nn.Module):
    """Both tables, called as in published checkpoints."""

    def __init__(self, tokens: int, entries: int, rank: int, spread: float) -> None:
        """Random tables of so many tokens, and of the entries that are scored."""
        super().__init__()
        self.markov_w1, self.markov_w2 = nn.Embedding(tokens, rank), nn.Linear(rank, entries, bias=False)
        for table in (self.markov_w1, self.markov_w2):
            nn.init.normal_(table.weight, std=spread)

    def forward(self, before: Tensor) -> Tensor:
        """The bias T[..., Vd] behind tokens i64[...]."""
        return self.markov_w2(self.markov_w1(before))


class DsparkHead(DflashHead):
    """A DFlash head with a `MarkovHead`.

    The config says ``markov_rank``, and perhaps ``sample_from_anchor``, beside ``dflash_config`` or in it.
    """

    def __init__(self, config: PretrainedConfig) -> None:
        """Random weights in the shapes of ``config``."""
        super().__init__(config)
        entries = getattr(config, "draft_vocab_size", None) or config.vocab_size
        rank = self._option("markov_rank", 0)
        if rank < 1:
            raise ValueError("the config says no markov_rank")
        self.markov_head = MarkovHead(config.vocab_size, entries, rank, config.initializer_range)

    @property
    def anchored(self) -> bool:
        """See `DflashHead.anchored`."""
        return bool(self._option("sample_from_anchor", True))

    def _option(self, name: str, default: Any) -> Any:
        return self.config.dflash_config.get(name, getattr(self.config, name, default))

    @property
    def markov_tables(self) -> tuple[Tensor, Tensor]:
        """The tables T[V, r] and T[Vd, r]."""
        return self.markov_head.markov_w1.weight.detach(), self.markov_head.markov_w2.weight.detach()

    def score_only(self, tokens: Tensor) -> None:
        """See `SharingHead.score_only`; the bias is of these tokens, too."""
        super().score_only(tokens)
        self.markov_head.markov_w2 = rows_of(self.markov_head.markov_w2, tokens)

    def adapt(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """As published, without the head of confidence."""
        return {name: weight for name, weight in weights.items() if not name.startswith("confidence_head.")}

"""Models whose logits depend on the token before and on its position, for so many requests that texts can be counted.

They keep no keys and values. A grammar allows tokens by the token before.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor


class MarkovEngine:
    """Callbacks of a program whose draft is a language model of its own.

    Attributes:
        prompt: what every request begins with, but for its last token.
        last: i64[P], by pool row.
        target, draft: logits f32[2, V, V] by the parity of a position and the token there.
        bitmask: i32[P, V, words], by pool row and the token before, the tokens that may follow.

    """

    capturable = False

    def __init__(self, prompt: list[int], target: Tensor, draft: Tensor, bitmask: Tensor) -> None:
        """Know models and grammars; the prompts of all rows end alike."""
        self.prompt, self.tables, self.bitmask = prompt, {"target": target, "draft": draft}, bitmask
        self.last = torch.full((len(bitmask),), prompt[-1])

    def _rows(self, role: str, tokens: Tensor, positions: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.tables[role][positions % 2, tokens.long()])

    def target(self, *, tokens: Tensor, positions: Tensor, mask: Tensor | None = None, **_: object) -> SimpleNamespace:
        """Logits [b, N, V]."""
        return self._rows("target", tokens, positions)

    def target_rows(self, *, tokens: Tensor, positions: Tensor, **_: object) -> SimpleNamespace:
        """Logits [b, G, V] of packed rows."""
        return self._rows("target", tokens, positions)

    def draft(self, *, tokens: Tensor, positions: Tensor, **_: object) -> SimpleNamespace:
        """Logits [b, K, V]."""
        return self._rows("draft", tokens, positions)

    def extend(self, *, tokens: Tensor, positions: Tensor, select: Tensor, **_: object) -> SimpleNamespace:
        """Logits [b, V] after the selected tokens."""
        return self._rows("draft", *(of.reshape(-1)[select.long()] for of in (tokens, positions)))

    def prefill_target(self, *, rows: Tensor, seq_lens: Tensor, **_: object) -> SimpleNamespace:
        """Logits [b, V] after the prompt."""
        assert bool((seq_lens == len(self.prompt)).all())
        return self._rows("target", self.last[rows], seq_lens - 1)

    def prefill_draft(self, *, first: Tensor, seq_lens: Tensor, **_: object) -> SimpleNamespace:
        """Logits [b, V] after the first tokens."""
        return self._rows("draft", first, seq_lens)

    def grammar_begin(self, *, tokens: Tensor, rows: Tensor, **_: object) -> SimpleNamespace:
        """Masks [b, n, words]."""
        return SimpleNamespace(bitmask=self.bitmask[rows[:, None], tokens])

    def grammar_end(self, *, begun: Tensor, **_: object) -> SimpleNamespace:
        """The same."""
        return SimpleNamespace(bitmask=begun)

    def grammar_prefill(self, *, rows: Tensor, **_: object) -> SimpleNamespace:
        """Masks [b, words] after the prompt."""
        return SimpleNamespace(bitmask=self.bitmask[rows, self.last[rows]])


class BlockEngine(MarkovEngine):
    """The draft fills in a block: its logits f32[2, V] are by the parity of the position before, whatever is there.

    It reads rows of the target, of so many elements, which say nothing.
    """

    width, rank = 32, 5

    def target(self, *, tokens: Tensor, positions: Tensor, mask: Tensor | None = None, **_: object) -> SimpleNamespace:
        """Logits [b, N, V], and rows [b, N, W]."""
        logits = super().target(tokens=tokens, positions=positions).logits
        return SimpleNamespace(logits=logits, hidden=torch.zeros(*tokens.shape, self.width))

    def target_rows(self, *, tokens: Tensor, positions: Tensor, **_: object) -> SimpleNamespace:
        """The same of packed rows."""
        return self.target(tokens=tokens, positions=positions)

    def prefill_target(self, *, rows: Tensor, seq_lens: Tensor, **_: object) -> SimpleNamespace:
        """Logits [b, V] after the prompt, and rows [T, W] of its tokens."""
        logits = super().prefill_target(rows=rows, seq_lens=seq_lens).logits
        return SimpleNamespace(logits=logits, hidden=torch.zeros(int(seq_lens.sum()), self.width))

    def block(self, *, positions: Tensor, capture: str, **_: object) -> SimpleNamespace:
        """Logits [b, S, V], of all rows but the bonus token's; ones for a selector, [b, S, rank]."""
        logits = self.tables["draft"][positions[:, :-1] % 2]
        if capture == "null":
            return SimpleNamespace(logits=logits)
        return SimpleNamespace(logits=logits, hidden=torch.ones(*logits.shape[:2], self.rank))

    def inject(self, **_: object) -> None:
        """Nothing is kept."""

    prefill_inject = inject

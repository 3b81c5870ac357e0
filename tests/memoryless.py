"""Drafting without any KV memory: every draft from scratch, over whole texts. Slow, and right by construction.

It is what the engine's drafts are compared with: what they would be in a request that shares no pages with others and
is never thrown out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import DynamicCache

from specc.lab.engine.memory.attention import plain_attention
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.models.drafts import (
    DflashDraft,
    Draft,
    Eagle3Draft,
    EagleDraft,
    FrozenKvDraft,
    MtpDraft,
    StandaloneDraft,
)
from specc.lab.engine.models.heads.dflash2_head import Dflash2Head
from specc.lab.engine.models.heads.dspark_head import DsparkHead
from specc.lab.engine.models.heads.eagle_head import SharingHead

Path: TypeAlias = Sequence[tuple[int, Tensor]]
"""Drafted tokens from the first one on, each with the hidden row T[W] that the draft is given along with it."""

DraftT = TypeVar("DraftT", bound=Draft)


def memoryless(target: TargetModel, draft: Draft, text: Sequence[int], *, shifted: bool) -> Memoryless[Any]:
    """A draft over a text; `shifted` says how a language model of its own sees it, heads always do.

    Raises TypeError for a draft of another kind than those of `specc.lab.engine.models.drafts`.
    """
    if isinstance(draft, StandaloneDraft):
        return Standalone(target, draft, text, shifted=shifted)
    kinds: dict[type, type[Memoryless[Any]]] = {
        EagleDraft: Eagle,
        Eagle3Draft: Eagle,
        FrozenKvDraft: FrozenKv,
        MtpDraft: Mtp,
        DflashDraft: Dflash,
    }
    if type(draft) not in kinds:
        raise TypeError(f"no reference for a draft of type {type(draft).__name__}")
    return kinds[type(draft)](target, draft, text)


class Memoryless(ABC, Generic[DraftT]):
    """A draft after beginnings of one text, which grow from call to call."""

    def __init__(self, target: TargetModel, draft: DraftT, text: Sequence[int]) -> None:
        """Read the whole text with the target."""
        self.target, self.draft = target, draft
        self.tokens = torch.tensor(list(text), device=target.device)
        self.cache = DynamicCache()
        with plain_attention(target.model):
            out = target.model.base_model(input_ids=self.tokens[None], past_key_values=self.cache)
        self.hidden = target.handed_over(out.last_hidden_state)[0]

    @abstractmethod
    def chain(self, known: int, steps: int) -> list[int]:
        """The tokens drafted after the first `known` of the text, all but the last of which the target has read."""

    def best(self, scores: Tensor) -> list[int]:
        """The most likely token of every row of scores T[n, Vd], or of one T[Vd]."""
        columns = scores.argmax(-1).reshape(-1)
        return (columns if self.draft.token_map is None else self.draft.token_map[columns]).tolist()


class Growing(Memoryless[DraftT]):
    """A draft that is run again on what it drafted, and so may branch."""

    @abstractmethod
    def run(self, known: int, path: Path) -> tuple[Tensor, Tensor]:
        """Scores T[V] and hidden row T[W] after the first `known` tokens of the text and a drafted path."""

    def chain(self, known: int, steps: int) -> list[int]:
        """The most likely tokens, one after the other."""
        path: list[tuple[int, Tensor]] = []
        for _ in range(steps):
            scores, hidden = self.run(known, path)
            path.append((self.best(scores)[0], hidden))
        return [token for token, _ in path]


class Standalone(Growing[StandaloneDraft]):
    """A language model of its own: it reads the text, shifted without the first token."""

    def __init__(self, target: TargetModel, draft: StandaloneDraft, text: Sequence[int], *, shifted: bool) -> None:
        """Read the whole text with the target."""
        super().__init__(target, draft, text)
        self.start = int(shifted)

    def run(self, known: int, path: Path) -> tuple[Tensor, Tensor]:
        """Run the text and the path; the rows of the path are not read."""
        drafted = self.tokens.new_tensor([token for token, _ in path])
        ids = torch.cat((self.tokens[self.start : known], drafted))
        with plain_attention(self.draft.model):
            state = self.draft.model.base_model(input_ids=ids[None], use_cache=False).last_hidden_state[0, -1]
        return self.draft.logits(state), state


class Eagle(Growing[EagleDraft | Eagle3Draft]):
    """A head that reads rows of the target, then its own."""

    def run(self, known: int, path: Path) -> tuple[Tensor, Tensor]:
        """Run all pairs of token and row."""
        ids = torch.cat((self.tokens[1:known], self.tokens.new_tensor([token for token, _ in path])))
        rows = torch.cat((self.draft.from_target(self.hidden[: known - 1]), *(row[None] for _, row in path)))
        with plain_head(self.draft.head):
            state = self.draft.head(ids[None], rows[None], _positions(ids))[0, -1]
        return self.draft.logits(state), state


class FrozenKv(Growing[FrozenKvDraft]):
    """A head that reads the target's keys and values of what the target has read, from its last position."""

    def run(self, known: int, path: Path) -> tuple[Tensor, Tensor]:
        """Run the last token of the path, or of the text."""
        token, row = path[-1] if path else (int(self.tokens[known - 1]), self.hidden[known - 2])
        ids, positions = (torch.tensor([[value]], device=row.device) for value in (token, known - 2))

        def attend(layer: int, query: Tensor) -> Tensor:
            first = max(0, known - 1 - (self.target.sliding_window(layer) or known))
            kept: Any = self.cache.layers[layer]
            keys, values = (part[:, :, first : known - 1] for part in (kept.keys, kept.values))
            out = scaled_dot_product_attention(query, keys, values, enable_gqa=True)
            return out.transpose(1, 2)

        state = self.draft.head(ids, row[None, None], positions, attend)[0, 0]
        return self.draft.logits(state), state


class Mtp(Memoryless[MtpDraft]):
    """Modules over the target's rows. A module keeps what it read at a position, be it a draft that came to nothing."""

    def __init__(self, target: TargetModel, draft: MtpDraft, text: Sequence[int]) -> None:
        """Read the whole text with the target."""
        super().__init__(target, draft, text)
        self.read: dict[int, list[int]] = {}

    def chain(self, known: int, steps: int) -> list[int]:
        """One token from each module, over what all of them read before and what has been accepted since."""
        ahead = self.tokens[:known].tolist()
        for module in range(steps):
            read = self.read.setdefault(module, [])
            read += ahead[1 + module + len(read) : known + module]
            ids = torch.tensor([read], device=self.tokens.device)
            with plain_head(self.draft.head):
                state = self.draft.head(module, ids, self.hidden[None, : known - 1], _positions(ids[0]))[0, -1]
            ahead += self.best(self.draft.logits(state))
        return ahead[known:]


class Dflash(Memoryless[DflashDraft]):
    """A head that fills in a block over a context made of the target's rows."""

    def rows(self, known: int, steps: int) -> Tensor:
        """Rows T[steps, W] of all places."""
        bonus, context = self.tokens[known - 1 : known], self.hidden[None, : known - 1]
        head, cache = self.draft.head, DynamicCache()
        for layer, (keys, values) in enumerate(head.keys_and_values(context, _positions(context[0]))):
            cache.update(keys, values, layer)
        first = 0 if head.anchored else 1  # row with the scores of a draft
        positions = known - 1 + torch.arange(first + steps, device=bonus.device)
        everything = torch.ones(1, 1, first + steps, known - 1 + first + steps, dtype=torch.bool, device=bonus.device)
        with plain_head(head):
            return head(bonus, positions[None], attention_mask=everything, past_key_values=cache)[0, first:]

    def scores(self, known: int, steps: int, chosen: Callable[[Tensor, int], int] | None = None) -> Tensor:
        """Scores T[steps, Vd] of all places.

        Those of a Markov head or a selector are behind the draft before, the best one or as `chosen` of its scores.
        """
        rows = self.rows(known, steps)
        scores = self.draft.logits(rows)
        if not isinstance(self.draft.head, DsparkHead | Dflash2Head):
            return scores
        before, behind = self.tokens[known - 1].item(), list[Tensor]()
        for place, (row, score) in enumerate(zip(rows, scores, strict=True)):
            behind.append(self._behind(row, score, torch.tensor(before, device=scores.device)))
            before = self.best(behind[-1])[0] if chosen is None else chosen(behind[-1], place)
        return torch.stack(behind)

    def chain(self, known: int, steps: int) -> list[int]:
        """The best drafts of all places."""
        return self.best(self.scores(known, steps)) if steps else []

    def _behind(self, row: Tensor, score: Tensor, before: Tensor) -> Tensor:
        """Scores T[Vd] of a place behind a token; of a selector -inf of all that are no candidates."""
        head = self.draft.head
        if isinstance(head, DsparkHead):
            return score + head.markov_head(before)
        assert isinstance(head, Dflash2Head)
        bias = head.candidate_selector(row, before)
        bias = bias if self.draft.token_map is None else bias[self.draft.token_map]
        candidates = score.topk(head.config.dflash_config["selector_top_k"]).indices
        return torch.full_like(score, -torch.inf).index_copy(0, candidates, (score + bias)[candidates])


def _positions(rows: Tensor) -> Tensor:
    """The positions i64[1, n] of n rows."""
    return torch.arange(len(rows), device=rows.device)[None]


@torch.no_grad()
def accepted_lengths(
    target: TargetModel, draft: Draft, text: Sequence[int], prompt_len: int, steps: int, *, shifted: bool
) -> tuple[int, ...]:
    """How many tokens each decode step of a chain of `steps` drafts commits while it writes `text`.

    `text` is the prompt and the target's greedy continuation. What the draft gets right is computed without KV
    memory. It tells whether a low accepted length is the draft's fault or the engine's.
    """
    drafts = memoryless(target, draft, text, shifted=shifted)
    lengths: list[int] = []
    at = prompt_len + 1  # tokens known: the prompt and the prefill's token
    while at < len(text):
        wanted = text[at : at + steps]
        pairs = enumerate(zip(drafts.chain(at, steps), wanted, strict=False))
        wrong = next((index for index, (token, right) in pairs if token != right), len(wanted))
        lengths.append(1 + wrong)
        at += lengths[-1]
    return tuple(lengths)


def emitted(lengths: Iterable[int], decoded: int) -> tuple[int, ...]:
    """What steps that commit so many tokens emit of a text that ends when so many are decoded, wherever in a step."""
    kept: list[int] = []
    for length in lengths:
        if decoded <= sum(kept):
            break
        kept.append(min(length, decoded - sum(kept)))
    assert sum(kept) == decoded, "the lengths are of a shorter text"
    return tuple(kept)


@contextmanager
def plain_head(head: SharingHead) -> Iterator[None]:
    """Run a head with transformers' own attention inside the block."""
    before, head.config._attn_implementation = head.config._attn_implementation, "sdpa"
    try:
        yield
    finally:
        head.config._attn_implementation = before

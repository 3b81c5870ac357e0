"""The models of a stand-in of a vLLM server: its target, and what drafts; all of them say what codes of a text are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specc.compiler.ir.ops.head import MARKOV
from specc.runtime.plan.plan import Plan

from .memory import Memory
from .models import (
    NO_HIDDEN,
    Model,
    block_code,
    draft_code,
    fold,
    fold_all,
    hidden_code,
    injected_code,
    mix,
    target_code,
    target_scores,
)  # fmt: skip
from .tables import tame_models
from .vllm_modules import MASK, DSparkMarkovHead, looked_up

if TYPE_CHECKING:
    from .vllm_server import Server

TARGET, DRAFT = 0, 1
"""Groups of KV caches."""
POISON = 1 << 40
"""No row of scores is of this token."""


class Target:
    """The target, which is what it says after a text; a forward keeps nothing but the scores of its last tokens.

    Attributes:
        tokens: those that its last forward read.
        place: where its forwards leave hidden states, as vLLM's graphs do; None: anywhere.

    """

    place: Tensor | None = None

    def __init__(self, plan: Plan) -> None:
        self.model = tame_models(plan)["target"]
        self._padded = -(-plan.size("V") // 64) * 64
        self._width = plan.models["target"].hidden_size

    def hidden(self, text: Sequence[int]) -> Tensor:
        """The hidden rows of all places of a text."""
        seen, rows = 0, list[int]()
        for position, token in enumerate(text):
            seen = fold(seen, target_code(token, position))
            rows.append(self.model.hidden_row(seen))
        states = self.model.hidden[rows]
        return states.expand(-1, self._width) if states.shape[1] == 1 else states  # where no draft reads them

    def forward(self, texts: Sequence[Sequence[int]], counts: Sequence[int]) -> Tensor:
        """The hidden states of the last tokens of texts, so many of each."""
        scores, hidden = list[Tensor](), list[Tensor]()
        for text, count in zip(texts, counts, strict=True):
            scores += [target_scores(self.model, text[:end]) for end in range(len(text) - count + 1, len(text) + 1)]
            hidden.append(self.hidden(text)[-count:])
        self.tokens = torch.tensor(
            [token for text, count in zip(texts, counts, strict=True) for token in text[-count:]]
        )
        self._scores = torch.stack(scores)
        self._last = torch.cat([*hidden, torch.zeros_like(hidden[0])])  # rows of padding behind
        if self.place is None or len(self._last) > len(self.place):
            return self._last
        left = self.place[: len(self._last)]
        return left.copy_(self._last)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Scores of the last forward, as rows of a padded vocabulary, and of padding behind it."""
        scored = len(self._scores)
        assert torch.equal(hidden[:scored], self._last[:scored])
        whole = torch.full((len(hidden), self._padded), torch.inf)
        whole[:scored, : self._scores.shape[1]] = self._scores
        return whole[:, : self._scores.shape[1]]


class Draft:
    """What drafts: a language model, or a head that sees the token behind each of the target's hidden states.

    Its keys and values are in blocks, of which it finds what it is told of.
    """

    def __init__(self, plan: Plan, blocks: int, server: Server) -> None:
        self.model, self._server, self._page = tame_models(plan)["draft"], server, plan.kv.page_size
        self.memory = Memory.of_pool(plan.kv_pools["draft"], blocks * self._page, torch.device("cpu"))
        self._shifted, self._steps = plan.kv.shifted, plan.size("S")
        self._before = self.memory.words.clone()

    def forget(self, blocks: Sequence[int]) -> None:
        """Of blocks that nobody has any more, what is in them stays."""
        slots = self._slots(blocks)
        self._before[:, slots] = self.memory.words[:, slots]

    def _slots(self, blocks: Sequence[int]) -> Tensor:
        return (torch.tensor(blocks)[:, None] * self._page + torch.arange(self._page)).flatten()

    def check_free(self, blocks: Sequence[int]) -> None:
        """Nobody has written into blocks which no request has."""
        slots = self._slots(blocks)
        assert torch.equal(self.memory.words[:, slots], self._before[:, slots])

    # --- in vLLM ------------------------------------------------------------------------------------------------------

    def run(
        self, ids: Tensor, positions: Tensor, metadata: Any, slots: Tensor, hidden: Tensor | None,
        layer: int | None = None,
    ) -> Any:  # fmt: skip
        """What of hidden states scores tokens, and what the next forward reads, of tokens of a batch.

        `layer` is the only one that keeps and reads keys and values; None: all.
        """
        assert torch.equal(slots, metadata.slots)
        codes = NO_HIDDEN if hidden is None else hidden_code(hidden)
        self.memory.write(slots, draft_code(ids, positions, codes), layer)
        seen: list[int] = []
        for place, position in enumerate(positions.tolist()):
            row = int((metadata.starts <= place).sum()) - 1
            assert 0 <= position < int(metadata.seq_lens[row]) <= metadata.max_seq_len
            at = torch.arange(position + 1)
            held = metadata.tables[DRAFT][row, at // self._page].long() * self._page + at % self._page
            seen.append(fold_all(0, self.memory.read(held, layer).tolist()))
        states = torch.tensor(seen)
        return torch.stack((ids, states), 1), self.model.hidden[self.model.hidden_row(states)]

    def compute_logits(self, states: Tensor) -> Tensor:
        """Scores of what a forward has left."""
        return self.model.logits[self.model.row(*states.unbind(1))]

    def own_drafts(self, rows: Any) -> Tensor:
        """Drafts i64[b, S] by vLLM itself, of the texts of requests in these rows, whose keys and values it writes."""
        drafts = list[list[int]]()
        for row in rows.tolist():
            codes, made = self.drafts(self._server.text(row))
            at = torch.arange(len(codes))
            blocks = self._server.tables.block_tables[DRAFT].gpu[row, at // self._page].long()
            self.memory.write(blocks * self._page + at % self._page, torch.tensor(codes))
            drafts.append(made)
        return torch.tensor(drafts)

    # --- by itself ----------------------------------------------------------------------------------------------------

    def drafts(self, text: Sequence[int]) -> tuple[list[int], list[int]]:
        """The codes of its keys and values after a text, and what it drafts then."""
        if self._shifted:
            hidden = hidden_code(self._server.target.hidden(text)).tolist()
            codes = [draft_code(*of) for of in zip(text[1:], range(len(text) - 1), hidden, strict=False)]
        else:
            codes = [draft_code(token, position, NO_HIDDEN) for position, token in enumerate(text)]
        seen, token, made = fold_all(0, codes), text[-1], list[int]()
        for place in range(len(codes), len(codes) + self._steps):
            scores = self.model.rows[self.model.row(token, seen)]
            made.append(token := scores.index(max(scores)))
            given = self.model.hidden_codes[self.model.hidden_row(seen)] if self._shifted else NO_HIDDEN
            seen = fold(seen, draft_code(token, place, given))
        return codes, made


class Modules(Draft):
    """Several modules, each with a layer; each reads what the one before it made, and a token further in the text."""

    def __init__(self, plan: Plan, blocks: int, server: Server) -> None:
        """Make hidden states as wide as the target's."""
        super().__init__(plan, blocks, server)
        width = plan.models["target"].hidden_size
        self.model = replace(self.model, hidden=self.model.hidden.expand(-1, width).contiguous())

    def check_free(self, blocks: Sequence[int]) -> None:
        """And the last places of every text are kept, as far as it has them."""
        super().check_free(blocks)
        for row in self._server.steps:
            self._check_kept(row, self._server.text(row))

    def own_drafts(self, rows: Any) -> Tensor:
        """As of a draft; and keeps the last places of every text, where those of the text before the step are."""
        drafts = list[list[int]]()
        for row, emitted in zip(rows.tolist(), self._server.output.num_sampled.tolist(), strict=True):
            layers, made = self._ran(text := self._server.text(row))
            if len(text) - emitted > self._server.prompts[row]:
                self._check_kept(row, text[:-emitted])
            at = torch.arange(len(layers[0]))
            blocks = self._server.tables.block_tables[DRAFT].gpu[row, at // self._page].long()
            for layer, codes in enumerate(layers):
                self.memory.write(blocks * self._page + at % self._page, torch.tensor(codes), layer)
            for kept, new in zip(self._kept(row), self._last(text), strict=True):
                kept[len(kept) - len(new) :] = new
            drafts.append(made)
        return torch.tensor(drafts)

    def drafts(self, text: Sequence[int]) -> tuple[list[int], list[int]]:
        """The codes of the first module, and the drafts."""
        layers, made = self._ran(text)
        return layers[0], made

    def _ran(self, text: Sequence[int]) -> tuple[list[list[int]], list[int]]:
        """By module the codes of its keys and values after a text, and what all of them draft then."""
        tokens, given = [*text], hidden_code(self._server.target.hidden(text[:-1])).tolist()
        layers, made = list[list[int]](), list[int]()
        for module in range(self._steps):
            codes = [draft_code(*of) for of in zip(tokens[module + 1 :], range(len(given)), given, strict=True)]
            seen = [fold_all(0, codes[: place + 1]) for place in range(len(codes))]
            scores = self.model.rows[self.model.row(tokens[-1], seen[-1])]
            made.append(scores.index(max(scores)))
            tokens, given = [*tokens, made[-1]], [self.model.hidden_codes[self.model.hidden_row(text)] for text in seen]
            layers.append(codes)
        return layers, made

    def _check_kept(self, row: int, text: Sequence[int]) -> None:
        for kept, expected in zip(self._kept(row), self._last(text), strict=True):
            assert torch.equal(kept[len(kept) - len(expected) :], expected)

    def _kept(self, row: int) -> tuple[Tensor, Tensor]:
        speculator = self._server.runner.speculator
        return speculator.cached_draft_input_ids[row], speculator.cached_target_hidden_states[row]

    def _last(self, text: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Tokens and hidden states of the last places of a text, one less than there are drafts at most."""
        most = min(self._steps - 1, len(text) - 1)
        return torch.tensor(text[len(text) - most :]), self._server.target.hidden(text[:-1])[len(text) - 1 - most :]


class Assistant(Draft):
    """Drafts by what the target keeps, in blocks of both groups, and keeps nothing itself.

    A block of each has as many slots as one of the larger group, of which the other uses some.
    """

    def __init__(self, plan: Plan, blocks: int, server: Server) -> None:
        self.model, self._server, self._steps = tame_models(plan)["draft"], server, plan.size("S")
        self._page = max(server.tables.block_sizes)
        self.memory = Memory(blocks * self._page, layers=1, per_layer=1, row_bytes=8, dtype="float32")
        self._before = self.memory.words.clone()

    def keep(self, row: int, text: Sequence[int], count: int) -> None:
        """The target has read the last tokens of a request's text, so many."""
        places = torch.arange(len(text) - count, len(text))
        for group, table in enumerate(self._server.tables.block_tables):
            self.memory.write(
                self._held(group, table.gpu[row], places), target_code(torch.tensor(text)[places], places)
            )

    def _held(self, group: int, table: Tensor, places: Tensor) -> Tensor:
        """The slots of places of a text, by the blocks that it has of a group."""
        size = self._server.tables.block_sizes[group]
        return table[places // size].long() * self._page + places % size

    def run(
        self, ids: Tensor, positions: Tensor, metadata: Any, slots: Tensor, hidden: Tensor | None,
        layer: int | None = None,
    ) -> Any:  # fmt: skip
        """As a draft's. A forward has one token of every request, at the last place that the target has read."""
        assert hidden is not None and layer is None
        assert slots.tolist() == [-1] * len(ids), "nothing is kept"
        assert metadata.starts.tolist() == [*range(len(ids) + 1)]
        assert torch.equal(positions + 1, metadata.seq_lens) and int(metadata.seq_lens.max()) <= metadata.max_seq_len
        seen: list[int] = []
        for row, length in enumerate(metadata.seq_lens.tolist()):
            at = torch.arange(length)
            held = (self._held(group, table[row], at) for group, table in enumerate(metadata.tables))
            seen.append(mix(*(fold_all(0, self.memory.read(slots).tolist()) for slots in held)))
        states = mix(6, torch.tensor(seen), positions, ids, hidden_code(hidden))
        return torch.stack((ids, states), 1), self.model.hidden[self.model.hidden_row(states)]

    def own_drafts(self, rows: Any) -> Tensor:
        """Drafts i64[b, S] by vLLM itself, of the texts of requests in these rows."""
        return torch.tensor([self.drafts(self._server.text(row))[1] for row in rows.tolist()])

    def drafts(self, text: Sequence[int]) -> tuple[list[int], list[int]]:
        """No codes, and the drafts."""
        kept = fold_all(0, [target_code(token, position) for position, token in enumerate(text[:-1])])
        given, token, made = int(hidden_code(self._server.target.hidden(text[:-1])[-1])), text[-1], list[int]()
        for _ in range(self._steps):
            state = mix(6, mix(kept, kept), len(text) - 2, token, given)
            scores = self.model.rows[self.model.row(token, state)]
            made.append(token := scores.index(max(scores)))
            given = self.model.hidden_codes[self.model.hidden_row(state)]
        return [], made


class Blocks(Draft):
    """A draft that fills in a block at once, whose keys and values of a text are made of the target's rows.

    Attributes:
        anchored: whether the first draft is in the bonus token's place of the block.

    """

    anchored = False

    # --- in vLLM ------------------------------------------------------------------------------------------------------

    def fill(self, ids: Tensor, positions: Tensor, metadata: Any, slots: Tensor) -> Tensor:
        """Of each place of the blocks of a batch the token that seems to stand before it, and what it has seen."""
        assert torch.equal(slots, metadata.slots)
        tokens, places = ids.view(len(metadata.seq_lens), -1), positions.view(len(metadata.seq_lens), -1)
        assert bool((tokens[:, 1:] == MASK).all()), "places to fill"
        self.memory.write(slots.view(places.shape), block_code(tokens[:, :1], places))
        left = list[list[tuple[int, int]]]()
        for row, (bonus, ends) in enumerate(zip(tokens[:, 0].tolist(), metadata.seq_lens.tolist(), strict=True)):
            assert int(places[row, -1]) < ends <= metadata.max_seq_len
            at = torch.arange(ends)
            held = metadata.tables[DRAFT][row, at // self._page].long() * self._page + at % self._page
            seen = fold_all(0, self.memory.read(held, None).tolist())
            left.append([(POISON, POISON)] * (1 - self.anchored) + self._filled(bonus, seen))
        return torch.tensor(left).flatten(0, 1)

    def combine_hidden_states(self, hidden_states: Tensor) -> Tensor:
        """One number of each of the target's rows T[n, W]."""
        return hidden_code(hidden_states)

    def precompute_and_store_context_kv(
        self, context_states: Tensor, context_positions: Tensor, context_slot_mapping: list[Tensor] | None = None
    ) -> None:
        """Keys and values of a text, at slots i64[n] of each layer."""
        assert context_slot_mapping is not None
        for layer, slots in enumerate(context_slot_mapping):
            self.memory.write(slots, injected_code(context_positions, context_states), layer)

    # --- by itself ----------------------------------------------------------------------------------------------------

    def drafts(self, text: Sequence[int]) -> tuple[list[int], list[int]]:
        """The codes of its keys and values after a text, a block's behind them, and what it drafts then."""
        hidden = hidden_code(self._server.target.hidden(text[:-1])).tolist()
        codes = [injected_code(*of) for of in enumerate(hidden)]
        codes += [block_code(text[-1], len(hidden) + place) for place in range(self._steps + 1 - self.anchored)]
        made, before = list[int](), text[-1]
        for of in self._filled(text[-1], fold_all(0, codes)):
            scores = self.model.logits[self.model.row(*of)] + self.bias(before)
            made.append(before := int(scores.argmax()))
        return codes[: self._server.longest], made

    def bias(self, before: int) -> Any:
        """What is added to the scores of a draft behind a token: nothing."""
        return 0

    def _filled(self, bonus: int, seen: int) -> list[tuple[int, int]]:
        """Of every place to fill, behind a bonus token, as if what mostly comes next stood before it."""
        made = list[tuple[int, int]]()
        for place in range(self._steps):
            made.append((bonus, fold(seen, place)))
            bonus = self.model.follow(bonus)
        return made


@dataclass(frozen=True)
class Headed(Model):
    """A model with a Markov head."""

    markov_head: Any = None


class Qwen3DSparkForCausalLM(Blocks):
    """The same, whose drafts are told of the one before; rows of its tables are of whole numbers."""

    anchored, draft_id_to_target_id = True, None

    def __init__(self, plan: Plan, blocks: int, server: Server) -> None:
        """Draw a Markov head, whose second table is padded as all heads are."""
        super().__init__(plan, blocks, server)
        random, rank = torch.Generator().manual_seed(7), plan.inputs[MARKOV[0]].axes[1]
        sizes = (plan.size("V"), plan.size(rank)), (plan.size("V") + 5, plan.size(rank))
        self.tables = [torch.randint(-2, 3, size, generator=random).float() for size in sizes]
        said = {field.name: getattr(self.model, field.name) for field in fields(self.model)}
        self.model = Headed(**said, markov_head=DSparkMarkovHead(*self.tables))
        self.logits_processor = SimpleNamespace(scale=1.0)

    def bias(self, before: int) -> Any:
        """A row of one table times the other."""
        first, second = self.tables
        return first[before] @ second[: len(first)].T


class Looked:
    """Drafts that are looked up in the text."""

    def __init__(self, plan: Plan, server: Server) -> None:
        self._server, self._steps, self._options = server, plan.size("S"), plan.options

    def own_drafts(self, rows: Any) -> Tensor:
        """Drafts i64[b, S] of the texts of requests in these rows."""
        return torch.tensor([self.drafts(self._server.text(row))[1] for row in rows.tolist()])

    def drafts(self, text: Sequence[int]) -> tuple[list[int], list[int]]:
        """No codes, and the drafts."""
        return [], looked_up([*text], self._steps, self._options["longest"], self._options["shortest"])

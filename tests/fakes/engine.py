"""Forwards over keys and values in memory: what they see is what they find at the slots that they are told.

Nothing waits for the device but a prefill, so that a step can be captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from specc.compiler.config import Config
from specc.runtime.plan.plan import Plan

from . import grammar
from .memory import LOST, Memory, scattered, visible
from .models import BASE, MODULUS, NO_HIDDEN, OUTPUTS, Model, extra, fold, hidden_code, mix, target_code
from .tables import tame_models

COLUMNS = 96


class TargetEngine:
    """The target's forwards, and what those of every draft are made of; see `drafts.Engine`.

    Attributes:
        prompts: by pool row, what a prefill reads; a row without one reads as many tokens 1.
        grammars: by pool row, see `grammar.words`; a row without one is free.
        calls: name and number of rows of every forward that ran.
        on_call: is told name and operands of a forward before it runs.

    """

    capturable = False

    def __init__(
        self,
        models: Mapping[str, Model],
        memory: Mapping[str, Memory],
        table: Tensor,
        *,
        first: int = 0,
        page: int = 1,
        room: int = 0,
        extras: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        """Serve requests whose slots are in ``table`` i32[P, C].

        ``first`` is the position of the draft's first new token from the committed length, ``page`` and ``room`` say
        where branches are, ``extras`` are sizes per node, layers and entries, of what the target hands over besides.
        """
        self.models = {role: model.to(table.device) for role, model in models.items()}
        self.memory, self.table, self.extras = dict(memory), table, dict(extras or {})
        self.first, self.page, self.room = first, page, room
        self.prompts: dict[int, list[int]] = {}
        self.grammars: dict[int, int] = {}
        self.calls: list[tuple[str, int]] = []
        self.on_call: Callable[[str, Mapping[str, Any]], None] | None = None
        powers = [1]
        while len(powers) <= table.shape[1] + 64:
            powers.append(powers[-1] * BASE % MODULUS)
        self._powers = torch.tensor(powers, device=table.device)
        self._follows = torch.tensor(models["target"].follows, device=table.device)

    @classmethod
    def of_plan(cls, plan: Plan, table: Tensor | None = None, seed: int = 0) -> Any:
        """An engine for a plan, of tame models, with a table of its own if none is given."""
        table = scattered(plan.size("P"), COLUMNS, seed) if table is None else table
        slots = int(table.max()) + 1
        memory = {owner: Memory.of_pool(pool, slots, table.device) for owner, pool in plan.kv_pools.items()}
        kv = {"first": "first_draft_position", "page": "page_size", "room": "branch_room"}
        extras = dict[str, tuple[int, int]]()
        for node in plan.nodes("step"):
            if getattr(node, "callback", None) == "target":
                axes = {name: plan.values[value].axes for name, value in node.results.items() if name in OUTPUTS}
                extras = {name: (plan.size(layers), plan.size(size)) for name, (*_, layers, size) in axes.items()}
        options = {name: int(getattr(plan.kv, key) or 0) for name, key in kv.items()}
        return cls(tame_models(plan), memory, table, **options, extras=extras)

    @classmethod
    def of_config(
        cls, config: Config, models: Mapping[str, Model], table: Tensor, owners: Iterable[str], **more: Any
    ) -> Any:
        """An engine for a configuration; ``more`` says ``first`` and ``room``, and how KV memory lies."""
        slots, target = int(table.max()) + 1, config.target
        how = {name: more.pop(name) for name in ("fill", "interleaved") if name in more}
        memory = {owner: Memory.of_model(config.models[owner], slots, **how) for owner in owners}
        sizes = {"routed_experts": target.experts_per_token, "indexer_topk": target.index_topk}
        extras = {name: (target.depth, int(size or 0)) for name, size in sizes.items() if name in config.file.outputs}
        return cls(models, memory, table, page=config.file.page_size, extras=extras, **more)

    @property
    def kv(self) -> dict[str, list[Tensor]]:
        """KV buffers by owner."""
        return {owner: memory.buffers for owner, memory in self.memory.items()}

    def __getattr__(self, name: str) -> Any:
        """A forward."""
        if name.startswith("_") or not hasattr(type(self), f"forward_{name}"):
            raise AttributeError(name)
        return partial(self._run, name)

    def _run(self, name: str, **operands: Any) -> Any:
        self.calls.append((name, len(operands["rows"])))
        if self.on_call is not None:
            self.on_call(name, operands)
        whole = {key: value.long() if getattr(value, "dtype", None) == torch.int32 else value
                 for key, value in operands.items()}  # fmt: skip
        if "select" in whole:  # may be anything while a graph is recorded, for no kernel runs then
            whole["select"] = whole["select"] % whole["tokens"].numel()
        return getattr(self, f"forward_{name}")(**whole)

    # --- requests -----------------------------------------------------------------------------------------------------

    def positions(self, owner: str, length: int) -> int:
        """Positions of a request of committed length ``length`` whose KV rows are read."""
        return length + (self.first if owner == "draft" else 0)

    def content(self, row: int, length: int) -> list[Tensor]:
        """The KV rows of a request of committed length ``length``, as words, of every model."""
        return [
            memory.words[:, self.table[row, : self.positions(owner, length)].long()].cpu()
            for owner, memory in self.memory.items()
        ]

    def take(self, donor: TargetEngine, row: int, into: int, length: int) -> None:
        """Copy the KV rows of a request of ``donor`` in pool row ``row`` to pool row ``into``."""
        for owner, memory in self.memory.items():
            here, there = (
                engine.table[at, : self.positions(owner, length)].long() for engine, at in ((self, into), (donor, row))
            )
            memory.words[:, here] = donor.memory[owner].words[:, there]

    def prompt(self, row: int, length: int) -> list[int]:
        """What a prefill of a pool row reads."""
        tokens = self.prompts.get(row, [1] * length)
        assert len(tokens) == length
        return tokens

    # --- reading and answering ----------------------------------------------------------------------------------------

    def fold_rows(self, codes: Tensor, shown: Tensor, start: Tensor | int = 0) -> Tensor:
        """What rows have seen, i64[...], that saw ``start``, and then the codes i64[..., L] that are ``shown``."""
        behind = shown.flip(-1).cumsum(-1).flip(-1) - shown.long()
        terms = mix(codes) * self._powers[behind] % MODULUS
        return (start * self._powers[shown.sum(-1)] + (terms * shown).sum(-1)) % MODULUS

    def codes(self, owner: str, rows: Tensor, layer: int | None = None) -> Tensor:
        """The codes at all positions of requests, i64[B, C]."""
        return self.memory[owner].read(self.table[rows], layer)

    def texts(self, owner: str, rows: Tensor, lengths: Tensor, layer: int | None = None) -> Tensor:
        """What a row has seen that has seen a request's first positions, i64[B]."""
        columns = torch.arange(self.table.shape[1], device=rows.device)
        return self.fold_rows(self.codes(owner, rows, layer), columns < lengths[:, None])

    def read_hidden(self, hidden: Tensor | None) -> Tensor | int:
        """One number per hidden row."""
        return NO_HIDDEN if hidden is None else hidden_code(hidden)

    def numbers(self, values: Any) -> Tensor:
        """Integers on the engine's device."""
        return torch.tensor(values, dtype=torch.int64, device=self.table.device)

    def answer(self, role: str, capture: str, states: Tensor, tokens: Tensor, rows: Tensor) -> SimpleNamespace:
        """What a model says of rows that saw ``states`` i64[B, ...] and stand after ``tokens``.

        Logits T[B, ..., V], hidden rows T[B, ..., W] if captured, and the rows T[B, ..., W] that its head reads.
        """
        model, live = self.models[role], along(rows, states) != 0
        number = torch.where(live, model.row(tokens, states), len(model.logits) - 1)
        result = SimpleNamespace(logits=model.logits[number])
        if model.head is not None:
            result.states = model.head.states[number]
        if capture != "null":
            result.hidden = self.hidden(role, states, live)
        return result

    def hidden(self, role: str, states: Tensor, live: Tensor) -> Tensor:
        """The hidden rows of those who saw ``states``."""
        model = self.models[role]
        return model.hidden[torch.where(live, model.hidden_row(states), len(model.hidden) - 1)]

    # --- the target ---------------------------------------------------------------------------------------------------

    def forward_target(
        self, *, tokens: Tensor, positions: Tensor, slots: Tensor, rows: Tensor, seq_lens: Tensor, capture: str,
        mask: Tensor | None = None, counts: Tensor | None = None,
    ) -> SimpleNamespace:  # fmt: skip
        """Check N tokens per request."""
        memory, nodes = self.memory["target"], tokens.shape[1]
        memory.write(slots, target_code(tokens, positions))
        if counts is None:
            shown, whole = visible(mask, seq_lens, nodes, self.table.shape[1])
            window = memory.read(slots)[:, None].expand(-1, nodes, -1)
        else:  # whatever lies in the slots that are counted; the others are read, too, so they must be slots
            shown, whole = torch.arange(nodes, device=rows.device) < counts[..., None], counts > 0
            window = memory.read(mask)
        text = self.texts("target", rows, seq_lens)
        states = self.fold_rows(window, shown, text[:, None])
        states = torch.where(whole, states, fold(states, LOST))
        result = self.answer("target", capture, states, tokens, rows)
        for name, (layers, size) in self.extras.items():
            layer, entry = (torch.arange(count, device=rows.device) for count in (layers, size))
            numbers = extra(states[..., None, None], OUTPUTS.index(name), layer[:, None], entry)
            setattr(result, name, torch.where(along(rows, numbers) != 0, numbers, -7).to(torch.int32))
        return result

    def forward_target_rows(
        self, *, tokens: Tensor, positions: Tensor, slots: Tensor, lens: Tensor, starts: Tensor, rows: Tensor,
        seq_lens: Tensor, capture: str,
    ) -> SimpleNamespace:  # fmt: skip
        """Packed rows, by request; what is handed over of rows that are nobody's is NaN."""
        column = torch.arange(tokens.numel(), device=rows.device)
        inside = column < lens[:, None]
        place = torch.where(inside, starts[:, None] + column, tokens.numel())

        def of_requests(packed: Tensor) -> Tensor:
            flat = torch.cat((packed.flatten(), packed.new_zeros(1)))
            return flat[place]

        given = self.forward_target(
            tokens=of_requests(tokens), positions=of_requests(positions), slots=of_requests(slots),
            rows=rows, seq_lens=seq_lens, capture=capture,
        )  # fmt: skip
        for name, value in vars(given).items():
            flat = value.new_full((tokens.numel() + 1, value.shape[-1]), float("nan"))
            flat[place.flatten()] = value.flatten(0, 1)
            flat[-1] = float("nan")
            setattr(given, name, flat[:-1].view(*tokens.shape, value.shape[-1]))
        return given

    def forward_prefill_target(self, *, rows: Tensor, seq_lens: Tensor, capture: str) -> SimpleNamespace:
        """The prompts through the target."""
        prompts = [self.prompt(*pair) for pair in zip(rows.tolist(), seq_lens.tolist(), strict=True)]
        tokens, states = list[int](), list[int]()
        for row, prompt in zip(rows.tolist(), prompts, strict=True):
            codes = [target_code(token, position) for position, token in enumerate(prompt)]
            self.memory["target"].write(self.table[row, : len(codes)], codes)
            state = 0
            for code in codes:
                state = fold(state, code)
                states.append(state)
            tokens.append(prompt[-1] if prompt else 0)
        seen, ends = self.numbers([0, *states]), seq_lens.cumsum(0)
        result = self.answer("target", capture, seen[ends], self.numbers(tokens), rows)
        if capture == "full":
            result.hidden = self.hidden("target", seen[1:], seen[1:] >= 0)
        return result

    # --- the host -----------------------------------------------------------------------------------------------------

    def forward_grammar_begin(
        self, *, tokens: Tensor, rows: Tensor, seq_lens: Tensor, parent: Tensor | None = None
    ) -> SimpleNamespace:
        """Keep what will be verified; nothing is allowed until `grammar_end`."""
        count = tokens.shape[1]
        links = [list(range(-1, count - 1))] * len(tokens) if parent is None else parent.tolist()
        self._begun = [
            [(row, token, length + depth + 1) for token, depth in zip(nodes, grammar.depths(parents), strict=True)]
            for row, nodes, length, parents in zip(
                rows.tolist(), tokens.tolist(), seq_lens.tolist(), links, strict=True
            )
        ]
        return SimpleNamespace(bitmask=torch.zeros_like(self._masks(self._begun)))

    def forward_grammar_end(self, *, begun: Tensor, rows: Tensor) -> SimpleNamespace:
        """The masks of what was begun."""
        assert not begun.any()
        assert [nodes[0][0] for nodes in self._begun] == rows.tolist()
        return SimpleNamespace(bitmask=self._masks(self._begun))

    def forward_grammar_prefill(self, *, rows: Tensor, seq_lens: Tensor) -> SimpleNamespace:
        """The masks after the prompts."""
        ends = zip(rows.tolist(), seq_lens.tolist(), strict=True)
        last = [[(row, (self.prompt(row, length) or [0])[-1], length)] for row, length in ends]
        return SimpleNamespace(bitmask=self._masks(last).flatten(0, 1))

    def _masks(self, nodes: list[list[tuple[int, int, int]]]) -> Tensor:
        """Masks i32[b, n, words] after nodes of pool rows, as tokens and the positions behind them."""
        vocab = self.models["target"].logits.shape[-1]
        words = [
            [grammar.words(self.grammars.get(row, grammar.FREE), *at, vocab) for row, *at in each] for each in nodes
        ]
        shape = len(nodes), len(nodes[0]) if nodes else 1, -(-vocab // 32)
        return torch.tensor(words, dtype=torch.int32, device=self.table.device).view(shape)


def along(per_request: Tensor, like: Tensor) -> Tensor:
    """A value per request [B] with further axes of length 1, to go with ``like`` [B, ...]."""
    return per_request.view(-1, *[1] * (like.dim() - 1))

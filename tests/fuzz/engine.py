"""Forwards over keys and values in memory: what they see is what they find at the slots that they are told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from specc.config import Config
from specc.runtime.plan import Plan

from .fake import (
    NO_HIDDEN,
    Model,
    block_code,
    draft_code,
    extra,
    fold,
    fold_all,
    hidden_code,
    injected_code,
    mix,
    target_code,
)

LOST = -1
"""What is read where no model has written, or where the buffers of a slot do not agree."""


class Broken(Exception):
    """A forward that fails."""


class Pool:
    """The KV buffers of one model, i32 [buffers, slots, words]: every word of a slot says the same code, salted."""

    def __init__(self, config: Any, slots: int, rng: Any, *, interleaved: bool) -> None:
        count = config.num_layers * (1 if config.kv_layout == "mla" else 2)
        words = config.kv_row_bytes // 4
        shape = (slots, count, words) if interleaved else (count, slots, words)
        memory = torch.full(shape, rng.randrange(1, 1 << 30), dtype=torch.int32)
        self.words = memory.permute(1, 0, 2) if interleaved else memory
        self.per_layer = count // config.num_layers
        self._salt = torch.randint(1, 1 << 30, (count, 1, words), dtype=torch.int32)
        dtype = getattr(torch, config.kv_dtype)
        heads = (config.num_kv_heads, config.head_dim)
        self.buffers = [buffer.view(dtype).unflatten(-1, heads) for buffer in self.words]

    def _kinds(self, layer: int | None) -> slice:
        return slice(None) if layer is None else slice(layer * self.per_layer, (layer + 1) * self.per_layer)

    def write(self, slots: Sequence[int] | Tensor, codes: Sequence[int], layer: int | None = None) -> None:
        """Put a code into each slot."""
        kinds = self._kinds(layer)
        index = torch.as_tensor(slots, dtype=torch.int64)
        self.words[kinds][:, index] = torch.tensor(codes, dtype=torch.int32)[None, :, None] ^ self._salt[kinds]

    def read(self, slots: Sequence[int], layer: int | None = None) -> list[int]:
        """The code in each slot; LOST where there is none."""
        kinds = self._kinds(layer)
        found = self.words[kinds][:, torch.tensor(slots, dtype=torch.int64)] ^ self._salt[kinds]
        first = found[0, :, 0]
        same = (found == first[None, :, None]).all(-1).all(0)
        return torch.where(same & (first >= 0), first, LOST).tolist()


class Engine:
    """Callbacks of any program, its request table and KV buffers.

    Attributes:
        prompts: by pool row, what a prefill reads.
        fail_at: how many forwards from now one raises `Broken`; None for never.

    """

    def __init__(self, config: Config, plan: Plan, models: dict[str, Model], table: Tensor, rng: Any) -> None:
        self.config, self.plan, self.models, self.table = config, plan, models, table
        slots = int(table.max()) + 1
        interleaved = rng.random() < 0.3
        self.pools = {owner: Pool(config.models[owner], slots, rng, interleaved=interleaved) for owner in plan.kv_pools}
        self.rows: list[list[int]] = table.tolist()
        self.prompts: dict[int, list[int]] = {}
        self.fail_at: int | None = None
        self.calls = 0

    @property
    def kv(self) -> dict[str, list[Tensor]]:
        """What `bind` takes."""
        return {owner: pool.buffers for owner, pool in self.pools.items()}

    @property
    def first(self) -> int:
        """Position of the draft's first new token, from the committed length."""
        return int(self.plan.kv["first_draft_position"])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(type(self), f"_{name}"):
            raise AttributeError(name)
        forward = getattr(self, f"_{name}")

        def call(**operands: Any) -> Any:
            self.calls += 1
            if self.fail_at is not None:
                self.fail_at -= 1
                if self.fail_at < 0:
                    self.fail_at = None
                    raise Broken(name)
            return forward(**operands)

        return call

    # --- reading and answering ----------------------------------------------------------------------------------------

    def _context(self, owner: str, wanted: Sequence[Sequence[int]], layer: int | None = None) -> list[list[int]]:
        """The codes in lists of slots."""
        flat = [slot for slots in wanted for slot in slots]
        codes = iter(self.pools[owner].read(flat, layer))
        return [[next(codes) for _ in slots] for slots in wanted]

    def _texts(self, owner: str, rows: list[int], lengths: list[int], layer: int | None = None) -> list[int]:
        """What a row has seen that has seen a request's first positions; 0 for padding, which has none."""
        slots = [self.rows[row][:length] if row else [] for row, length in zip(rows, lengths, strict=True)]
        return [fold_all(0, codes) for codes in self._context(owner, slots, layer)]

    def _answer(
        self, side: str, states: list[int | None], tokens: list[int], shape: Sequence[int], capture: str = "null"
    ) -> Any:
        """Logits, and hidden rows, of rows that saw ``states`` and stand after ``tokens``; None is a padding row."""
        model = self.models[side]
        numbers = [0 if s is None else model.row(t, s) for s, t in zip(states, tokens, strict=True)]
        logits = model.logits[torch.tensor(numbers, dtype=torch.int64)]
        padding = torch.tensor([state is None for state in states])
        logits[padding] = float("nan")
        found = {"logits": logits.view(*shape, -1)}
        if capture != "null":
            found["hidden"] = self._hidden(side, states).view(*shape, -1)
        return SimpleNamespace(**found)

    def _hidden(self, side: str, states: Iterable[int | None]) -> Tensor:
        numbers = [-1 if state is None else Model.hidden_row(state) for state in states]
        hidden = self.models[side].hidden[torch.tensor(numbers, dtype=torch.int64)]
        hidden[torch.tensor(numbers, dtype=torch.int64) < 0] = float("nan")
        return hidden

    @staticmethod
    def _codes(hidden: Tensor | None, count: int) -> list[int]:
        """One number per hidden row."""
        if hidden is None:
            return [NO_HIDDEN] * count
        return [hidden_code(tuple(row)) for row in hidden.reshape(-1, hidden.shape[-1]).tolist()]

    # --- the target ---------------------------------------------------------------------------------------------------

    def _target(
        self, *, tokens: Tensor, positions: Tensor, slots: Tensor, rows: Tensor, seq_lens: Tensor, capture: str,
        mask: Tensor | None = None,
    ) -> Any:  # fmt: skip
        count, nodes = tokens.shape
        said, at, where = tokens.reshape(-1).tolist(), positions.reshape(-1).tolist(), slots.tolist()
        self.pools["target"].write(slots.reshape(-1), [target_code(*pair) for pair in zip(said, at, strict=True)])
        requests, lengths = rows.tolist(), seq_lens.tolist()
        texts = self._texts("target", requests, lengths)
        windows = self._context("target", where)
        shown = _visible(mask, lengths, nodes)
        states: list[int | None] = []
        for b, row in enumerate(requests):
            for c in range(nodes):
                seen = range(c + 1) if shown is None else shown[b][c]
                state = fold_all(texts[b], [windows[b][column] if column >= 0 else LOST for column in seen])
                states.append(state if row else None)
        found = self._answer("target", states, said, (count, nodes), capture)
        for number, name in enumerate(("routed_experts", "indexer_topk")):
            if name in self.config.outputs:
                setattr(found, name, self._extra(number, states, count, nodes))
        return found

    def _extra(self, output: int, states: list[int | None], count: int, nodes: int) -> Tensor:
        target = self.config.target
        size = int((target.experts_per_token, target.index_topk)[output] or 0)
        numbers = [
            -7 if state is None else extra(state, output, layer, entry)
            for state in states for layer in range(target.depth) for entry in range(size)
        ]  # fmt: skip
        return torch.tensor(numbers, dtype=torch.int32).view(count, nodes, target.depth, size)

    def _prefill_target(self, *, rows: Tensor, seq_lens: Tensor, capture: str) -> Any:
        lasts: list[int | None] = []
        tokens, states = list[int](), list[int | None]()
        for row, length in zip(rows.tolist(), seq_lens.tolist(), strict=True):
            text = self.prompts[row]
            assert len(text) == length
            codes = [target_code(token, position) for position, token in enumerate(text)]
            self.pools["target"].write(self.rows[row][:length], codes)
            state = 0
            for code in codes:
                state = fold(state, code)
                states.append(state)
            lasts.append(state)
            tokens.append(text[-1])
        found = self._answer("target", lasts, tokens, (len(tokens),))
        if capture != "null":
            found.hidden = self._hidden("target", lasts if capture == "last" else states)
        return found

    # --- drafts that run step by step ---------------------------------------------------------------------------------

    def _draft(
        self, *, step: int, tokens: Tensor, positions: Tensor, slots: Tensor, rows: Tensor, seq_lens: Tensor,
        capture: str, hidden: Tensor | None = None,
    ) -> Any:  # fmt: skip
        count, branches = tokens.shape
        said, at = tokens.reshape(-1).tolist(), positions.reshape(-1).tolist()
        codes = self._codes(hidden, len(said))
        self.pools["draft"].write(slots.reshape(-1), list(map(draft_code, said, at, codes)))
        page, room = self.config.page_size, int(self.plan.kv["branch_room"])
        wanted = list[list[int]]()
        for row, length in zip(rows.tolist(), seq_lens.tolist(), strict=True):
            base = length + self.first
            tail = base % page
            run = -(-(room + tail) // page) * page
            for k in range(branches):
                back = tail if k else 0
                own = range(base + k * run - back, base + k * run + step + 1)
                table = self.rows[row]
                wanted.append([*table[: base - back], *(table[p] for p in own)] if row else [])
        states: list[int | None] = [
            fold(fold_all(0, seen), step) if seen else None for seen in self._context("draft", wanted)
        ]
        return self._answer("draft", states, said, (count, branches), capture)

    def _extend(
        self, *, tokens: Tensor, positions: Tensor, slots: Tensor, select: Tensor, accept_lens: Tensor, rows: Tensor,
        seq_lens: Tensor, capture: str, hidden: Tensor | None = None,
    ) -> Any:  # fmt: skip
        said, at = tokens.reshape(-1).tolist(), positions.reshape(-1).tolist()
        codes = self._codes(hidden, len(said))
        self.pools["draft"].write(slots.reshape(-1), list(map(draft_code, said, at, codes)))
        chosen, requests = select.tolist(), rows.tolist()
        texts = self._texts("draft", requests, [at[index] + 1 for index in chosen])
        counts = accept_lens.tolist()
        states = [fold(text, count) if row else None for text, count, row in zip(texts, counts, requests, strict=True)]
        return self._answer("draft", states, [said[index] for index in chosen], (len(requests),), capture)

    def _prefill_draft(
        self, *, first: Tensor, rows: Tensor, seq_lens: Tensor, capture: str, hidden: Tensor | None = None
    ) -> Any:
        ends, requests = first.tolist(), rows.tolist()
        codes = iter(self._codes(hidden, int(seq_lens.sum())))
        states: list[int | None] = []
        for row, end in zip(requests, ends, strict=True):
            text = self.prompts[row]
            given = [next(codes) for _ in text]
            stream = [*text, end] if self.first else [*text[1:], end]
            given = [NO_HIDDEN, *given] if self.first else given
            kept = [draft_code(token, p, code) for p, (token, code) in enumerate(zip(stream, given, strict=True))]
            self.pools["draft"].write(self.rows[row][: len(kept)], kept)
            states.append(fold_all(0, kept))
        return self._answer("draft", states, ends, (len(requests),), capture)

    # --- drafts of other kinds ----------------------------------------------------------------------------------------

    def _assist(
        self, *, step: int, tokens: Tensor, positions: Tensor, rows: Tensor, seq_lens: Tensor, hidden: Tensor,
        capture: str,
    ) -> Any:  # fmt: skip
        requests = rows.tolist()
        texts = self._texts("target", requests, seq_lens.tolist())
        said, at = tokens.reshape(-1).tolist(), positions.reshape(-1).tolist()
        codes, per = self._codes(hidden, len(said)), len(said) // max(len(requests), 1)
        states = [
            mix(6, step, texts[i // per], at[i], codes[i]) if requests[i // per] else None for i in range(len(said))
        ]
        return self._answer("draft", states, said, tokens.shape, capture)

    def _anchored(
        self, *, step: int, tokens: Tensor, positions: Tensor, rows: Tensor, anchor: Tensor, capture: str
    ) -> Any:
        assert capture == "null"
        requests, said, at = rows.tolist(), tokens.reshape(-1).tolist(), positions.reshape(-1).tolist()
        codes, per = self._codes(anchor, len(requests)), len(said) // max(len(requests), 1)
        states = [mix(7, step, at[i], codes[i // per]) if requests[i // per] else None for i in range(len(said))]
        return self._answer("draft", states, said, tokens.shape)

    def _block(
        self, *, bonus: Tensor, positions: Tensor, slots: Tensor, rows: Tensor, seq_lens: Tensor, capture: str
    ) -> Any:
        assert capture == "null"
        count, places = positions.shape
        requests, roots, at = rows.tolist(), bonus.tolist(), positions.tolist()
        codes = [block_code(root, position) for root, of_row in zip(roots, at, strict=True) for position in of_row]
        self.pools["draft"].write(slots.reshape(-1), codes)
        lengths = [length + places if row else 0 for row, length in zip(requests, seq_lens.tolist(), strict=True)]
        texts = self._texts("draft", requests, lengths)
        states, tokens = list[int | None](), list[int]()
        for b, row in enumerate(requests):
            states += [fold(texts[b], i) if row else None for i in range(places - 1)]
            tokens += [roots[b] + i for i in range(places - 1)]
        return self._answer("draft", states, tokens, (count, places - 1))

    def _inject(
        self, *, positions: Tensor, slots: Tensor, rows: Tensor, seq_lens: Tensor, hidden: Tensor, capture: str
    ) -> None:
        at = positions.reshape(-1).tolist()
        codes = self._codes(hidden, len(at))
        self.pools["draft"].write(slots.reshape(-1), list(map(injected_code, at, codes)))

    def _prefill_inject(self, *, rows: Tensor, seq_lens: Tensor, hidden: Tensor, capture: str) -> None:
        codes = self._codes(hidden, int(seq_lens.sum()))
        start = 0
        for row, length in zip(rows.tolist(), seq_lens.tolist(), strict=True):
            kept = [injected_code(p, code) for p, code in enumerate(codes[start : start + length])]
            self.pools["draft"].write(self.rows[row][:length], kept)
            start += length

    def _extend_module(
        self, *, step: int, tokens: Tensor, positions: Tensor, slots: Tensor, select: Tensor, rows: Tensor,
        seq_lens: Tensor, hidden: Tensor, capture: str,
    ) -> Any:  # fmt: skip
        said, at = tokens.reshape(-1).tolist(), positions.reshape(-1).tolist()
        codes = self._codes(hidden, len(said))
        self.pools["draft"].write(slots.reshape(-1), list(map(draft_code, said, at, codes)), step)
        chosen, requests = select.tolist(), rows.tolist()
        texts = self._texts("draft", requests, [at[index] + 1 for index in chosen], step)
        states = [fold(text, step) if row else None for text, row in zip(texts, requests, strict=True)]
        return self._answer("draft", states, [said[index] for index in chosen], (len(requests),))

    def _prefill_module(
        self, *, step: int, first: Tensor, rows: Tensor, seq_lens: Tensor, hidden: Tensor, capture: str,
        drafts: Tensor | None = None,
    ) -> Any:  # fmt: skip
        requests, ends = rows.tolist(), first.tolist()
        made = [[] for _ in ends] if drafts is None else [row[:step] for row in drafts.tolist()]
        codes = iter(self._codes(hidden, int(seq_lens.sum())))
        states, tokens = list[int | None](), list[int]()
        for b, row in enumerate(requests):
            text = self.prompts[row]
            stream = [*text, ends[b], *made[b]][step + 1 :][: len(text)]
            kept = [draft_code(token, p, next(codes)) for p, token in enumerate(stream)]
            self.pools["draft"].write(self.rows[row][: len(kept)], kept, step)
            states.append(fold(fold_all(0, kept), step))
            tokens.append(stream[-1])
        return self._answer("draft", states, tokens, (len(requests),))


def _visible(mask: Tensor | None, lengths: list[int], nodes: int) -> list[list[list[int]]] | None:
    """Per request and node the columns that a mask of any mode shows; a column -1 where the prefix is not whole."""
    if mask is None:
        return None
    if mask.dtype == torch.uint8:
        words = [[int.from_bytes(bytes(row), "little") for row in request] for request in mask.tolist()]
        return [[[c if c < nodes else -1 for c in range(64) if word >> c & 1] for word in row] for row in words]
    if mask.dim() == 3:
        return [[[c for c, bit in enumerate(row) if bit] for row in request] for request in mask.tolist()]
    flat, start = mask.reshape(-1).tolist(), 0
    found = []
    for length in lengths:
        request = []
        for _ in range(nodes):
            row = flat[start : start + length + nodes]
            start += length + nodes
            request.append(([] if all(row[:length]) else [-1]) + [c for c in range(nodes) if row[length + c]])
        found.append(request)
    return found

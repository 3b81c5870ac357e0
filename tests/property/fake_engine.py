"""Forwards that are arithmetic: what they return depends on every operand they may read, and on nothing else.

Target and draft agree often enough that drafts are accepted, and some rows are ties, NaN or -inf. All values are small
whole numbers, exact in every dtype. Every forward writes KV rows where its slots say and reads those of the text before
it, so that rows which a program should have moved and did not show in what it emits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from specc.config import Config, ModelConfig
from specc.ir.interpret import Forward as Interpreted

TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MODULUS = 1_000_003
Call = tuple[str, int | None, dict[str, Tensor]]


def mix(*parts: Tensor) -> Tensor:
    """Hash whole numbers elementwise, with broadcasting."""
    state = torch.tensor(17)
    for part in parts:
        state = (state * 31 + part.to(torch.int64) * 7919 + 13) % MODULUS
    return state


def code_of(hidden: Tensor) -> Tensor:
    """One number per hidden row."""
    weights = torch.arange(1, hidden.shape[-1] + 1, dtype=torch.float64)
    return (hidden.to(torch.float64) * weights).sum(-1).to(torch.int64) % MODULUS


def runs(config: Config, base: Tensor) -> Tensor:
    """Positions from one branch of a tree to the next, and the tokens of the partly filled page before ``base``."""
    tail = base % config.page_size
    return (tail + config.num_steps + config.page_size - 1) // config.page_size * config.page_size


def visible(mask: Tensor, seq_lens: Tensor, nodes: int) -> Tensor:
    """Which columns every node attends to, bool[B, N, N], of a mask in any mode; a prefix must be seen whole."""
    if mask.dtype == torch.uint8:
        bits = mask[..., None] >> torch.arange(8, dtype=torch.uint8) & 1
        assert not bits.reshape(*mask.shape[:2], -1)[..., nodes:].any()
        return bits.reshape(*mask.shape[:2], -1)[..., :nodes].bool()
    if mask.dim() == 3:
        return mask
    found, start, flat = [], 0, mask.reshape(-1)
    for length in seq_lens.tolist():
        rows = flat[start : start + nodes * (length + nodes)].view(nodes, length + nodes)
        assert rows[:, :length].all()
        found.append(rows[:, length:])
        start += rows.numel()
    return torch.stack(found) if found else mask.new_zeros(0, nodes, nodes)


class KvMemory:
    """The KV buffers of one model in an engine whose slots are those of ``table``."""

    def __init__(self, model: ModelConfig, table: Tensor) -> None:
        self.table = table
        dtype = torch.uint8 if model.kv_dtype.startswith("float8") else TORCH[model.kv_dtype]
        count = model.num_layers * (1 if model.kv_layout == "mla" else 2)
        shape = (int(table.max()) + 1, model.num_kv_heads, model.head_dim)
        self.buffers = [torch.zeros(shape, dtype=dtype) for _ in range(count)]

    def write(self, slots: Tensor, codes: Tensor) -> None:
        """Put a row made of each code into its slot, another one in every buffer."""
        for kind, buffer in enumerate(self.buffers):
            columns = torch.arange(buffer.shape[1] * buffer.shape[2]).view(buffer.shape[1:])
            rows = mix(codes.reshape(-1, 1, 1), torch.tensor(kind), columns) % 9
            buffer[slots.reshape(-1)] = rows.to(buffer.dtype)

    def rows(self, row: int, positions: Tensor) -> list[Tensor]:
        """What every buffer holds at positions of a request."""
        slots = self.table[row, positions].to(torch.int64)
        return [buffer[slots] for buffer in self.buffers]

    def code(self, row: int, positions: Tensor) -> int:
        """One number for what a request's positions hold; 0 for a padding row, which has none."""
        if row == 0 or not len(positions):
            return 0
        codes = torch.stack([code_of(held.flatten(1)) for held in self.rows(row, positions)])
        return int((mix(codes, torch.arange(len(codes))[:, None], positions) % MODULUS).sum() % MODULUS)


@dataclass
class FakeEngine:
    """The five forwards of a configuration. ``calls`` records the operands each one saw."""

    config: Config
    table: Tensor
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory = {
            owner: KvMemory(model, self.table)
            for owner, model in (("target", self.config.target), ("draft", self.config.draft))
        }

    @property
    def kv(self) -> dict[str, list[Tensor]]:
        """KV buffers by owner."""
        return {owner: memory.buffers for owner, memory in self.memory.items()}

    @property
    def first(self) -> int:
        """Position of a draft's first token after the committed length: 0 in a shifted stream."""
        auto = self.config.algorithm == "STANDALONE"
        return int({"true": True, "shifted": False, "auto": auto}[self.config.draft_positions])

    def run(self, name: str, step: int | None, capture: str, operands: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One forward of either calling convention; slots of a draft step may still have their axis D."""
        seen = {key: value.clone() for key, value in operands.items()}
        if step is not None and seen["slots"].dim() == 3:
            seen["slots"] = seen["slots"][step]
        self.calls.append((name, step, seen))
        model = self.config.target if name.endswith("target") else self.config.draft
        more = {} if step is None else {"step": step}
        state, tokens = getattr(self, f"_{name}")(**seen, **more)
        answer = {"logits": self._logits(model, state, tokens, model is self.config.target)}
        answer |= self._extras(state) if name == "target" else {}
        if capture != "null":
            state = self._ragged(seen, state) if name == "prefill_target" else state
            answer["hidden"] = self._hidden(model, state)
        return answer

    def _draft(
        self,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        step: int,
        hidden: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        codes = torch.zeros_like(tokens) if hidden is None else code_of(hidden)
        state = mix(tokens, positions, slots, rows[:, None], seq_lens[:, None], codes)
        self.memory["draft"].write(slots, state)
        base = seq_lens + self.first
        run, tail = runs(self.config, base), base % self.config.page_size
        context = torch.zeros_like(tokens)
        for b, row in enumerate(rows.tolist()):
            for k in range(tokens.shape[1]):
                own = torch.arange(int(-tail[b]) if k else 0, step + 1) + int(base[b] + k * run[b])
                text = torch.arange(int(base[b] - tail[b]) if k else int(base[b]))
                context[b, k] = self.memory["draft"].code(row, torch.cat([text, own]))
        return mix(state, context), tokens

    def _target(
        self,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        state = mix(tokens, positions, slots, rows[:, None], seq_lens[:, None])
        self.memory["target"].write(slots, state)
        nodes = tokens.shape[1]
        causal = torch.ones(nodes, nodes, dtype=torch.bool).tril().expand(len(rows), -1, -1)
        seen = causal if mask is None else visible(mask, seq_lens, nodes)
        context = [
            self.memory["target"].code(row, torch.arange(length))
            for row, length in zip(rows.tolist(), seq_lens.tolist(), strict=True)
        ]
        state = (seen.to(torch.int64) * state[:, None]).sum(-1) % MODULUS
        return mix(state, torch.tensor(context, dtype=torch.int64)[:, None]), tokens

    def _extend(
        self,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        select: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        hidden: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        codes = torch.zeros_like(tokens) if hidden is None else code_of(hidden)
        state = mix(tokens, positions, slots, rows[:, None], seq_lens[:, None], codes)
        self.memory["draft"].write(slots, state)
        last = positions.reshape(-1)[select]
        context = [
            self.memory["draft"].code(row, torch.arange(length + 1))
            for row, length in zip(rows.tolist(), last.tolist(), strict=True)
        ]
        return mix(state.reshape(-1)[select], torch.tensor(context, dtype=torch.int64)), tokens.reshape(-1)[select]

    def _prefill_target(self, rows: Tensor, seq_lens: Tensor) -> tuple[Tensor, Tensor]:
        self._prefill("target", rows, seq_lens)
        return mix(rows, seq_lens), rows

    def _prefill_draft(
        self, first: Tensor, rows: Tensor, seq_lens: Tensor, hidden: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        self._prefill("draft", rows, seq_lens + self.first)
        lasts = seq_lens.cumsum(0) - 1
        codes = torch.zeros_like(rows) if hidden is None else code_of(hidden).cumsum(0)[lasts.clamp(min=0)]
        return mix(first, rows, seq_lens, codes), first

    def _prefill(self, owner: str, rows: Tensor, lengths: Tensor) -> None:
        for row, length in zip(rows.tolist(), lengths.tolist(), strict=True):
            slots = self.table[row, :length].to(torch.int64)
            self.memory[owner].write(slots, mix(torch.tensor(row), torch.arange(length)))

    def _ragged(self, seen: Mapping[str, Tensor], state: Tensor) -> Tensor:
        """One state per prompt token."""
        owners = torch.repeat_interleave(torch.arange(len(state)), seen["seq_lens"])
        return mix(state[owners], torch.arange(len(owners)))

    def _logits(self, model: ModelConfig, state: Tensor, tokens: Tensor, target: bool) -> Tensor:
        """Noise of few values (ties), and a peak where both models agree unless the draft errs."""
        columns = torch.arange(model.vocab_size)
        noise = (mix(state[..., None], columns) % 4).to(torch.float32)
        peak = (tokens * 5 + 7) % model.vocab_size
        wrong = torch.zeros_like(state) if target else (state % 3 == 0).to(torch.int64)
        noise += 8.0 * (columns == ((peak + wrong) % model.vocab_size)[..., None])
        noise[state % 23 == 1] = float("nan")
        noise[state % 23 == 2] = float("-inf")
        noise[state % 23 == 3] = 0.0
        return noise.to(TORCH[model.dtype])

    def _hidden(self, model: ModelConfig, state: Tensor) -> Tensor:
        columns = torch.arange(model.spec_width)
        return (mix(state[..., None], columns) % 9 - 4).to(TORCH[model.dtype])

    def _extras(self, state: Tensor) -> dict[str, Tensor]:
        """What the target hands over per node and layer, if the configuration wants it."""
        target = self.config.target
        offered = {"routed_experts": target.experts_per_token, "indexer_topk": target.index_topk}
        sizes = {name: (target.num_layers, int(count or 0)) for name, count in offered.items()}
        return {
            name: (mix(state[..., None, None], torch.arange(a * b).view(a, b)) % 4096).to(torch.int32)
            for name, (a, b) in sizes.items()
            if name in self.config.outputs
        }

    # --- the two calling conventions ---------------------------------------------------------------------------------

    def interpreted(self) -> dict[str, Interpreted]:
        """Forwards by opcode, for the interpreter of modules."""

        def call(name: str, attrs: Mapping[str, Any], operands: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            return self.run(name, attrs.get("step"), attrs["capture"], operands)

        return {f"model.{name}": partial(call, name) for name in FORWARDS}

    def __getattr__(self, name: str) -> Any:
        """Forwards as the runtime calls them."""
        if name not in FORWARDS:
            raise AttributeError(name)

        def call(*, capture: str, step: int | None = None, **operands: Tensor) -> SimpleNamespace:
            answer = self.run(name, step, capture, operands)
            return SimpleNamespace(**{key: tensor.contiguous() for key, tensor in answer.items()})

        return call


FORWARDS = ("draft", "target", "extend", "prefill_target", "prefill_draft")

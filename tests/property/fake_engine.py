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

import fake_drafts
import torch
from fake_memory import MODULUS, TORCH, KvMemory, code_of, mix, runs, visible
from torch import Tensor

from specc.config import Config, ModelConfig
from specc.ir.interpret import Forward as Interpreted

Call = tuple[str, int | None, dict[str, Tensor]]

RECURRENT = ("STANDALONE", "EAGLE", "EAGLE3")
"""Algorithms whose draft runs step by step, and over what was accepted."""


@dataclass
class FakeEngine:
    """The forwards of a configuration. ``calls`` records the operands each one saw."""

    config: Config
    table: Tensor
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        models = self.config.models
        if self.config.algorithm == "FROZEN_KV_MTP":
            del models["draft"]  # it has no keys and values
        self.memory = {owner: KvMemory(model, self.table) for owner, model in models.items()}

    @property
    def kv(self) -> dict[str, list[Tensor]]:
        """KV buffers by owner."""
        return {owner: memory.buffers for owner, memory in self.memory.items()}

    @property
    def first(self) -> int:
        """Position of a draft's first token after the committed length: 0 in a shifted stream."""
        if self.config.algorithm not in RECURRENT:
            return 0
        auto = self.config.algorithm == "STANDALONE"
        return int({"true": True, "shifted": False, "auto": auto}[self.config.draft_positions])

    def run(self, name: str, step: int | None, capture: str, operands: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One forward of either calling convention; slots of a draft step may still have their axis D."""
        seen = {key: value.clone() for key, value in operands.items()}
        if name == "draft" and seen["slots"].dim() == 3:
            seen["slots"] = seen["slots"][step]
        self.calls.append((name, step, seen))
        model = self.config.models["target" if name.endswith("target") else "draft"]
        more = {} if step is None else {"step": step}
        found = getattr(self, f"_{name}")(**seen, **more)
        if found is None:
            return {}
        state, tokens = found
        answer = {"logits": self._logits(model, state, tokens, name.endswith("target"))}
        answer |= self._extras(state) if name == "target" else {}
        if capture != "null":
            ragged = name == "prefill_target" and capture == "full"
            width = (model.target_hidden_size or model.hidden_size) if name == "assist" else model.spec_width
            answer["hidden"] = self._hidden(model, self._ragged(seen, state) if ragged else state, width)
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
        state = (seen.to(torch.int64) * state[:, None]).sum(-1) % MODULUS
        return mix(state, self.memory["target"].texts(rows, seq_lens)[:, None]), tokens

    def _extend(
        self,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        select: Tensor,
        accept_lens: Tensor,
        rows: Tensor,
        seq_lens: Tensor,
        hidden: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        codes = torch.zeros_like(tokens) if hidden is None else code_of(hidden)
        state = mix(tokens, positions, slots, rows[:, None], seq_lens[:, None], accept_lens.long()[:, None], codes)
        self.memory["draft"].write(slots, state)
        last = positions.reshape(-1)[select]
        context = self.memory["draft"].texts(rows, last + 1)
        return mix(state.reshape(-1)[select], context), tokens.reshape(-1)[select]

    def _prefill_target(self, rows: Tensor, seq_lens: Tensor) -> tuple[Tensor, Tensor]:
        self._prefill("target", rows, seq_lens)
        return mix(rows, seq_lens), rows

    def _prefill_draft(
        self, first: Tensor, rows: Tensor, seq_lens: Tensor, hidden: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        self._prefill("draft", rows, seq_lens + self.first)
        codes = torch.zeros_like(rows)
        if hidden is not None:
            codes = torch.cat([torch.zeros(1, dtype=torch.int64), code_of(hidden).cumsum(0)])[seq_lens.cumsum(0)]
        return mix(first, rows, seq_lens, codes), first

    def _prefill(self, owner: str, rows: Tensor, lengths: Tensor) -> None:
        for row, length in zip(rows.tolist(), lengths.tolist(), strict=True):
            self.memory[owner].write_prompt(row, mix(torch.tensor(row), torch.arange(length)))

    # --- drafts of other kinds ---------------------------------------------------------------------------------------

    def _assist(self, **operands: Any) -> tuple[Tensor, Tensor]:
        return fake_drafts.assist(self.memory["target"], **operands)

    def _block(self, **operands: Any) -> tuple[Tensor, Tensor]:
        return fake_drafts.block(self.memory["draft"], **operands, follow=self.follow)

    def _inject(self, **operands: Any) -> None:
        fake_drafts.inject(self.memory["draft"], **operands)

    def _prefill_inject(self, **operands: Any) -> None:
        fake_drafts.prefill_inject(self.memory["draft"], **operands)

    def _extend_module(self, **operands: Any) -> tuple[Tensor, Tensor]:
        return fake_drafts.extend_module(self.memory["draft"], **operands)

    def _prefill_module(self, **operands: Any) -> tuple[Tensor, Tensor]:
        return fake_drafts.prefill_module(self.memory["draft"], **operands)

    def follow(self, tokens: Tensor) -> Tensor:
        """What both models mostly say after each token."""
        return (tokens * 5 + 7) % self.config.target.vocab_size

    # --- answers -----------------------------------------------------------------------------------------------------

    def _ragged(self, seen: Mapping[str, Tensor], state: Tensor) -> Tensor:
        """One state per prompt token."""
        owners = torch.repeat_interleave(torch.arange(len(state)), seen["seq_lens"])
        return mix(state[owners], torch.arange(len(owners)))

    def _logits(self, model: ModelConfig, state: Tensor, tokens: Tensor, target: bool) -> Tensor:
        """Noise of few values (ties), and a peak where both models agree unless the draft errs."""
        columns = torch.arange(model.vocab_size)
        noise = (mix(state[..., None], columns) % 4).to(torch.float32)
        peak = self.follow(tokens)
        wrong = torch.zeros_like(state) if target else (state % 3 == 0).to(torch.int64)
        noise += 8.0 * (columns == ((peak + wrong) % model.vocab_size)[..., None])
        noise[state % 23 == 1] = float("nan")
        noise[state % 23 == 2] = float("-inf")
        noise[state % 23 == 3] = 0.0
        return noise.to(TORCH[model.logits_dtype])

    def _hidden(self, model: ModelConfig, state: Tensor, width: int) -> Tensor:
        columns = torch.arange(width)
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
FORWARDS += ("assist", "block", "inject", "extend_module", "prefill_module", "prefill_inject")

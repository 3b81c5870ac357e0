"""Forwards that are arithmetic: what they return depends on every operand they may read, and on nothing else.

Target and draft agree often enough that drafts are accepted, and some rows are ties, NaN or -inf. All values are small
whole numbers, exact in every dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from specc.config import Config, ModelConfig
from specc.ir.interpret import Forward as Interpreted
from specc.runtime.external import Forward

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


@dataclass
class FakeEngine:
    """The five forwards of a configuration. ``calls`` records the operands each one saw."""

    config: Config
    calls: list[Call] = field(default_factory=list)

    def run(self, name: str, step: int | None, capture: str, operands: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One forward of either calling convention; slots of a draft step may still have their axis D."""
        seen = {key: value.clone() for key, value in operands.items()}
        if step is not None and seen["slots"].dim() == 3:
            seen["slots"] = seen["slots"][step]
        self.calls.append((name, step, seen))
        model = self.config.target if name.endswith("target") else self.config.draft
        state, tokens = getattr(self, f"_{name}")(**seen)
        answer = {"logits": self._logits(model, state, tokens, model is self.config.target)}
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
        hidden: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        codes = torch.zeros_like(tokens) if hidden is None else code_of(hidden)
        return mix(tokens, positions, slots, rows[:, None], seq_lens[:, None], codes), tokens

    def _target(
        self, tokens: Tensor, positions: Tensor, slots: Tensor, rows: Tensor, seq_lens: Tensor
    ) -> tuple[Tensor, Tensor]:
        state = mix(tokens, positions, slots, rows[:, None], seq_lens[:, None])
        return state.cumsum(1) % MODULUS, tokens

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
        state = mix(tokens, positions, slots, rows[:, None], seq_lens[:, None], codes).cumsum(1) % MODULUS
        return state.reshape(-1)[select], tokens.reshape(-1)[select]

    def _prefill_target(self, rows: Tensor, seq_lens: Tensor) -> tuple[Tensor, Tensor]:
        return mix(rows, seq_lens), rows

    def _prefill_draft(
        self, first: Tensor, rows: Tensor, seq_lens: Tensor, hidden: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        lasts = seq_lens.cumsum(0) - 1
        codes = torch.zeros_like(rows) if hidden is None else code_of(hidden).cumsum(0)[lasts.clamp(min=0)]
        return mix(first, rows, seq_lens, codes), first

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

        def call(*, capture: str, step: int | None = None, **operands: Tensor) -> Forward:
            answer = self.run(name, step, capture, operands)
            return Forward(answer["logits"].contiguous(), answer.get("hidden"))

        return call


FORWARDS = ("draft", "target", "extend", "prefill_target", "prefill_draft")

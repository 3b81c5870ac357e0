"""A program for real models: compiled for what they are, on the reference backend, watched while an engine runs it.

It stands in for a generated package where only the engine is under test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch
from programs import config_text
from torch import Tensor

from specc.lab.engine.models.causal_models import ModelSizes, TargetModel
from specc.lab.engine.models.drafts import (
    DflashDraft,
    Draft,
    Eagle3Draft,
    EagleDraft,
    FrozenKvDraft,
    MtpDraft,
    StandaloneDraft,
)
from specc.runtime.batch import Batch
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.plan.plan import Plan
from specc.runtime.plan.shape import Shape
from specc.runtime.semantics.convention import DTYPES

from .plans import compiled, program_of

__all__ = ["Batch"]  # where an engine looks for it: in the module of the program
ALGORITHMS: dict[type, str] = {
    StandaloneDraft: "STANDALONE",
    EagleDraft: "EAGLE",
    Eagle3Draft: "EAGLE3",
    FrozenKvDraft: "FROZEN_KV_MTP",
    MtpDraft: "MULTI_LAYER_EAGLE",
    DflashDraft: "DFLASH",
    type(None): "NGRAM",
}


def make_plan(
    target: TargetModel,
    draft: Draft | None,
    *,
    steps: int = 3,
    page_size: int = 1,
    shifted: bool | None = None,
    buckets: Sequence[int] = (1, 2, 4),
    rows: int = 9,
    corpus: bool = False,
) -> Plan:
    """The plan of a greedy chain for models; ``shifted`` says where a language model drafts, if not at true positions.

    rows: pool rows, one of them padding. corpus: whether a program without draft model reads one.
    """
    algorithm = ALGORITHMS[type(draft)]
    blocks = {"target": sizes_of(target.facts)}
    if draft is not None:
        blocks["draft"] = sizes_of(draft.facts)
    if algorithm in ("EAGLE3", "DFLASH"):
        blocks["target"]["aux_layers"] = list(target.aux_layers or draft.head.aux_layers)  # pyright: ignore
        blocks["draft"]["num_aux_layers"] = len(blocks["target"]["aux_layers"])
    if algorithm in ("EAGLE3", "DFLASH", "FROZEN_KV_MTP"):
        blocks["draft"]["target_hidden_size"] = target.facts.hidden_size
    keys: dict[str, Any] = {"num_steps": steps, "page_size": page_size, "overlap": False}
    keys |= {"buckets": list(buckets), "max_requests": rows - 1}
    keys |= {"draft_positions": "shifted" if shifted else "true"} if algorithm == "STANDALONE" else {}
    keys |= {"options": {"window": 64} | ({"corpus": "words.txt"} if corpus else {})} if draft is None else {}
    return _read(config_text(algorithm, **blocks, **keys))


@cache
def _read(text: str) -> Plan:
    return read_plan(compiled(text))


def sizes_of(facts: ModelSizes) -> dict[str, Any]:
    """What a configuration says of a model."""
    names = ("hidden_size", "num_layers", "num_kv_heads", "head_dim", "kv_layout", "vocab_size")
    recurrent = {shape.part.layer for shape in facts.states}
    rest = {"dtype": str(DTYPES[facts.dtype]).removeprefix("torch."), "state_layers": len(recurrent)}
    return {name: getattr(facts, name) for name in names} | rest


def with_model(plan: Plan, role: str, **changes: Any) -> Plan:
    """The plan, made for another target or draft."""
    return replace(plan, models={**plan.models, role: replace(plan.models[role], **changes)})


@dataclass
class FakeProgram:
    """A loaded program; `steps_run` counts decode steps, `padded` the padding rows they had, `batches` has the others.

    drafted: by pool row, the committed length and the drafts of every step. takes_last: of tokens with equal scores.
    """

    plan: Plan
    steps_run: int = 0
    padded: int = 0
    takes_last: bool = False
    batches: list[int] = field(default_factory=list)
    drafted: dict[int, list[tuple[int, list[int]]]] = field(default_factory=dict)

    @property
    def plans(self) -> dict[Shape, Plan]:
        """The plan of its only shape."""
        return {self.plan.shape: self.plan}

    @property
    def buckets(self) -> dict[Shape, tuple[int, ...]]:
        """Those of its only shape."""
        return {self.plan.shape: self.plan.buckets}

    def bind(
        self,
        callbacks: Any,
        req_to_token: Tensor,
        *,
        kv_pools: Mapping[str, Sequence[Tensor]],
        tables: Mapping[str, Tensor],
        capture: bool | None = None,
        nvtx: bool = False,
    ) -> PaddedStep:
        """Return the step functions; the pools must be there, though a chain moves nothing in them."""
        assert kv_pools.keys() == self.plan.kv_pools.keys()
        for owner, buffers in kv_pools.items():
            pool = self.plan.kv_pools[owner]
            assert len(buffers) == pool.layers * pool.buffers
            assert all(buffer.is_contiguous() and buffer[0].nbytes == pool.row_bytes for buffer in buffers)
        watched = Watched(self, callbacks)
        return PaddedStep(
            self, program_of(self.plan).bind(watched, req_to_token, kv_pools, tables=tables, capture=capture, nvtx=nvtx)
        )


class PaddedStep:
    """Step functions whose decode steps run a whole bucket, as captured ones do."""

    def __init__(self, program: FakeProgram, step: Any) -> None:
        """Wrap a bound step."""
        self.program, self.step = program, step

    def __getattr__(self, name: str) -> Any:
        """Whatever else the step has."""
        return getattr(self.step, name)

    def at(self, shape: Shape) -> PaddedStep:
        """There is one shape."""
        assert shape == self.program.plan.shape
        return self

    def decode(self, batch: Batch, *, at_least: int) -> Any:
        """One decode step."""
        assert at_least == 0
        return self.step.decode(batch, at_least=self.program.plan.bucket(len(batch.req_pool_indices)))


class Watched:
    """An engine's callbacks, whose operands are written down and whose slots must have been reserved."""

    def __init__(self, program: FakeProgram, callbacks: Any) -> None:
        """Stand between a program and the callbacks of an engine."""
        self.program, self.callbacks = program, callbacks

    def __getattr__(self, name: str) -> Any:
        """A callback, or whatever else is asked of the engine's."""
        member = getattr(self.callbacks, name)
        return partial(self._call, name, member) if callable(member) else member

    def _call(self, name: str, callback: Callable[..., Any], **operands: Any) -> Any:
        rows, slots = operands["rows"], operands.get("slots")
        if slots is not None:
            assert bool((slots[rows > 0] > 0).all()), "a step writes to a slot that was not reserved"
            assert bool((slots[rows == 0] == 0).all())
        if name == "target":
            self._note(rows.tolist(), operands["seq_lens"].tolist(), operands["tokens"].tolist())
        out = callback(**operands)
        if self.program.takes_last and name in ("target", "prefill_target"):
            return SimpleNamespace(logits=last_alone(out.logits), hidden=out.hidden)
        return out

    def _note(self, rows: list[int], lens: list[int], tokens: list[list[int]]) -> None:
        """Write a decode step down."""
        program, live = self.program, [index for index, row in enumerate(rows) if row]
        program.steps_run += 1
        program.batches.append(len(live))
        program.padded += len(rows) - len(live)
        for index in live:
            program.drafted.setdefault(rows[index], []).append((lens[index], tokens[index][1:]))


def last_alone(logits: Tensor) -> Tensor:
    """The scores T[..., V], in which of the tokens with the highest one only the last keeps it."""
    last = logits.shape[-1] - 1 - logits.flip(-1).argmax(-1, keepdim=True)
    others = torch.arange(logits.shape[-1]) != last
    return logits.masked_fill((logits == logits.amax(-1, keepdim=True)) & others, -torch.inf)

"""Programs in plain Python that keep the contract of docs/runtime.md: greedy chains, of every way of drafting.

They stand in for a generated package where only the engine is under test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from specc.engine.models.causal_models import ModelFacts, TargetModel
from specc.engine.models.drafts import DflashDraft, Draft, FrozenKvDraft, MtpDraft
from specc.runtime.depth import FixedDepth
from specc.runtime.plan.nodes import External, Launch, Phase
from specc.runtime.plan.plan import ArenaBytes, Buffer, Input, Kv, KvPool, Model, Plan, Serving, Totals

from .program_steps import KINDS, FakeStep, LookupStep

__all__ = ["FixedDepth"]  # where the command looks for it: in the module of the program


@dataclass(frozen=True)
class Batch:
    """The requests of one step."""

    req_pool_indices: Sequence[int]
    seq_lens: Sequence[int]
    prompt_tokens: Sequence[int] | None = None


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
    """A plan of what the engine reads, and no kernels: no runtime would bind it."""
    reads_hidden = draft is not None and getattr(draft, "reads_hidden", True)
    shifted = reads_hidden if shifted is None else shifted
    recurrent = draft is not None and not isinstance(draft, FrozenKvDraft | MtpDraft | DflashDraft)
    results = {"logits": "l", "hidden": "t"} if reads_hidden else {"logits": "l"}
    nodes = [external("target", "full" if reads_hidden else "null", {}, results)]
    nodes += [external(name, *what) for name, *what in _draft_calls(draft, steps, reads_hidden)]
    owners = ["target"] if draft is None or isinstance(draft, FrozenKvDraft) else ["target", "draft"]
    lens = Buffer("seq_lens", "i64", ("B",), (max(buckets),), (1,), "arena", 0, 8 * max(buckets), (0, 9), "none", 256)
    modules = steps if isinstance(draft, MtpDraft) else 0
    return Plan(
        name="fake",
        algorithm="FAKE",
        specc="0",
        dims={"P": rows, "B": max(buckets), "S": steps, "A": steps + 1, "N": steps + 1, "K": 1},
        kv=Kv(
            page_size=page_size,
            verify_window=steps + 1,
            branch_room=0,
            window=steps + 1 + (not shifted),
            reserve=2 * (steps + 1),
            longest=None,
            first_draft_position=int(not shifted),
        ),
        kv_pools={owner: KvPool(1, 2, 16, "float32", bound=False) for owner in owners},
        models={"target": record(target.facts)} | ({} if draft is None else {"draft": record(draft.facts)}),
        serving=Serving(
            reach=steps + 1 + (not shifted),
            lookahead=modules or int(shifted and recurrent),
            settled=not modules,
            reads_hidden=recurrent and reads_hidden,
        ),
        options={},
        disaggregation=False,
        inputs=_inputs(prompts=draft is None, corpus=corpus),
        carry={},
        outputs=(),
        values={},
        buffers={"seq_lens": lens},
        kernels={},
        ops={},
        phases=(Phase("step", "step", (*nodes, Launch("prepare", "prepare", (), (), {}))),),
        captures=(),
        segments=(),
        buckets=tuple(buckets),
        memory=ArenaBytes(0, 0, 0),
        totals={bucket: Totals(1, 0, 0, 0, 0, 0, 0) for bucket in buckets},
    )


def _inputs(*, prompts: bool, corpus: bool) -> dict[str, Input]:
    inputs = [Input("seq_lens", "i64", ("B",), "arena"), Input("req_to_token", "i32", ("P", "C"), "engine")]
    inputs += [Input("prompt_tokens", "i64", ("T",), "engine")] if prompts else []
    inputs += [Input("corpus", "i32", ("M",), "engine")] if corpus else []
    return {one.name: one for one in inputs}


def _draft_calls(draft: Draft | None, steps: int, reads_hidden: bool) -> list[tuple[str, str, dict[str, str]]]:
    """Return callback, capture and operands of the draft's forwards in a step."""
    hidden = {"hidden": "h"} if reads_hidden else {}
    if draft is None:
        return []
    if isinstance(draft, FrozenKvDraft):
        return [("assist", "last", hidden)] * steps
    if isinstance(draft, MtpDraft):
        return [("extend_module", "null", hidden)] * steps
    if isinstance(draft, DflashDraft):
        return [("block", "null", {}), ("inject", "null", hidden)]
    return [("extend", "last" if reads_hidden else "null", hidden)]


def external(callback: str, capture: str, operands: Any, results: Any = None) -> External:
    """The call of a forward in a plan."""
    return External(callback, callback, None, capture, operands, results or {})


def record(facts: ModelFacts) -> Model:
    """A model's record in a plan."""
    names = ("hidden_size", "num_layers", "num_kv_heads", "head_dim", "kv_layout", "vocab_size", "dtype")
    said = {name: getattr(facts, name) for name in names}
    return Model(**said, spec_width=facts.hidden_size, logits_dtype=facts.dtype)


def with_model(plan: Plan, role: str, **changes: Any) -> Plan:
    """The plan, made for another target or draft."""
    return replace(plan, models={**plan.models, role: replace(plan.models[role], **changes)})


@dataclass
class FakeProgram:
    """A loaded program; `steps_run` counts decode steps, `padded` the padding rows they had.

    drafted: by pool row, the committed length and the drafts of every step. takes_last: of tokens with equal scores.
    """

    plan: Plan
    steps_run: int = 0
    padded: int = 0
    takes_last: bool = False
    batches: list[int] = field(default_factory=list)
    drafted: dict[int, list[tuple[int, list[int]]]] = field(default_factory=dict)

    @property
    def plans(self) -> dict[int, Plan]:
        """The plan of its only depth."""
        return {self.plan.size("S"): self.plan}

    def bind(
        self,
        callbacks: Any,
        req_to_token: Tensor,
        *,
        kv_pools: Mapping[str, Sequence[Tensor]],
        tables: Mapping[str, Tensor],
        capture: bool | None = None,
        nvtx: bool = False,
    ) -> FakeStep:
        """Return the step functions; the pools must be there, though a chain moves nothing in them."""
        assert kv_pools.keys() == self.plan.kv_pools.keys()
        for owner, buffers in kv_pools.items():
            model = self.plan.models[owner]
            assert len(buffers) == model.num_layers * (1 if model.kv_layout == "mla" else 2)
            assert all(buffer.is_contiguous() for buffer in buffers)
        called = self.plan.callbacks()
        kind = next((kind for name, kind in KINDS.items() if name in called), LookupStep)
        return kind(self, callbacks, req_to_token, tables)

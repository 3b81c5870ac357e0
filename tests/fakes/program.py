"""Programs in plain Python that keep the contract of docs/runtime.md: greedy chains, of every way of drafting.

They stand in for a generated package where only the engine is under test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from specc.engine.models.causal_models import ModelFacts, TargetModel
from specc.engine.models.drafts import DflashDraft, Draft, FrozenKvDraft, MtpDraft
from specc.runtime.depth import FixedDepth

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
) -> dict[str, Any]:
    """Return as much of a plan as the engine reads."""
    reads_hidden = draft is not None and getattr(draft, "reads_hidden", True)
    shifted = reads_hidden if shifted is None else shifted
    results = {"logits": "l", "hidden": "t"} if reads_hidden else {"logits": "l"}
    nodes = [external("target", "full" if reads_hidden else "null", {}, results)]
    nodes += [external(name, *what) for name, *what in _draft_calls(draft, steps, reads_hidden)]
    owners = ["target"] if draft is None or isinstance(draft, FrozenKvDraft) else ["target", "draft"]
    inputs = {"seq_lens": ["B"], "req_to_token": ["P", "C"]}
    inputs |= {"prompt_tokens": ["T"]} if draft is None else {}
    inputs |= {"corpus": ["M"]} if corpus else {}
    return {
        "dims": {"P": rows, "B": max(buckets), "S": steps, "A": steps + 1, "N": steps + 1, "K": 1},
        "kv": {
            "page_size": page_size,
            "window": steps + 1 + (not shifted),
            "branch_room": 0,
            "reserve": 2 * (steps + 1),
            "longest": None,
            "draft_positions": "shifted" if shifted else "true",
        },
        "kv_pools": {owner: {} for owner in owners},
        "models": {"target": record(target.facts)} | ({} if draft is None else {"draft": record(draft.facts)}),
        "carry": [],
        "inputs": [{"name": name, "axes": axes} for name, axes in inputs.items()],
        "totals": {str(b): {"launches_in_graph": 1, "launches_outside_graph": 0} for b in buckets},
        "phases": [{"name": "step", "entry": "step", "nodes": [*nodes, {"kind": "launch", "kernel": "prepare"}]}],
        "buckets": list(buckets),
    }


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


def external(callback: str, capture: str, operands: Any, results: Any = None) -> dict[str, Any]:
    """Return the call of a forward in a plan."""
    names = {"operands": operands, "results": results or {}}
    return {"kind": "external", "callback": callback, "capture": capture, **names}


def record(facts: ModelFacts) -> dict[str, Any]:
    """Return a model's record in a plan."""
    names = ("hidden_size", "num_layers", "num_kv_heads", "head_dim", "kv_layout", "vocab_size", "dtype")
    return {name: getattr(facts, name) for name in names} | {"logits_dtype": facts.dtype}


@dataclass
class FakeProgram:
    """A loaded program; `steps_run` counts decode steps, `padded` the padding rows they had.

    drafted: by pool row, the committed length and the drafts of every step. takes_last: of tokens with equal scores.
    """

    plan: dict[str, Any]
    steps_run: int = 0
    padded: int = 0
    takes_last: bool = False
    batches: list[int] = field(default_factory=list)
    drafted: dict[int, list[tuple[int, list[int]]]] = field(default_factory=dict)

    @property
    def plans(self) -> dict[int, dict[str, Any]]:
        """The plan of its only depth."""
        return {self.plan["dims"]["S"]: self.plan}

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
        assert kv_pools.keys() == self.plan["kv_pools"].keys()
        for owner, buffers in kv_pools.items():
            model = self.plan["models"][owner]
            assert len(buffers) == model["num_layers"] * (1 if model["kv_layout"] == "mla" else 2)
            assert all(buffer.is_contiguous() for buffer in buffers)
        called = {node.get("callback") for node in self.plan["phases"][0]["nodes"]}
        kind = next((kind for name, kind in KINDS.items() if name in called), LookupStep)
        return kind(self, callbacks, req_to_token, tables)

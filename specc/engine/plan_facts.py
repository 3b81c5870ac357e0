"""What the engine needs to know of a program, read from its plan (docs/plan.md) and from nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

RECURRENT = ("draft", "extend", "prefill_draft")
MODULE = "extend_module"
"""Forwards of drafts that may see at a position a token after it: the next one, or one as far on as their number."""

FORWARD_RESULTS = {"logits", "hidden"}

LENGTHS = "seq_lens"
"""The carried field of committed lengths."""

TABLE, PROMPT = "req_to_token", "prompt_tokens"
"""Inputs that have no size of their own and are no tables: the request table, and what comes with a prefill."""


@dataclass(frozen=True)
class PlanFacts:
    """The sizes and conventions that an engine has to follow.

    rows: P, rows of the request table, the padding row included. buckets: batch sizes that a padded step can have.
    branches: K, drafted side by side; 1 for a chain. branch_room: positions that a branch may write. reach: positions
    beyond a request's committed tokens that its forwards may be at. reserve: slots to hold there, never fewer than
    that. pools: owners of KV memory. forwards: callback and number of every forward, in order. calls: their callbacks.
    shifted: the draft sees token p+1 at position p. reads_hidden: some forward of a recurrent draft reads hidden
    states. lookahead: tokens after a position that the draft's keys and values there depend on. settled: those of
    committed tokens never come from tokens that were only drafted. reads_prompts: prefill reads the tokens of prompts.
    tables: inputs that the engine brings. num_steps: S, draft steps of a decode step. accepts: A, the most tokens that
    one commits. relays: steps read committed lengths from the carry, so that one can be launched before the last one's
    results are read. mask_mode: how the target is told the tree, None if it is not. mask_context: the most committed
    tokens that such a mask has room for, None without limit. extras: what the program wants of the target besides
    logits and hidden states. models: the
    plan's record of each role, no draft where there is none. aux_layers: layers of the target, counted from 1, whose
    outputs it hands over; none where it hands over its hidden states.
    """

    rows: int
    buckets: tuple[int, ...]
    page_size: int
    branches: int
    branch_room: int
    reach: int
    reserve: int
    pools: tuple[str, ...]
    forwards: tuple[tuple[str, int | None], ...]
    calls: frozenset[str]
    shifted: bool
    reads_hidden: bool
    lookahead: int
    settled: bool
    reads_prompts: bool
    tables: tuple[str, ...]
    num_steps: int
    accepts: int
    relays: bool
    mask_mode: str | None
    mask_context: int | None
    extras: tuple[str, ...]
    models: Mapping[str, Mapping[str, Any]]
    aux_layers: tuple[int, ...] = ()

    @property
    def max_batch(self) -> int:
        """The largest bucket."""
        return max(self.buckets)

    @classmethod
    def read(cls, plan: object) -> PlanFacts:
        """Read a plan, which is plan.json's mapping or an object with the same names as attributes."""
        kv, dims = get(plan, "kv"), get(plan, "dims")
        shifted = get(kv, "draft_positions") == "shifted"
        mask = _attrs(plan, "tree.mask")
        forwards = tuple((get(node, "callback"), _fields(node).get("step")) for node in _calls(plan))
        calls = frozenset(callback for callback, _ in forwards)
        modules = len(list(_calls(plan, MODULE)))
        inputs = _unsized_inputs(plan)
        return cls(
            rows=int(dims["P"]),
            buckets=tuple(int(bucket) for bucket in get(plan, "buckets")),
            page_size=int(get(kv, "page_size")),
            branches=int(dims["K"]),
            branch_room=int(get(kv, "branch_room")),
            reach=max(int(dims["N"]), int(dims["A"]) + (not shifted)),
            reserve=max(int(get(kv, "reserve")), int(get(kv, "window"))),
            pools=tuple(get(plan, "kv_pools")),
            forwards=forwards,
            calls=calls,
            shifted=shifted,
            reads_hidden=any("hidden" in get(node, "operands") for node in _calls(plan, *RECURRENT)),
            lookahead=modules or int(shifted and not calls.isdisjoint(RECURRENT)),
            settled=not modules,
            reads_prompts=PROMPT in inputs,
            tables=tuple(name for name in inputs if name not in (TABLE, PROMPT)),
            num_steps=int(dims["S"]),
            accepts=int(dims["A"]),
            relays=LENGTHS in _names(get(plan, "carry")),
            mask_mode=str(mask["mode"]) if mask else None,
            mask_context=get(kv, "longest"),
            extras=tuple(
                sorted({name for node in _calls(plan, "target") for name in get(node, "results")} - FORWARD_RESULTS)
            ),
            models=dict(get(plan, "models")),
            aux_layers=tuple(get(get(plan, "models"), "target").get("aux_layers", ())),
        )


def get(record: object, name: str) -> Any:
    """Return a field of a mapping or of an object; raises KeyError or AttributeError when it is absent."""
    return record[name] if isinstance(record, Mapping) else getattr(record, name)


def _nodes(plan: object) -> Iterator[Any]:
    """Yield every node of every phase."""
    for phase in get(plan, "phases"):
        yield from get(phase, "nodes")


def _fields(record: Any) -> Mapping[str, Any]:
    """Return the fields of a mapping or of an object, by name."""
    return record if isinstance(record, Mapping) else vars(record)


def _calls(plan: object, *callbacks: str) -> Iterator[Any]:
    """Yield every node that calls one of these forwards, by default any."""
    for node in _nodes(plan):
        fields = _fields(node)
        if "callback" in fields and (not callbacks or fields["callback"] in callbacks):
            yield node


def _names(fields: Any) -> list[str]:
    """Return the names of a plan's fields, which are a list or a mapping by name."""
    return [get(field, "name") for field in (fields.values() if isinstance(fields, Mapping) else fields)]


def _unsized_inputs(plan: object) -> list[str]:
    """Return the names of inputs that have an axis without size: those that the engine brings."""
    inputs, sized = get(plan, "inputs"), get(plan, "dims")
    fields = inputs.values() if isinstance(inputs, Mapping) else inputs
    return [
        get(field, "name")
        for field in fields
        if any(sized.get(axis) is None and not axis.isdecimal() for axis in map(str, get(field, "axes")))
    ]


def _attrs(plan: object, opcode: str) -> Mapping[str, Any]:
    """Return the attributes of the first op of a kind in any launch; empty if there is none."""
    for node in _nodes(plan):
        for call in _fields(node).get("ops", ()):
            if get(call, "op") == opcode:
                return get(call, "attrs")
    return {}

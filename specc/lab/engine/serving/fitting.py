"""Whether models, tables and options fit a program; asked once, when an engine is made."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from specc.compiler.ir.ops.head import MARKOV
from specc.compiler.ir.ops.lattice import SELECTOR
from specc.lab.engine.errors import EngineError, UnsupportedModelError
from specc.lab.engine.memory.state_pool import StatePool, state_pools
from specc.lab.engine.memory.state_records import RecordedStates
from specc.lab.engine.memory.state_snapshots import SnapshotStates
from specc.lab.engine.models.causal_models import CausalModel, TargetModel
from specc.lab.engine.models.drafts import Draft
from specc.lab.engine.serving.checking import check_scores
from specc.runtime import AcceptanceShape, ConfidenceShape, FixedShape, ShapePolicy
from specc.runtime.capabilities.shape import ShapeBuckets, StepTimes
from specc.runtime.plan.draft_head import HEAD
from specc.runtime.plan.fields import STATE_POINT
from specc.runtime.plan.plan import RANK, TOKEN_MAP, Plan
from specc.runtime.plan.recurrent.state_tables import (
    FOLD,
    KEPT_INTERVAL,
    KEPT_ROWS,
    OWNER,
    POINT,
    STATE_ROWS,
    CommittedStates,
)
from specc.runtime.plan.shape import Shape, listed, named

DEFAULT_CONTEXT = 1024
"""Context length to serve if the models can, in tokens."""
_OF_HEADS = {MARKOV: ("markov_tables", "a Markov head"), SELECTOR: ("selector_tables", "a selector")}
"""Tables of parts of a head that the program computes: the head's attribute that has them, and what the part is."""
COMMIT_STATE = "commit_state"
"""The callback of programs whose target keeps a recurrent state, which their engine commits."""
PRODUCT_RTOL = 0.05
"""By how much scores may differ from a product with the head: more than 16 bits round, less than a cap changes."""


def check_program(plan: Plan, models: Mapping[str, TargetModel | Draft], *, trees: bool) -> None:
    """Raise EngineError or DiagnosticError for models that are not those of the program.

    UnsupportedModelError for what it asks of them and no model here can give. ``trees``: whether any shape is one.
    """
    if plan.rotated:
        what = "the program leaves the target's forward to the engine (`step: rotated`), this engine runs whole steps"
        raise UnsupportedModelError(
            what, "engines that run the target themselves serve it; for this one leave out `step`"
        )
    if RANK in plan.inputs:
        what = "the program reads logits that are sharded over ranks, this engine's models score whole vocabularies"
        raise UnsupportedModelError(what, "build it with `logits: gathered`")
    for role in sorted(plan.models.keys() ^ models.keys()):
        raise EngineError(f"the program has {'a' if role in plan.models else 'no'} {role} model")
    for role, model in models.items():
        model.facts.check(role, plan.models[role])
    commits = COMMIT_STATE in plan.callbacks() or CommittedStates.of(plan) is not None
    if commits != bool(states := models["target"].facts.states):
        layers = len({shape.part.layer for shape in states})
        what = f"{layers or 'no'} layers of the target keep a recurrent state"
        does = f"the program commits {'the state of some' if commits else 'none'}"
        raise UnsupportedModelError(f"{what}, {does}", f"rebuild with `state_layers: {layers}` of the target")
    if plan.serving.extras:
        wanted = ", ".join(plan.serving.extras)
        raise UnsupportedModelError(f"the program hands out {wanted}, which the engine's models do not give")
    if trees and plan.serving.mask_mode is None:
        raise UnsupportedModelError("the program gives the target no tree mask (`mask: none`), this engine needs one")


def chooser(buckets: ShapeBuckets, times: StepTimes | None = None) -> ShapePolicy:
    """What chooses by what the engine sees: what drafts promise where there are budgets, what is accepted elsewhere."""
    if any(shape.budget is not None for shape in buckets):
        return ConfidenceShape(buckets, times=times)
    return AcceptanceShape(buckets, times=times)


def shape_policy(wanted: ShapePolicy | Shape | str | int | None, buckets: ShapeBuckets) -> ShapePolicy:
    """What chooses among the shapes of a program; always one of them where it is named. EngineError for no such one."""
    if wanted is None:
        return chooser(buckets)
    if not isinstance(wanted, tuple | str | int):
        return wanted
    if (shape := named(buckets, wanted)) is None:
        raise EngineError(f"the program has no shape {wanted}; there is {listed(buckets)}")
    return FixedShape(shape, buckets)


def check_models(models: Mapping[str, TargetModel | Draft], max_context: int) -> None:
    """Raise UnsupportedModelError for a language model that paged memory changes; see `check_scores`."""
    for role, model in models.items():
        if isinstance(model, CausalModel):
            try:
                check_scores(model, max_context)
            except UnsupportedModelError as error:
                raise UnsupportedModelError(f"the {role} model cannot be run: {error}", error.hint) from error


def check_callbacks(plan: Plan, callbacks: object) -> None:
    """Raise UnsupportedModelError for forwards that the program calls and the models do not have."""
    missing = sorted(name for name in plan.callbacks() if not callable(getattr(callbacks, name, None)))
    if missing:
        raise UnsupportedModelError(f"the program calls {', '.join(missing)}, which the engine's models do not have")


def overlaps(plan: Plan, wanted: bool | None, device: torch.device) -> bool:
    """Whether to launch ahead; raises EngineError where the program needs the lengths of the step before.

    By default where it gains something: a CPU has done a step's work when its launch returns.
    """
    if wanted and not plan.relays:
        raise EngineError("the program does not relay lengths (`overlap: false`), every step waits for the one before")
    return plan.relays and device.type != "cpu" if wanted is None else wanted


def bring(
    plans: Collection[Plan], tables: Mapping[str, Tensor], draft: Draft | None, states: Mapping[str, StatePool]
) -> dict[str, Any]:
    """Return what a program is bound to beside keys and values, by the names of arguments; EngineError for tables."""
    return {"tables": bring_tables(next(iter(plans)), tables, draft), **bring_states(plans, states)}


def bring_tables(plan: Plan, given: Mapping[str, Tensor], draft: Draft | None) -> dict[str, Tensor]:
    """Return the tables of the program, its draft's map among them; raises EngineError unless they are those it reads.

    given: what else there is, or a map to use instead of the draft's.
    """
    if draft is not None and draft.token_map is not None and TOKEN_MAP in plan.tables():
        given = {TOKEN_MAP: draft.token_map, **given}
    if draft is not None and plan.computes_head:
        given = {HEAD: head_of(draft), **given}
    if draft is not None:
        for names in (names for names in _OF_HEADS if names[0] in plan.tables()):
            given = {**tables_of(draft, names), **given}
    if STATE_ROWS in plan.tables():
        given = {**_state_rows(plan), **given}
    for name in sorted(plan.tables().keys() ^ given.keys()):
        raise EngineError(f"the program reads {'a' if name in plan.tables() else 'no'} table {name!r}")
    return dict(given)


def tables_of(draft: Draft, names: tuple[str, str]) -> dict[str, Tensor]:
    """Return the two tables of these names of a draft's head; raises UnsupportedModelError for one without."""
    attribute, whose = _OF_HEADS[names]
    tables = getattr(getattr(draft, "head", None), attribute, None)
    if tables is None:
        raise UnsupportedModelError(f"the program reads the tables of {whose}, which the draft does not have")
    return dict(zip(names, tables, strict=True))


def _state_rows(plan: Plan) -> dict[str, Tensor]:
    """Return where states are: pool rows have states of their own, and those of no prefixes are kept."""
    rows = torch.arange(plan.size("P"), dtype=torch.int32)
    return {STATE_ROWS: rows, KEPT_ROWS: torch.full_like(rows, -1), KEPT_INTERVAL: torch.zeros(1, dtype=torch.int64)}


def make_states(target: TargetModel, plans: Collection[Plan]) -> dict[str, StatePool]:
    """Return the states of a target for programs of these plans; none where it keeps none.

    UnsupportedModelError where a program advances others.
    """
    shapes, rows = target.facts.states, max(plan.size("P") for plan in plans)
    pools = [pool for plan in plans if (pool := CommittedStates.of(plan)) is not None]
    form = pools[0].op if shapes and pools else ""
    if form == FOLD:
        return {OWNER: RecordedStates(shapes, rows, target.model, pools[0], target.device)}
    if form == POINT:
        return {OWNER: SnapshotStates(shapes, rows, max(pool.nodes for pool in pools), target.device)}
    return state_pools({OWNER: shapes}, rows, target.device)


def bring_states(plans: Collection[Plan], states: Mapping[str, StatePool]) -> dict[str, Any]:
    """Return the states of the target for a program that commits them; nothing for another one."""
    if all(CommittedStates.of(plan) is None for plan in plans):
        return {}
    states[OWNER].make_room(max(plan.buckets[-1] for plan in plans), max(plan.size("N") for plan in plans))
    return {"state_pools": {OWNER: states[OWNER].bound}}


def follow_points(states: Mapping[str, StatePool], carried: Mapping[str, Tensor]) -> None:
    """Let the states of a program that leaves them where they are be those that it carries the number of."""
    for pool in states.values():
        if isinstance(pool, SnapshotStates):
            pool.points = carried[STATE_POINT]


def head_of(draft: Draft) -> Tensor:
    """Return the weights T[V, H] of a draft's head; raises UnsupportedModelError where its scores are no product.

    Some models cap or scale their scores, or add a bias. So those of a few rows are compared.
    """
    weight = draft.weight
    rows = torch.randn(4, weight.shape[1], generator=torch.Generator().manual_seed(1)).to(weight)
    with torch.inference_mode():
        scores, product = draft.logits(rows).float(), draft.states(rows).float() @ weight.float().T
    if not torch.allclose(scores, product, rtol=PRODUCT_RTOL, atol=PRODUCT_RTOL * float(product.abs().max())):
        message = "the draft's scores are not the product of its hidden states and its head: write no draft.head"
        raise UnsupportedModelError(message)
    return weight


def context_length(wanted: int | None, models: Mapping[str, TargetModel | Draft], plan: Plan) -> int:
    """Return the context length to serve; raises EngineError when it is more than models or program were made for."""
    known = [model.facts.max_context for model in models.values()]
    limit = min((length for length in (*known, plan.kv.longest) if length), default=None)
    if wanted is None:
        return min(DEFAULT_CONTEXT, limit or DEFAULT_CONTEXT)
    if wanted < 1 or (limit is not None and wanted > limit):
        raise EngineError(f"max_context must be between 1 and {limit}, what models and program allow, not {wanted}")
    return wanted

"""The graph shared by drafts that run S-1 forwards of their own per step and one extend over what was accepted.

It always produces hidden states and always carries scores: what a configuration does not need is removed by the
passes, by dataflow alone. Semantics: docs/semantics.md; SGLang's eagle_worker_v2.
"""

from __future__ import annotations

from collections.abc import Callable

from specc.compiler.algorithms.blocks.growth import Frontier, grow_tree
from specc.compiler.algorithms.blocks.rejection import carry_rows, children, load_rows
from specc.compiler.algorithms.blocks.scope import Scope, dtype_of, logits_dtype_of
from specc.compiler.algorithms.blocks.verification import (
    Accepted,
    FromTarget,
    State,
    carry_lengths,
    finish_prefill,
    prefill_target,
    rows_like_its_own,
    start,
    store,
    verify,
)
from specc.compiler.ir.core import Value
from specc.compiler.ir.ops.health import EXTEND_BIT, PREFILL_BIT


def unchanged(logits: Value) -> Value:
    """Draft by the logits as the draft hands them over."""
    return logits


def build_recurrent(
    scope: Scope,
    *,
    reads_hidden: bool,
    from_target: FromTarget | None = None,
    drafts_by: Callable[[Value], Value] = unchanged,
) -> None:
    """Write the graph of both entries.

    Args:
        scope: module under construction.
        reads_hidden: whether the draft's forwards read hidden states. If so its stream is shifted: the pair at draft
            position p is (token p + 1, hidden p); if not it sees tokens at their true positions.
        from_target: what it reads of the target's; by default rows like those that it passes on itself.
        drafts_by: writes what becomes of the draft's logits T[B, ..., Vd] before drafts are picked, in any phase.

    """
    scope.require_one_vocabulary()
    config, draft = scope.config, scope.draft
    scope.carry("bonus", "i32", limit="V")
    scope.carry("topk_p", "f32", scope.candidates, limit=1, at=("topk",))
    scope.carry("topk_index", "i64", scope.candidates, limit="V", at=("topk",))
    scope.carry("hidden", dtype_of(draft), draft.spec_width, at=("draft", "hidden_size"))
    carry_rows(scope)
    carry_lengths(scope)
    shifted = {"true": False, "shifted": True, "auto": reads_hidden}[config.file.draft_positions]
    offset = 0 if shifted else 1
    own = rows_like_its_own(scope) if reads_hidden else FromTarget(0, dtype_of(draft))
    rows = from_target or own
    _prefill(scope, reads_hidden, rows, drafts_by)
    state, root, frontier, slots = _prepare(scope, offset)
    with scope.b.phase("prepare"):
        q = load_rows(scope)

    def forward(step: int, frontier: Frontier) -> tuple[Value, Value]:
        inputs = [frontier.tokens, frontier.positions, slots, scope.rows, state.seq_lens, state.kv_draft]
        with scope.b.at(scope.at("draft", "hidden_size")):
            logits, state.kv_draft, hidden = scope.b.many(
                "model.draft", *inputs, *([frontier.hidden] if reads_hidden and frontier.hidden else []),
                names=(f"draft_logits{step}", f"kv_draft{step + 1}", f"draft_hidden{step}"),
                capture="last", step=step, **_draft_io(scope, own),
            )  # fmt: skip
        return drafts_by(logits), hidden

    nodes = grow_tree(scope, state, root, frontier, forward, advance=True, q=q)
    accepted = verify(scope, state, nodes, rows.offers)
    _extend(scope, state, accepted, rows if reads_hidden else None, offset, drafts_by)


def _prefill(scope: Scope, reads_hidden: bool, rows: FromTarget, drafts_by: Callable[[Value], Value]) -> None:
    b = scope.b
    health, first, hidden = prefill_target(scope, rows.offers)
    with b.phase("prefill"):
        inputs = [first, scope.rows, scope.seq_lens, scope.kv_draft] + ([hidden] if reads_hidden else [])
        with b.at(scope.at("draft", rows.reads)):
            logits, _, hidden = b.many(
                "model.prefill_draft", *inputs,
                names=("prefill_draft_logits", "prefill_kv_draft", "prefill_draft_hidden"),
                capture="last", **_draft_io(scope, rows),
            )  # fmt: skip
        names = "prefill_topk_p", "prefill_topk_index", "prefill_bad"
        p, index, bad, _ = children(
            scope, drafts_by(logits), scope.seq_lens, names, stem="prefill_draft_", carried=True
        )
        health = b("health.raise", health, bad, names=("prefill_health_out",), bit=PREFILL_BIT)
    finish_prefill(scope, health, first, {"bonus": first, **_fields(p, index), "hidden": hidden})


def _fields(p: Value | None, index: Value) -> dict[str, Value]:
    """The root's children by field of the carry."""
    return {"topk_index": index} if p is None else {"topk_p": p, "topk_index": index}


def _candidates(scope: Scope, field: str) -> Value:
    """The root's children [B, K] of a field; of those of the widest shape the best."""
    carried = scope.b("carry.load", scope.rows, names=(field,), field=field)
    return carried if scope.candidates == "K" else scope.b("tree.best", carried, names=(f"best_{field}",))


def _prepare(scope: Scope, first: int) -> tuple[State, Value, Frontier, Value]:
    """Load the carry: the root, its children, and the slots [D, B, K] of the draft's forwards."""
    b = scope.b
    health, seq_lens = start(scope)
    with b.phase("prepare"):
        root = b("carry.load", scope.rows, names=("root",), field="bonus")
        scores, tokens = (_candidates(scope, field) for field in ("topk_p", "topk_index"))
        with b.at(scope.at("draft", "hidden_size")):
            hidden = b("carry.load", scope.rows, names=("carried_hidden",), field="hidden")
            hidden = b("tree.repeat", hidden, names=("frontier_hidden",))
        with b.at(scope.at("page_size")):
            positions = b("kv.positions", seq_lens, names=("draft_positions",), axis="K", offset=first, stride=0)
            slots = b(
                "kv.draft_slots", scope.req_to_token, scope.rows, seq_lens,
                names=("draft_slots",), offset=first, page=scope.config.file.page_size,
                room=scope.config.deepest,
            )  # fmt: skip
    state = State(health, seq_lens, scope.kv_draft, scope.kv_target)
    return state, root, Frontier(tokens, scores, positions, hidden), slots


def _extend(
    scope: Scope,
    state: State,
    accepted: Accepted,
    reads: FromTarget | None,
    offset: int,
    drafts_by: Callable[[Value], Value],
) -> None:
    """The draft over the accepted tokens; ``reads`` is None for a draft that reads no hidden states."""
    b = scope.b
    rows = reads or FromTarget(0, dtype_of(scope.draft))
    with b.phase("commit"):
        hidden = b("commit.path", accepted.hidden, accepted.accept_index, names=("path_hidden",))
        tokens = b("commit.extend_ids", accepted.predict, accepted.accept_lens, names=("extend_tokens",))
        select = b("commit.select", accepted.accept_lens, names=("select",))
    with b.phase("extend"):
        with b.at(scope.at("page_size")):
            positions = b(
                "kv.positions", state.seq_lens, names=("extend_positions",), axis="A", offset=offset, stride=1
            )
            slots = b(
                "kv.extend_slots", scope.req_to_token, scope.rows, state.seq_lens,
                names=("extend_slots",), axis="A", offset=offset,
            )  # fmt: skip
        where = (positions, slots, select, accepted.accept_lens, scope.rows, state.seq_lens)
        inputs = [tokens, *where, state.kv_draft]
        with b.at(scope.at("draft", rows.reads)):
            logits, _, hidden = b.many(
                "model.extend", *inputs, *([hidden] if reads else []),
                names=("extend_logits", "kv_draft_out", "extend_hidden"),
                capture="last", **_draft_io(scope, rows),
            )  # fmt: skip
        names = "next_topk_p", "next_topk_index", "extend_bad"
        p, index, bad, _ = children(scope, drafts_by(logits), accepted.new_lens, names, stem="next_", carried=True)
        state.health = b("health.raise", state.health, bad, names=("health_out",), bit=EXTEND_BIT)
        store(scope, {"bonus": accepted.bonus, **_fields(p, index), "hidden": hidden})
    scope.output("health", state.health)


def _draft_io(scope: Scope, read: FromTarget) -> dict[str, str | int]:
    """Widths and dtypes of one of the draft's forwards; the consumer declares what it reads."""
    draft = scope.draft
    given: dict[str, str | int] = {"input_dtype": read.dtype, "input_width": read.width}
    return {**given, "dtype": dtype_of(draft), "logits_dtype": logits_dtype_of(draft), "width": draft.spec_width}

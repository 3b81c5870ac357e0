"""What every algorithm shares: prefill of the target, loading of the root, verification of the nodes, and commit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specc.compiler.algorithms.blocks import logprobs, restriction
from specc.compiler.algorithms.blocks.penalties import changed, count
from specc.compiler.algorithms.blocks.rejection import Source, decide, sampled
from specc.compiler.algorithms.blocks.sampling import drawn, draws
from specc.compiler.algorithms.blocks.scope import Scope, dtype_of, logits_dtype_of
from specc.compiler.ir.core import Value
from specc.compiler.ir.ops.budget import CUT, EXPECT, LIMIT
from specc.compiler.ir.ops.health import TARGET_BIT
from specc.compiler.ir.ops.model import COMMIT_STATE, TARGET
from specc.compiler.ir.ops.tree import SEEN_SLOTS
from specc.runtime.plan.shape import shapes_expected

EXPECTED = "expected_tokens"
"""The output that a choice among budgets is made by."""
AGREEMENT, MOST_AGREED = "agreement", 1 << 12
"""What a request carries of its drafts: how many were accepted, and expected, lately; more than it can come to."""


@dataclass(frozen=True)
class FromTarget:
    """Rows of the target as a draft reads them, and the keys of both models that settle their width."""

    width: int
    dtype: str
    reads: str = "hidden_size"
    offers: str = "hidden_size"


@dataclass
class State:
    """Values the phases hand to each other."""

    health: Value
    seq_lens: Value
    kv_draft: Value
    kv_target: Value


@dataclass(frozen=True)
class Nodes:
    """What the target verifies: tokens [B, n], and parents and depths of a tree; without them a chain.

    q: what the drafts were drawn from, if they were, in the order of the columns.
    confidence: how probable the draft finds each of its tokens, f32[B, S], of a program with a budget; of a tree how
        probable it finds the path to each, f32[B, E].
    estimate: how probable it is then that each draft and those before it are accepted, f32[B, S] or f32[B, E].
    """

    tokens: Value
    parent: Value | None = None
    depth: Value | None = None
    q: tuple[Source, ...] = ()
    confidence: Value | None = None
    estimate: Value | None = None


@dataclass(frozen=True)
class Accepted:
    """What verification leaves: per node hidden rows [B, n, W], the path, lengths [B], tokens [B, A], the bonus [B].

    new_lens: committed lengths [B], where the bonus stands.
    """

    hidden: Value
    accept_index: Value
    accept_lens: Value
    predict: Value
    bonus: Value
    new_lens: Value


def prefill_target(scope: Scope, offers: str = "hidden_size", *, last: bool = False) -> tuple[Value, Value, Value]:
    """The target over the prompts: health [B], first sampled token i32[B], hidden rows [T, W], or the last ones [B, W].

    Args:
        scope: module under construction.
        offers: key of the target that settles how wide its rows are.
        last: whether only the last row of every prompt is of use.

    """
    b, target = scope.b, scope.config.target
    with b.phase("prefill"):
        health = b("health.clear", scope.rows, names=("prefill_health",))
        with b.at(scope.at("target", offers)):
            logits, *_, hidden = b.many(
                "model.prefill_target", scope.rows, scope.seq_lens, scope.kv_target, *scope.state_target,
                names=(
                    "prefill_target_logits", "prefill_kv_target", *_state_names(scope, "prefill_"),
                    "prefill_target_hidden",
                ),
                capture="last" if last else "full", per="B" if last else "T",
                dtype=dtype_of(target), logits_dtype=logits_dtype_of(target), width=target.spec_width,
                **_recurrent(scope),
            )  # fmt: skip
        if not scope.config.file.draws:
            first, bad = b.many("vocab.argmax", logits, scope.rows, names=("first", "first_bad"), dtype="i32", keep="")
        else:
            mine = restriction.allowed_first(scope, changed(scope, logits, "prefill_", "prefill"))
            given = draws(scope, mine, scope.seq_lens, 0, "prefill_", "prefill")
            first, bad = drawn(scope, mine, given, ("first", "first_bad"))
            count(scope, first)
            logits = logprobs.scored(scope, logits, mine, given, "prefill_scaled_logits")
        logprobs.hand_out_first(scope, logits, first)
        health = b("health.raise", health, bad, names=("prefill_health_target",), bit=TARGET_BIT)
    return health, first, hidden


def finish_prefill(scope: Scope, health: Value, first: Value, fields: dict[str, Value]) -> None:
    """Carry what the prefill found, and hand out its first token and health."""
    with scope.b.phase("prefill"):
        store(scope, fields)
        if scope.config.file.overlap:
            scope.b.many("carry.store", scope.rows, scope.seq_lens, field="seq_lens")
        if scope.config.budgeted:
            scope.carry(AGREEMENT, "f32", 2, limit=MOST_AGREED, at=("budget",))
            with scope.b.at(scope.at("budget")):
                store(scope, {AGREEMENT: scope.b("budget.begin", scope.rows, names=("no_agreement",))})
    scope.output("prefill.bonus", first)
    scope.output("prefill.health", health)


def carry_lengths(scope: Scope) -> None:
    """Carry the committed lengths, if the scheduler does not wait for them."""
    if scope.config.file.overlap:
        scope.carry("seq_lens", "i64", limit="C", at=("overlap",))


def start(scope: Scope) -> tuple[Value, Value]:
    """The beginning of a step: health i32[B], and committed lengths i64[B], carried or given."""
    b = scope.b
    with b.phase("prepare"):
        health = b("health.clear", scope.rows)
        with b.at(scope.at("overlap")):
            if scope.config.file.overlap:
                return health, b("carry.load", scope.rows, names=("lens",), field="seq_lens")
    return health, scope.seq_lens


def verify(scope: Scope, state: State, nodes: Nodes, offers: str = "hidden_size") -> Accepted:
    """The target over the nodes, the accepted path, new lengths and bonus; ``offers`` as for `prefill_target`."""
    b = scope.b
    tree = scope.config.shape.is_tree
    if tree and (nodes.parent is None or nodes.depth is None):
        raise ValueError(f"topk is {scope.config.topk}, and these nodes are a chain: say Needs(trees=False)")
    nodes, expected = _estimated(scope, nodes)
    begun = restriction.begin(scope, nodes.tokens, state.seq_lens, nodes.parent)
    positions, logits, pending, hidden, extras = _target(scope, state, nodes, offers)
    with b.phase("verify"):
        scored, (predict, accept_index, accept_lens), bad = _accept(scope, state, nodes, logits, positions, begun)
        with b.at(scope.at("verify")):
            state.health = b("health.raise", state.health, bad, names=("health_target",), bit=TARGET_BIT)
        offered = {"accept_index": accept_index, "hidden_states": hidden}
        if not scope.config.file.draws:
            offered |= {logprobs.NAME: logprobs.of_largest(scope, logits, predict)}
        offered |= extras
        outputs = {name: value for name, value in offered.items() if name in scope.config.file.outputs}
    with b.phase("commit"), b.at(scope.at("target")):
        for left in pending:
            b(
                COMMIT_STATE, left, accept_index, accept_lens, scope.rows, state.seq_lens,
                names=_state_names(scope, "committed_"), capture="null",
            )  # fmt: skip
    with b.phase("commit"):
        predict = b("commit.path", predict, accept_index, names=("predict",))
        new_lens, bonus = b.many(
            "commit.lengths", state.seq_lens, accept_lens, predict, names=("new_seq_lens", "bonus")
        )
        count(scope, predict, accept_lens)
        if scope.config.file.overlap:
            with b.at(scope.at("overlap")):
                b.many("relay.publish", scope.rows, new_lens, field="seq_lens")
    always = {"predict": predict, "accept_lens": accept_lens, "new_seq_lens": new_lens, "bonus": bonus}
    for name, value in (always | expected | outputs).items():
        scope.output(name, value)
    with b.phase("commit"):
        logprobs.hand_out(scope, scored, predict, accept_index)
    return Accepted(hidden, accept_index, accept_lens, predict, bonus, new_lens)


def _accept(
    scope: Scope, state: State, nodes: Nodes, logits: Value, positions: Value, begun: Value | None
) -> tuple[Value, tuple[Value, ...], Value]:
    """The logits that are scored; predicted tokens [B, n], the accepted path, its length; who is bad."""
    b, names = scope.b, ("node_predict", "accept_index", "accept_lens")
    links = () if nodes.parent is None else (nodes.parent,)
    with b.at(scope.at("verify")):
        if not scope.config.file.draws:
            kept = ("target_argmax", "target_bad")
            token, bad = b.many("vocab.argmax", logits, scope.rows, names=kept, dtype="i32", keep="")
            tokens = _limited(scope, nodes)
            path = b.many("verify.greedy", tokens, token, scope.rows, *links, names=names)
            _learn(scope, nodes, tokens, path)
            return logits, path, bad
        mine = restriction.allowed(scope, changed(scope, logits, "", "prepare", (nodes.tokens, *links)), begun)
        given = draws(scope, mine, positions, 1, "", "prepare")
        if drafted := sampled(scope) and scope.config.num_steps > 0:
            tokens = _limited(scope, nodes)
            token, bad = decide(scope, (nodes.tokens, tokens), mine, state.seq_lens, given, nodes.q)
        else:
            token, bad = drawn(scope, mine, given, ("drawn", "drawn_bad"))
            tokens = _limited(scope, nodes)
        path = b.many("verify.greedy", tokens, token, scope.rows, *links, names=names)
        _learn(scope, nodes, tokens, path)
        if not drafted:
            packed = scope.config.packed is not None
            rows = "eager" if packed else scope.config.file.verify_rows  # packed rows are not by request
            with b.at(scope.at("verify_rows")):
                bad = b("walk.bad", bad, path[1], names=("target_bad",), rows=rows)
        return logprobs.scored(scope, logits, mine, given, "scaled_logits"), path, bad


def _estimated(scope: Scope, nodes: Nodes) -> tuple[Nodes, dict[str, Value]]:
    """The nodes with estimates, if the target has not a row for all at some shape; by name what outputs say of them."""
    if not scope.config.budgeted or scope.config.num_steps == 0:
        return nodes, {}
    if nodes.confidence is None:
        message = f"budget needs to know how probable drafts are, which {scope.config.algorithm} does not say"
        scope.refuse("legal/budget", message, ("budget",), hint="leave budget out")
        raise AssertionError  # it has raised
    phase, opcode = ("tree", "budget.estimate_paths") if scope.config.shape.is_tree else ("draft", "budget.estimate")
    with scope.b.phase(phase), scope.b.at(scope.at("budget")):
        agreement = scope.b("carry.load", scope.rows, names=(AGREEMENT,), field=AGREEMENT)
        estimate = scope.b(opcode, nodes.confidence, *_links(scope, nodes), agreement, names=("estimate",))
    nodes = replace(nodes, estimate=estimate)
    if len(scope.config.shapes) == 1:
        return nodes, {}
    shapes = [
        f"{shape.num_nodes - 1}:{shape.rows}" for shape in shapes_expected(scope.config.shapes, scope.config.shape)
    ]
    with scope.b.phase("verify"), scope.b.at(scope.at("budget")):
        attrs = {"columns": len(shapes), "shapes": ", ".join(shapes)}
        return nodes, {EXPECTED: scope.b(EXPECT, estimate, scope.rows, names=(EXPECTED,), **attrs)}


def _limited(scope: Scope, nodes: Nodes) -> Value:
    """The nodes' tokens less those for which the target has no row, in the phase verify; all without a budget."""
    with scope.b.at(scope.at("budget")):
        if scope.lens is not None:
            return scope.b(CUT, nodes.tokens, scope.lens, names=("limited_tokens",))
        if nodes.estimate is None or scope.config.shape.budget is None:
            return nodes.tokens
        return scope.b(LIMIT, nodes.tokens, nodes.estimate, scope.rows, names=("limited_tokens",))


def _links(scope: Scope, nodes: Nodes) -> tuple[Value, ...]:
    """The parents i64[B, N] of a tree; nothing of a chain, whatever its links are before they fold away."""
    return (nodes.parent,) if scope.config.shape.is_tree and nodes.parent is not None else ()


def _learn(scope: Scope, nodes: Nodes, verified: Value, path: tuple[Value, ...]) -> None:
    """Take note of what a path, as `verify.greedy` gives it, has accepted of drafts that had a row, i64[B, n]."""
    if nodes.confidence is None:
        return
    # Behind verification nothing lies along the nodes of a tree.
    phase, opcode = ("verify", "budget.learn_paths") if scope.config.shape.is_tree else ("commit", "budget.learn")
    with scope.b.phase(phase), scope.b.at(scope.at("budget")):
        agreement = scope.b("carry.load", scope.rows, names=("agreement_before",), field=AGREEMENT)
        _, accept_index, accept_lens = path
        links = _links(scope, nodes)
        given = agreement, nodes.confidence, *links, verified, *((accept_index,) if links else ()), accept_lens
        after = scope.b(opcode, *given, names=("agreement_after",))
    with scope.b.phase("commit"):
        store(scope, {AGREEMENT: after})


def _recurrent(scope: Scope) -> dict[str, str]:
    """The attribute of forwards of a target that keeps a recurrent state."""
    return {"recurrent": "target"} if scope.state_target else {}


def _state_names(scope: Scope, stem: str) -> tuple[str, ...]:
    """The name of the target's recurrent state after an op, if it keeps one."""
    return tuple(f"{stem}{value.name}" for value in scope.state_target)


def _target(
    scope: Scope, state: State, nodes: Nodes, offers: str
) -> tuple[Value, Value, list[Value], Value, dict[str, Value]]:
    """The target's forward: the nodes' positions, logits, recurrent states if it keeps one, hidden rows, and extras.

    Extras are by name whatever else it hands over.
    """
    b, target = scope.b, scope.config.target
    with b.phase("tree"):
        mask: tuple[Value, ...] = ()
        axis = "N" if nodes.depth is not None else "A"
        if nodes.depth is not None:
            positions = b("tree.positions", state.seq_lens, nodes.depth, names=("verify_positions",))
        else:
            positions = b("kv.positions", state.seq_lens, names=("verify_positions",), axis="A", offset=0, stride=1)
        with b.at(scope.at("page_size")):
            slots = b(
                "kv.verify_slots", scope.req_to_token, scope.rows, state.seq_lens,
                names=("verify_slots",), axis=axis, offset=0,
            )  # fmt: skip
        if nodes.parent is not None and scope.config.file.mask != "none":
            with b.at(scope.at("mask")):
                mode, width = scope.config.file.mask, scope.config.mask_width
                if mode == "slots":
                    mask = b.many(SEEN_SLOTS, slots, nodes.parent)
                else:
                    mask = b.many("tree.mask", state.seq_lens, nodes.parent, mode=mode, width=width)
    with b.phase("verify"), b.at(scope.at("target", offers)):
        extras = scope.target_extras()
        logits, _, *values = b.many(
            TARGET, nodes.tokens, positions, slots, scope.rows, state.seq_lens, state.kv_target, *scope.state_target,
            *mask, names=("target_logits", "kv_target1", *_state_names(scope, "node_"), "target_hidden", *extras),
            capture="full", dtype=dtype_of(target), logits_dtype=logits_dtype_of(target), width=target.spec_width,
            extras=", ".join(f"{name}: {type_}" for name, type_ in extras.items()), **_recurrent(scope),
        )  # fmt: skip
    count = len(scope.state_target)
    return positions, logits, values[:count], values[count], dict(zip(extras, values[count + 1 :], strict=True))


def store(scope: Scope, fields: dict[str, Value]) -> None:
    """Carry values, by field; what a field is declared as is what its store expects."""
    for name, value in fields.items():
        with scope.b.at(scope.module.carries[name].location):
            scope.b.many("carry.store", scope.rows, value, field=name)


def target_width_key(scope: Scope) -> str:
    """The key of the draft that says how wide it expects the target's rows."""
    return "target_hidden_size" if scope.loaded.locations.written("draft", "target_hidden_size") else "hidden_size"


def rows_like_its_own(scope: Scope) -> FromTarget:
    """Rows of the target for a draft that reads such as it hands over itself, and the keys that differ, if any do."""
    target, draft, key = scope.config.target, scope.draft, "hidden_size"
    if target.hidden_size == draft.hidden_size and target.spec_width != draft.spec_width:
        key = "hidden_source" if target.hc_mult == draft.hc_mult else "hc_mult"
    return FromTarget(draft.spec_width, dtype_of(draft), key, key)


def aux_rows(scope: Scope) -> FromTarget:
    """Outputs of several layers of the target, as wide as the draft was made for, in the target's dtype.

    A draft that reads none of them reads the target's last row. The keys are the two that differ, if any do.
    """
    target, draft, reads = scope.config.target, scope.draft, target_width_key(scope)
    wanted = "collapsed" if draft.num_aux_layers == 0 else "aux"
    offers = "hidden_size" if target.hidden_source == wanted else "hidden_source"
    if (
        target.hidden_source == "aux"
        and draft.target_width == target.hidden_size
        and draft.aux_width != target.spec_width
    ):
        reads, offers = "num_aux_layers", "aux_layers"
    return FromTarget(draft.aux_width, dtype_of(target), reads, offers)

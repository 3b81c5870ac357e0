"""MULTI_LAYER_EAGLE: one module per draft step, all of them run where the text is extended (MiMo, Step3.5, GigaChat).

Module s reads at position p the target's hidden state of p and the token of p + 1 + s, and gives the token after it;
past the accepted text it reads what the modules before it drafted. So nothing is left to run between two steps: the S
drafts are carried, and no hidden state is. Semantics: SGLang's multi_layer_eagle_worker_v2 with topk 1.
"""

from __future__ import annotations

from specc.compiler.algorithms.blocks.rejection import carry_rows, chosen, load_rows
from specc.compiler.algorithms.blocks.scope import Algorithm, Scope, dtype_of, logits_dtype_of
from specc.compiler.algorithms.blocks.verification import (
    Accepted,
    Nodes,
    State,
    carry_lengths,
    finish_prefill,
    prefill_target,
    rows_like_its_own,
    start,
    store,
    verify,
)
from specc.compiler.config import DraftKind, Fit, Needs, Pair
from specc.compiler.ir.core import Value
from specc.compiler.ir.ops.health import EXTEND_BIT, PREFILL_BIT
from specc.compiler.support.diagnostics import Note


def _build(scope: Scope) -> None:
    scope.require_one_vocabulary()
    if scope.config.rotated and len(scope.config.shapes) > 1:
        message = "MULTI_LAYER_EAGLE drafts with every module in every step, so it has one shape"
        scope.refuse("legal/shapes", message, ("num_steps",), hint="write one num_steps")
    if not scope.config.num_steps:
        message = f"{scope.config.algorithm} carries all drafts of the next step, so it has no step without drafts"
        scope.refuse("legal/shapes", message, ("num_steps",), hint="leave 0 out")
    _check_modules(scope)
    scope.carry("bonus", "i32", limit="V")
    scope.carry("topk_index", "i64", "S", limit="V", at=("num_steps",))
    carry_rows(scope, scope.config.num_steps)
    carry_lengths(scope)
    _prefill(scope)
    b = scope.b
    health, seq_lens = start(scope)
    with b.phase("prepare"):
        root = b("carry.load", scope.rows, names=("root",), field="bonus")
        with b.at(scope.at("num_steps")):
            drafts = b("carry.load", scope.rows, names=("drafts",), field="topk_index")
            tokens = b("chain.join", root, drafts, names=("tokens",))
        q = load_rows(scope, scope.config.num_steps)
    state = State(health, seq_lens, scope.kv_draft, scope.kv_target)
    _extend(scope, state, verify(scope, state, Nodes(tokens, q=q), rows_like_its_own(scope).offers))


def _prefill(scope: Scope) -> None:
    """The target, then every module over the prompts, each shifted one further than the one before."""
    b, kv = scope.b, scope.kv_draft
    health, first, hidden = prefill_target(scope, rows_like_its_own(scope).offers)
    drafts: Value | None = None
    with b.phase("prefill"):
        for step in range(scope.config.num_steps):
            with b.at(scope.at("draft", rows_like_its_own(scope).reads)):
                logits, kv = b.many(
                    "model.prefill_module", first, scope.rows, scope.seq_lens, kv, hidden,
                    *([drafts] if drafts is not None else []),
                    names=(f"prefill_logits{step}", f"prefill_kv_draft{step + 1}"), **_module_io(scope, step),
                )  # fmt: skip
            token, health = _token(scope, logits, scope.seq_lens, step, health, f"prefill_draft{step + 1}", PREFILL_BIT)
            drafts = _append(scope, drafts, token, step)
    assert drafts is not None  # there is a step
    finish_prefill(scope, health, first, {"bonus": first, "topk_index": drafts})


def _extend(scope: Scope, state: State, accepted: Accepted) -> None:
    """Every module over the accepted tokens, each shifted one further than the one before."""
    b = scope.b
    with b.phase("commit"):
        hidden = b("commit.path", accepted.hidden, accepted.accept_index, names=("path_hidden",))
        tokens = b("commit.extend_ids", accepted.predict, accepted.accept_lens, names=("extend_tokens",))
        select = b("commit.select", accepted.accept_lens, names=("select",))
    drafts: Value | None = None
    with b.phase("extend"):
        with b.at(scope.at("page_size")):
            positions = b("kv.positions", state.seq_lens, names=("extend_positions",), axis="A", offset=0, stride=1)
            slots = b(
                "kv.extend_slots", scope.req_to_token, scope.rows, state.seq_lens,
                names=("extend_slots",), axis="A", offset=0,
            )  # fmt: skip
        for step in range(scope.config.num_steps):
            with b.at(scope.at("draft", rows_like_its_own(scope).reads)):
                logits, state.kv_draft = b.many(
                    "model.extend_module", tokens, positions, slots, select, scope.rows, state.seq_lens,
                    state.kv_draft, hidden,
                    names=(f"extend_logits{step}", f"kv_draft{step + 1}"), **_module_io(scope, step),
                )  # fmt: skip
            token, state.health = _token(
                scope, logits, accepted.new_lens, step, state.health, f"draft{step + 1}", EXTEND_BIT
            )
            drafts = _append(scope, drafts, token, step)
            if step + 1 < scope.config.num_steps:
                tokens = b("chain.shift", tokens, accepted.accept_lens, token, names=(f"extend_tokens{step + 1}",))
        assert drafts is not None  # there is a step
        store(scope, {"bonus": accepted.bonus, "topk_index": drafts})
    scope.output("health", state.health)


def _token(
    scope: Scope, logits: Value, lens: Value, step: int, health: Value, name: str, bit: int
) -> tuple[Value, Value]:
    """The token i64[B, K] that a module's logits choose for a root at ``lens``, and the health word."""
    names = name, f"{name}_bad"
    token, bad, _ = chosen(scope, logits, lens, step, names, stem=f"{name}_", keep="K", carried=True)
    return token, scope.b("health.raise", health, bad, names=(f"health_{name}",), bit=bit)


def _append(scope: Scope, drafts: Value | None, token: Value, step: int) -> Value:
    """The drafts up to that of ``step``."""
    if drafts is None:
        return scope.b("chain.first", token, names=("drafts",))
    return scope.b("chain.append", drafts, token, names=("drafts",), column=step)


def _module_io(scope: Scope, step: int) -> dict[str, str | int]:
    """Which module runs, and what it reads: rows of the target, as wide as its own."""
    draft = scope.draft
    read: dict[str, str | int] = {"input_dtype": dtype_of(draft), "input_width": draft.spec_width}
    return {"capture": "null", "logits_dtype": logits_dtype_of(draft), "step": step, **read}


def _check_modules(scope: Scope) -> None:
    """Refuse more steps than there are modules; each of the draft's layers is one."""
    modules, steps = scope.draft.num_layers, scope.config.num_steps
    if steps > modules:
        note = Note(f"the draft has {modules} layers, which are its modules", scope.at("draft", "num_layers"))
        message = f"num_steps is {steps}, and every step needs a module of its own"
        scope.refuse("legal/modules", message, ("num_steps",), note, hint=f"write num_steps: {modules}")


def _recognises(pair: Pair) -> Fit | None:
    """Several modules of multi-token prediction; a single one is a head that runs at every step."""
    if (modules := pair.modules) is None or modules.modules <= 1:
        return None
    return Fit(f"'{modules.written}' has {modules.modules} modules of multi-token prediction", modules.modules)


MULTI_LAYER_EAGLE = Algorithm(
    "MULTI_LAYER_EAGLE",
    "one module per step drafts from the target's hidden states",
    _build,
    Needs(
        trees=False,
        modules=lambda steps: steps,
        forwards=lambda steps: steps,
        several=False,
        recognises=_recognises,
        kind=DraftKind(),
    ),
)

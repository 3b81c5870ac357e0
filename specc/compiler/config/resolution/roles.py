"""One of the blocks `target:` and `draft:` -> `ModelConfig`: what is written, completed by what `model:` says.

What is written wins, with a warning where the model says something else. Sizes that the weights fix stay the model's:
another value would make the program wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specc.compiler.config.block import (
    BLOCKS,
    REQUIRED_SIZES,
    SELECTOR,
    DraftBlock,
    HiddenSource,
    ModelBlock,
    Role,
    TargetBlock,
)
from specc.compiler.config.models import Fact, ModelFacts
from specc.compiler.config.models.states import RecurrentState, bytes_of, state_bytes
from specc.compiler.config.resolution.reduced import token_map_of
from specc.compiler.config.resolved import ModelConfig
from specc.compiler.config.rules.shapes import written_shapes
from specc.compiler.config.rules.validate import broken_bound
from specc.compiler.config.rules.written_file import Written
from specc.compiler.support.diagnostics import Diagnostic, Findings, Note

Value = int | str

_KEYS = (
    *REQUIRED_SIZES,
    "hc_mult",
    "kv_layout",
    "kv_dtype",
    "num_hidden_layers",
    "state_layers",
    "state_bytes",
    "experts_per_token",
    "index_topk",
    "target_hidden_size",
    "num_aux_layers",
    "markov_rank",
    *SELECTOR,
)

FIXED_BY_WEIGHTS = frozenset(
    {"hidden_size", "vocab_size", "hc_mult", "target_hidden_size", "num_aux_layers", "markov_rank", SELECTOR[0]}
)
"""Keys of which a value beside `model:` must be the model's own."""


def settle(
    written: Written, role: Role, model: ModelFacts | None, read: HiddenSource | None = None
) -> Findings[ModelConfig | None]:
    """Return the sizes of one model, or None after reporting what is missing, contradictory or out of range.

    ``read``: the hidden state that it hands over if the file does not say.
    """
    block = written.block(role)
    if block is None or (block.model is not None and model is None):
        return None
    usable, of_role = _usable(block, model), dict[str, Any]()
    if isinstance(block, DraftBlock):
        of_role["token_map"], usable = yield from token_map_of(written, block, usable)
    keys = [key for key in _KEYS if key in BLOCKS[role].model_fields]
    taken = [key for key in keys if key in usable and getattr(block, key) is None]
    out_of_range = [error for key in taken for error in _check_range(written, role, key, usable[key])]
    yield from out_of_range
    values: dict[str, Any] = {}
    for key in keys:
        values[key] = yield from _value(written, role, key, getattr(block, key), usable)
    missing = [key for key in REQUIRED_SIZES if values[key] is None]
    yield from _check_missing(written, role, missing, block.model)
    if missing or written.broken(role) or out_of_range:
        return None
    yield from _beside_keys_and_values(written, role, usable)
    hc_mult = values["hc_mult"] or 1
    logits = values["dtype"]
    if isinstance(block, TargetBlock):
        read = "aux" if block.aux_layers else read
        state = yield from _state(written, block, usable)
        if values["state_bytes"] is None and state is not None:
            values["state_bytes"] = bytes_of(state, values["dtype"])
        of_role |= {"state_form": block.state_form, "state": state}
    elif isinstance(block, DraftBlock):
        logits = "float32" if block.computes_head else logits  # a program's own
        fact = usable.get("aux_layers")
        layers = tuple(map(int, str(fact.value).split())) if fact is not None else None
        of_role |= {"head": block.head, "aux_layers": layers}
    source = block.hidden_source or read or (yield from _hidden_source(written, role, hc_mult, model))
    values |= {key: values[key] or 0 for key in ("state_layers", "state_bytes")}
    values |= {"hc_mult": hc_mult, "kv_layout": values["kv_layout"] or "mha"}
    values |= {"kv_dtype": values["kv_dtype"] or values["dtype"], "logits_dtype": block.logits_dtype or logits}
    return ModelConfig(model=block.model, hidden_source=source, **values, **of_role)


def _state(written: Written, block: TargetBlock, facts: Mapping[str, Fact]) -> Findings[RecurrentState | None]:
    """Return what a target's recurrent state is, as it is written or as the model says; say when they differ."""
    own, at = RecurrentState.of(facts), written.places.value("target", "state")
    if block.state is None or written.broken("target", "state"):
        return own
    sizes = block.state.model_dump()
    if missing := [f"'{key}'" for key, size in sizes.items() if size is None]:
        yield Diagnostic("config/missing-key", f"target.state lacks {', '.join(missing)}", at, "write all its sizes")
        return None
    state = RecurrentState(**sizes)
    if own is not None and state != replace(own, dtype=own.matrices, keys=state.keys):
        note = Note(f"the model has {own.sizes}", written.places.value("target", "model"))
        message = f"target.state is written as {state.sizes}, and the model says otherwise: this is kept"
        yield Diagnostic("config/model-override", message, at, notes=(note,), severity="warning")
    return state


def _usable(block: ModelBlock, model: ModelFacts | None) -> Mapping[str, Fact]:
    """Return the facts that count beside what is written: another layout has rows of other sizes."""
    facts = model.facts if model is not None else {}
    if "state_layers" in facts and (size := state_bytes(facts)) is not None:
        facts = {**facts, "state_bytes": size}
    layout = facts.get("kv_layout")
    if block.kv_layout is None or block.kv_layout == (layout.value if layout is not None else "mha"):
        return facts
    return {key: fact for key, fact in facts.items() if key not in ("num_kv_heads", "head_dim")}


def _check_range(written: Written, role: Role, key: str, fact: Fact) -> Findings[None]:
    """Report a value of the model that the key may not have."""
    bound = broken_bound(role, key, fact.value)
    if bound is not None:
        message = f"{role}.{key} {bound}, and config.json says {str(fact.value)[:40]} ({fact.origin})"
        hint = None if key in FIXED_BY_WEIGHTS else f"write {key}: beside 'model:'"
        yield Diagnostic("config/out-of-range", message, written.places.value(role, "model"), hint)


def _value(
    written: Written, role: Role, key: str, value: Value | None, facts: Mapping[str, Fact]
) -> Findings[Value | None]:
    """Return a value of the file or else of the model; say when they differ."""
    fact, at = facts.get(key), written.places.value(role, key)
    if fact is None or fact.value == value:
        return value
    if value is None:
        return fact.value
    note = Note(f"the model has {key} {str(fact.value)[:40]} ({fact.origin})", written.places.value(role, "model"))
    message = f"{role}.{key} is written as {value}, and the model says {str(fact.value)[:40]}"
    if key in FIXED_BY_WEIGHTS:
        hint = f"write {str(fact.value)[:40]}, or leave the key out"
        yield Diagnostic("config/model-contradiction", message, at, hint, (note,))
    else:
        message = f"{message}: {value} is kept"
        yield Diagnostic("config/model-override", message, at, notes=(note,), severity="warning")
    return value


def _check_missing(written: Written, role: Role, missing: Sequence[str], model: str | None) -> Findings[None]:
    """Report the keys that neither the file nor the model settles."""
    keys = [key for key in missing if not written.broken(role, key)]
    if not keys or written.broken(role, "model"):
        return
    message = f"'{role}' lacks {', '.join(keys)}"
    hint = "write them out, or write 'model:' with a Hugging Face directory that says them"
    if model is not None:
        message += f", and '{model}' does not settle {'it' if len(keys) == 1 else 'them'}"
        hint = f"write {', '.join(f'{key}:' for key in keys)} beside 'model:'"
    yield Diagnostic("config/missing-key", message, written.places.key(role), hint)


def _beside_keys_and_values(written: Written, role: Role, facts: Mapping[str, Fact]) -> Findings[None]:
    """Say what a model keeps of a request that no program moves."""
    at = written.places.value(role, "model")
    state, index = facts.get("recurrent_state"), facts.get("index_keys")
    if state is not None and (role == "draft" or written.file.step == "rotated"):
        message = f"'{role}' keeps recurrent state in {state.value}, which the program does not move"
        hint = "after every step the engine brings that state back to the last accepted token, by accept_lens"
        yield Diagnostic("config/more-state", message, at, hint, severity="warning")
    if index is not None:
        message = f"'{role}' keeps {index.value} beside keys and values, which the program does not move"
        hint = "the engine keeps them in the slots of their tokens"
        if any(shape.topk > 1 for shape in written_shapes(written.file)):
            hint += ", and moves those of the accepted path, which the output accept_index names"
        yield Diagnostic("config/more-state", message, at, hint, severity="warning")


def _hidden_source(written: Written, role: Role, hc_mult: int, facts: ModelFacts | None) -> Findings[HiddenSource]:
    """Return what the model hands over where the file does not say; warn when that is a guess."""
    known = facts.hands_over if facts is not None else None
    if hc_mult == 1:
        return "collapsed"
    if known is not None:
        return known
    message = f"'{role}' has hc_mult {hc_mult} and no hidden_source: assuming hc_residual"
    hint = f"write hidden_source: hc_residual (hidden_size * {hc_mult} wide) or hidden_source: collapsed"
    key = "hc_mult" if written.places.written(role, "hc_mult") else "model"
    at = written.places.value(role, key)
    yield Diagnostic("config/hc-mult-default", message, at, hint, severity="warning")
    return "hc_residual"

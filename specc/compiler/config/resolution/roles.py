"""One of the blocks `target:` and `draft:` -> `ModelConfig`: what is written, completed by what `model:` says.

What is written wins, with a warning where the model says something else. Sizes that the weights fix stay the model's:
another value would make the program wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from specc.compiler.config.models import Fact, ModelFacts, ModelUnreadableError, directory_of, read_model
from specc.compiler.config.models.hub import model_path
from specc.compiler.config.models.pair import described
from specc.compiler.config.resolution.reduced import token_map_of
from specc.compiler.config.resolved import ModelConfig
from specc.compiler.config.rules.checked import Checked
from specc.compiler.config.rules.needs import Needs
from specc.compiler.config.rules.shapes import written_shapes
from specc.compiler.config.rules.validate import broken_bound
from specc.compiler.config.schema import REQUIRED_SIZES, HiddenSource, ModelBlock
from specc.compiler.support.diagnostics import Note
from specc.compiler.support.files.paths import PathError

Role = Literal["target", "draft"]
Value = int | str

_KEYS = (
    *REQUIRED_SIZES,
    "hc_mult",
    "kv_layout",
    "kv_dtype",
    "num_hidden_layers",
    "experts_per_token",
    "index_topk",
    "target_hidden_size",
    "num_aux_layers",
)

FIXED_BY_WEIGHTS = frozenset({"hidden_size", "vocab_size", "hc_mult", "target_hidden_size", "num_aux_layers"})
"""Keys of which a value beside `model:` must be the model's own."""


def facts_of(checked: Checked, directory: Path, needs: Needs) -> dict[Role, ModelFacts | None]:
    """Return what the models' directories say of both sides; None where there is none, or after reporting.

    ``directory`` is where relative `model:` paths start; ``needs`` says what the draft's layers are to the algorithm.
    """
    target, draft = _facts(checked, "target", directory), _facts(checked, "draft", directory)
    if draft is not None and needs.modules is not None:
        used = needs.modules(max(shape.num_steps for shape in written_shapes(checked.file)))
        draft = _modules(checked, draft, used, _own_draft(checked, directory))
    return {"target": target, "draft": draft}


def check_kind(checked: Checked, needs: Needs, directory: Path) -> None:
    """Report a draft of no kind that the algorithm knows: an engine does not run it so, and nobody else has said it.

    ``directory`` is where relative `model:` paths start.
    """
    target, draft = (block and block.model for block in (checked.file.target, checked.file.draft))
    if target is None or draft is None:
        return
    try:
        pair = described(target, draft, directory)
    except ModelUnreadableError:  # it was reported
        return
    if pair is None or (why := needs.strangeness(pair)) is None:
        return
    message, at = f"'{draft}' is a draft of another kind: {why}", checked.places.value("draft", "model")
    report = checked.findings.error if checked.file.engine is not None else checked.findings.warning
    report("config/unknown-draft", message, at, hint="its drafts may be made otherwise than the algorithm makes them")


def settle(
    checked: Checked,
    role: Role,
    facts: Mapping[Role, ModelFacts | None],
    wanted: HiddenSource | None,
    directory: Path,
) -> ModelConfig | None:
    """Return the sizes of one model, or None after reporting what is missing, contradictory or out of range.

    ``wanted``: the hidden state that it hands over if the file does not say. ``directory`` is where relative paths
    start.
    """
    block, model = _block(checked, role), facts[role]
    if block is None or (block.model is not None and model is None):
        return None
    usable = _usable(block, model)
    token_map = None
    if role == "draft":
        token_map, usable = token_map_of(checked, block, usable, directory)
    taken = [key for key in _KEYS if key in usable and getattr(block, key) is None]
    in_range = [_in_range(checked, role, key, usable[key]) for key in taken]
    values: dict[str, Any] = {key: _settle(checked, role, key, getattr(block, key), usable) for key in _KEYS}
    missing = [key for key in REQUIRED_SIZES if values[key] is None]
    _report_missing(checked, role, missing, block.model)
    if missing or checked.places.broken(role) or not all(in_range):
        return None
    _beside_keys_and_values(checked, role, usable)
    hc_mult = values["hc_mult"] or 1
    wanted = "aux" if role == "target" and block.aux_layers else wanted
    source = block.hidden_source or wanted or _hidden_source(checked, role, hc_mult, model)
    rest = {**values, "hc_mult": hc_mult, "kv_layout": values["kv_layout"] or "mha"}
    logits = block.logits_dtype or (values["dtype"] if block.head == "engine" else "float32")  # a program's own are f32
    rest |= {"kv_dtype": values["kv_dtype"] or values["dtype"], "logits_dtype": logits}
    fact = usable.get("aux_layers") if role == "draft" else None
    layers = tuple(map(int, str(fact.value).split())) if fact is not None else None
    rest |= {"token_map": token_map, "head": block.head}
    return ModelConfig(model=block.model, hidden_source=source, aux_layers=layers, **rest)


def _block(checked: Checked, role: Role) -> ModelBlock | None:
    return checked.file.target if role == "target" else checked.file.draft


def _facts(checked: Checked, role: Role, directory: Path) -> ModelFacts | None:
    """Return what the model directory says, or None if there is none, or after reporting that it cannot be read."""
    block, at = _block(checked, role), checked.places.value(role, "model")
    if block is None or block.model is None:
        return None
    written = block.model
    try:
        facts = read_model(directory_of(written, directory), written)
    except ModelUnreadableError as error:
        checked.findings.error("config/model-unreadable", str(error), at, hint=error.hint)
        return None
    if not facts.known:
        message = f"transformers has no class for the model_type '{facts.model_type[:60]}' of '{written}'"
        hint = "its config.json was read as it stands: see 'specc explain' for the sizes that were found"
        checked.findings.warning("config/unknown-architecture", message, at, hint=hint)
    layers = facts.facts.get("num_layers")
    if layers is not None and layers.value == 0:
        message = f"no layer of '{written}', a model of type '{facts.model_type[:60]}', keeps keys and values"
        hint = "choose a model with attention: programs verify over a pool of keys and values"
        checked.findings.error("config/no-kv", message, at, hint=hint)
        return None
    return facts


def _own_draft(checked: Checked, directory: Path) -> bool:
    """Whether both sides name one directory."""
    paths = [block and block.model for block in (checked.file.target, checked.file.draft)]
    try:
        models = [model_path(path, directory).resolve() for path in paths if path]
    except PathError:  # of which `_facts` tells
        return False
    return len(models) == 2 and models[0] == models[1]


def _modules(checked: Checked, model: ModelFacts, used: int, own: bool) -> ModelFacts | None:
    """Return what a model says of its modules of multi-token prediction, each a layer; None after reporting.

    ``used``: how many of them the algorithm runs. A directory that says nothing of modules is a head as it stands,
    unless it is the target's ``own``.
    """
    places, there = checked.places, model.facts.get("num_mtp_modules")
    written = checked.file.draft.num_layers if checked.file.draft is not None else None
    if there is None:
        if own and written is None:
            message = "the draft is the target's own directory, which does not say how many modules draft"
            hint = "give the directory of a draft, or write num_layers: beside 'model:', the layers of its modules"
            checked.findings.error("config/missing-key", message, places.value("draft", "model"), hint=hint)
            return None
        return model
    count = int(there.value)
    if written is not None and written > count:
        note = Note(f"it has {count} ({there.origin})", places.value("draft", "model"))
        message = f"draft.num_layers is written as {written}, and the model has fewer modules that draft"
        hint = f"write {count} or less, or leave the key out"
        at = places.value("draft", "num_layers")
        checked.findings.error("config/model-contradiction", message, at, hint=hint, notes=[note])
        return None
    count = written or min(used, count)
    layers = Fact(count, f"modules that are used, of {there.value} ({there.origin})")
    kept = {key: fact for key, fact in model.facts.items() if key not in ("recurrent_state", "num_hidden_layers")}
    return replace(model, facts={**kept, "num_layers": layers})


def _usable(block: ModelBlock, model: ModelFacts | None) -> Mapping[str, Fact]:
    """Return the facts that count beside what is written: another layout has rows of other sizes."""
    facts = model.facts if model is not None else {}
    layout = facts.get("kv_layout")
    if block.kv_layout is None or block.kv_layout == (layout.value if layout is not None else "mha"):
        return facts
    return {key: fact for key, fact in facts.items() if key not in ("num_kv_heads", "head_dim")}


def _in_range(checked: Checked, role: Role, key: str, fact: Fact) -> bool:
    """Report a value of the model that the key may not have."""
    bound = broken_bound(key, fact.value)
    if bound is not None:
        message = f"{role}.{key} {bound}, and config.json says {str(fact.value)[:40]} ({fact.origin})"
        hint = None if key in FIXED_BY_WEIGHTS else f"write {key}: beside 'model:'"
        checked.findings.error("config/out-of-range", message, checked.places.value(role, "model"), hint=hint)
    return bound is None


def _settle(checked: Checked, role: Role, key: str, written: Value | None, facts: Mapping[str, Fact]) -> Value | None:
    """Return a value from the file or else the model; say when they differ."""
    fact, at = facts.get(key), checked.places.value(role, key)
    if fact is None or fact.value == written:
        return written
    if written is None:
        return fact.value
    note = Note(f"the model has {key} {str(fact.value)[:40]} ({fact.origin})", checked.places.value(role, "model"))
    message = f"{role}.{key} is written as {written}, and the model says {str(fact.value)[:40]}"
    if key in FIXED_BY_WEIGHTS:
        hint = f"write {str(fact.value)[:40]}, or leave the key out"
        checked.findings.error("config/model-contradiction", message, at, hint=hint, notes=[note])
    else:
        checked.findings.warning("config/model-override", f"{message}: {written} is kept", at, notes=[note])
    return written


def _report_missing(checked: Checked, role: Role, missing: Sequence[str], model: str | None) -> None:
    """Report the keys that neither the file nor the model settles."""
    keys = [key for key in missing if not checked.places.broken(role, key)]
    if not keys or checked.places.broken(role, "model"):
        return
    message = f"'{role}' lacks {', '.join(keys)}"
    hint = "write them out, or write 'model:' with a Hugging Face directory that says them"
    if model is not None:
        message += f", and '{model}' does not settle {'it' if len(keys) == 1 else 'them'}"
        hint = f"write {', '.join(f'{key}:' for key in keys)} beside 'model:'"
    checked.findings.error("config/missing-key", message, checked.places.key(role), hint=hint)


def _beside_keys_and_values(checked: Checked, role: Role, facts: Mapping[str, Fact]) -> None:
    """Say what a model keeps of a request that no program moves."""
    at = checked.places.value(role, "model")
    state, index = facts.get("recurrent_state"), facts.get("index_keys")
    if state is not None:
        message = f"'{role}' keeps recurrent state in {state.value}, which the program does not move"
        hint = "after every step the engine brings that state back to the last accepted token, by accept_lens"
        checked.findings.warning("config/more-state", message, at, hint=hint)
    if index is not None:
        message = f"'{role}' keeps {index.value} beside keys and values, which the program does not move"
        hint = "the engine keeps them in the slots of their tokens"
        if any(shape.topk > 1 for shape in written_shapes(checked.file)):
            hint += ", and moves those of the accepted path, which the output accept_index names"
        checked.findings.warning("config/more-state", message, at, hint=hint)


def _hidden_source(checked: Checked, role: Role, hc_mult: int, facts: ModelFacts | None) -> HiddenSource:
    """Return what the model hands over where the file does not say; warn when that is a guess."""
    known = facts.hands_over if facts is not None else None
    if hc_mult == 1:
        return "collapsed"
    if known is not None:
        return known
    message = f"'{role}' has hc_mult {hc_mult} and no hidden_source: assuming hc_residual"
    hint = f"write hidden_source: hc_residual (hidden_size * {hc_mult} wide) or hidden_source: collapsed"
    key = "hc_mult" if checked.places.written(role, "hc_mult") else "model"
    checked.findings.warning("config/hc-mult-default", message, checked.places.value(role, key), hint=hint)
    return "hc_residual"

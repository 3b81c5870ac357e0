"""`ConfigFile` -> `Config`: defaults, model directories, and the algorithm's canonical name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from specc.config.block import Block
from specc.config.legality import Checked, check_file, check_models
from specc.config.models import ModelFacts, ModelUnreadableError, read_model
from specc.config.needs import Needs
from specc.config.resolved import Config, Depth, HiddenSource, ModelConfig
from specc.config.schema import REQUIRED_SIZES, ModelBlock
from specc.config.validate import validate_options
from specc.support.diagnostics import Note
from specc.support.suggest import did_you_mean

Value = int | str

_KEYS = (
    *REQUIRED_SIZES,
    "hc_mult",
    "kv_layout",
    "experts_per_token",
    "index_topk",
    "target_hidden_size",
    "num_aux_layers",
)


def resolve(
    checked: Checked, directory: Path, algorithms: Sequence[str], needs: Callable[[str], Needs]
) -> Config | None:
    """Check every rule and return the complete configuration, or None if anything was wrong.

    ``directory`` is where relative `model:` paths start; ``algorithms`` are the known names, ``needs`` says what
    the chosen one asks for.
    """
    algorithm = _algorithm(checked, algorithms)
    needed = needs(algorithm) if algorithm is not None else Needs()
    check_file(checked, algorithm, needed)
    options = _options(checked, algorithm, needed)
    target = _model(checked, "target", checked.file.target, directory, needed.target_hidden)
    draft = _model(checked, "draft", checked.file.draft, directory, None)
    target = _with_aux_layers(checked, target, draft)
    check_models(checked, target, draft)
    if checked.found.errors or algorithm is None or target is None or options is None:
        return None
    return _config(checked, algorithm, options, _depths(checked, needed), target, draft)


def _depths(checked: Checked, needs: Needs) -> tuple[Depth, ...]:
    """Return every depth with its number of nodes: what the file says, or as many as can be drafted."""
    topk, nodes = checked.file.topk, checked.file.num_draft_tokens
    if topk == 1 or nodes is None:
        return tuple(Depth(steps, steps + 1) for steps in checked.file.num_steps)
    return tuple(Depth(steps, min(nodes, needs.most_nodes(topk, steps))) for steps in checked.file.num_steps)


def _config(
    checked: Checked,
    algorithm: str,
    options: Block,
    depths: tuple[Depth, ...],
    target: ModelConfig,
    draft: ModelConfig | None,
) -> Config:
    """Put the parts together; everything was checked."""
    file = checked.file
    return Config(
        name=file.name or "",
        algorithm=algorithm,
        options=options,
        topk=file.topk,
        num_steps=depths[-1].num_steps,
        num_draft_tokens=depths[-1].num_nodes,
        depths=depths,
        page_size=file.page_size,
        max_requests=file.max_requests or file.buckets[-1],
        buckets=tuple(file.buckets),
        verify=file.verify,
        outputs=tuple(file.outputs),
        mask=file.mask,
        context_length=file.context_length,
        overlap=file.overlap,
        disaggregation=file.disaggregation,
        archs=tuple(file.archs),
        draft_positions=file.draft_positions,
        target=target,
        draft=draft,
    )


def _algorithm(checked: Checked, algorithms: Sequence[str]) -> str | None:
    """Return the algorithm's name as it is listed, or None after reporting."""
    written = checked.file.algorithm
    if written is None:
        return None
    for name in algorithms:
        if name.lower() == written.lower():
            return name
    at = checked.places.value("algorithm")
    message = f"unknown algorithm '{written[:60]}'"
    checked.found.error("config/unknown-algorithm", message, at, hint=did_you_mean(written, algorithms))
    return None


def _options(checked: Checked, algorithm: str | None, needs: Needs) -> Block | None:
    """Return the keys of the algorithm's own, or None after reporting, or if nobody knows which they are."""
    if algorithm is None:
        return None
    return validate_options(needs.options, checked.file.options, checked.places, checked.found)


def _model(
    checked: Checked, side: str, block: ModelBlock | None, directory: Path, wanted: HiddenSource | None
) -> ModelConfig | None:
    """Return the sizes of one model, or None after reporting what is missing or contradictory.

    ``wanted``: the hidden state that it hands over if the file does not say.
    """
    if block is None:
        return None
    facts: ModelFacts | None = None
    if block.model is not None:
        facts = _facts(checked, side, block.model, directory)
        if facts is None:
            return None
    values: dict[str, Any] = {key: _settle(checked, side, key, getattr(block, key), facts) for key in _KEYS}
    hc_mult = values["hc_mult"] or 1
    missing = [key for key in REQUIRED_SIZES if values[key] is None]
    _report_missing(checked, side, missing, block.model)
    if missing or checked.places.broken(side):
        return None
    _one_vocabulary(checked, side, values["vocab_size"], facts)
    wanted = "aux" if side == "target" and block.aux_layers else wanted
    source = block.hidden_source or wanted or _hidden_source(checked, side, hc_mult, facts)
    rest: dict[str, Any] = {**values, "hc_mult": hc_mult, "kv_layout": values["kv_layout"] or "mha"}
    dtypes = {key: getattr(block, key) or values["dtype"] for key in ("logits_dtype", "kv_dtype")}
    fact = facts.facts.get("aux_layers") if facts is not None and side == "draft" else None
    layers = tuple(map(int, str(fact.value).split())) if fact is not None else None
    return ModelConfig(model=block.model, hidden_source=source, aux_layers=layers, **dtypes, **rest)


def _with_aux_layers(checked: Checked, target: ModelConfig | None, draft: ModelConfig | None) -> ModelConfig | None:
    """Return the target with the layers whose outputs it hands over, or None after reporting."""
    if target is None or checked.file.target is None:
        return target
    written, at = checked.file.target.aux_layers, checked.places
    where = at.value("target", "aux_layers")
    if target.hidden_source != "aux":
        if written:
            note = Note(f"hidden_source is {target.hidden_source}", at.value("target", "hidden_source"))
            message = "aux_layers goes with hidden_source: aux"
            checked.found.error("config/out-of-range", message, where, hint="leave one of them out", notes=[note])
        return target
    trained = draft.aux_layers if draft is not None else None
    layers = tuple(written) if written else trained or default_aux_layers(target.num_layers)
    if layers is None:
        message = f"hidden_source: aux needs aux_layers for a target of {target.num_layers} layers"
        hint = "add 'aux_layers:' inside target: the layers, counted from 1, whose outputs the draft reads"
        checked.found.error("config/missing-key", message, at.key("target"), hint=hint)
        return None
    if not written and trained:
        where = at.value("draft", "model")
    ascending = all(one < other for one, other in pairwise(layers))
    if not ascending or not 1 <= layers[0] <= layers[-1] <= target.num_layers:
        found = ", ".join(map(str, layers))
        message = f"aux_layers ascend strictly from 1 to num_layers, here {target.num_layers}, and these are {found}"
        checked.found.error("config/out-of-range", message, where)
        return None
    if written and trained and len(trained) == len(layers) and trained != layers:
        note = Note(f"the model reads layers {', '.join(map(str, trained))}", at.value("draft", "model"))
        message = "target.aux_layers are not the layers that the draft was trained on"
        checked.found.error("config/model-contradiction", message, where, hint="leave aux_layers out", notes=[note])
        return None
    return replace(target, aux_layers=layers)


def default_aux_layers(count: int) -> tuple[int, ...] | None:
    """Return the layers that EAGLE3 heads are usually trained on, of ``count``; None for too few to be three."""
    layers = (2, count // 2, count - 3)
    return layers if layers[0] < layers[1] < layers[2] else None


def _one_vocabulary(checked: Checked, side: str, vocab_size: int, facts: ModelFacts | None) -> None:
    """Refuse a model whose logits cover a part of its vocabulary."""
    fact = facts.facts.get("draft_vocab_size") if facts is not None else None
    if fact is not None and fact.value != vocab_size:
        message = f"a draft that scores {fact.value} of its {vocab_size} tokens is not implemented in this version"
        hint = "give a draft whose draft_vocab_size is its vocab_size"
        checked.found.error("config/not-yet", message, checked.places.value(side, "model"), hint=hint)


def _facts(checked: Checked, side: str, written: str, directory: Path) -> ModelFacts | None:
    """Return what the model directory says, or None after reporting that it cannot be read."""
    at = checked.places.value(side, "model")
    try:
        facts = read_model(directory / Path(written).expanduser(), written)
    except ModelUnreadableError as error:
        checked.found.error("config/model-unreadable", str(error), at, hint=error.hint)
        return None
    except (ValueError, RuntimeError) as error:  # a path with a NUL, or '~unknown'
        checked.found.error("config/model-unreadable", f"'{written[:80]}' is not a path: {error}", at)
        return None
    if not facts.known:
        message = f"transformers has no class for the model_type '{facts.model_type[:60]}' of '{written}'"
        hint = "its config.json was read as it stands: see 'specc explain' for the sizes that were found"
        checked.found.warning("config/unknown-architecture", message, at, hint=hint)
    return facts


def _settle(checked: Checked, side: str, key: str, written: Value | None, facts: ModelFacts | None) -> Value | None:
    """Return a value from the file or the model; report when they differ."""
    fact = facts.facts.get(key) if facts is not None else None
    if fact is None:
        return written
    if written is not None and written != fact.value:
        note = Note(f"the model has {key} {fact.value} ({fact.origin})", checked.places.value(side, "model"))
        message = f"{side}.{key} is written as {written}, and the model says {fact.value}"
        hint = f"write {fact.value}, or leave the key out"
        at = checked.places.value(side, key)
        checked.found.error("config/model-contradiction", message, at, hint=hint, notes=[note])
    return fact.value


def _report_missing(checked: Checked, side: str, missing: Sequence[str], model: str | None) -> None:
    """Report the keys that neither the file nor the model settles."""
    keys = [key for key in missing if not checked.places.broken(side, key)]
    if not keys or checked.places.broken(side, "model"):
        return
    message = f"'{side}' lacks {', '.join(keys)}"
    hint = "write them out, or write 'model:' with a Hugging Face directory that says them"
    if model is not None:
        message += f", and '{model}' does not settle {'it' if len(keys) == 1 else 'them'}"
        hint = f"write {', '.join(f'{key}:' for key in keys)} beside 'model:'"
    checked.found.error("config/missing-key", message, checked.places.key(side), hint=hint)


def _hidden_source(checked: Checked, side: str, hc_mult: int, facts: ModelFacts | None) -> HiddenSource:
    """Return what the model hands over where the file does not say; warn when that is a guess."""
    known = facts.hands_over if facts is not None else None
    if hc_mult == 1:
        return "collapsed"
    if known is not None:
        return known
    message = f"'{side}' has hc_mult {hc_mult} and no hidden_source: assuming hc_residual"
    hint = f"write hidden_source: hc_residual (hidden_size * {hc_mult} wide) or hidden_source: collapsed"
    key = "hc_mult" if checked.places.written(side, "hc_mult") else "model"
    checked.found.warning("config/hc-mult-default", message, checked.places.value(side, key), hint=hint)
    return "hc_residual"

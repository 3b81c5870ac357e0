"""`ConfigFile` -> `Config`: defaults, model directories, and the algorithm's canonical name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specc.config.legality import Checked, check_file, check_models
from specc.config.models import ModelFacts, ModelUnreadableError, read_model
from specc.config.resolved import Config, HiddenSource, ModelConfig
from specc.config.schema import REQUIRED_SIZES, ModelBlock
from specc.support.diagnostics import Note
from specc.support.suggest import did_you_mean

Value = int | str

_KEYS = (*REQUIRED_SIZES, "hc_mult", "kv_layout", "experts_per_token", "index_topk")


def resolve(checked: Checked, directory: Path, algorithms: Sequence[str]) -> Config | None:
    """Check every rule and return the complete configuration, or None if anything was wrong.

    ``directory`` is where relative `model:` paths start; ``algorithms`` are the known names.
    """
    check_file(checked)
    algorithm = _algorithm(checked, algorithms)
    target = _model(checked, "target", checked.file.target, directory)
    draft = _model(checked, "draft", checked.file.draft, directory)
    check_models(checked, target, draft)
    if checked.found.errors or algorithm is None or target is None or draft is None:
        return None
    return _config(checked, algorithm, target, draft)


def _config(checked: Checked, algorithm: str, target: ModelConfig, draft: ModelConfig) -> Config:
    """Put the parts together; everything was checked."""
    file = checked.file
    return Config(
        name=file.name or "",
        algorithm=algorithm,
        topk=file.topk,
        num_steps=file.num_steps,
        num_draft_tokens=file.num_draft_tokens or file.num_steps + 1,
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


def _model(checked: Checked, side: str, block: ModelBlock | None, directory: Path) -> ModelConfig | None:
    """Return the sizes of one model, or None after reporting what is missing or contradictory."""
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
    source = block.hidden_source or _hidden_source(checked, side, hc_mult, facts)
    rest: dict[str, Any] = {**values, "hc_mult": hc_mult, "kv_layout": values["kv_layout"] or "mha"}
    kv_dtype = block.kv_dtype or values["dtype"]
    return ModelConfig(model=block.model, hidden_source=source, kv_dtype=kv_dtype, **rest)


def _facts(checked: Checked, side: str, written: str, directory: Path) -> ModelFacts | None:
    """Return what the model directory says, or None after reporting that it cannot be read."""
    try:
        return read_model(directory / Path(written).expanduser(), written)
    except ModelUnreadableError as error:
        at = checked.places.value(side, "model")
        checked.found.error("config/model-unreadable", str(error), at, hint=error.hint)
    except (ValueError, RuntimeError) as error:  # a path with a NUL, or '~unknown'
        at = checked.places.value(side, "model")
        checked.found.error("config/model-unreadable", f"'{written[:80]}' is not a path: {error}", at)
    return None


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

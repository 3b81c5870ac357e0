"""`ConfigFile` -> `Config`: defaults, model directories, and the algorithm's canonical name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from specc.compiler.config.archs import ARCHS, NATIVE, NoGpuError, with_native
from specc.compiler.config.block import Block
from specc.compiler.config.models import ModelFacts
from specc.compiler.config.resolution.engine import for_engine, in_engine
from specc.compiler.config.resolution.reduced import check_map
from specc.compiler.config.resolution.roles import check_kind, facts_of, settle
from specc.compiler.config.resolution.sharded import check_shards, with_heads, with_shards
from specc.compiler.config.resolution.step_form import check_step
from specc.compiler.config.resolution.tuning import read_tuning
from specc.compiler.config.resolved import Config, ModelConfig
from specc.compiler.config.rules.checked import Checked
from specc.compiler.config.rules.legality import check_file, check_models
from specc.compiler.config.rules.needs import Needs
from specc.compiler.config.rules.shapes import settled_shapes
from specc.compiler.config.rules.validate import validate_options
from specc.compiler.config.schema import SAMPLING
from specc.compiler.support.aux_layers import are_layers
from specc.compiler.support.diagnostics import Note
from specc.compiler.support.suggest import did_you_mean


class Resolved(NamedTuple):
    """A complete configuration, and what the model directories of ``target`` and ``draft`` say, if they have one."""

    config: Config
    facts: Mapping[str, ModelFacts]


def resolve(
    checked: Checked, directory: Path, algorithms: Sequence[str], needs: Callable[[str], Needs]
) -> Resolved | None:
    """Check every rule and return the complete configuration, or None if anything was wrong.

    ``directory`` is where relative `model:` paths start; ``algorithms`` are the known names, ``needs`` says what
    the chosen one asks for.
    """
    algorithm = _algorithm(checked, algorithms)
    needed = needs(algorithm) if algorithm is not None else Needs()
    facts = in_engine(checked, facts_of(checked, directory, needed), needed)
    check_kind(checked, needed, directory)
    checked = for_engine(checked, algorithm, needed, facts)
    check_file(checked, algorithm, needed)
    check_step(checked, needed)
    check_shards(checked)
    options, archs = _options(checked, algorithm, needed), _archs(checked)
    draft = settle(checked, "draft", facts, None, directory)
    draft = _with_aux_count(draft, needed)
    last_row = draft is not None and draft.num_aux_layers == 0
    target = settle(checked, "target", facts, None if last_row else needed.target_hidden, directory)
    target = _with_aux_layers(checked, target, draft, needed)
    check_models(checked, target, draft)
    check_map(checked, target, draft, directory)
    target, draft = with_shards(checked, "target", target), with_shards(checked, "draft", draft)
    target, draft = with_heads(checked, "target", target), with_heads(checked, "draft", draft)
    draft = replace(draft, target_head=needed.target_head) if draft is not None else None
    tuning = read_tuning(checked, needed, directory)
    if checked.findings.errors or algorithm is None or target is None or options is None:
        return None
    file, shapes = checked.file, settled_shapes(checked.file, needed)
    config = Config(
        file=file,
        name=file.name or "",
        algorithm=algorithm,
        shape=max(shapes),
        buckets_of=shapes,
        max_requests=file.max_requests or file.buckets[-1],
        sampling=tuple(name for name in SAMPLING if name in file.sampling),
        archs=archs,
        target=target,
        draft=draft,
        options=options,
        tuning=tuning,
    )
    return Resolved(config, {role: model for role, model in facts.items() if model is not None})


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
    checked.findings.error("config/unknown-algorithm", message, at, hint=did_you_mean(written, algorithms))
    return None


def _archs(checked: Checked) -> tuple[str, ...]:
    """Return the architectures, with those of this machine for ``native``; none after reporting that it has no GPU."""
    try:
        return with_native(checked.file.archs)
    except NoGpuError as error:
        at = checked.places.value("archs", checked.file.archs.index(NATIVE))
        message = f"'{NATIVE}' stands for the GPUs of this machine: {error}"
        checked.findings.error("config/no-gpu", message, at, hint=f"write names: {', '.join(ARCHS)}")
        return ()


def _options(checked: Checked, algorithm: str | None, needs: Needs) -> Block | None:
    """Return the keys of the algorithm's own, or None after reporting, or if nobody knows which they are."""
    if algorithm is None:
        return None
    return validate_options(needs.options, checked.file.options, checked.places, checked.findings)


def _with_aux_count(draft: ModelConfig | None, needed: Needs) -> ModelConfig | None:
    """Return a draft with the number of layers that it reads: what it says, or as many as is usual for its own."""
    if draft is None or draft.num_aux_layers is not None or needed.target_hidden != "aux":
        return draft
    return replace(draft, num_aux_layers=len(needed.usual_layers(draft.depth, draft.depth)))


def _with_aux_layers(
    checked: Checked, target: ModelConfig | None, draft: ModelConfig | None, needed: Needs
) -> ModelConfig | None:
    """Return the target with the layers whose outputs it hands over, or None after reporting."""
    if target is None or checked.file.target is None:
        return target
    written, at = checked.file.target.aux_layers, checked.places
    where = at.value("target", "aux_layers")
    if target.hidden_source != "aux":
        if written:
            note = Note(f"hidden_source is {target.hidden_source}", at.value("target", "hidden_source"))
            message = "aux_layers goes with hidden_source: aux"
            checked.findings.error("config/out-of-range", message, where, hint="leave one of them out", notes=[note])
        return target
    trained = draft.aux_layers if draft is not None else None
    usual = needed.usual_layers(target.depth, draft.depth if draft is not None else 1)
    layers = tuple(written) if written else trained or usual
    unsettled = not written and trained is None and not are_layers(usual, target.depth)
    if unsettled and checked.places.broken("draft"):
        return None
    if unsettled:
        message = f"hidden_source: aux needs aux_layers for a target of {target.depth} layers"
        hint = "add 'aux_layers:' inside target: the layers, counted from 1, whose outputs the draft reads"
        checked.findings.error("config/missing-key", message, at.key("target"), hint=hint)
        return None
    if not written and trained:
        where = at.value("draft", "model")
    if not are_layers(layers, target.depth):
        listed = ", ".join(map(str, layers))
        message = (
            f"aux_layers ascend strictly from 1 to the target's last layer, {target.depth}, and these are {listed}"
        )
        checked.findings.error("config/out-of-range", message, where)
        return None
    if written and trained and len(trained) == len(layers) and trained != layers:
        note = Note(f"the model reads layers {', '.join(map(str, trained))}", at.value("draft", "model"))
        message = "target.aux_layers are not the layers that the draft was trained on"
        checked.findings.error("config/model-contradiction", message, where, hint="leave aux_layers out", notes=[note])
        return None
    return replace(target, aux_layers=layers)

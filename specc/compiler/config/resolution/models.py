"""The target and the draft -> `ModelConfig` each: the draft says which rows of its target it reads."""

from __future__ import annotations

from dataclasses import replace

from specc.compiler.config.models import ModelFacts
from specc.compiler.config.resolution.roles import settle
from specc.compiler.config.resolved import ModelConfig, Sides
from specc.compiler.config.rules.needs import Needs
from specc.compiler.config.rules.written_file import Written
from specc.compiler.support.aux_layers import are_layers
from specc.compiler.support.diagnostics import Diagnostic, Findings, Note


def settle_models(written: Written, needs: Needs, facts: Sides[ModelFacts]) -> Findings[Sides[ModelConfig]]:
    """Return both models: what is written, completed by what their directories say."""
    draft = yield from settle(written, "draft", facts.draft)
    if draft is not None:
        draft = replace(draft, target_head=needs.target_head, num_aux_layers=_aux_count(draft, needs))
    last_row = draft is not None and draft.num_aux_layers == 0
    target = yield from settle(written, "target", facts.target, None if last_row else needs.target_hidden)
    if target is not None:
        target = yield from _with_aux_layers(written, target, draft, needs)
    return Sides(target, draft)


def _aux_count(draft: ModelConfig, needs: Needs) -> int | None:
    """Return the number of layers that a draft reads: what it says, or as many as is usual for its own."""
    if draft.num_aux_layers is not None or needs.target_hidden != "aux":
        return draft.num_aux_layers
    return len(needs.usual_layers(draft.depth, draft.depth))


def _with_aux_layers(
    written: Written, target: ModelConfig, draft: ModelConfig | None, needs: Needs
) -> Findings[ModelConfig | None]:
    """Return the target with the layers whose outputs it hands over, or None after reporting."""
    block, at = written.file.target, written.places
    listed = block.aux_layers if block is not None else None
    where = at.value("target", "aux_layers")
    if target.hidden_source != "aux":
        if listed:
            note = Note(f"hidden_source is {target.hidden_source}", at.value("target", "hidden_source"))
            message = "aux_layers goes with hidden_source: aux"
            yield Diagnostic("config/out-of-range", message, where, "leave one of them out", (note,))
        return target
    trained = draft.aux_layers if draft is not None else None
    usual = needs.usual_layers(target.depth, draft.depth if draft is not None else 1)
    layers = tuple(listed) if listed else trained or usual
    if not listed and trained is None and not are_layers(usual, target.depth):
        message = f"hidden_source: aux needs aux_layers for a target of {target.depth} layers"
        hint = "add 'aux_layers:' inside target: the layers, counted from 1, whose outputs the draft reads"
        if not written.broken("draft"):
            yield Diagnostic("config/missing-key", message, at.key("target"), hint)
        return None
    if not listed and trained:
        where = at.value("draft", "model")
    if not are_layers(layers, target.depth):
        these = ", ".join(map(str, layers))
        message = f"aux_layers ascend strictly from 1 to the target's last layer, {target.depth}, and these are {these}"
        yield Diagnostic("config/out-of-range", message, where)
        return None
    if listed and trained and len(trained) == len(layers) and trained != layers:
        note = Note(f"the model reads layers {', '.join(map(str, trained))}", at.value("draft", "model"))
        message = "target.aux_layers are not the layers that the draft was trained on"
        yield Diagnostic("config/model-contradiction", message, where, "leave aux_layers out", (note,))
        return None
    return replace(target, aux_layers=layers)

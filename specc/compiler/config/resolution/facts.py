"""What the directories of both models say, each layer of the draft being what it is to the algorithm."""

from __future__ import annotations

from dataclasses import replace

from specc.compiler.config.block import Role
from specc.compiler.config.models import Fact, ModelFacts, ModelUnreadableError, directory_of, read_model
from specc.compiler.config.models.drafting import of_bundled
from specc.compiler.config.models.hub import model_path
from specc.compiler.config.models.pair import described
from specc.compiler.config.resolved import Sides
from specc.compiler.config.rules.needs import Needs
from specc.compiler.config.rules.shapes import written_shapes
from specc.compiler.config.rules.written_file import Written
from specc.compiler.support.diagnostics import Diagnostic, Findings, Note
from specc.compiler.support.files.paths import PathError


def read_models(written: Written, needs: Needs) -> Findings[Sides[ModelFacts]]:
    """Return what the models' directories say, and report a draft that the algorithm does not know."""
    target = yield from _read(written, "target")
    draft = yield from _read(written, "draft")
    if draft is not None and needs.modules is not None:
        used = needs.modules(max(shape.num_steps for shape in written_shapes(written.file)))
        draft = yield from _modules(written, draft, used)
    elif draft is not None and needs.target_hidden == "aux" and "bundles_blocks" in draft.facts and _own_draft(written):
        draft = replace(draft, facts={**draft.facts, **of_bundled(draft.facts)})
    yield from _check_kind(written, needs)
    return Sides(target, draft)


def _check_kind(written: Written, needs: Needs) -> Findings[None]:
    """Report a draft of no kind that the algorithm knows: an engine does not run it so, and nobody else has said it."""
    target, draft = (block and block.model for block in (written.file.target, written.file.draft))
    if target is None or draft is None:
        return
    try:
        pair = described(target, draft, written.directory)
    except ModelUnreadableError:  # it was reported
        return
    if pair is None or (why := needs.strangeness(pair)) is None:
        return
    message, at = f"'{draft}' is a draft of another kind: {why}", written.places.value("draft", "model")
    hint = "its drafts may be made otherwise than the algorithm makes them"
    severity = "error" if written.file.engine is not None else "warning"
    yield Diagnostic("config/unknown-draft", message, at, hint, severity=severity)


def _read(written: Written, role: Role) -> Findings[ModelFacts | None]:
    """Return what the model directory says, or None if there is none, or after reporting that it cannot be read."""
    block, at = written.block(role), written.places.value(role, "model")
    if block is None or block.model is None:
        return None
    try:
        facts = read_model(directory_of(block.model, written.directory), block.model)
    except ModelUnreadableError as error:
        yield Diagnostic("config/model-unreadable", str(error), at, error.hint)
        return None
    if not facts.known:
        message = f"transformers has no class for the model_type '{facts.model_type[:60]}' of '{block.model}'"
        hint = "its config.json was read as it stands: see 'specc explain' for the sizes that were found"
        yield Diagnostic("config/unknown-architecture", message, at, hint, severity="warning")
    layers = facts.facts.get("num_layers")
    if layers is not None and layers.value == 0:
        message = f"no layer of '{block.model}', a model of type '{facts.model_type[:60]}', keeps keys and values"
        hint = "choose a model with attention: programs verify over a pool of keys and values"
        yield Diagnostic("config/no-kv", message, at, hint)
        return None
    return facts


def _own_draft(written: Written) -> bool:
    """Whether both sides name one directory."""
    paths = [block and block.model for block in (written.file.target, written.file.draft)]
    try:
        models = [model_path(path, written.directory).resolve() for path in paths if path]
    except PathError:  # of which `_read` tells
        return False
    return len(models) == 2 and models[0] == models[1]


def _modules(written: Written, model: ModelFacts, used: int) -> Findings[ModelFacts | None]:
    """Return what a model says of its modules of multi-token prediction, each a layer; None after reporting.

    ``used``: how many of them the algorithm runs. A directory that says nothing of modules is a head as it stands,
    unless it is the target's own.
    """
    places, there = written.places, model.facts.get("num_mtp_modules")
    layers = written.file.draft.num_layers if written.file.draft is not None else None
    if there is None and _own_draft(written):
        if layers is None:
            message = "the draft is the target's own directory, which does not say how many modules draft"
            hint = "give the directory of a draft, or write num_layers: beside 'model:', the layers of its modules"
            yield Diagnostic("config/missing-key", message, places.value("draft", "model"), hint)
            return None
        there = Fact(layers, "draft.num_layers")
    if there is None:
        return model
    count = int(there.value)
    if layers is not None and layers > count:
        note = Note(f"it has {count} ({there.origin})", places.value("draft", "model"))
        message = f"draft.num_layers is written as {layers}, and the model has fewer modules that draft"
        hint = f"write {count} or less, or leave the key out"
        at = places.value("draft", "num_layers")
        yield Diagnostic("config/model-contradiction", message, at, hint, (note,))
        return None
    used = layers or min(used, count)
    of_modules = Fact(used, f"modules that are used, of {there.value} ({there.origin})")
    kept = {
        key: fact
        for key, fact in model.facts.items()
        if key not in ("recurrent_state", "state_layers", "num_hidden_layers")
    }
    return replace(model, facts={**kept, "num_layers": of_modules})

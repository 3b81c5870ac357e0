"""`engine:` -> the defaults that the engine's preset gives, and a finding for all that does not fit it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from specc.compiler.config.archs import NATIVE
from specc.compiler.config.models import Fact, ModelFacts
from specc.compiler.config.presets import PRESETS, Preset
from specc.compiler.config.presets.contract import OWN_HEADS, EngineNeeds, Value
from specc.compiler.config.resolution.roles import Role
from specc.compiler.config.rules.checked import Checked
from specc.compiler.config.rules.needs import Needs
from specc.compiler.config.rules.shapes import sound_shapes, trees, written_shapes
from specc.compiler.config.schema import ConfigFile, ModelBlock
from specc.compiler.support.diagnostics import Note
from specc.compiler.support.location import Location


def for_engine(
    checked: Checked, algorithm: str | None, needs: Needs, facts: Mapping[Role, ModelFacts | None]
) -> Checked:
    """Return the file as its engine runs it, after reporting what the engine does not do; without one as it is.

    ``algorithm`` is the canonical name, None where it is unknown; ``needs`` says as which it runs. ``facts`` are what
    the model directories say.
    """
    engine = checked.file.engine
    if engine is None:
        return checked
    preset, told = PRESETS[engine], needs.runs_as or algorithm
    _unsupported(checked, preset, told)
    _of_models(checked, preset, told, facts)
    _of_a_part(checked, preset)
    file = _with_demands(checked, preset)
    buckets = file.buckets if checked.sound("buckets") else []
    file = file.model_copy(update={"max_requests": file.max_requests or max([preset.max_requests, *buckets])})
    file = _with_tables(checked, preset, file)
    if algorithm is not None and checked.sound("options"):
        options = _fixed_options(checked, preset, algorithm) | _whole_text(checked, preset, algorithm, facts)
        file = file.model_copy(update={"options": file.options | options})
    return replace(checked, file=_with_mask(checked, preset, file, facts.get("target")))


def in_engine(checked: Checked, facts: Mapping[Role, ModelFacts | None], needs: Needs) -> dict[Role, ModelFacts | None]:
    """Return what the models' directories say, as their engine runs the models.

    A model of float32 runs in the 16 bits that are written. A head has its target's element type, and scores all tokens
    where the engine has no scores of a part. ``needs`` says whether the draft is a head.
    """
    file = checked.file
    if file.engine is None:
        return dict(facts)
    preset = PRESETS[file.engine]
    target, draft = _halved(facts.get("target"), file.target, preset), _halved(facts.get("draft"), file.draft, preset)
    facts = {"target": target, "draft": draft}
    if draft is None:
        return facts
    of_draft = dict(draft.facts)
    if _scores_all(preset, file.draft):
        of_draft.pop("draft_vocab_size", None)
    written = file.target.dtype if file.target is not None else None
    named = target.facts.get("dtype") if target is not None else None
    element = written or (named.value if named is not None else None)
    if element is not None and (needs.head or preset.one_dtype):
        of_draft["dtype"] = Fact(element, f"that of the target, as in {preset.title}")
    return {**facts, "draft": replace(draft, facts=of_draft)}


def _halved(model: ModelFacts | None, block: ModelBlock | None, preset: Preset) -> ModelFacts | None:
    """Return what a model says, which the engine runs in fewer bits than it is kept in if that is written."""
    own, written = model and model.facts.get("dtype"), block and block.dtype
    if model is None or own is None or own.value != "float32" or written not in ("float16", "bfloat16"):
        return model
    return replace(model, facts={**model.facts, "dtype": Fact(written, f"float32, in 16 bits in {preset.title}")})


def _unsupported(checked: Checked, preset: Preset, algorithm: str | None) -> None:
    """Report what the engine's adapter cannot serve; ``algorithm`` is what the engine is told."""
    file, at = checked.file, checked.places
    if algorithm is not None and algorithm not in preset.algorithms:
        hint = f"there are {', '.join(preset.algorithms)}"
        _refuse(checked, preset, f"the algorithm {algorithm} is not served", at.value("algorithm"), hint)
    for tree in trees(checked) if not preset.tree_masks else ():
        _refuse(checked, preset, "trees are not served", tree.at(checked, "topk"), "write topk: 1")
    if file.verify not in preset.verifies and checked.sound("verify"):
        served = " or ".join(preset.verifies)
        _conflict(checked, preset, ("verify",), f"verify is {served}", served)
    for index, parameter in enumerate(file.sampling if checked.sound("sampling") else ()):
        if parameter in preset.missing_sampling:
            message = f"sampling by '{parameter}' is not served"
            _refuse(checked, preset, message, at.value("sampling", index), "leave it out")
    for index, output in enumerate(file.outputs if checked.sound("outputs") else ()):
        if output in preset.missing_outputs:
            message = f"the output '{output}' is not served"
            _refuse(checked, preset, message, at.value("outputs", index), "leave it out")
    for index, arch in enumerate(file.archs if checked.sound("archs") else ()):
        if arch != NATIVE and not arch.startswith(preset.gpus):
            message = f"programs run on {preset.gpus}..., not on {arch}"
            _refuse(checked, preset, message, at.value("archs", index), "leave it out")


def _of_models(
    checked: Checked, preset: Preset, algorithm: str | None, facts: Mapping[Role, ModelFacts | None]
) -> None:
    """Report what of the models the engine's adapter does not serve."""
    file = checked.file
    blocks = {"target": file.target, "draft": file.draft}
    mapped = file.draft is not None and file.draft.token_map is not None
    asked = EngineNeeds(
        algorithm=algorithm,
        models={role: model.values for role, model in facts.items() if model is not None},
        layouts={role: block.kv_layout for role, block in blocks.items() if block is not None and block.kv_layout},
        topk=max(shape.topk for shape in written_shapes(file)),
        ranks=file.tensor_parallel,
        head_rows=mapped and algorithm in preset.heads_of_target,
    )
    if OWN_HEADS.fullmatch(name := str(asked.models.get("draft", {}).get("architecture", ""))):
        what, at = f"a head of the reference engine's own ({name})", checked.places.value("draft", "model")
        hint = "give a head as people publish it (docs/models.md), or a language model that drafts"
        _refuse(checked, preset, f"{what} is not served", at, hint)
    hints = {"topk": "write topk: 1", "token_map": "write tensor_parallel: 1"}
    for path, what in preset.unserved(asked) if sound_shapes(checked) and checked.sound("tensor_parallel") else ():
        hint = hints.get(path[-1], "choose another model, or another engine")
        _refuse(checked, preset, f"{what} is not served", checked.places.value(*path), hint)


def _of_a_part(checked: Checked, preset: Preset) -> None:
    """Report a map of the tokens that the draft scores, where the engine hands over scores of all."""
    block = checked.file.draft
    if block is None or not _scores_all(preset, block) or block.token_map is None or not checked.sound("draft"):
        return
    what, hint = "the program gets scores of all tokens", "leave it out"
    _refuse(checked, preset, what, checked.places.value("draft", "token_map"), hint)


def _scores_all(preset: Preset, draft: ModelBlock | None) -> bool:
    """Whether an engine hands over scores of all tokens, whatever the draft scores: its own head makes them."""
    return not preset.parts_of_tokens and (draft is None or draft.head == "engine")


def _with_demands(checked: Checked, preset: Preset) -> ConfigFile:
    """Return the file with the engine's values; what is written and differs is reported."""
    file = checked.file
    for path, value in preset.demands.items():
        if len(path) == 1:
            file = cast("ConfigFile", _demanded(checked, preset, file, path, value))
        elif (block := getattr(file, path[0])) is not None:
            file = file.model_copy(update={path[0]: _demanded(checked, preset, block, path, value)})
    return file


def _demanded(
    checked: Checked, preset: Preset, block: ConfigFile | ModelBlock, path: tuple[str, ...], value: Value
) -> ConfigFile | ModelBlock:
    """Return a block with one key as the engine has it, after reporting that it is written otherwise."""
    written = getattr(block, path[-1])
    if checked.places.written(*path) and not checked.places.broken(*path) and written not in (value, "auto"):
        _conflict(checked, preset, path, f"{'.'.join(path)} is {_spell(value)}", _spell(value))
    return block.model_copy(update={path[-1]: value})


def _with_tables(checked: Checked, preset: Preset, file: ConfigFile) -> ConfigFile:
    """Return the file with the engine's tables; what is written of them and differs is reported."""
    if (tables := preset.tables) is None:
        return file
    at = checked.places
    for key, value, written in (
        ("slots", tables.slots, file.tables.slots),
        ("padding_slot", tables.padding_slot, file.tables.padding_slot),
    ):
        if at.written("tables", key) and not at.broken("tables", key) and written != value:
            _conflict(checked, preset, ("tables", key), f"tables.{key} is {value}", str(value))
    for name in () if at.broken("tables", "carry") else file.tables.carry:
        place = tables.carry.get(name)
        if file.tables.carry[name] != place:
            known = f"tables.carry.{name} is {place.model_dump()}" if place is not None else None
            message = f"with {preset.title}, {known or f'tables.carry has no {name}'}"
            where, notes = at.value("tables", "carry", name), _engine_note(checked, preset)
            checked.findings.error("config/engine-conflict", message, where, hint="leave it out", notes=notes)
    return file.model_copy(update={"tables": tables})


def _fixed_options(checked: Checked, preset: Preset, algorithm: str) -> dict[str, object]:
    """Return the options of which the engine has one value only; what is written and differs is reported."""
    options = preset.options.get(algorithm, {})
    for key, value in options.items():
        path = ("options", key)
        if key not in checked.file.options:
            continue
        if value is None and checked.file.options[key] is not None:
            what = f"the option '{key}' is not served"
            _refuse(checked, preset, what, checked.places.value(*path), "leave it out")
        elif checked.file.options[key] != value:
            _conflict(checked, preset, path, f"{'.'.join(path)} is {value}", str(value))
    return dict(options)


def _whole_text(
    checked: Checked, preset: Preset, algorithm: str, facts: Mapping[Role, ModelFacts | None]
) -> dict[str, object]:
    """Return the option that is as long as a text may be, after reporting that nothing says how long."""
    key, target = preset.whole_text.get(algorithm), facts.get("target")
    if key is None or key in checked.file.options:
        return {}
    if (longest := target.facts.get("context_length") if target is not None else None) is not None:
        return {key: longest.value}
    message = f"with {preset.title}, options.{key} is as long as a text may be, and nothing says how long that is"
    at, notes = checked.places.value("options"), _engine_note(checked, preset)
    checked.findings.error("config/missing-key", message, at, hint=f"add '{key}:' under 'options:'", notes=notes)
    return {}


def _with_mask(checked: Checked, preset: Preset, file: ConfigFile, target: ModelFacts | None) -> ConfigFile:
    """Return the file of a tree with a mask that the engine's attention reads, and what sizes it."""
    if not trees(checked) or not preset.tree_masks or not checked.sound("mask"):
        return file
    if not checked.places.written("mask"):
        file = file.model_copy(update={"mask": preset.tree_masks[0]})
    elif file.mask not in preset.tree_masks:
        read = " or ".join(preset.tree_masks)
        _conflict(checked, preset, ("mask",), f"the mask of a tree is {read}", read)
    longest = target.facts.get("context_length") if target is not None else None
    if file.mask == "full" and file.context_length is None and longest is not None:
        length = preset.longest(int(longest.value), max(shape.num_steps for shape in written_shapes(file)))
        file = file.model_copy(update={"context_length": length})
    return file


def _conflict(checked: Checked, preset: Preset, path: tuple[str, ...], rule: str, write: str) -> None:
    hint = f"write {path[-1]}: {write}, or leave the key out"
    at, notes = checked.places.value(*path), _engine_note(checked, preset)
    checked.findings.error("config/engine-conflict", f"with {preset.title}, {rule}", at, hint=hint, notes=notes)


def _refuse(checked: Checked, preset: Preset, what: str, at: Location, hint: str) -> None:
    message, notes = f"with {preset.title}, {what}", _engine_note(checked, preset)
    checked.findings.error("config/engine-unsupported", message, at, hint=hint, notes=notes)


def _engine_note(checked: Checked, preset: Preset) -> list[Note]:
    """Return a note that points at `engine:`, if the file has the key."""
    if not checked.places.written("engine"):
        return []
    return [Note(f"the engine is {preset.title}", checked.places.value("engine"))]


def _spell(value: Value) -> str:
    """Return a value as YAML has it."""
    return value if isinstance(value, str) else str(value).lower()

"""`engine:` -> the defaults that the engine's preset gives, and a finding for all that does not fit it."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar, cast

from specc.compiler.config.archs import NATIVE
from specc.compiler.config.block import DraftBlock, ModelBlock
from specc.compiler.config.budget_entries import GIVEN
from specc.compiler.config.models import Fact, ModelFacts
from specc.compiler.config.presets import PRESETS, Preset
from specc.compiler.config.presets.contract import OWN_HEADS, EngineNeeds, Value
from specc.compiler.config.resolved import Sides
from specc.compiler.config.rules.needs import Chosen, Needs
from specc.compiler.config.rules.shapes import sound_shapes, trees, written_shapes
from specc.compiler.config.rules.written_file import Written
from specc.compiler.config.schema import ConfigFile
from specc.compiler.support.diagnostics import Diagnostic, Findings, Note
from specc.compiler.support.location import Location

B = TypeVar("B", ConfigFile, ModelBlock)


def for_engine(written: Written, chosen: Chosen, facts: Sides[ModelFacts]) -> Findings[Written]:
    """Return the file as its engine runs it, after reporting what the engine does not do; without one as it is."""
    engine, algorithm = written.file.engine, chosen.name
    if engine is None:
        return written
    preset, told = PRESETS[engine], chosen.needs.runs_as or algorithm
    yield from _unsupported(written, preset, told)
    yield from _of_models(written, preset, told, facts)
    yield from _of_a_part(written, preset)
    file = yield from _with_demands(written, preset)
    file = yield from _with_states(written, preset, file)
    buckets = file.buckets if written.sound("buckets") else []
    file = file.model_copy(update={"max_requests": file.max_requests or max([preset.max_requests, *buckets])})
    file = yield from _with_tables(written, preset, file)
    if algorithm is not None and written.sound("options"):
        fixed = yield from _fixed_options(written, preset, algorithm)
        whole = yield from _whole_text(written, preset, algorithm, facts.target)
        file = file.model_copy(update={"options": file.options | fixed | whole})
    return replace(written, file=(yield from _with_mask(written, preset, file, facts.target)))


def in_engine(written: Written, needs: Needs, facts: Sides[ModelFacts]) -> Sides[ModelFacts]:
    """Return what the models' directories say, as their engine runs the models.

    A model of float32 runs in the 16 bits that are written. A head has its target's element type, and scores all tokens
    where the engine has no scores of a part. ``needs`` says whether the draft is a head.
    """
    file = written.file
    if file.engine is None:
        return facts
    preset = PRESETS[file.engine]
    target, draft = _halved(facts.target, file.target, preset), _halved(facts.draft, file.draft, preset)
    if draft is None:
        return Sides(target, draft)
    of_draft = dict(draft.facts)
    if _scores_all(preset, file.draft):
        of_draft.pop("draft_vocab_size", None)
    named = target.facts.get("dtype") if target is not None else None
    element = (file.target and file.target.dtype) or (named and named.value)
    if element is not None and (needs.head or preset.one_dtype):
        of_draft["dtype"] = Fact(element, f"that of the target, as in {preset.title}")
    return Sides(target, replace(draft, facts=of_draft))


def _halved(model: ModelFacts | None, block: ModelBlock | None, preset: Preset) -> ModelFacts | None:
    """Return what a model says, which the engine runs in fewer bits than it is kept in if that is written."""
    own, dtype = model and model.facts.get("dtype"), block and block.dtype
    if model is None or own is None or own.value != "float32" or dtype not in ("float16", "bfloat16"):
        return model
    return replace(model, facts={**model.facts, "dtype": Fact(dtype, f"float32, in 16 bits in {preset.title}")})


def _unsupported(written: Written, preset: Preset, algorithm: str | None) -> Findings[None]:
    """Report what the engine's adapter cannot serve; ``algorithm`` is what the engine is told."""
    verify, at = written.file.verify, written.places.value("algorithm")
    if algorithm is not None and algorithm not in preset.algorithms:
        hint = f"there are {', '.join(preset.algorithms)}"
        yield _refuse(written, preset, f"the algorithm {algorithm} is not served", at, hint)
    for tree in trees(written) if not preset.tree_masks else ():
        yield _refuse(written, preset, "trees are not served", tree.at(written, "topk"), "write topk: 1")
    if verify not in preset.verifies and written.sound("verify"):
        served = " or ".join(preset.verifies)
        yield _conflict(written, preset, ("verify",), f"verify is {served}", served)
    limited = next((shape for shape in written_shapes(written.file) if shape.budgets), None)
    given = limited is not None and GIVEN in limited.budgets
    if limited is not None and not (preset.gives_rows if given else preset.budgets):
        what = "rows that the engine gives are" if given else "a budget of rows is"
        at = written.places.key(*limited.path, "budget")
        yield _refuse(written, preset, f"{what} not served", at, "leave it out")
    for parameter, at in written.entries("sampling"):
        if parameter in preset.missing_sampling:
            yield _refuse(written, preset, f"sampling by '{parameter}' is not served", at, "leave it out")
    for output, at in written.entries("outputs"):
        if output in preset.missing_outputs:
            yield _refuse(written, preset, f"the output '{output}' is not served", at, "leave it out")
    for arch, at in written.entries("archs"):
        if arch != NATIVE and not arch.startswith(preset.gpus):
            yield _refuse(written, preset, f"programs run on {preset.gpus}..., not on {arch}", at, "leave it out")


def _of_models(written: Written, preset: Preset, algorithm: str | None, facts: Sides[ModelFacts]) -> Findings[None]:
    """Report what of the models the engine's adapter does not serve."""
    file = written.file
    blocks = Sides(file.target, file.draft).present
    mapped = file.draft is not None and file.draft.token_map is not None and not file.draft.computes_head
    asked = EngineNeeds(
        algorithm=algorithm,
        models={role: model.values for role, model in facts.present.items()},
        layouts={role: block.kv_layout for role, block in blocks.items() if block.kv_layout},
        topk=max(shape.topk for shape in written_shapes(file)),
        ranks=file.tensor_parallel,
        head_rows=mapped and algorithm in preset.heads_of_target,
    )
    if OWN_HEADS.fullmatch(name := str(asked.models.get("draft", {}).get("architecture", ""))):
        what, at = f"a head of the reference engine's own ({name})", written.places.value("draft", "model")
        hint = "give a head as people publish it (docs/models.md), or a language model that drafts"
        yield _refuse(written, preset, f"{what} is not served", at, hint)
    hints = {"topk": "write topk: 1", "token_map": "write tensor_parallel: 1"}
    for path, what in preset.unserved(asked) if sound_shapes(written) and written.sound("tensor_parallel") else ():
        hint = hints.get(path[-1], "choose another model, or another engine")
        yield _refuse(written, preset, f"{what} is not served", written.places.value(*path), hint)


def _of_a_part(written: Written, preset: Preset) -> Findings[None]:
    """Report a map of the tokens that the draft scores, where the engine hands over scores of all."""
    block = written.file.draft
    if block is None or not _scores_all(preset, block) or block.token_map is None or not written.sound("draft"):
        return
    what, hint = "the program gets scores of all tokens", "leave it out"
    yield _refuse(written, preset, what, written.places.value("draft", "token_map"), hint)


def _scores_all(preset: Preset, draft: DraftBlock | None) -> bool:
    """Whether an engine hands over scores of all tokens, whatever the draft scores: its own head makes them."""
    return not preset.parts_of_tokens and (draft is None or not draft.computes_head)


def _with_demands(written: Written, preset: Preset) -> Findings[ConfigFile]:
    """Return the file with the engine's values; what is written and differs is reported."""
    file = written.file
    for path, value in preset.demands.items():
        if len(path) == 1:
            file = yield from _demanded(written, preset, file, path, value)
        elif (block := getattr(file, path[0])) is not None:
            block = yield from _demanded(written, preset, cast("ModelBlock", block), path, value)
            file = file.model_copy(update={path[0]: block})
    return file


def _demanded(written: Written, preset: Preset, block: B, path: tuple[str, ...], value: Value) -> Findings[B]:
    """Return a block with one key as the engine has it, after reporting that it is written otherwise."""
    own = getattr(block, path[-1])
    if written.places.written(*path) and not written.broken(*path) and own not in (value, "auto"):
        yield _conflict(written, preset, path, f"{'.'.join(path)} is {_spell(value)}", _spell(value))
    return block.model_copy(update={path[-1]: value})


def _with_states(written: Written, preset: Preset, file: ConfigFile) -> Findings[ConfigFile]:
    """Return the file with a way to commit states that the engine has, after refusing another one."""
    target = file.target
    if target is None or target.state_form not in preset.missing_state_forms:
        return file
    what, at = f"state_form: {target.state_form} is not served", written.places.value("target", "state_form")
    yield _refuse(written, preset, what, at, "leave it out")
    return file.model_copy(update={"target": target.model_copy(update={"state_form": "engine"})})


def _with_tables(written: Written, preset: Preset, file: ConfigFile) -> Findings[ConfigFile]:
    """Return the file with the engine's tables; what is written of them and differs is reported."""
    if (tables := preset.tables) is None:
        return file
    at = written.places
    for key, value, own in (
        ("slots", tables.slots, file.tables.slots),
        ("padding_slot", tables.padding_slot, file.tables.padding_slot),
    ):
        if at.written("tables", key) and not written.broken("tables", key) and own != value:
            yield _conflict(written, preset, ("tables", key), f"tables.{key} is {value}", str(value))
    for name in () if written.broken("tables", "carry") else file.tables.carry:
        place = tables.carry.get(name)
        if file.tables.carry[name] != place:
            known = f"tables.carry.{name} is {place.model_dump()}" if place is not None else None
            message = f"with {preset.title}, {known or f'tables.carry has no {name}'}"
            where, notes = at.value("tables", "carry", name), _engine_note(written, preset)
            yield Diagnostic("config/engine-conflict", message, where, "leave it out", notes)
    return file.model_copy(update={"tables": tables})


def _fixed_options(written: Written, preset: Preset, algorithm: str) -> Findings[dict[str, object]]:
    """Return the options of which the engine has one value only; what is written and differs is reported."""
    options = preset.options.get(algorithm, {})
    for key, value in options.items():
        path = ("options", key)
        if key not in written.file.options:
            continue
        if value is None and written.file.options[key] is not None:
            what = f"the option '{key}' is not served"
            yield _refuse(written, preset, what, written.places.value(*path), "leave it out")
        elif written.file.options[key] != value:
            yield _conflict(written, preset, path, f"{'.'.join(path)} is {value}", str(value))
    return dict(options)


def _whole_text(
    written: Written, preset: Preset, algorithm: str, target: ModelFacts | None
) -> Findings[dict[str, object]]:
    """Return the option that is as long as a text may be, after reporting that nothing says how long."""
    key = preset.whole_text.get(algorithm)
    if key is None or key in written.file.options:
        return {}
    if (longest := target.facts.get("context_length") if target is not None else None) is not None:
        return {key: longest.value}
    message = f"with {preset.title}, options.{key} is as long as a text may be, and nothing says how long that is"
    at, notes = written.places.value("options"), _engine_note(written, preset)
    yield Diagnostic("config/missing-key", message, at, f"add '{key}:' under 'options:'", notes)
    return {}


def _with_mask(written: Written, preset: Preset, file: ConfigFile, target: ModelFacts | None) -> Findings[ConfigFile]:
    """Return the file of a tree with a mask that the engine's attention reads, and what sizes it."""
    if not trees(written) or not preset.tree_masks or not written.sound("mask"):
        return file
    if not written.places.written("mask"):
        file = file.model_copy(update={"mask": preset.tree_masks[0]})
    elif file.mask not in preset.tree_masks:
        read = " or ".join(preset.tree_masks)
        yield _conflict(written, preset, ("mask",), f"the mask of a tree is {read}", read)
    longest = target.facts.get("context_length") if target is not None else None
    if file.mask == "full" and file.context_length is None and longest is not None:
        length = preset.longest(int(longest.value), max(shape.num_steps for shape in written_shapes(file)))
        file = file.model_copy(update={"context_length": length})
    return file


def _conflict(written: Written, preset: Preset, path: tuple[str, ...], rule: str, write: str) -> Diagnostic:
    hint = f"write {path[-1]}: {write}, or leave the key out"
    at, notes = written.places.value(*path), _engine_note(written, preset)
    return Diagnostic("config/engine-conflict", f"with {preset.title}, {rule}", at, hint, notes)


def _refuse(written: Written, preset: Preset, what: str, at: Location, hint: str) -> Diagnostic:
    message, notes = f"with {preset.title}, {what}", _engine_note(written, preset)
    return Diagnostic("config/engine-unsupported", message, at, hint, notes)


def _engine_note(written: Written, preset: Preset) -> tuple[Note, ...]:
    """Return a note that points at `engine:`, if the file has the key."""
    if not written.places.written("engine"):
        return ()
    return (Note(f"the engine is {preset.title}", written.places.value("engine")),)


def _spell(value: Value) -> str:
    """Return a value as YAML has it."""
    return value if isinstance(value, str) else str(value).lower()

"""Drafts that score a part of the target's tokens: how many, and whether the map that says which is one."""

from __future__ import annotations

from collections.abc import Mapping

from specc.compiler.config.block import DraftBlock
from specc.compiler.config.models import Fact
from specc.compiler.config.models.hub import model_path
from specc.compiler.config.resolved import ModelConfig, Sides
from specc.compiler.config.rules.written_file import Written
from specc.compiler.support.diagnostics import Diagnostic, Findings
from specc.compiler.support.files.paths import PathError, path_of
from specc.compiler.support.token_map import TokenMapError, check_token_map, read_offsets, read_token_map

MODEL, ENGINE = "model", "engine"
"""Where a map may be that is no file: in the draft's weights, and brought when a program is bound."""


def token_map_of(
    written: Written, block: DraftBlock, facts: Mapping[str, Fact]
) -> Findings[tuple[str | None, Mapping[str, Fact]]]:
    """Return where a draft's map is, None if it scores all tokens, and the facts with these as its vocabulary."""
    place, whole, part = block.token_map, facts.get("vocab_size"), facts.get("draft_vocab_size")
    reduced = part is not None and whole is not None and part.value != whole.value
    if place is None and not reduced:
        return None, facts
    rest = {key: fact for key, fact in facts.items() if key != "vocab_size"}
    if reduced and part is not None:
        rest["vocab_size"] = part
    where = place or MODEL
    if where not in (MODEL, ENGINE) and "vocab_size" not in rest and block.vocab_size is None:
        tokens = yield from _read(written, where)
        if tokens is not None:
            rest["vocab_size"] = Fact(len(tokens), f"tokens of {where}")
    return where, rest


def check_map(written: Written, models: Sides[ModelConfig]) -> Findings[None]:
    """Check the map of a draft, where it can be read before there is an engine."""
    target, draft = models.target, models.draft
    if target is None or draft is None or draft.token_map is None:
        return
    at = written.places.value("draft", "token_map" if written.places.written("draft", "token_map") else "model")
    if draft.vocab_size >= target.vocab_size:
        message = f"the draft scores {draft.vocab_size} tokens, and the target has {target.vocab_size}"
        hint = "leave token_map out for a draft that scores all tokens"
        yield Diagnostic("legal/vocab-mismatch", message, at, hint)
        return
    tokens = yield from _tokens(written, draft)
    if tokens is None:
        return
    try:
        check_token_map(tokens, draft.vocab_size, target.vocab_size)
    except TokenMapError as error:
        yield Diagnostic(error.code, str(error), at, error.hint)


def _tokens(written: Written, draft: ModelConfig) -> Findings[list[int] | None]:
    """Return a draft's map, None if only the engine has it, or after reporting."""
    if draft.token_map == ENGINE or (draft.token_map == MODEL and draft.model is None):
        return None
    if draft.token_map != MODEL:
        return (yield from _read(written, str(draft.token_map)))
    try:
        return read_offsets(model_path(str(draft.model), written.directory))
    except TokenMapError as error:
        yield Diagnostic(error.code, str(error), written.places.value("draft", "model"), error.hint)
        return None


def _read(written: Written, path: str) -> Findings[list[int] | None]:
    """Return the tokens that a file lists, None after reporting."""
    try:
        return read_token_map(path_of(path, written.directory))
    except PathError as error:
        message, hint = f"'{path[:80]}' is not a path: {error}", None
    except TokenMapError as error:
        message, hint = str(error), error.hint
    yield Diagnostic("map/unreadable", message, written.places.value("draft", "token_map"), hint)
    return None

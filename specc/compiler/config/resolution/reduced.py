"""Drafts that score a part of the target's tokens: how many, and whether the map that says which is one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from specc.compiler.config.models import Fact
from specc.compiler.config.models.hub import model_path
from specc.compiler.config.resolved import ModelConfig
from specc.compiler.config.rules.checked import Checked
from specc.compiler.config.schema import ModelBlock
from specc.compiler.support.files.paths import PathError, path_of
from specc.compiler.support.token_map import TokenMapError, check_token_map, read_offsets, read_token_map

MODEL, ENGINE = "model", "engine"
"""Where a map may be that is no file: in the draft's weights, and brought when a program is bound."""


def token_map_of(
    checked: Checked, block: ModelBlock, facts: Mapping[str, Fact], directory: Path
) -> tuple[str | None, Mapping[str, Fact]]:
    """Return where a draft's map is, None if it scores all tokens, and the facts with what it scores as its vocabulary.

    ``directory`` is where relative paths start.
    """
    written, whole, part = block.token_map, facts.get("vocab_size"), facts.get("draft_vocab_size")
    reduced = part is not None and whole is not None and part.value != whole.value
    if written is None and not reduced:
        return None, facts
    rest = {key: fact for key, fact in facts.items() if key != "vocab_size"}
    if reduced and part is not None:
        rest["vocab_size"] = part
    where = written or MODEL
    if where not in (MODEL, ENGINE) and "vocab_size" not in rest and block.vocab_size is None:
        tokens = _read(checked, where, directory)
        if tokens is not None:
            rest["vocab_size"] = Fact(len(tokens), f"tokens of {where}")
    return where, rest


def check_map(checked: Checked, target: ModelConfig | None, draft: ModelConfig | None, directory: Path) -> None:
    """Check the map of a draft, where it can be read before there is an engine."""
    if target is None or draft is None or draft.token_map is None:
        return
    at = checked.places.value("draft", "token_map" if checked.places.written("draft", "token_map") else "model")
    if draft.vocab_size >= target.vocab_size:
        message = f"the draft scores {draft.vocab_size} tokens, and the target has {target.vocab_size}"
        hint = "leave token_map out for a draft that scores all tokens"
        checked.findings.error("legal/vocab-mismatch", message, at, hint=hint)
        return
    tokens = _tokens(checked, draft, directory)
    if tokens is None:
        return
    try:
        check_token_map(tokens, draft.vocab_size, target.vocab_size)
    except TokenMapError as error:
        checked.findings.error(error.code, str(error), at, hint=error.hint)


def _tokens(checked: Checked, draft: ModelConfig, directory: Path) -> list[int] | None:
    """Return a draft's map, None if only the engine has it, or after reporting."""
    if draft.token_map == ENGINE or (draft.token_map == MODEL and draft.model is None):
        return None
    if draft.token_map != MODEL:
        return _read(checked, str(draft.token_map), directory)
    try:
        return read_offsets(model_path(str(draft.model), directory))
    except TokenMapError as error:
        checked.findings.error(error.code, str(error), checked.places.value("draft", "model"), hint=error.hint)
        return None


def _read(checked: Checked, path: str, directory: Path) -> list[int] | None:
    """Return the tokens that a file lists, None after reporting."""
    try:
        return read_token_map(path_of(path, directory))
    except (TokenMapError, PathError) as error:
        message, hint = str(error), None
        if isinstance(error, PathError):
            message = f"'{path[:80]}' is not a path: {error}"
        else:
            hint = error.hint
        checked.findings.error("map/unreadable", message, checked.places.value("draft", "token_map"), hint=hint)
        return None

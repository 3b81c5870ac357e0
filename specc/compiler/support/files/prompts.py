"""Prompts in files, and what of a prompt is no text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.files.reading import half_character, read_text


def read_prompts(path: Path) -> list[str]:
    """The prompts of a file.

    A file is a JSON list of strings where its name ends with ``.json``. In a ``.jsonl`` each line has a record with
    ``prompt``, or with ``turns``, of which the first is taken. In any other each line is a prompt. Blank lines are
    none.

    Raises:
        DiagnosticError: ``config/unreadable``, ``config/wrong-type`` or ``run/bad-prompt``.

    """
    try:
        text = read_text(path)
        listed: Any = [line for line in text.splitlines() if line.strip()]
        if path.suffix == ".json":
            listed = json.loads(text)
        elif path.suffix == ".jsonl":  # whose strings may have what else ends a line
            listed = [_of_record(json.loads(line)) for line in text.split("\n") if line.strip()]
    except (OSError, ValueError, RecursionError) as error:
        message = f"cannot read the prompts in {str(path)!r}: {error}"
        raise DiagnosticError(Diagnostic("config/unreadable", message)) from error
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
        what = "has a line without a prompt" if path.suffix == ".jsonl" else "is not a JSON list of strings"
        hint = 'a line is {"prompt": "..."}, or has "turns"' if path.suffix == ".jsonl" else None
        raise DiagnosticError(Diagnostic("config/wrong-type", f"{str(path)!r} {what}", hint=hint))
    require_whole(listed, repr(str(path)))
    return listed


def _of_record(record: Any) -> Any:
    """The prompt of a line of JSON, None where it has none."""
    if not isinstance(record, dict):
        return None
    turns = record.get("turns")
    return record.get("prompt", turns[0] if isinstance(turns, list) and turns else None)


def require_whole(prompts: Sequence[str], origin: str) -> None:
    """Raise DiagnosticError ``run/bad-prompt`` for the first prompt that is no text."""
    for number, prompt in enumerate(prompts, 1):
        if (place := half_character(prompt)) is not None:
            near = prompt[max(place - 20, 0) : place + 20]
            message = f"prompt {number} of {origin} has half of a character at place {place}, in {near!r}"
            hint = "write the whole character: in JSON as both of its halves, on a command line as UTF-8"
            raise DiagnosticError(Diagnostic("run/bad-prompt", message, hint=hint))

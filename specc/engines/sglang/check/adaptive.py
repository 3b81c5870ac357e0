"""Numbers of steps among which a server of SGLang's changes while it runs, by its arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from specc.engines.sglang.check.command_line import ADAPTIVE, ADAPTIVE_CONFIG, ANSWERS, Arguments, attention_groups
from specc.engines.sglang.served import STEPS, TOPK, KindOfDraft

NEITHER = ("--enable-two-batch-overlap", "--enable-pdmux")
"""Arguments beside which SGLang changes no number of steps."""


def left_off(arguments: Arguments, kind: KindOfDraft) -> str:
    """Return beside what SGLang leaves the number of steps as it is though it is asked to change it, or nothing."""
    if ADAPTIVE not in arguments.values:
        return ""
    if not kind.adaptive:
        return "drafts of another kind than heads"
    if arguments.text(TOPK, "1") != "1":
        return f"{TOPK} {arguments.text(TOPK)[:60]}"
    if attention_groups(arguments) > 1:
        return "attention under data parallelism"
    return next((name for name in NEITHER if name in arguments.values), "")


def candidates_of(arguments: Arguments, kind: KindOfDraft) -> tuple[int, ...]:
    """Return the numbers of steps among which a server changes, ascending, after reporting what it does not start with.

    There are none where it does not change.
    """
    if ADAPTIVE not in arguments.values or left_off(arguments, kind):
        return ()
    table = _table(arguments)
    if table is None:
        return ()
    candidates = tuple(sorted({steps for of_size in table.values() for steps in of_size}))
    started = arguments.number(STEPS) if arguments.text(STEPS) != "0" else 0
    if started is not None and started not in candidates:
        listed = ", ".join(map(str, candidates))
        message = f"{STEPS} {started} is none of the candidates of {ADAPTIVE}, and SGLang starts no such server"
        arguments.wrong(message, f"leave {STEPS} out, or write one of {listed}")
    return candidates


def _table(arguments: Arguments) -> Mapping[int, list[int]] | None:
    """Return the candidates by the least batch that has them, or None after reporting a file that says none."""
    if ADAPTIVE_CONFIG not in arguments.values:
        return {int(size): steps for size, steps in ANSWERS.tables["candidates"].items()}
    written = arguments.text(ADAPTIVE_CONFIG)
    hint = 'it is JSON such as {"1": {"candidate_steps": [1, 3]}, "8": {"candidate_steps": [0, 1]}}'
    try:
        said: object = json.loads(Path(written).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is no JSON"
        arguments.wrong(f"{ADAPTIVE_CONFIG} '{written[:200]}' cannot be read: {reason}", hint)
        return None
    entries = cast("dict[str, object]", said) if isinstance(said, dict) else {}
    table = {key: _steps(entry) for key, entry in entries.items() if key.isascii() and key.isdigit()}
    wrong = [key for key, steps in table.items() if not steps]
    if wrong or not table:
        what = f"the batch {wrong[0][:60]} has no numbers of steps" if wrong else "no batch has numbers of steps"
        arguments.wrong(f"{ADAPTIVE_CONFIG} '{written[:200]}': {what}", hint)
        return None
    return {int(key[:9]): steps for key, steps in table.items()}


def _steps(entry: object) -> list[int]:
    """Return the numbers of steps of one batch; none where it says something else."""
    steps = cast("dict[str, object]", entry).get("candidate_steps") if isinstance(entry, dict) else None
    numbers = cast("list[object]", steps) if isinstance(steps, list) else []
    found = [number for number in numbers if type(number) is int and number >= 0]
    return found if len(found) == len(numbers) else []

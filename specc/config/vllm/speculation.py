"""How vLLM 0.33.0 drafts: the method that it settles on, the draft, and how many tokens, from what it is told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from specc.adapters.vllm.served import METHODS, MODULES, turns
from specc.config.models import Fact
from specc.config.models.pair import Described, describe
from specc.config.vllm.command_line import SPECULATION, Arguments
from specc.support.speculators import MARK

LOOK_UPS = METHODS["NGRAM"]
_OTHERS = ("dflash", "dspark", "suffix", "custom_class", "extract_hidden_states")
"""Methods of vLLM's that no program has."""
_LOOK_UP_LENGTH = 5
"""Tokens that are looked up, where nothing says how many."""
_BY_NAME: Mapping[str, str] = {"eagle-": "eagle", "eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark"}
"""What is in a draft's name -> the method that vLLM then takes, the first of those that are there."""
_WITH_MODULES = re.compile(r"qwen3_next|qwen3_5(_moe)?(_text)?|ernie4_5_moe")
"""Types of models with a module that need not be in their config.json."""
TABLE = "num_speculative_tokens_per_batch_size"
"""vLLM's key of a list of [first, last, number]: how many tokens are drafted for batches of these sizes."""
_SEVERAL = "num_nextn_predict_layers"
"""Only where this key says how many modules there are do several of them draft one after the other."""


@dataclass(frozen=True)
class Speculation:
    """How drafts are made.

    Attributes:
        method: vLLM's word, with where it comes from.
        draft: the draft's directory and what it says; None where drafts are looked up.
        draft_origin: where the directory comes from.
        num_steps: tokens that are drafted.
        longest, shortest: lengths of what is looked up.

    """

    method: Fact
    draft: tuple[Path, Described] | None
    draft_origin: str
    num_steps: Fact
    longest: int = _LOOK_UP_LENGTH
    shortest: int = _LOOK_UP_LENGTH

    @property
    def turns(self) -> tuple[int, int]:
        """How many modules draft one after the other, and how often."""
        fact = self.draft[1].said.facts.get("num_mtp_modules") if self.draft is not None else None
        modules = int(fact.value) if fact is not None and fact.origin == _SEVERAL else 1
        return turns(str(self.method.value), modules, int(self.num_steps.value))

    @property
    def assistant(self) -> bool:
        """Whether an assistant drafts, which reads the target's keys and values."""
        kind = self.draft[1].said.model_type if self.draft is not None else ""
        return "gemma4" in kind and "assistant" in kind


def speculation(arguments: Arguments, target: tuple[Path, Described] | None) -> Speculation | None:
    """Return how drafts are made, or None after reporting what is missing or cannot be read."""
    block = arguments.block(SPECULATION)
    if not block:
        hint = f'write {SPECULATION} \'{{"method": ..., "model": ..., "num_speculative_tokens": ...}}\''
        arguments.wrong(f"{SPECULATION} is missing: nothing is drafted", hint)
        return None
    if target is not None and MARK in target[1].content:
        arguments.refuse("a head that names its target by itself", f"give the target, and the head in {SPECULATION}")
        return None
    written, drafting = _word(arguments, block, "method"), _word(arguments, block, "model")
    method = written.strip("[]") or (drafting.strip("[]") if drafting.strip("[]") == "ngram" else "draft_model")
    steps = _count(arguments, block, "num_speculative_tokens")
    if method in LOOK_UPS or method in _OTHERS:
        if steps is None:
            arguments.wrong(f"{SPECULATION}.num_speculative_tokens is missing")
            return None
        given = Fact(method, f"{SPECULATION}.{'method' if written else 'model'}")
        drafted = Fact(steps, f"{SPECULATION}.num_speculative_tokens")
        return Speculation(given, None, "", drafted, *_lengths(arguments, block))
    return _of_model(arguments, target, method, written, drafting, steps)


def _of_model(
    arguments: Arguments,
    target: tuple[Path, Described] | None,
    method: str,
    written: str,
    drafting: str,
    steps: int | None,
) -> Speculation | None:
    """Return the speculation of a method that a model drafts by."""
    own = method.endswith("mtp") and not drafting
    draft = target if own else arguments.model(f"{SPECULATION}.model", drafting, describe)
    if draft is None:
        return None
    kind = _settled(MODULES if method.endswith("mtp") else method, drafting or str(draft[0]), draft[1])
    if kind is None:
        arguments.wrong(f"{SPECULATION}.method '{method[:60]}' is unknown", f"there are {_methods()}")
        return None
    agrees = kind == written or (kind == MODULES and written.endswith("mtp"))
    named = f"{SPECULATION}.method" if agrees else "what vLLM takes for such a draft"
    drafted = Fact(steps, f"{SPECULATION}.num_speculative_tokens") if steps is not None else None
    modules = draft[1].number("num_mtp_modules")
    if drafted is None and kind == MODULES and modules is not None and not own:
        drafted = Fact(modules, "as many as the draft has modules")
    if drafted is None:
        arguments.wrong(f"{SPECULATION}.num_speculative_tokens is missing")
        return None
    if kind == MODULES and modules is not None and int(drafted.value) > modules and int(drafted.value) % modules:
        arguments.wrong(f"{SPECULATION}.num_speculative_tokens is no multiple of the draft's {modules} modules")
    origin = f"modules of the target's own, which {SPECULATION} names no other for" if own else f"{SPECULATION}.model"
    return Speculation(Fact(kind, named), draft, origin, drafted)


def _settled(method: str, name: str, draft: Described) -> str | None:
    """Return the method that vLLM settles on for a draft of this name; None for one that it does not know."""
    if method in ("eagle", "eagle3"):
        return method
    if named := next((by_name for part, by_name in _BY_NAME.items() if part in name.lower()), None):
        return named
    if draft.modules or "mtp" in draft.said.model_type or _WITH_MODULES.fullmatch(draft.said.model_type):
        return MODULES
    return "draft_model" if method == "draft_model" else None


def _methods() -> str:
    return ", ".join(dict.fromkeys(method for methods in METHODS.values() for method in methods))


def _word(arguments: Arguments, block: Mapping[str, object], key: str) -> str:
    """Return a key that is a text, an empty one where it is not there or after reporting that it is none."""
    value = block.get(key)
    if value is not None and not isinstance(value, str):
        arguments.wrong(f"{SPECULATION}.{key} takes a text, and this is {str(value)[:60]}")
    return value if isinstance(value, str) else ""


def _count(arguments: Arguments, block: Mapping[str, object], key: str) -> int | None:
    """Return a key that is a positive integer, None where it is not there or after reporting that it is none."""
    value = block.get(key)
    if value is None:
        return None
    if type(value) is not int or not 0 < value < 1 << 30:
        arguments.wrong(f"{SPECULATION}.{key} takes a positive integer, and this is {str(value)[:60]!r}")
        return None
    return value


def numbers(arguments: Arguments, most: int) -> list[int]:
    """Return all numbers of drafts that a step may have, ascending: those of a table by batch size, and the most.

    A table that cannot be read is reported.
    """
    table = arguments.block(SPECULATION).get(TABLE)
    rows: list[Any] = table if isinstance(table, list) else [] if table is None else [table]
    if not all(
        isinstance(row, list) and [type(entry) for entry in cast("list[Any]", row)] == [int] * 3 for row in rows
    ):
        arguments.wrong(f"{SPECULATION}.{TABLE} takes a list of [first, last, number], and this is {str(table)[:60]!r}")
        return [most]
    return sorted({most, *(min(int(row[2]), most) for row in rows if row[2] >= 0)})


def _lengths(arguments: Arguments, block: Mapping[str, object]) -> tuple[int, int]:
    """Return the lengths of what is looked up: one stands for the other that is not given."""
    longest, shortest = (_count(arguments, block, f"prompt_lookup_{end}") for end in ("max", "min"))
    usual = longest or shortest or _LOOK_UP_LENGTH
    if (longest or usual) < (shortest or usual):
        arguments.wrong(f"{SPECULATION}.prompt_lookup_min is more than prompt_lookup_max")
    return longest or usual, shortest or usual

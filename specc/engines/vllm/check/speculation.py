"""How vLLM 0.33.0 drafts: the method that it settles on, the draft, and how many tokens, from what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, cast

from specc.compiler.config.models import Fact
from specc.compiler.config.models.pair import Described, describe
from specc.compiler.config.presets.contract import OWN_HEADS
from specc.compiler.support.speculators import MARK, verifier
from specc.engines.answers import OwnModules
from specc.engines.vllm.check.command_line import ANSWERS, COMPILATION, SPECULATION, Arguments
from specc.engines.vllm.served import ADAPTIVE, ALGORITHMS, METHODS, is_assistant, kind_of, turns

MODULES = next(name for name, method in METHODS.items() if method.modules)
USUAL = next(name for name, method in METHODS.items() if method.usual)
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
        options: those of the program that the command line says, by name.

    """

    method: Fact
    draft: tuple[Path, Described] | None
    draft_origin: str
    num_steps: Fact
    options: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def turns(self) -> tuple[int, int]:
        """How many modules draft one after the other, and how often."""
        brought = _modules(self.draft[1]) if self.draft is not None else None
        modules = brought.value if brought is not None and brought.origin == _SEVERAL else 1
        return turns(str(self.method.value), int(modules), int(self.num_steps.value))

    @property
    def assistant(self) -> bool:
        """Whether an assistant drafts, which reads the target's keys and values."""
        return self.draft is not None and is_assistant(self.draft[1].model_type)


def check_adaptive(arguments: Arguments, backend: str, *, reads: bool, graphs: int) -> None:
    """Report what vLLM does not start where it verifies adaptively, in its own words, and what no program does then.

    ``backend`` is the target's attention, which ``reads`` on the device how many drafts of each request there are, or
    does not; ``graphs`` is of how many tokens the largest graph is.
    """
    hint = f"leave {SPECULATION}.{ADAPTIVE} out"
    mode = str(arguments.block(COMPILATION).get("cudagraph_mode", "FULL")).upper()
    if not graphs or not mode.startswith("FULL"):
        arguments.wrong("vLLM: Adaptive verification requires full CUDA graphs", hint)
    elif not reads:
        what = "device-cpu query lens mismatch not supported, this is needed for adaptive verification"
        arguments.wrong(f"vLLM: {backend}: {what}", hint)
    if arguments.flag("--enable-lora"):
        arguments.wrong("vLLM: Adaptive verification is not currently compatible with LoRA", hint)
    if arguments.block(SPECULATION).get(TABLE) is not None:
        arguments.refuse(f"adaptive verification beside {TABLE}", f"leave one of them out of {SPECULATION}")


def given_target(arguments: Arguments) -> tuple[Path, Described] | None:
    """Return the target, or None after reporting that it cannot be read.

    A draft in the format of speculators stands for its target, too, whose name it has; vLLM then takes it for the draft
    and drafts as many tokens as it says, where nothing else is written.
    """
    given = arguments.model("--model", arguments.text("--model"), describe)
    if given is None or MARK not in given[1].content:
        return given
    name, tokens = verifier(given[1].content)
    block, written_as = arguments.blocks.setdefault(SPECULATION, {}), str(given[1].content[MARK])
    method = next((method for method in METHODS.values() if written_as in method.formats), None)
    if name is None:
        arguments.wrong("the draft of --model names no target (speculators_config.verifier)", "give the target")
        return None
    more = {} if tokens is None else {"num_speculative_tokens": tokens}
    written = {**block}
    block |= more | written | {"method": method.name if method else written_as, "model": arguments.text("--model")}
    if method is not None and method.formats[written_as]:
        block["parallel_drafting"] = True
    return arguments.model("the target that the draft of --model names", name, describe)


def speculation(arguments: Arguments, target: tuple[Path, Described] | None) -> Speculation | None:
    """Return how drafts are made, or None after reporting what is missing or cannot be read."""
    block = arguments.block(SPECULATION)
    if not block:
        hint = f'write {SPECULATION} \'{{"method": ..., "model": ..., "num_speculative_tokens": ...}}\''
        arguments.wrong(f"{SPECULATION} is missing: nothing is drafted", hint)
        return None
    written, drafting = _word(arguments, block, "method"), _word(arguments, block, "model")
    in_place = METHODS.get(drafting.strip("[]"))
    method = written.strip("[]") or (in_place.name if in_place is not None and in_place.in_place else USUAL)
    steps = _count(arguments, block, "num_speculative_tokens")
    known = METHODS.get(method)
    if known is not None and (known.model_less or kind_of(method) is None):
        if steps is None:
            arguments.wrong(f"{SPECULATION}.num_speculative_tokens is missing")
            return None
        given = Fact(method, f"{SPECULATION}.{'method' if written else 'model'}")
        drafted = Fact(steps, f"{SPECULATION}.num_speculative_tokens")
        return Speculation(given, None, "", drafted, _options(arguments, block, method))
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
    bundled = not drafting and method in METHODS and METHODS[method].at_once
    if bundled and target is not None and not (METHODS[method].bundled and "bundles_blocks" in target[1].said.facts):
        message = f"there is no draft of the method {method} among the target's own weights"
        arguments.wrong(message, f"give {SPECULATION}.model")
        return None
    own = bundled or (method.endswith("mtp") and not drafting)
    draft = target if own else arguments.model(f"{SPECULATION}.model", drafting, describe)
    if draft is None:
        return None
    kind = _settled(MODULES if method.endswith("mtp") else method, drafting or str(draft[0]), draft[1])
    if kind is None:
        _report_unknown(arguments, method, draft[1])
        return None
    if kind == MODULES and (brought := _brought(draft[1])) is not None and brought.architecture is None:
        what = f"modules of the class {', '.join(draft[1].classes)}, of which vLLM has none,"
        arguments.refuse(what, f'write {SPECULATION}.method "dspark"')
        return None
    if (unread := _unread(kind, draft[1])) is not None:
        arguments.refuse(unread, "give a draft that vLLM has a class for")
    agrees = kind == written or (kind == MODULES and written.endswith("mtp"))
    named = f"{SPECULATION}.method" if agrees else "what vLLM takes for such a draft"
    drafted = Fact(steps, f"{SPECULATION}.num_speculative_tokens") if steps is not None else None
    modules = brought.value if (brought := _modules(draft[1])) is not None else None
    if drafted is None and kind == MODULES and modules is not None and not own:
        drafted = Fact(modules, "as many as the draft has modules")
    if drafted is None:
        arguments.wrong(f"{SPECULATION}.num_speculative_tokens is missing")
        return None
    several = modules is not None and int(drafted.value) > int(modules)
    if kind == MODULES and several and int(drafted.value) % int(modules or 1):
        arguments.wrong(f"{SPECULATION}.num_speculative_tokens is no multiple of the draft's {modules} modules")
    what = "weights" if bundled else "modules"
    origin = f"{what} of the target's own, which {SPECULATION} names no other for" if own else f"{SPECULATION}.model"
    return Speculation(Fact(kind, named), draft, origin, drafted)


def _settled(method: str, name: str, draft: Described) -> str | None:
    """Return the method that vLLM settles on for a draft of this name; None for one that it does not know."""
    if method in METHODS and METHODS[method].stated:
        return method
    named = (of for of, known in METHODS.items() if any(part in name.lower() for part in known.names))
    by_class = (of for told in draft.classes for of, known in METHODS.items() if told in known.classes)
    if (told := next(chain(named, by_class), None)) is not None:
        return told
    if _brought(draft) is not None or "mtp" in draft.model_type:
        return MODULES
    return USUAL if method == USUAL else None


def _brought(draft: Described) -> OwnModules | None:
    """Return the modules that vLLM finds in a directory; None where it knows of none there."""
    return ANSWERS.modules_of(draft.classes[0] if draft.classes else "", draft.model_type)


def _modules(draft: Described) -> Fact | None:
    """Return how many modules vLLM finds in a directory, with what says so; None where nothing does."""
    brought, said = _brought(draft), draft.said.facts.get("num_mtp_modules")
    if brought is not None and isinstance(brought.count, int):
        return Fact(brought.count, brought.architecture or "")
    return said


def _report_unknown(arguments: Arguments, method: str, draft: Described) -> None:
    """Report a method that vLLM does not have, or not for this draft."""
    if method == MODULES or method.endswith("_mtp"):
        named = ", ".join(draft.classes) or draft.model_type
        arguments.wrong(f"vLLM has no modules of multi-token prediction for {named}", f"give {SPECULATION}.model")
        return
    there = ", ".join(dict.fromkeys(method for methods in ALGORITHMS.values() for method in methods))
    arguments.wrong(f"{SPECULATION}.method '{method[:60]}' is unknown", f"there are {there}")


def _unread(method: str, draft: Described) -> str | None:
    """Return in words that vLLM has no class for a draft, which it calls by its method and the class's name."""
    if not METHODS[method].prefix or MARK in draft.content or not draft.classes:
        return None
    name = draft.classes[0]
    unknown = [name for name in (name, METHODS[method].called(name)) if name not in ANSWERS.architectures]
    if not unknown or OWN_HEADS.fullmatch(name):  # of which any engine is told
        return None
    return f"a draft of the class {unknown[0]}, which vLLM does not have,"


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


def _options(arguments: Arguments, block: Mapping[str, object], method: str) -> Mapping[str, int]:
    """Return the options of a program that vLLM's keys say, after reporting those that contradict each other."""
    if (kind := kind_of(method)) is None:
        return {}
    written = {name: _count(arguments, block, key) for name, key in kind.written.items()}
    return kind.settled(written, lambda what: arguments.wrong(f"{SPECULATION}.{what}"))

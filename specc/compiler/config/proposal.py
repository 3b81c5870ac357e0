"""A first configuration for two models: keys, values and why, from which the file is written."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specc.compiler.config.archs import ARCHS, Gpu, NoGpuError, gpus
from specc.compiler.config.models.hub import name_in_cache
from specc.compiler.config.models.pair import Described, Fit, Pair
from specc.compiler.config.rules.needs import Needs
from specc.compiler.config.schema import ConfigFile
from specc.compiler.support.files.paths import path_of
from specc.compiler.support.render import printable
from specc.runtime.plan.shape import Shape

MOST_STEPS = 16
"""As many draft steps as a shape may have."""
_LONGEST_NAME = 63
_STEPS_ARE = "How many tokens ahead are drafted."
_ARCHS_ARE = "GPU architectures to compile for."
_COMMENT = 116
"""Widest comment, in characters."""
_PLAIN = re.compile(r"(\.{1,2}/)*[A-Za-z][\w.\-]*(/[\w.\-]+)*")
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


@dataclass(frozen=True)
class Key:
    """A key of the configuration.

    Attributes:
        name: the key.
        value: as YAML; empty for a block.
        about: what it says, in a sentence.
        why: why it has this value, in words, where that was chosen for these models or this machine.
        block: the lines of a block.

    """

    name: str
    value: str
    about: str
    why: str = ""
    block: tuple[str, ...] = ()

    def text(self) -> str:
        """The key in the file, below a comment."""
        words = comment(" ".join(filter(None, (self.about, _sentence(self.why)))))
        return yaml_of([*words, f"{self.name}:{' ' * bool(self.value)}{self.value}", *self.block])


@dataclass(frozen=True)
class Drafting:
    """What was chosen: an algorithm, its one line for people, what it needs, why, and the draft's directory."""

    algorithm: str
    summary: str
    needs: Needs
    fit: Fit
    draft: Described | None


@dataclass(frozen=True)
class Drafted:
    """What is drafted, as keys; the batch sizes to compile for; and the GPU, None for those of this machine."""

    keys: tuple[Key, ...]
    buckets: Sequence[int] = tuple(ConfigFile().buckets)
    gpu: Gpu | None = None


def name_of(directory: Path, algorithm: str) -> str:
    """Return the name of a configuration: the model's, of the Hub's cache too, and the algorithm's."""
    path = directory.absolute()
    name = name_in_cache(path) or path.name
    model, suffix = _word(name.rpartition("/")[2]), _word(algorithm)
    model = model if model[:1].isalpha() else f"model_{model}".rstrip("_")
    return f"{model[: _LONGEST_NAME - len(suffix) - 1].rstrip('_')}_{suffix}"


def propose(pair: Pair, chosen: Drafting, name: str, folder: Path, drafted: Drafted) -> list[Key]:
    """Return the keys of a configuration that will stand in ``folder``."""
    defaults = ConfigFile()
    buckets = "Batch sizes to compile for: a batch runs padded to the next one, and the last is the largest."
    greedy = "A draft is accepted exactly when the target would pick it. With target_only requests may sample."
    gpu = drafted.gpu
    return [
        Key("name", name, f"The configuration, and the Python package built from it: specc_program_{name}."),
        Key("algorithm", chosen.algorithm, "", f"{chosen.summary}; {chosen.fit.why}"),
        *drafted.keys,
        Key("page_size", str(defaults.page_size), "Tokens per page of the KV pool, as the serving engine has it."),
        Key("buckets", str(list(drafted.buckets)), buckets),
        Key("verify", defaults.verify, greedy),
        _archs() if gpu is None else Key("archs", f"[{gpu.arch}]", _ARCHS_ARE, gpu.origin),
        *_models(pair, chosen, folder),
    ]


def drafted_as(chosen: Drafting, topk: int = 1, num_steps: int | None = None) -> Drafted:
    """Return the keys of a single shape; ``num_steps`` None leaves it to the draft."""
    steps, why = steps_of(chosen, num_steps)
    return Drafted(keys_of_shape(chosen, Shape(steps, topk, nodes_of(chosen, topk, steps)), why))


def keys_of_shape(chosen: Drafting, shape: Shape, why: str) -> tuple[Key, ...]:
    """Return the keys that say a shape, and why it has so many steps."""
    keys = Key("topk", str(shape.topk), _shape(shape.topk)), Key("num_steps", str(shape.num_steps), _STEPS_ARE, why)
    if shape.topk == 1:
        return keys
    most = chosen.needs.most_nodes(shape.topk, shape.num_steps)
    about = "Tokens that the target verifies, the one that it has already decided on among them."
    return *keys, Key("num_draft_tokens", str(shape.num_nodes), about, f"there may be up to {most}")


def text_of(keys: list[Key]) -> str:
    """Return the file."""
    head = "# Written by `specc init`. docs/config.md explains every key, also those that are left out here.\n"
    return "\n".join([head, *(key.text() for key in keys)])


def yaml_of(lines: Iterable[str]) -> str:
    """Return lines as a text: each stays one, whatever a model's directory or an argument has put into it."""
    return "".join(f"{printable(line)}\n" for line in lines)


def comment(words: str, indent: str = "") -> list[str]:
    """Return words as lines of a comment in YAML, behind an indentation."""
    return textwrap.wrap(printable(words), _COMMENT, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def _word(text: str) -> str:
    """Return lower-case letters, digits and underscores of a text."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def _sentence(text: str) -> str:
    """Return words as a sentence; nothing for none."""
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _shape(topk: int) -> str:
    return "One draft for every place: a chain." if topk == 1 else "So many drafts are kept for every place: a tree."


def nodes_of(chosen: Drafting, topk: int, steps: int) -> int:
    """Return how many tokens the target verifies, the one that is decided on among them."""
    return steps + 1 if topk == 1 else min(chosen.needs.most_nodes(topk, steps), topk * (steps + 1))


def steps_of(chosen: Drafting, wanted: int | None) -> tuple[int, str]:
    """Return how many steps are drafted, and why: what is wanted, what the draft was made for, or the default."""
    needs = chosen.needs
    steps, why = min(chosen.fit.num_steps or 3, MOST_STEPS), "the default"
    if chosen.fit.num_steps:
        why = "what the draft was made for" if steps == chosen.fit.num_steps else "the most there may be"
    if wanted is not None:
        steps, why = wanted, "as --num-steps says"
    elif needs.modules is not None:
        most = drafted_by_modules(chosen, steps)
        steps, why = most, why if most == steps else "as many as there are modules"
    return steps, why


def drafted_by_modules(chosen: Drafting, most: int) -> int:
    """Return how many steps, up to the most, there are modules for; all of them where no modules draft."""
    needs, draft = chosen.needs, chosen.draft
    if needs.modules is None or draft is None:
        return most
    count = draft.modules or draft.number("num_layers") or most
    return max((steps for steps in range(1, most + 1) if needs.modules(steps) <= count), default=1)


def _archs() -> Key:
    """Return the architectures: those of the GPUs of this machine, or Hopper's."""
    try:
        present = gpus()
    except NoGpuError:
        present = []
    known = {arch: name for name, arch in present if arch in ARCHS}
    why = f"this machine has {' and '.join(known.values())}"
    if not known:
        here = f"programs are not compiled for the {present[0][0]} here" if present else "no GPU was found here"
        why = f"{here}, so that of H100 and H200 is taken; write those of the GPUs that will run the program"
    return Key("archs", f"[{', '.join(known or ['sm_90'])}]", _ARCHS_ARE, why)


def _models(pair: Pair, chosen: Drafting, folder: Path) -> list[Key]:
    """Return the blocks of both models."""
    target, draft = pair.target, chosen.draft
    dtype = target.said.facts.get("dtype")
    element = str(dtype.value) if dtype is not None else "bfloat16"
    assumed = "Its config.json names no element type: it is assumed that the engine runs it so."
    more = () if dtype is not None else (f"  # {assumed}", f"  dtype: {element}")
    where = _relative(Path(target.written), folder)
    words = "The model whose text is wanted. Sizes come from its config.json."
    keys = [Key("target", "", words, block=(f"  model: {where}", *more))]
    if draft is None:
        return keys
    own, head = draft is target, chosen.needs.modules is not None
    written = draft.said.facts.get("dtype")
    more = ()
    if written is None or (head and written.value != element):
        reason = "Of the rows of the target that it reads." if head else "Its config.json names none: the target's."
        more = (f"  # {reason}", f"  dtype: {element}")
    words = "The module that drafts, which lies in the target's directory." if own else "The model that drafts."
    where = _relative(Path(draft.written), folder)
    return [*keys, Key("draft", "", words, block=(f"  model: {where}", *more))]


def _relative(directory: Path, folder: Path) -> str:
    """Return a directory's path from a folder, as YAML.

    It is absolute where names lead elsewhere, as behind a link, or would stand for somebody's home.
    """
    if not path_of(directory).exists():  # it was found by its name
        return as_yaml(str(directory))
    path = os.path.relpath(path_of(directory).absolute(), folder.absolute())
    if path.startswith("~") or not os.path.exists(folder / path / "config.json"):
        path = os.path.realpath(path_of(directory))
    return as_yaml(path)


def as_yaml(text: str) -> str:
    """Return a text as YAML: as it is where that means the text, else in quotes."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else quoted(text)


def quoted(text: str) -> str:
    """Return a text as YAML in quotes: as in JSON, which would make two halves of a character above U+FFFF."""
    inner = "".join(f"\\U{ord(char):08x}" if char > "\uffff" else json.dumps(char)[1:-1] for char in text)
    return f'"{inner}"'

"""A command line of vLLM's server, as people paste it -> its arguments by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from specc.compiler.config.models.attributes import decimal_number, whole_number
from specc.compiler.config.text.tree import read_tree
from specc.compiler.support.diagnostics import Diagnostics
from specc.compiler.support.files.paths import PathError, path_of
from specc.compiler.support.files.reading import read_text
from specc.engines.answers import answers_of
from specc.engines.pasted import Pasted, is_count, served_by, without_launcher, words_of
from specc.engines.vllm.check.preset import VLLM
from specc.engines.vllm.served import SETTINGS, SPECULATIVE

UNREAD: Mapping[str, str] = {
    "--hf-config-path": "a config.json of another directory",
    "--hf-overrides": "a model other than its config.json says",
}
"""Arguments that say of a server what is not read here, and what they ask for."""

SPECULATION, COMPILATION, ATTENTION, GENERATION = (
    "--speculative-config", "--compilation-config", "--attention-config", "--override-generation-config",
)  # fmt: skip
BLOCKS = (SPECULATION, COMPILATION, ATTENTION, GENERATION)
"""Arguments whose value is a JSON object, whole or key by key behind dots."""

MOST_LEVELS = 16
"""Objects and lists in each other are so many at most, in such a value or behind dots."""

_IN_BLOCKS: Mapping[str, tuple[str, str]] = {
    "--attention-backend": (ATTENTION, "backend"),
    "--cudagraph-capture-sizes": (COMPILATION, "cudagraph_capture_sizes"),
    "--max-cudagraph-capture-size": (COMPILATION, "max_cudagraph_capture_size"),
    "--spec-method": (SPECULATION, "method"),
    "--spec-model": (SPECULATION, "model"),
    "--spec-tokens": (SPECULATION, "num_speculative_tokens"),
}
"""Arguments that stand for a key of such an object."""

_ALIASES = {
    "-ac": ATTENTION, "-cc": COMPILATION, "-sc": SPECULATION, "-O": "--optimization-level",
    "-dcp": "--decode-context-parallel-size", "-dp": "--data-parallel-size", "-pcp": "--prefill-context-parallel-size",
    "-pp": "--pipeline-parallel-size", "-tp": "--tensor-parallel-size",
}  # fmt: skip
_READ = (
    "--block-size", "--config", "--distributed-executor-backend", "--dtype", "--enable-chunked-prefill", "--enable-dbo",
    "--enable-prefix-caching", "--enforce-eager", "--gdn-prefill-backend", "--generation-config", "--kv-cache-dtype",
    "--mamba-cache-dtype", "--mamba-ssm-cache-dtype", "--max-model-len", "--max-num-batched-tokens", "--max-num-seqs",
    "--model", "--optimization-level", "--performance-mode", "--tensor-parallel-size", "--ubatch-size",
)  # fmt: skip


def argument(setting: str) -> str:
    """Return how one of `SETTINGS` is said on the command line."""
    if setting == "use_ubatching":
        return "--enable-dbo"
    named = f"--{setting.replace('_', '-')}"
    return f"{SPECULATION}.{setting}" if SETTINGS[setting].part in (SPECULATIVE, "draft") else named


KNOWN = frozenset({
    *_READ, *BLOCKS, *_IN_BLOCKS, *_ALIASES, *UNREAD,
    *(name for name in map(argument, SETTINGS) if "." not in name),
})  # fmt: skip
"""Arguments that say something about the program."""

_ON = ("--enable-chunked-prefill", "--enable-prefix-caching")
"""Flags that are set where nothing is said, so that their negation says something."""
ANSWERS = answers_of("vllm", VLLM.tested[-1])
"""What vLLM itself says of its arguments and classes."""
_SERVER = re.compile(r"vllm\.entrypoints\.openai\.api_server|(.*/)?vllm/entrypoints/openai/api_server\.py")
_IMAGE = re.compile(r"(.*/)?vllm-openai(:[\w.\-]+)?(@sha256:\w+)?")
"""A container whose entry point is the server."""
_LEVEL = re.compile(r"-O=?(\d)", re.ASCII)
_NAME = re.compile(r"--?[A-Za-z][\w.\-+]*(=.*)?", re.DOTALL)


@dataclass
class Arguments(Pasted):
    """The arguments of a server of vLLM's.

    Attributes:
        blocks: by argument the keys of its object, of several the last one.
        dotted: by argument the keys that were given one by one: where there are any, vLLM forgets the object.
        own: the words of the server alone, as they were written.

    """

    title = VLLM.title
    blocks: dict[str, dict[str, object]] = field(default_factory=dict[str, dict[str, object]])
    dotted: dict[str, dict[str, object]] = field(default_factory=dict[str, dict[str, object]])
    own: list[str] = field(default_factory=list[str])

    def block(self, name: str) -> dict[str, object]:
        """Return the keys of an argument that is an object, with those that have an argument of their own."""
        own = {key: self._in_block(argument) for argument, (block, key) in _IN_BLOCKS.items() if block == name}
        given = self.dotted.get(name) or self.blocks.get(name, {})
        return given | {key: value for key, value in own.items() if value is not None}

    def _in_block(self, name: str) -> object:
        """Return the value of an argument that stands for a key; None where it is not given."""
        if name not in self.values:
            return None
        if name == "--cudagraph-capture-sizes":
            return self.numbers(name)
        return self.number(name) if name in ("--spec-tokens", "--max-cudagraph-capture-size") else self.text(name)

    def flag(self, name: str) -> bool:
        """Return whether an argument without a value is given, and not taken back."""
        return name in self.values and self.text(name, "true").lower() not in ("false", "0")

    def tokens(self, name: str) -> int | None:
        """Return a number of tokens, such as 16k or 16K; None for anything else."""
        written = self.text(name)
        scale = {"k": 1000, "m": 1000_000, "K": 1 << 10, "M": 1 << 20}.get(written[-1:], 1)
        number = written[:-1] if scale > 1 else written
        return int(number) * scale if is_count(number) else None

    def settings(self) -> dict[str, object]:
        """Return by its name what is said of each of `SETTINGS`, with the type of the value that is served."""
        spec, values = self.block(SPECULATION), dict[str, object]()
        for name, setting in SETTINGS.items():
            if setting.part in (SPECULATIVE, "draft"):
                if spec.get(name) is not None:
                    values[name] = spec[name]
            elif name == "use_ubatching":
                values[name] = self.flag("--enable-dbo") or (self.number("--ubatch-size") or 0) > 1
            elif setting.served is False:
                values[name] = self.flag(argument(name))
            elif argument(name) in self.values:
                values[name] = self.number(argument(name)) if setting.served == 1 else True
        return values

    def say(self, name: str, keys: Sequence[str], written: str) -> None:
        """Take the value of an object, or of what it has at some keys; report what is none."""
        value = _json(written)
        whole: Any = written if keys and value is None and written != "null" else value
        for key in reversed(keys):
            whole = {key: whole}
        if not isinstance(whole, dict):
            self.wrong(f"{name} takes a JSON object, and this is '{written[:60]}'")
            return
        if _is_deeper(cast("object", whole), MOST_LEVELS):
            self.wrong(f"{name} has more than {MOST_LEVELS} levels of objects and lists in each other")
            return
        into = self.dotted.setdefault(name, {}) if keys else self.blocks.setdefault(name, {})
        if not keys:
            into.clear()
        merge(into, cast("dict[str, object]", whole))


def merge(into: dict[str, object], more: Mapping[str, object]) -> None:
    """Put the keys of a block into another one, of blocks in them as well; a dash in a name is an underscore."""
    for key, value in more.items():
        plain = key.replace("-", "_")
        there = into.get(plain)
        if isinstance(there, dict) and isinstance(value, dict):
            merge(cast("dict[str, object]", there), cast("dict[str, object]", value))
        else:
            into[plain] = value


def _is_deeper(value: object, levels: int) -> bool:
    """Return whether objects and lists are in each other on more than so many levels."""
    if not isinstance(value, dict | list):
        return False
    inner = cast("dict[str, object]", value).values() if isinstance(value, dict) else cast("list[object]", value)
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in inner)


def _json(written: str) -> Any:
    """Return what a text of JSON says; None for what is none."""
    try:
        return json.loads(written, parse_int=whole_number, parse_float=decimal_number)
    except (ValueError, RecursionError):
        return None


def parse(words: Sequence[str]) -> Arguments:
    """Return the arguments of a command line, and of the file that it names with ``--config``.

    It may be one word, as it would stand in a terminal, and have in front what starts the server: ``vllm serve``,
    ``python -m vllm.entrypoints.openai.api_server`` or a container's image, and before that variables of its
    environment and other commands. The model is an argument or stands first.
    """
    arguments = Arguments()
    rest, model = without_launcher(arguments, words_of(arguments, words), _starts)
    arguments.own = rest
    own = list(_pairs(arguments, ["--model"] * model + rest))
    files = [values[-1] for name, values in own if name == "--config" and values]
    for name, values in [*(pair for file in files for pair in _of_file(arguments, file)), *own]:
        _take(arguments, name, values)
    return arguments


def _starts(words: Sequence[str], index: int) -> bool:
    """Whether the server's arguments follow this word."""
    known = _SERVER.fullmatch(words[index]) or _IMAGE.fullmatch(words[index])
    return known is not None or served_by("vllm", words, index)


def _pairs(arguments: Arguments, words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Return the arguments one by one, with dashes in their names and their values behind."""
    pairs: list[tuple[str, list[str]]] = []
    for word in words:
        level = _LEVEL.fullmatch(word)
        if level is not None:
            pairs.append(("--optimization-level", [level[1]]))
        elif _NAME.fullmatch(word):
            name, equals, value = word.partition("=")
            head, dot, keys = name.partition(".")
            head = head[:2] + head[2:].replace("_", "-")
            pairs.append((_full_name(head) + dot + keys, [value] if equals else []))
        elif pairs:
            pairs[-1][1].append(word)
        else:
            arguments.wrong(f"'{word[:60]}' is the value of no argument", "arguments start with --")
    yield from pairs


def _full_name(written: str) -> str:
    """Return the name of an argument by an alias or by its beginning, where nothing else that is known has that."""
    named = KNOWN | ANSWERS.arguments
    begun = {name for name in named if name.startswith(written) and written.startswith("--")}
    if written in named or len(begun) != 1:
        return _ALIASES.get(written, written)
    return begun.pop()


def _take(arguments: Arguments, name: str, values: list[str]) -> None:
    """Note an argument with its values."""
    head, _, keys = name.partition(".")
    negated = re.sub(r"^--(no-(enable-)?|disable-)", "", head)
    if head in BLOCKS:
        for written in values or [""]:
            listed = keys.endswith("+")
            text = json.dumps(written.split(",")) if listed else written
            arguments.say(head, [key for key in keys.removesuffix("+").split(".") if key], text)
        arguments.values[head] = values
    elif head not in KNOWN and (taken_back := {f"--{negated}", f"--enable-{negated}"} & KNOWN) and negated != head:
        for flag in taken_back:
            arguments.values.pop(flag, None)
            arguments.values |= {flag: ["false"]} if flag in _ON else {}
    else:
        if head not in KNOWN:
            arguments.note_unused(head, ANSWERS.arguments)
        arguments.values[head] = values


def _of_file(arguments: Arguments, written: str) -> list[tuple[str, list[str]]]:
    """Return the arguments of a YAML file, after reporting that it cannot be read."""
    read = Diagnostics()
    try:
        tree = read_tree(read_text(path_of(written)), written, read)
    except (OSError, PathError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        arguments.wrong(f"--config '{written[:200]}' cannot be read: {why or error}")
        return []
    if tree is None or read.errors:
        arguments.wrong(f"--config '{written[:200]}' is no file of arguments: {read.errors[0].message[:200]}")
        return []
    pairs: list[tuple[str, list[str]]] = []
    for key, value in tree.values.items():
        name = _full_name(f"--{str(key).replace('_', '-')}")
        if value is False:
            pairs.append((f"--no-{name[2:]}", []))
        elif isinstance(value, dict):
            pairs.append((name, [json.dumps(value, default=str)]))
        elif isinstance(value, list):
            pairs.append((name, [str(item) for item in cast("list[object]", value)]))
        else:
            pairs.append((name, [] if value is True else [str(value)]))
    return pairs

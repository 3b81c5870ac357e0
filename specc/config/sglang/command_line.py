"""A command line of SGLang's server, as people paste it -> its arguments by name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from specc.adapters.sglang.served import SETTINGS
from specc.config.presets.sglang import SGLANG
from specc.support.diagnostics import Diagnostics

THRESHOLDS = ("--speculative-accept-threshold-acc", "--speculative-accept-threshold-single")
"""Arguments below 1 let SGLang accept more drafts than sampling from the target would."""

UNREAD: Mapping[str, str] = {
    "--config": "a file of arguments",
    "--cuda-graph-config": "graphs that a file describes",
    "--json-model-override-args": "a model other than its config.json says",
}
"""Arguments that say of a server what is not read here, and what they ask for."""

_ALIASES = {
    "--attention-context-parallel-size": "--attn-cp-size",
    "--attention-data-parallel-size": "--attn-dp-size",
    "--data-parallel-size": "--dp-size",
    "--decode-context-parallel-size": "--dcp-size",
    "--ep": "--ep-size",
    "--expert-parallel-size": "--ep-size",
    "--model": "--model-path",
    "--moe-data-parallel-size": "--moe-dp-size",
    "--pipeline-parallel-size": "--pp-size",
    "--speculative-draft-model": "--speculative-draft-model-path",
    "--tensor-parallel-size": "--tp-size",
}
_READ = (
    "--attention-backend",
    "--context-length",
    "--cuda-graph-bs-decode",
    "--cuda-graph-max-bs-decode",
    "--decode-attention-backend",
    "--device",
    "--dtype",
    "--enable-deterministic-inference",
    "--grammar-backend",
    "--kv-cache-dtype",
    "--language-model-only",
    "--max-running-requests",
    "--model-path",
    "--page-size",
    "--prefill-attention-backend",
    "--speculative-algorithm",
    "--speculative-attention-mode",
    "--speculative-draft-attention-backend",
    "--speculative-draft-kv-cache-dtype",
    "--speculative-draft-model-path",
    "--speculative-eagle-topk",
    "--speculative-num-draft-tokens",
    "--speculative-num-steps",
    "--speculative-token-map",
    "--tp-size",
)


def argument(setting: str) -> str:
    """Return the argument of one of SGLang's settings; an environment variable as it is."""
    return setting if setting.isupper() else f"--{setting.replace('_', '-')}"


KNOWN = frozenset({*_READ, *THRESHOLDS, *UNREAD, *_ALIASES, *map(argument, SETTINGS)})
"""Arguments that say something about the program."""

_SERVER = re.compile(r"sglang\.launch_server|(.*/)?sglang/launch_server\.py")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL)
_NOTHING = re.compile(r"[\s\\]*")
"""What the end of a line leaves of a command that goes on below."""


@dataclass
class Arguments:
    """The arguments by name, with their values as written; ``unused`` say nothing about the program."""

    values: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    environment: dict[str, str] = field(default_factory=dict[str, str])
    unused: list[str] = field(default_factory=list[str])
    found: Diagnostics = field(default_factory=Diagnostics)

    def text(self, name: str, default: str = "") -> str:
        """Return the value of an argument; of several the last."""
        return (self.values.get(name) or [default])[-1]

    def number(self, name: str) -> int | None:
        """Return a positive integer, or None where it is not given, or after reporting that it is none."""
        if name not in self.values:
            return None
        written = self.text(name)
        self._check(name, written)
        return int(written) if _is_count(written) else None

    def numbers(self, name: str) -> list[int]:
        """Return the positive integers of an argument that lists some, after reporting what is none."""
        words = self.values.get(name, [])
        for word in words:
            self._check(name, word)
        return [int(word) for word in words if _is_count(word)]

    def settings(self) -> dict[str, object]:
        """Return by its name what is said of each of `SETTINGS`, with the type of the value that is served."""
        said: dict[str, object] = {}
        for setting, (served, _) in SETTINGS.items():
            written = self.environment.get(setting)
            if served is False and (argument(setting) in self.values or written not in (None, "", "0", "false")):
                said[setting] = True
            elif served is not False and (word := self.text(argument(setting))):
                said[setting] = int(word) if type(served) is int and _is_count(word) else word
        return said

    def _check(self, name: str, written: str) -> None:
        if not _is_count(written):
            self.wrong(f"{name} takes a positive integer, and this is '{written[:60]}'")

    def wrong(self, message: str, hint: str | None = None) -> None:
        """Report an argument that is missing or cannot be read."""
        self.found.error("config/engine-argument", message, hint=hint)

    def refuse(self, what: str, hint: str | None) -> None:
        """Report what the adapter cannot serve."""
        self.found.error("config/engine-unsupported", f"with {SGLANG.title}, {what} is not served", hint=hint)


def _is_count(word: str) -> bool:
    """Whether a word is a positive integer, of a size that some key may have."""
    return word.isascii() and word.isdigit() and len(word) < 10 and int(word) > 0


def parse(words: Sequence[str]) -> Arguments:
    """Return the arguments of a command line: ``--key value``, ``--key=value``, ``--flag``, ``--list 1 2``.

    It may be one word, as it would stand in a terminal, and have in front what starts the server: ``python -m
    sglang.launch_server`` or ``sglang serve``, and before that variables of its environment and other commands. A
    unique beginning of a known name stands for it, as on SGLang's command line.
    """
    arguments, name = Arguments(), None
    for word in _without_launcher(arguments, _words(arguments, words)):
        if word.startswith("--"):
            written, equals, value = word.partition("=")
            name = _full_name(written)
            if name not in KNOWN:
                arguments.unused.append(written)
            arguments.values[name] = [value] if equals else []
        elif name is None:
            arguments.wrong(f"'{word[:60]}' is the value of no argument", "arguments start with --")
        else:
            arguments.values[name].append(word)
    return arguments


def _words(arguments: Arguments, words: Sequence[str]) -> list[str]:
    """Return the words of a command line: of one that is a single word as a shell would see them."""
    if len(words) == 1 and re.search(r"\s", words[0]):
        try:
            return shlex.split(re.sub(r"\\\s*\n", " ", words[0]), comments=True)
        except ValueError as error:
            arguments.wrong(f"the command line cannot be read: {str(error).lower()}", "close what is quoted")
            return []
    return [word for word in words if not _NOTHING.fullmatch(word)]


def _without_launcher(arguments: Arguments, words: Sequence[str]) -> list[str]:
    """Return the server's own arguments, and note the variables that are set in front of it."""
    begin = next((index + 1 for index in range(len(words)) if _starts(words, index)), 0)
    front = words[:begin] or list(takewhile(_ASSIGNMENT.fullmatch, words))
    set_there = filter(None, map(_ASSIGNMENT.fullmatch, front))
    arguments.environment |= {found["name"]: found["value"] for found in set_there}
    rest = list(words[len(front) :])
    positional = bool(begin and rest) and words[begin - 1] == "serve" and not rest[0].startswith("-")
    return ["--model-path", *rest] if positional else rest


def _starts(words: Sequence[str], index: int) -> bool:
    """Whether the server's arguments follow this word."""
    served = words[index] == "serve" and index > 0 and words[index - 1].rpartition("/")[2] == "sglang"
    return served or _SERVER.fullmatch(words[index]) is not None


def _full_name(written: str) -> str:
    begun = {_ALIASES.get(name, name) for name in KNOWN if name.startswith(written)}
    if written in KNOWN or len(begun) != 1:
        return _ALIASES.get(written, written)
    return begun.pop()

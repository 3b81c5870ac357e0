"""A command line of a server, as people paste it: its words, what is set in front of it, its arguments by name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import ClassVar, TypeVar

from specc.compiler.config.models import Fact, ModelUnreadableError, directory_of
from specc.compiler.config.proposal import as_yaml
from specc.compiler.config.resolved import Config
from specc.compiler.config.rules.validate import name_hint
from specc.compiler.config.schema import fault_of_name
from specc.compiler.config.wanted import Wanted
from specc.compiler.support.diagnostics import Diagnostics
from specc.compiler.support.suggest import closest
from specc.compiler.support.token_map import TokenMapError, read_token_map
from specc.engines._plugin import TOKENS

DTYPES = {"half": "float16", "float16": "float16", "bfloat16": "bfloat16", "float": "float32", "float32": "float32"}
"""Element types by the words of ``--dtype``."""
_Model = TypeVar("_Model")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL)
_NOTHING = re.compile(r"[\s\\]*")
"""Words that the end of a line leaves of a command that goes on below."""


@dataclass
class Pasted:
    """The arguments by name, with their values as written.

    ``unused`` say nothing about the program; ``misread`` is whether one is missing or cannot be read.
    """

    title: ClassVar[str] = ""
    """The engine and its version, as people write them."""
    values: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    environment: dict[str, str] = field(default_factory=dict[str, str])
    unused: list[str] = field(default_factory=list[str])
    misread: bool = False
    findings: Diagnostics = field(default_factory=Diagnostics)

    def text(self, name: str, default: str = "") -> str:
        """Return the value of an argument; of several the last."""
        return (self.values.get(name) or [default])[-1]

    def number(self, name: str) -> int | None:
        """Return a positive integer, or None where it is not given, or after reporting that it is none."""
        if name not in self.values:
            return None
        written = self.text(name)
        self._check(name, written)
        return int(written) if is_count(written) else None

    def numbers(self, name: str) -> list[int]:
        """Return the positive integers of an argument that lists some, after reporting what is none."""
        words = self.values.get(name, [])
        for word in words:
            self._check(name, word)
        return [int(word) for word in words if is_count(word)]

    def _check(self, name: str, written: str) -> None:
        if not is_count(written):
            self.wrong(f"{name} takes a positive integer, and this is '{written[:60]}'")

    def wrong(self, message: str, hint: str | None = None) -> None:
        """Report an argument that is missing or cannot be read."""
        self.misread = True
        self.findings.error("config/engine-argument", message, hint=hint)

    def note_unused(self, name: str, known: Collection[str]) -> None:
        """Note an argument that says nothing about the program, after reporting one that is none of the engine's.

        What is unknown keeps nobody from reading the others, so it is not `misread`.
        """
        if name not in known:
            message, like = (
                f"{name[:60]} is no argument of {self.title}, which ends with it",
                closest(name, sorted(known)),
            )
            hint = "leave it out" if like is None else f"did you mean '{like}'?"
            self.findings.error("config/engine-argument", message, hint=hint)
        self.unused.append(name)

    def refuse(self, what: str, hint: str | None) -> None:
        """Report what the adapter cannot serve."""
        self.findings.error("config/engine-unsupported", f"with {self.title}, {what} is not served", hint=hint)

    def refuse_unread(self, unread: Mapping[str, str]) -> None:
        """Report arguments that say of the server what is not read, by what they ask for."""
        for name, what in unread.items():
            if name in self.values and self.text(name) != "{}":
                self.refuse(f"{what} ({name})", f"leave {name} out")

    def model(self, name: str, written: str, read: Callable[[Path, str], _Model]) -> tuple[Path, _Model] | None:
        """Return a model's directory and what is read there, or None after reporting that it cannot be."""
        if not written:
            self.wrong(f"{name} is missing")
            return None
        try:
            directory = directory_of(written)
            return directory, read(directory, written)
        except ModelUnreadableError as error:
            self.wrong(f"{name}: {error}", error.hint)
            return None


def is_count(word: str) -> bool:
    """Whether a word is a positive integer, of a size that some key may have."""
    return word.isascii() and word.isdigit() and len(word) < 10 and int(word) > 0


def words_of(arguments: Pasted, words: Sequence[str]) -> list[str]:
    """Return the words of a command line: of one that is a single word as a shell would see them."""
    if len(words) == 1 and re.search(r"\s", words[0]):
        try:
            return shlex.split(re.sub(r"\\\s*\n", " ", words[0]), comments=True)
        except ValueError as error:
            arguments.wrong(f"the command line cannot be read: {str(error).lower()}", "close what is quoted")
            return []
    return [word for word in words if not _NOTHING.fullmatch(word)]


def without_launcher(
    arguments: Pasted, words: Sequence[str], starts: Callable[[Sequence[str], int], bool]
) -> tuple[list[str], bool]:
    """Return the server's own arguments, and whether the first of them is the model; note variables set in front.

    ``starts`` says of words and an index whether the server's arguments follow that word.
    """
    begin = next((index + 1 for index in range(len(words)) if starts(words, index)), 0)
    front = words[:begin] or list(takewhile(_ASSIGNMENT.fullmatch, words))
    set_there = filter(None, map(_ASSIGNMENT.fullmatch, front))
    arguments.environment |= {match["name"]: match["value"] for match in set_there}
    rest = list(words[len(front) :])
    return rest, bool(begin and rest) and words[begin - 1] == "serve" and not rest[0].startswith("-")


def check_of_draft(arguments: Pasted, wanted: Wanted, draft: Mapping[str, Fact] | None, model_less: str) -> None:
    """Report keys of a draft's block that a server has no place for.

    ``draft`` are facts of the draft, by name; None where no model drafts, but ``model_less``, in words.
    """
    if draft is None and wanted.of_draft():
        name = "--token-map" if wanted.head == Wanted.head else "--head"
        arguments.wrong(f"{name} is of a model that drafts, and {model_less}", "leave it out")
    if draft is None or wanted.token_map is None:
        return
    if wanted.head == Wanted.head:
        arguments.wrong("--token-map is of a head that the program computes", "write --head fp8, int8 or weights")
    whole, part = (draft[key].value if key in draft else None for key in ("vocab_size", "draft_vocab_size"))
    if part not in (None, whole):
        arguments.wrong("--token-map is of a draft that scores all tokens, and this one has a map", "leave it out")
    try:
        read_token_map(wanted.token_map, served=True)
    except TokenMapError as error:
        arguments.findings.error(error.code, f"--token-map: {error}", hint=error.hint)


def set_in_front(wanted: Wanted) -> str:
    """Return what a server's environment must have for a program; nothing for most."""
    return "" if wanted.token_map is None else f"{TOKENS}={wanted.token_map.absolute()}"


def served_by(program: str, words: Sequence[str], index: int) -> bool:
    """Whether this word is ``serve`` behind a program of that name."""
    return words[index] == "serve" and index > 0 and words[index - 1].rpartition("/")[2] == program


def configuration_name(arguments: Pasted, wanted: str | None, usual: str) -> str:
    """Return the configuration's name as YAML, after reporting one that it cannot have."""
    if wanted is None:
        return usual
    if fault := fault_of_name(wanted):
        arguments.findings.error("config/bad-name", f"--name '{wanted[:80]}' {fault}", hint=name_hint(wanted))
    return as_yaml(wanted)


def served_by_program(config: Config, engine: str, drawn: Sequence[str], logprobs: tuple[str, str]) -> str:
    """Return in a line which requests a program of this configuration serves.

    ``drawn`` and ``logprobs`` are the engine's words for what requests ask for: that draw tokens, that want the
    log-probability of their tokens and of so many others.
    """
    file, (own, others) = config.file, logprobs
    handed = (own,) if "logprobs" in file.outputs else ()
    handed += (f"{others} up to {file.best_logprobs}",) if file.best_logprobs else ()
    sampled = (*drawn, *config.sampling) if file.draws else ()
    known = ", ".join((*sampled, *handed))
    left = "" if sampled else ", those that sample among them (--verify)"
    return f"serves greedy requests{known and ' and those with '}{known}; {engine}'s own step serves all others{left}"

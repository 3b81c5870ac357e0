"""A command line of SGLang's server, as people paste it -> its arguments by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specc.engines.answers import answers_of
from specc.engines.pasted import Pasted, is_count, served_by, without_launcher, words_of
from specc.engines.sglang.check.preset import SGLANG
from specc.engines.sglang.served import KINDS, NAMES, WEIGHING, served_anyhow

THRESHOLDS = ("--speculative-accept-threshold-acc", "--speculative-accept-threshold-single")
"""Arguments below 1 let SGLang accept more drafts than sampling from the target would."""

UNREAD: Mapping[str, str] = {
    "--config": "a file of arguments",
    "--cuda-graph-config": "graphs that a file describes",
    "--json-model-override-args": "a model other than its config.json says",
}
"""Arguments that say of a server what is not read here, and what they ask for."""

RETURNED: Mapping[str, str] = {"--enable-return-routed-experts": "routed_experts"}
"""Arguments by which requests may ask for what a program hands out -> the output."""

ADAPTIVE, ADAPTIVE_CONFIG = "--speculative-adaptive", "--speculative-adaptive-config"
"""Arguments by which SGLang changes the number of steps while it runs, and by what."""

RECORDS = "--enable-linear-replayssm-spec"
"""The argument by which SGLang keeps records of a verification's nodes in place of states."""

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
    ADAPTIVE,
    ADAPTIVE_CONFIG,
    "--attention-backend",
    "--attn-dp-size",
    "--context-length",
    "--cuda-graph-bs-decode",
    "--cuda-graph-max-bs-decode",
    "--decode-attention-backend",
    "--device",
    "--disable-overlap-schedule",
    "--disable-radix-cache",
    "--disaggregation-decode-extra-slots",
    "--dtype",
    "--enable-dp-attention",
    RECORDS,
    "--enable-lora",
    "--grammar-backend",
    "--kv-cache-dtype",
    "--linear-replayssm-cache-len",
    "--lora-paths",
    "--mamba-radix-cache-strategy",
    "--max-running-requests",
    "--model-path",
    "--page-size",
    "--prefill-attention-backend",
    "--speculative-algorithm",
    "--speculative-attention-mode",
    "--speculative-draft-attention-backend",
    "--speculative-draft-kv-cache-dtype",
    "--speculative-draft-model-path",
    "--speculative-token-map",
    "--tp-size",
    *(name for kind in KINDS for name in kind.reads),
)


def argument(setting: str) -> str:
    """Return the argument of one of SGLang's settings; an environment variable as it is."""
    return setting if setting.isupper() else f"--{setting.replace('_', '-')}"


KNOWN = frozenset({*_READ, *RETURNED, *THRESHOLDS, *UNREAD, *_ALIASES, *map(argument, (*NAMES, *WEIGHING))})
"""Arguments that say something about the program."""

ANSWERS = answers_of("sglang", SGLANG.tested[-1])
"""What SGLang itself says of its arguments and classes."""
_SERVER = re.compile(r"sglang\.launch_server|(.*/)?sglang/launch_server\.py")


@dataclass
class Arguments(Pasted):
    """The arguments of a server of SGLang's."""

    title = SGLANG.title

    def settings(self) -> dict[str, object]:
        """Return by its name what is said of each setting, with the type of the value that is served."""
        values: dict[str, object] = {}
        for setting, ((served, *_), _) in served_anyhow().items():
            written = self.environment.get(setting)
            if served is False and (argument(setting) in self.values or written not in (None, "", "0", "false")):
                values[setting] = True
            elif served is not False and (word := self.text(argument(setting))):
                values[setting] = int(word) if type(served) is int and is_count(word) else word
        return values


def attention_groups(arguments: Arguments) -> int:
    """Return how many groups of ranks have requests of their own.

    `--dp-size` counts them where `--enable-dp-attention` stands, and servers beside each other elsewhere.
    """
    groups = arguments.number("--attn-dp-size") or 1
    if groups == 1 and "--enable-dp-attention" in arguments.values:
        groups = arguments.number("--dp-size") or 1
    return groups


def parse(words: Sequence[str]) -> Arguments:
    """Return the arguments of a command line: ``--key value``, ``--key=value``, ``--flag``, ``--list 1 2``.

    It may be one word, as it would stand in a terminal, and have in front what starts the server: ``python -m
    sglang.launch_server`` or ``sglang serve``, and before that variables of its environment and other commands. A
    unique beginning of a known name stands for it, as on SGLang's command line.
    """
    arguments, name = Arguments(), None
    rest, model = without_launcher(arguments, words_of(arguments, words), _starts)
    for word in ["--model-path"] * model + rest:
        if word.startswith("--"):
            written, equals, value = word.partition("=")
            name = _full_name(written)
            if name not in KNOWN:
                arguments.note_unused(name, ANSWERS.arguments)
            arguments.values[name] = [value] if equals else []
        elif name is None:
            arguments.wrong(f"'{word[:60]}' is the value of no argument", "arguments start with --")
        else:
            arguments.values[name].append(word)
    return arguments


def _starts(words: Sequence[str], index: int) -> bool:
    """Whether the server's arguments follow this word."""
    return served_by("sglang", words, index) or _SERVER.fullmatch(words[index]) is not None


def _full_name(written: str) -> str:
    """Return the name of an argument by an alias or by its beginning, where only one has that."""
    begun = {_ALIASES.get(name, name) for name in ANSWERS.arguments if name.startswith(written)}
    if written in ANSWERS.arguments or len(begun) != 1:
        return _ALIASES.get(written, written)
    return begun.pop()

"""The arguments of SGLang's server -> the configuration of a program for it, each value with where it comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specc.config.models import ModelFacts, ModelUnreadableError, read_model
from specc.config.presets.sglang import SGLANG
from specc.config.resolved import Config
from specc.support.diagnostics import Diagnostics

_DTYPES = {"half": "float16", "float16": "float16", "bfloat16": "bfloat16", "float": "float32", "float32": "float32"}
_KV_DTYPES = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp8_e5m2": "float8_e5m2",
    "fp8_e4m3": "float8_e4m3fn",
}
_ATTENTION = {"cuda": "triton", "cpu": "intel_amx"}
"""Device -> the attention backend that the adapter prepares forwards for."""

_MASKS = {"cuda": "full", "cpu": "qlen"}
"""Device -> the tree mask that this backend reads."""

_BACKENDS = (
    "--attention-backend",
    "--decode-attention-backend",
    "--prefill-attention-backend",
    "--speculative-draft-attention-backend",
)
_SERVED_AS: Mapping[str, tuple[str, str]] = {
    "--pp-size": ("1", "pipeline parallelism"),
    "--attn-dp-size": ("1", "attention under data parallelism"),
    "--attn-cp-size": ("1", "context parallelism"),
    "--dcp-size": ("1", "context parallelism of decode"),
    "--dp-size": ("1", "data parallelism"),
    "--dwdp-size": ("1", "data parallelism of weights"),
    "--ep-size": ("1", "expert parallelism"),
    "--moe-dp-size": ("1", "data parallelism of experts"),
    "--disaggregation-mode": ("null", "prefill and decode on different machines"),
    "--decoupled-spec-role": ("null", "a draft in a process of its own"),
    "--json-model-override-args": ("{}", "a model other than its config.json says"),
}
"""Argument -> the only value that is served, and what another would ask for."""

_NOT_SERVED: Mapping[str, str] = {
    "--config": "a file of arguments",
    "--enable-attn-tp-input-scattered": "hidden states that are scattered over ranks",
    "--enable-dp-attention": "attention under data parallelism",
    "--enable-layernorm-sp": "hidden states that are scattered over ranks",
    "--enable-multi-layer-eagle": "multi-layer EAGLE",
    "--enable-pdmux": "prefill and decode multiplexed on one GPU",
    "--speculative-adaptive": "adaptive speculation",
    "--speculative-use-block-verification": "block verification",
    "--speculative-use-rejection-sampling": "rejection sampling",
}
_GRAMMARS = ("xgrammar", "llguidance")
"""Grammar backends that make bitmasks."""

_THRESHOLDS = ("--speculative-accept-threshold-acc", "--speculative-accept-threshold-single")
"""Arguments below 1 let SGLang accept more drafts than sampling from the target would."""

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
    "--context-length",
    "--cuda-graph-bs-decode",
    "--cuda-graph-max-bs-decode",
    "--device",
    "--dtype",
    "--grammar-backend",
    "--kv-cache-dtype",
    "--max-running-requests",
    "--model-path",
    "--page-size",
    "--speculative-algorithm",
    "--speculative-draft-kv-cache-dtype",
    "--speculative-draft-model-path",
    "--speculative-eagle-topk",
    "--speculative-num-draft-tokens",
    "--speculative-num-steps",
    "--speculative-token-map",
    "--tp-size",
)
KNOWN = frozenset({*_READ, *_BACKENDS, *_SERVED_AS, *_NOT_SERVED, *_THRESHOLDS, *_ALIASES})
"""Arguments that say something about the program."""

_MAX_REQUESTS = 48
"""SGLang's --max-running-requests with speculation, where it is not given."""


@dataclass
class Arguments:
    """The arguments by name, with their values as written; ``unused`` say nothing about the program."""

    values: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
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

    def _check(self, name: str, written: str) -> None:
        if not _is_count(written):
            self.wrong(f"{name} takes a positive integer, and this is '{written[:60]}'")

    def wrong(self, message: str, hint: str | None = None) -> None:
        """Report an argument that is missing or cannot be read."""
        self.found.error("config/engine-argument", message, hint=hint)

    def refuse(self, what: str, hint: str) -> None:
        """Report what the adapter cannot serve."""
        self.found.error("config/engine-unsupported", f"with {SGLANG.title}, {what} is not served", hint=hint)


def _is_count(word: str) -> bool:
    """Whether a word is a positive integer, of a size that some key may have."""
    return word.isascii() and word.isdigit() and len(word) < 10 and int(word) > 0


def parse(words: Sequence[str]) -> Arguments:
    """Return the arguments of a command line: ``--key value``, ``--key=value``, ``--flag``, ``--list 1 2``.

    A unique beginning of a known name stands for it, as on SGLang's command line.
    """
    arguments, name = Arguments(), None
    for word in words:
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


def _full_name(written: str) -> str:
    begun = {_ALIASES.get(name, name) for name in KNOWN if name.startswith(written)}
    if written in KNOWN or len(begun) != 1:
        return _ALIASES.get(written, written)
    return begun.pop()


def configuration(
    arguments: Arguments,
    name: str | None,
    verify: str = "greedy",
    sampling: str = "",
    outputs: str = "",
    best: int = 0,
    logits: str = "gathered",
) -> str:
    """Return the YAML of the program that a server with these arguments runs.

    ``name``: the configuration's; None for one made of the algorithm. ``verify``, ``sampling``, ``outputs``, ``logits``
    and ``best``, which is best_logprobs: the keys, two of them as words with commas between them.

    Raises DiagnosticError with all that is missing, cannot be read, or is not served.
    """
    _refuse(arguments)
    device = arguments.text("--device", "cuda")
    algorithm = _algorithm(arguments)
    lines = [
        f"# Written for a server of {SGLANG.title} from its arguments.",
        f"name: {name or f'sglang_{algorithm.lower()}'}",
        "engine: sglang",
        f"algorithm: {algorithm} # --speculative-algorithm {arguments.text('--speculative-algorithm')}",
        *_shape(arguments, device),
        *_sizes(arguments),
        *_ranks(arguments),
        *_sampled(arguments, verify, _listed(sampling)),
        *([f"outputs: {json.dumps(_listed(outputs))} # --outputs"] if _listed(outputs) else []),
        *([f"best_logprobs: {best} # --best-logprobs"] if best else []),
        *([f"logits: {json.dumps(logits)} # --logits"] if logits != "gathered" else []),
        *_model(arguments, "target", "--model-path", ("--kv-cache-dtype",), logits),
        *_model(arguments, "draft", "--speculative-draft-model-path", _DRAFT_KV, logits),
    ]
    arguments.found.raise_if_errors()
    return "\n".join(lines) + "\n"


def served(config: Config) -> str:
    """Return in a line which requests a program of this configuration serves."""
    logprobs = ("return_logprob",) if "logprobs" in config.outputs else ()
    logprobs += (f"top_logprobs_num up to {config.best_logprobs}",) if config.best_logprobs else ()
    sampled = ("temperature", "sampling_seed", *config.sampling) if config.verify != "greedy" else ()
    known = ", ".join((*sampled, *logprobs))
    others = "" if sampled else ", those that sample among them (--verify)"
    return f"serves greedy requests{known and ' and those with '}{known}; SGLang's own step serves all others{others}"


_DRAFT_KV = ("--speculative-draft-kv-cache-dtype", "--kv-cache-dtype")


def _refuse(arguments: Arguments) -> None:
    """Report arguments that the adapter cannot serve."""
    for name, what in _NOT_SERVED.items():
        if name in arguments.values:
            arguments.refuse(what, f"leave {name} out")
    for name, (value, what) in _SERVED_AS.items():
        if arguments.text(name, value) != value:
            arguments.refuse(f"{what} ({name} {arguments.text(name)[:60]})", f"leave {name} out, or write {value}")
    device = arguments.text("--device", "cuda")
    served = _ATTENTION.get(device)
    if served is None:
        arguments.refuse(f"--device {device[:60]}", f"there are {', '.join(_ATTENTION)}")
        return
    if "--attention-backend" not in arguments.values:
        arguments.wrong("--attention-backend is missing, and SGLang would choose one", f"write {served}")
    for name in _BACKENDS:
        if arguments.text(name, served) != served:
            arguments.refuse(f"{name} {arguments.text(name)[:60]} on {device}", f"write {served}")


def _algorithm(arguments: Arguments) -> str:
    """Return the algorithm's name, after reporting one that is not there or not served."""
    if not arguments.text("--speculative-algorithm"):
        arguments.wrong("--speculative-algorithm is missing", f"there are {', '.join(SGLANG.algorithms)}")
    written = arguments.text("--speculative-algorithm", SGLANG.algorithms[0]).upper()
    algorithm = "EAGLE" if written == "NEXTN" else written
    if algorithm not in SGLANG.algorithms:
        hint = f"there are {', '.join(SGLANG.algorithms)}"
        arguments.refuse(f"--speculative-algorithm {written[:60]}", hint)
    return algorithm


def _shape(arguments: Arguments, device: str) -> list[str]:
    """Return the lines of what is drafted; nothing is taken from SGLang's choice by the model's name."""
    steps, topk, nodes = (
        arguments.number(f"--speculative-{key}") for key in ("num-steps", "eagle-topk", "num-draft-tokens")
    )
    needed = {"--speculative-num-steps": steps, "--speculative-eagle-topk": topk}
    if topk != 1:
        needed["--speculative-num-draft-tokens"] = nodes
    for name, value in needed.items():
        if value is None and name not in arguments.values:
            arguments.wrong(f"{name} is missing, and SGLang would choose it by the model", "write it out")
    lines = [f"num_steps: {steps} # --speculative-num-steps", f"topk: {topk} # --speculative-eagle-topk"]
    if topk == 1:
        return [*lines, f"num_draft_tokens: {(steps or 0) + 1} # num_steps + 1, as SGLang takes it with topk 1"]
    lines.append(f"num_draft_tokens: {nodes} # --speculative-num-draft-tokens")
    lines.append(f"mask: {_MASKS.get(device)} # what the attention backend {_ATTENTION.get(device)} reads")
    if (length := arguments.number("--context-length")) is not None and steps is not None:
        longest = SGLANG.longest(length, steps)
        lines.append(f"context_length: {longest} # --context-length {length}, and room for two steps")
    return lines


def _sizes(arguments: Arguments) -> list[str]:
    """Return the lines of page, pool and buckets."""
    page, requests = arguments.number("--page-size"), arguments.number("--max-running-requests")
    kept = requests or _MAX_REQUESTS
    given = arguments.numbers("--cuda-graph-bs-decode")
    largest = min(kept, arguments.number("--cuda-graph-max-bs-decode") or max(given, default=kept))
    sizes = given or [1 << power for power in range(kept.bit_length())]
    buckets = sorted({*(size for size in sizes if size < largest), largest})
    origin = "--cuda-graph-bs-decode" if given else "powers of two"
    return [
        f"page_size: {page or 1} # {'--page-size' if page else 'the default of SGLang'}",
        f"max_requests: {kept} # {'--max-running-requests' if requests else 'the default of SGLang with speculation'}",
        f"buckets: {buckets} # {origin}, no larger than the graphs of SGLang",
        "archs: [sm_90] # no argument says it: the GPUs that will run the program",
    ]


def _ranks(arguments: Arguments) -> list[str]:
    """Return the line of the ranks, none for one: each has a share of the KV heads."""
    ranks = arguments.number("--tp-size") or 1
    return [f"tensor_parallel: {ranks} # --tp-size"] if ranks > 1 else []


def _listed(words: str) -> list[str]:
    """Return words that have commas between them."""
    return [word.strip() for word in words.split(",") if word.strip()]


def _sampled(arguments: Arguments, verify: str, listed: Sequence[str]) -> list[str]:
    """Return the lines of how tokens are drawn, none for a greedy program."""
    if verify == "greedy" and not listed:
        return []
    for name in _THRESHOLDS:
        if arguments.text(name, "1.0") not in ("1", "1.0"):
            arguments.refuse(f"{name} {arguments.text(name)[:60]} with sampling", f"leave {name} out, or write 1.0")
    backend = arguments.text("--grammar-backend", _GRAMMARS[0])
    if "grammar" in listed and backend not in _GRAMMARS:
        arguments.refuse(f"--grammar-backend {backend[:60]} with grammars", f"there are {', '.join(_GRAMMARS)}")
    lines = [f"verify: {json.dumps(verify)} # --verify"]
    return [*lines, f"sampling: {json.dumps(listed)} # --sampling"] if listed else lines


def _model(arguments: Arguments, side: str, name: str, kv: Sequence[str], logits: str) -> list[str]:
    """Return the lines of one model, after reporting that its directory is not there."""
    written = arguments.text(name)
    if not written:
        hint = "a draft in the target's own directory is written as well" if side == "draft" else None
        arguments.wrong(f"{name} is missing", hint)
        return []
    if not (directory := Path(written).expanduser()).is_dir():
        hint = "download it, and give the directory: names of the Hub are not looked up"
        arguments.wrong(f"{name} '{written[:200]}' is not a directory", hint)
        return []
    try:
        facts = read_model(directory, written)
    except ModelUnreadableError as error:
        arguments.wrong(f"{name}: {error}", error.hint)
        return []
    if "gemma4" in facts.model_type and "assistant" in facts.model_type:
        arguments.refuse(f"the assistant '{written[:200]}', which SGLang runs as FROZEN_KV_MTP,", "give a head")
    lines = [f"{side}:", f"  model: {json.dumps(str(directory.resolve()))} # {name}"]
    lines += _token_map(arguments) if side == "draft" else []
    lines += _columns(arguments, facts) if logits == "sharded" else []
    return [*lines, *_dtype(arguments, facts), *_kv_dtype(arguments, kv)]


def _columns(arguments: Arguments, facts: ModelFacts) -> list[str]:
    """Return the line of the columns of all ranks' logits; none where the model does not say how many tokens it has."""
    whole, ranks = facts.facts.get("vocab_size"), arguments.number("--tp-size") or 1
    tokens = facts.facts.get("draft_vocab_size", whole)
    if tokens is None:
        return []
    columns = SGLANG.columns(int(tokens.value), ranks)
    return [f"  padded_vocab_size: {columns} # the head of {tokens.value} tokens, as SGLang pads it for {ranks} ranks"]


def _token_map(arguments: Arguments) -> list[str]:
    """Return the line of the draft's token map: SGLang takes rows of an EAGLE head by it, of no other draft."""
    written, algorithm = arguments.text("--speculative-token-map"), arguments.text("--speculative-algorithm").upper()
    if not written or algorithm == "EAGLE3":  # whose heads have their own, SGLang leaves a map out
        return []
    if algorithm != "EAGLE":
        arguments.refuse(f"--speculative-token-map of {algorithm}", "leave it out: SGLang's head scores all tokens")
    elif arguments.text("--tp-size", "1") != "1":
        hint = "leave it out: it names rows of a head of which each rank has a part"
        arguments.refuse("--speculative-token-map with several ranks", hint)
    elif not Path(written).expanduser().is_file():
        hint = "download it, and give the file: names of the Hub are not looked up"
        arguments.wrong(f"--speculative-token-map '{written[:200]}' is not a file", hint)
    path = json.dumps(str(Path(written).expanduser().resolve()))
    return [f"  token_map: {path} # --speculative-token-map"]


def _dtype(arguments: Arguments, facts: ModelFacts) -> list[str]:
    """Return the line of the element type, where it is not the model's own."""
    written = arguments.text("--dtype", "auto")
    if written != "auto":
        if written not in _DTYPES:
            arguments.wrong(f"--dtype '{written[:60]}' is unknown", f"there are auto, {', '.join(_DTYPES)}")
        return [f"  dtype: {_DTYPES.get(written)} # --dtype {written}"]
    own = facts.facts.get("dtype")
    if own is not None and own.value != "float32":
        return []
    halved = "bfloat16" if facts.model_type.startswith("gemma") else "float16"
    return [f"  dtype: {halved} # --dtype auto: SGLang runs models of float32 in 16 bits"]


def _kv_dtype(arguments: Arguments, names: Sequence[str]) -> list[str]:
    """Return the line of the KV pool's element type, where an argument says it."""
    for name in names:
        written = arguments.text(name, "auto")
        if written in _KV_DTYPES:
            return [f"  kv_dtype: {_KV_DTYPES[written]} # {name} {written}"]
        if written != "auto":
            arguments.refuse(f"{name} {written[:60]}", f"there are auto, {', '.join(_KV_DTYPES)}")
            return []
    return []

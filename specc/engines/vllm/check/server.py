"""The arguments of vLLM's server -> the server that they start: each value with where it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, cast

from specc.compiler.config.archs import Gpu
from specc.compiler.config.models import Fact, ModelFacts
from specc.compiler.config.models.pair import Described
from specc.compiler.support.files.reading import read_regular
from specc.engines.pasted import DTYPES, is_count
from specc.engines.vllm.check.asked import ServerAnswer
from specc.engines.vllm.check.command_line import (
    ANSWERS,
    ATTENTION,
    COMPILATION,
    GENERATION,
    SPECULATION,
    UNREAD,
    Arguments,
    argument,
)
from specc.engines.vllm.check.defaults import (
    BLOCK,
    SAMPLED,
    attention,
    block_of,
    buckets_up_to,
    is_adaptive,
    is_captured,
    max_requests,
    most_captured,
    window_block,
)
from specc.engines.vllm.check.pages import caches_prefixes, hybrid_block
from specc.engines.vllm.check.preset import VLLM
from specc.engines.vllm.check.speculation import Speculation, check_adaptive, given_target, speculation
from specc.engines.vllm.served import ADAPTIVE, KINDS, METHODS, SETTINGS, Refusal, Server, own_layers, refusals

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
"""vLLM's variable that chooses the model runner, where that is possible."""
_UNCAPTURED = 256
"""Requests in the largest bucket where nothing is captured."""


@dataclass(frozen=True)
class Started:
    """The server that arguments start.

    Attributes:
        gpu: what it runs on.
        runner: the model runner, `V1` or `V2`.
        algorithm: by the program's name.
        drafting: how drafts are made.
        models: by role the directory and what it says.
        dtype: the element type of both models.
        attention: by role the attention backend; None for one that is not known here.
        captured: why the drafts of a batch are one graph, or why they are not.
        page_size: tokens of a block.
        max_requests: requests at once.
        ranks: among which every layer is shared out.
        buckets: sizes of batches, with where they come from.
        longest: how many tokens a text may have.
        sampled: what a request is sampled with that says nothing of it.
        facts: those on which it hangs whether programs are served.
        read_by: whose code has read the arguments, where it was vLLM's.

    """

    gpu: Gpu
    runner: Fact
    algorithm: str
    drafting: Speculation
    models: Mapping[str, tuple[Path, ModelFacts]]
    dtype: Fact
    attention: Mapping[str, Fact]
    captured: Fact
    page_size: Fact
    max_requests: Fact
    ranks: int
    buckets: tuple[tuple[int, ...], str]
    longest: Fact | None
    sampled: Fact
    facts: Server
    read_by: str | None = None

    def described(self) -> Iterator[tuple[str, str]]:
        """The server in lines: what, and it with where it comes from."""
        yield "server", f"{VLLM.title} on {self.gpu.title}: {self.gpu.origin}"
        if self.read_by is not None:
            yield "arguments", f"read by {self.read_by}"
        yield "runner", f"{self.runner.value}: {self.runner.origin}"
        for origin in dict.fromkeys(fact.origin for fact in self.attention.values()):
            named = {role: str(fact.value) for role, fact in self.attention.items() if fact.origin == origin}
            same = len(set(named.values())) == 1 and len(named) == len(self.attention)
            words = [*named.values()][:1] if same else [f"{name} of the {role}" for role, name in named.items()]
            yield "attention", f"{', '.join(words)}: {origin}"
        if self.ranks > 1:
            yield "ranks", f"{self.ranks}, each with the whole program: --tensor-parallel-size"
        yield "page_size", f"{self.page_size.value}: {self.page_size.origin}"
        drafting = self.drafting
        yield "method", f"{drafting.method.value}: {drafting.method.origin}"
        yield "drafts", f"{drafting.num_steps.value}: {drafting.num_steps.origin}"
        if drafting.draft is not None:
            yield "draft", f"{drafting.draft[0]}: {drafting.draft_origin}"
        sizes, origin = self.buckets
        yield "batches", f"up to {sizes[-1]}, {len(sizes)} of them: {origin}"
        yield "captured", f"{self.captured.value}: {self.captured.origin}"
        yield "requests", f"up to {self.max_requests.value} at once: {self.max_requests.origin}"
        yield "sampling", f"{self.sampled.value}: {self.sampled.origin}"


def started(arguments: Arguments, gpu: Gpu, page_size: int | None = None, exact: ServerAnswer | None = None) -> Started:
    """Return the server that the arguments start on a GPU; what it does not serve is reported in them.

    ``page_size`` is the tokens of its blocks where somebody knows them, and ``exact`` what vLLM itself says. Raises
    DiagnosticError with all that is missing or cannot be read.
    """
    arguments.refuse_unread(UNREAD)
    if not gpu.arch.startswith(VLLM.gpus):
        arguments.refuse(f"{gpu.arch} ({gpu.origin})", f"programs run on {VLLM.gpus}...")
    target = given_target(arguments)
    drafting = speculation(arguments, target)
    requests = arguments.number("--max-num-seqs")
    settings = arguments.settings()
    if target is None or drafting is None or arguments.misread or not gpu.arch.startswith(VLLM.gpus):
        arguments.findings.raise_if_errors()
        raise AssertionError("what is missing was reported")
    facts = exact.facts if exact is not None else _facts(arguments, drafting, settings)
    drafting = drafting if exact is None else _as_drafted(drafting, exact)
    for refusal in refusals(facts):
        arguments.refuse(refusal.what, _hint(refusal))
    _check_chunks(arguments, target[1])
    if facts.algorithm is None:
        arguments.findings.raise_if_errors()
        raise AssertionError("a method that no program has was reported")
    described = {"target": target} | ({"draft": drafting.draft} if drafting.draft is not None else {})
    models = {role: (directory, model.said) for role, (directory, model) in described.items()}
    dtype = _settled(_dtype(arguments, target[1]), exact, "dtype")
    backends = {
        role: _attention(arguments, gpu, role, model, str(dtype.value)) for role, (_, model) in described.items()
    }
    kept = _settled(_requests(arguments, requests, gpu), exact, "max_requests")
    width = int(drafting.num_steps.value) + 1
    graphs = (
        int(exact.values["largest_graph"])
        if exact is not None
        else _graph(arguments, target[1], int(kept.value), width, gpu)
    )
    if facts.adaptive:
        backend = str(backends["target"].value)
        check_adaptive(arguments, backend, reads=is_adaptive(backend, gpu), graphs=graphs)
    buckets = _buckets(int(kept.value), width, graphs)
    blocks = exact.fact("page_size") if exact is not None and page_size is None else None
    longest = _longest(arguments, target[1].said)
    server = Started(
        gpu, _runner(arguments, gpu, facts, exact), facts.algorithm, drafting, models, dtype, backends,
        _captured(gpu, backends, graphs, buckets[0][-1], looked_up=drafting.draft is None),
        blocks or _page(arguments, gpu, page_size, target[1].said, backends, dtype=str(dtype.value), drafts=width - 1),
        kept,
        arguments.number("--tensor-parallel-size") or 1, buckets,
        _settled(longest, exact, "longest"), _sampled(arguments, target[0]), facts, exact and exact.origin,
    )  # fmt: skip
    if arguments.misread:
        arguments.findings.raise_if_errors()
    return server


_Own = TypeVar("_Own", Fact, Fact | None)


def _settled(own: _Own, exact: ServerAnswer | None, name: str) -> Fact | _Own:
    """Return a value: that found here, or vLLM's own where it says another."""
    fact = exact.fact(name) if exact is not None else None
    return own if fact is None or (own is not None and own.value == fact.value) else fact


def _as_drafted(drafting: Speculation, exact: ServerAnswer) -> Speculation:
    """Return how drafts are made by what vLLM says of it."""
    method = Fact(exact.facts.method or "", exact.origin)
    method = drafting.method if drafting.method.value == method.value else method
    steps = _settled(drafting.num_steps, exact, "num_steps")
    return replace(drafting, method=method, num_steps=steps, options=exact.values["options"])


def _facts(arguments: Arguments, drafting: Speculation, settings: Mapping[str, object]) -> Server:
    """Return the facts on which it hangs whether programs are served."""
    server = Server(str(drafting.method.value), *drafting.turns, drafting.assistant, settings=settings)
    return replace(server, first_runner=_first_runner(arguments, server))


def _first_runner(arguments: Arguments, server: Server) -> str:
    """Return why vLLM takes its first model runner; an empty text where it takes the second."""
    spec = arguments.block(SPECULATION)
    if arguments.environment.get(RUNNER) == "0":
        return f"{RUNNER}=0"
    method = METHODS.get(server.method or "")
    if method is not None and method.first_runner:
        return f"the method {method.name}"
    if spec.get("use_heterogeneous_vocab"):
        return "use_heterogeneous_vocab"
    if server.settings.get("parallel_drafting") and not (method is not None and method.at_once):
        return "parallel_drafting"
    if server.settings.get("use_ubatching") and RUNNER not in arguments.environment:
        return "microbatches"
    launched = arguments.text("--distributed-executor-backend") == "external_launcher"
    several = launched and server.settings.get("pipeline_parallel_size", 1) != 1
    return "pipeline parallelism with external_launcher" if several else ""


def _check_chunks(arguments: Arguments, target: Described) -> None:
    """Report a server that keeps prefixes of a recurrent state and prefills whole texts, which vLLM does not start."""
    hybrid = target.said.values.get("architecture") in ANSWERS.hybrid
    if hybrid and caches_prefixes(arguments) and arguments.text("--enable-chunked-prefill") == "false":
        message = "vLLM does not start without chunked prefill where it keeps prefixes of a model with recurrent state"
        arguments.wrong(message, "leave --no-enable-chunked-prefill out, or write --no-enable-prefix-caching")


def _runner(arguments: Arguments, gpu: Gpu, facts: Server, exact: ServerAnswer | None) -> Fact:
    """Return the model runner, and why."""
    if exact is not None:
        return Fact("V1" if facts.first_runner else "V2", exact.origin)
    if facts.first_runner:
        return Fact("V1", facts.first_runner)
    variable = arguments.environment.get(RUNNER)
    usual = "where Triton has a backend for CPUs" if gpu.is_cpu else "and nothing here that it lacks"
    return Fact("V2", f"{RUNNER}={variable}" if variable else f"vLLM's default, {usual}")


def _dtype(arguments: Arguments, target: Described) -> Fact:
    """Return the element type of the server, after reporting one that is unknown."""
    written = arguments.text("--dtype", "auto").lower()
    if written != "auto":
        if written not in DTYPES:
            arguments.wrong(f"--dtype '{written[:60]}' is unknown", f"there are auto, {', '.join(DTYPES)}")
        return Fact(DTYPES.get(written, written), f"--dtype {written[:60]}")
    own = target.said.facts.get("dtype")
    if own is not None and own.value != "float32":
        return own
    return Fact("bfloat16", "--dtype auto: vLLM runs models of float32 in it")


def _attention(arguments: Arguments, gpu: Gpu, role: str, described: Described, dtype: str) -> Fact:
    """Return a model's attention backend, after reporting that none is known."""
    written = arguments.block(ATTENTION).get("backend")
    own = arguments.block(SPECULATION).get("attention_backend") if role == "draft" else None
    origin = f"{SPECULATION}.attention_backend" if own else "--attention-backend"
    if isinstance(named := own or written, str) and named.lower() != "auto":
        return Fact(named.upper(), origin)
    values = described.said.values
    cache, architecture = str(values.get("kv_layout", "mha")), str(values.get("architecture", ""))
    cache = "dsa" if cache == "mla" and "index_topk" in values else cache
    small = arguments.text("--kv-cache-dtype").startswith("fp8")
    adaptive = arguments.block(SPECULATION).get(ADAPTIVE) is True
    backend = attention(gpu, cache, dtype, architecture, small_cache=small, adaptive=adaptive)
    if backend is None:
        arguments.wrong(
            f"which attention vLLM takes on {gpu.title} for {cache} is not known", "write --attention-backend"
        )
    over = architecture if own_layers(architecture) else cache
    return Fact(backend or "", f"vLLM's choice on {gpu.title} for {over} in {dtype}")


def _requests(arguments: Arguments, written: int | None, gpu: Gpu) -> Fact:
    """Return how many requests the server keeps."""
    if written is not None:
        return Fact(written, "--max-num-seqs")
    usual = max_requests(gpu, arguments.number("--tensor-parallel-size") or 1)
    origin = "vLLM's default on a CPU" if gpu.is_cpu else f"vLLM's default for {gpu.memory} GiB of GPU memory"
    scheduled = arguments.tokens("--max-num-batched-tokens")
    if scheduled is not None and scheduled < usual:
        return Fact(scheduled, "--max-num-batched-tokens")
    if arguments.text("--performance-mode") == "throughput":
        return Fact(2 * usual, f"{origin}, twice with --performance-mode throughput")
    return Fact(usual, origin)


def _graph(arguments: Arguments, target: Described, kept: int, width: int, gpu: Gpu) -> int:
    """Return of how many tokens vLLM's largest graph is, 0 where it captures nothing.

    ``width``: tokens of a request in a step.
    """
    compilation = arguments.block(COMPILATION)
    mode, level = str(compilation.get("cudagraph_mode", "")).upper(), arguments.text("--optimization-level")
    if gpu.is_cpu or arguments.flag("--enforce-eager") or mode == "NONE" or (level == "0" and not mode):
        return 0
    sizes, most = compilation.get("cudagraph_capture_sizes"), compilation.get("max_cudagraph_capture_size")
    usual = most_captured(kept, width, gpu, str(target.said.values.get("architecture", "")))
    words = [str(size) for size in cast("list[object]", sizes)] if isinstance(sizes, list) else []
    listed = [int(size) for size in words if is_count(size)]
    tokens = most if type(most) is int else max(listed, default=usual)
    return min(tokens, arguments.tokens("--max-num-batched-tokens") or tokens)


def _buckets(kept: int, width: int, tokens: int) -> tuple[tuple[int, ...], str]:
    """Return sizes of batches with where they come from, by the tokens of a request and of vLLM's largest graph."""
    if not tokens:
        return tuple(buckets_up_to(min(kept, _UNCAPTURED))), "vLLM captures nothing"
    largest = max(1, min(kept, tokens // width))
    return tuple(buckets_up_to(largest)), f"vLLM's largest graph has {tokens} tokens, a request {width}"


def _captured(gpu: Gpu, backends: Mapping[str, Fact], tokens: int, largest: int, *, looked_up: bool) -> Fact:
    """Return whether drafts are graphs, and why."""
    if not tokens:
        return Fact("no graphs", "vLLM captures none")
    if looked_up:
        return Fact("look-ups are one graph", f"in batches of up to {largest}")
    backend = str(backends["draft"].value)
    if is_captured(backend, gpu):
        return Fact(
            "drafts are one graph", f"in batches of up to {largest}: {backend} makes its metadata on the device"
        )
    return Fact("drafts are launched kernel by kernel", f"{backend} makes its metadata on the host")


def _page(
    arguments: Arguments,
    gpu: Gpu,
    given: int | None,
    target: ModelFacts,
    backends: Mapping[str, Fact],
    *,
    dtype: str,
    drafts: int,
) -> Fact:
    """Return the tokens of a block, after reporting that they follow from what is not known here.

    ``given`` are those that somebody knows, ``drafts`` is how many a step has at most.
    """
    named = {str(fact.value) for fact in backends.values()}
    if given is not None:
        return Fact(given, "--page-size")
    if target.values.get("architecture") in ANSWERS.hybrid and "recurrent_state" in target.facts:
        if (size := hybrid_block(arguments, gpu, target, dtype, named, drafts)) is not None:
            return size
        hint = "give --page-size N: the server's log says it, 'Setting attention block size to N tokens'"
        arguments.wrong("blocks of a model with recurrent state are as large as that state, which is not known", hint)
    if (size := window_block(str(target.values.get("architecture", "")))) is not None:
        return Fact(size, "vLLM's for the windows of this class, which layers of its drafts have alone")
    if (written := arguments.number("--block-size")) is not None:
        return Fact(written, "--block-size")
    size = block_of(named, gpu)
    return Fact(size, "vLLM's default" if size == BLOCK else f"what {backends['target'].value} attention takes")


def _longest(arguments: Arguments, target: ModelFacts) -> Fact | None:
    """Return how many tokens a text may have; None where that follows from free memory, or nothing says it."""
    if "--max-model-len" not in arguments.values:
        return target.facts.get("context_length")
    tokens = arguments.tokens("--max-model-len")
    return Fact(tokens, "--max-model-len") if tokens is not None else None


def _sampled(arguments: Arguments, target: Path) -> Fact:
    """Return in words what a request is sampled with that says nothing of it."""
    values, origin = dict[str, object](), "vLLM's default"
    folder = arguments.text("--generation-config", "auto")
    if folder != "vllm":
        file = (target if folder == "auto" else Path(folder)) / "generation_config.json"
        try:
            content = json.loads(read_regular(file))
        except (OSError, ValueError, RecursionError):
            content = None
        if isinstance(content, dict):
            values, origin = cast("dict[str, object]", content), "generation_config.json"
    if more := arguments.block(GENERATION):
        values, origin = values | more, GENERATION
    asked = {name: values.get(name, usual) for name, usual in SAMPLED.items()}
    if asked["temperature"] == 0:
        return Fact("requests that say nothing of it are greedy", origin)
    drawn = [
        f"{name} {asked[name]}" for name, usual in SAMPLED.items() if name == "temperature" or asked[name] != usual
    ]
    return Fact(f"requests that say nothing of it draw with {', '.join(drawn)}", origin)


def _hint(refusal: Refusal) -> str | None:
    """Return what would be served instead."""
    if refusal.about in SETTINGS:
        served, name = SETTINGS[refusal.about].values, argument(refusal.about)
        words = "" if served[0] in (None, False) else f", or write {' or '.join(map(str, served))}"
        return f"leave {name} out{words}"
    *methods, last = dict.fromkeys(of[0].name for kind in KINDS for of in kind.algorithms.values())
    return {
        "method": f"there are {', '.join(VLLM.algorithms)}, by the methods {', '.join(methods)} and {last}",
        "rounds": f"write as many {SPECULATION}.num_speculative_tokens as there are modules",
        "first_runner": "programs run in the second one, which vLLM takes by itself",
    }.get(refusal.about)

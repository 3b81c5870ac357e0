"""The arguments of SGLang's server -> the server that they start: each value with where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from specc.adapters.sglang.served import (
    BACKENDS,
    BLOCKS,
    BY_MODULES,
    DATA_PARALLEL,
    LOOKS_UP,
    SETTINGS,
    Refusal,
    Server,
    refusals,
    served_values,
)
from specc.config.archs import CPU, Gpu, cpu
from specc.config.models import Fact, ModelFacts, read_model
from specc.config.presets.sglang import SGLANG
from specc.config.presets.sglang_models import architecture_of, assists, facts_of, has_modules
from specc.config.sglang import block_drafts
from specc.config.sglang.command_line import BREADTH, UNREAD, Arguments, argument
from specc.config.sglang.defaults import (
    B200,
    DECIDES_AS_DRAFT,
    DECIDES_AS_PREFILL,
    MAX_REQUESTS,
    OWN_MODULES,
    TREE,
    UNWRITTEN,
    Default,
    captured,
    default,
    drafts,
    most_captured,
    on_their_way,
    page_of,
    shape,
)
from specc.config.sglang.look_ups import check_pages, form

MOST_BUCKETS = 64
"""As many as a configuration may have."""

DEVICES = tuple(dict.fromkeys(backend.device for backend in BACKENDS.values()))

ALGORITHMS = tuple(name for name in SGLANG.algorithms if name not in BY_MODULES.values())
"""Those that programs serve, by the names of the command line."""
ASSISTED = ("FROZEN_KV_MTP",)
"""Algorithms whose draft reads the target's keys and values. SGLang takes one for EAGLE with an assistant."""

_RENAMED = {"nsa": "dsa", "compressed": "dsv4", "tokenspeed_mla": "cutedsl_mla"}
"""Attention backends by older names."""


@dataclass(frozen=True)
class Started:
    """The server that arguments start.

    Attributes:
        gpu: what it runs on.
        algorithm: by the program's name.
        models: by side the directory and what it says; without a draft where drafts are looked up.
        draft_origin: where the draft's directory comes from.
        attention: by role the attention backend.
        page_size: tokens per page.
        num_steps, topk, num_draft_tokens: what is drafted.
        max_requests: requests at once.
        buckets: sizes of batches that are captured.
        buckets_origin: where they come from.
        facts: those on which it hangs whether programs are served.

    """

    gpu: Gpu
    algorithm: str
    models: Mapping[str, tuple[Path, ModelFacts]]
    draft_origin: str
    attention: Mapping[str, Fact]
    page_size: Fact
    num_steps: Fact
    topk: Fact
    num_draft_tokens: Fact
    max_requests: Fact
    buckets: tuple[int, ...]
    buckets_origin: str
    facts: Server

    def described(self) -> Iterator[tuple[str, str]]:
        """The server in lines: what, and it with where it comes from."""
        yield "server", f"{SGLANG.title} on {self.gpu.title}: {self.gpu.origin}"
        for origin in dict.fromkeys(fact.origin for fact in self.attention.values()):
            named = {role: str(fact.value) for role, fact in self.attention.items() if fact.origin == origin}
            same = len(named) == len(self.attention) and len(set(named.values())) == 1
            words = (
                "".join(set(named.values())) if same else ", ".join(f"{word} of {role}" for role, word in named.items())
            )
            yield "attention", f"{words}: {origin}"
        yield "page_size", f"{self.page_size.value}: {self.page_size.origin}"
        kind = "chain" if self.topk.value == 1 else f"tree of topk {self.topk.value}"
        drafted = f"{self.num_steps.value} steps, a {kind}, {self.num_draft_tokens.value} nodes"
        yield "drafts", f"{drafted}: {self.num_steps.origin}"
        drafts = f"{self.models['draft'][0]}: " if "draft" in self.models else ""
        yield "draft", f"{drafts}{self.draft_origin}"
        yield "batches", f"up to {self.buckets[-1]}, {len(self.buckets)} of them: {self.buckets_origin}"
        if self.facts.untried:
            yield "untried", f"no program has run with {', '.join(self.facts.untried)} attention on a GPU yet"


def started(arguments: Arguments, gpu: Gpu) -> Started:
    """Return the server that the arguments start on a GPU; what it does not serve is reported in them.

    Raises DiagnosticError with all that is missing or cannot be read.
    """
    algorithm, device = _algorithm(arguments), arguments.text("--device", CPU if gpu.is_cpu else "cuda")
    gpu = cpu("--device cpu") if device == CPU and not gpu.is_cpu else gpu
    served = algorithm in ALGORITHMS and device in DEVICES and gpu.arch.startswith(SGLANG.gpus)
    arguments.refuse_unread(UNREAD)
    if device not in DEVICES:
        arguments.refuse(f"--device {device[:60]}", f"there are {', '.join(DEVICES)}")
    if not gpu.arch.startswith(SGLANG.gpus):
        arguments.refuse(f"{gpu.arch} ({gpu.origin})", f"programs run on {SGLANG.gpus}...")
    target = _model(arguments, "--model-path", arguments.text("--model-path"))
    looked_up, modules = algorithm in LOOKS_UP, _modules(arguments, algorithm, target)
    algorithm = BY_MODULES.get(algorithm, algorithm) if modules else algorithm
    path, origin = ("", "none, drafts are looked up in texts") if looked_up else _draft(arguments, target)
    draft = None if looked_up else _model(arguments, "--speculative-draft-model-path", path)
    algorithm = _assisted(arguments, algorithm, draft)
    in_blocks = algorithm in BLOCKS
    known = _sizes(arguments, algorithm, target, draft)
    requests, ranks = arguments.number("--max-running-requests"), arguments.number("--tp-size") or 1
    groups = _groups(arguments, algorithm)
    kept = max(1, (requests or MAX_REQUESTS) // groups)
    buckets, buckets_origin = _buckets(arguments, kept, most_captured(gpu, ranks))
    page = arguments.number("--page-size")
    if target is None or (draft is None and not looked_up) or known is None or arguments.misread or not served:
        arguments.findings.raise_if_errors()
        raise AssertionError("what is missing was reported")
    num_steps, topk, num_draft_tokens = known
    attention, page_size = _attention(arguments, gpu, target[1], page, int(topk.value), in_blocks=in_blocks)
    of_target, of_draft = facts_of(target[1].values), None if draft is None else facts_of(draft[1].values)
    if modules:
        del attention["draft"]
    if looked_up:
        attention = {"verify": attention["verify"]}
        check_pages(arguments, page_size, attention["verify"])
    if in_blocks and device == CPU:
        arguments.refuse(f"{algorithm} on a CPU", "SGLang starts no such server")
    if algorithm in ASSISTED:
        of_draft = replace(of_target, borrows=True)
        del attention["extend"]
    facts = Server(
        target=of_target,
        draft=of_draft,
        topk=int(topk.value),
        attention={role: str(fact.value) for role, fact in attention.items()},
        device=device,
        ranks=ranks,
        groups=groups,
        head_rows=bool(arguments.text("--speculative-token-map")) and algorithm != "EAGLE3",
        adapters=_adapters(arguments),
        looks_up=looked_up,
        modules=modules,
        blocks=in_blocks,
        settings=_settings(arguments, modules=modules),
    )
    limit = _rows(arguments, kept, requests, groups)
    models = {"target": target} | ({} if draft is None else {"draft": draft})
    server = Started(
        gpu, algorithm, models, origin, attention, page_size, num_steps, topk,
        num_draft_tokens, limit, buckets, buckets_origin, facts,
    )  # fmt: skip
    for refusal in refusals(facts):
        arguments.refuse(refusal.what, _hint(refusal, facts))
    return server


def _algorithm(arguments: Arguments) -> str:
    """Return the algorithm's name, after reporting one that is not there or not served."""
    if not arguments.text("--speculative-algorithm"):
        arguments.wrong("--speculative-algorithm is missing", f"there are {', '.join(ALGORITHMS)}")
    written = arguments.text("--speculative-algorithm", ALGORITHMS[0]).upper()
    algorithm = "EAGLE" if written == "NEXTN" else written
    if algorithm not in ALGORITHMS:
        hint = f"there are {', '.join(ALGORITHMS)}"
        arguments.refuse(f"--speculative-algorithm {written[:60]}", hint)
    if algorithm == "STANDALONE" and _adapters(arguments):
        arguments.refuse("LoRA with STANDALONE", "SGLang starts no such server; it has adapters with EAGLE and EAGLE3")
    return algorithm


def _modules(arguments: Arguments, algorithm: str, target: tuple[Path, ModelFacts] | None) -> bool:
    """Return whether the draft has a module for each step, which SGLang takes by itself for some targets.

    It does that where the algorithm is written by this name, and not as NEXTN.
    """
    by_itself = target is not None and has_modules(target[1].values)
    by_itself = by_itself and arguments.text("--speculative-algorithm") == algorithm
    return algorithm in BY_MODULES and (by_itself or "--enable-multi-layer-eagle" in arguments.values)


def _assisted(arguments: Arguments, algorithm: str, draft: tuple[Path, ModelFacts] | None) -> str:
    """Return the algorithm that SGLang runs with a draft, after reporting one that does not go with it."""
    if draft is None or not assists(draft[1].values):
        if draft is not None and algorithm in ASSISTED:
            arguments.refuse(f"{algorithm} with the draft '{draft[0]}'", "give an assistant, or write EAGLE for a head")
        return algorithm
    if algorithm not in ("EAGLE", *ASSISTED):
        arguments.refuse(f"{algorithm} with an assistant", "write NEXTN, which SGLang runs as FROZEN_KV_MTP")
    return ASSISTED[0]


def _groups(arguments: Arguments, algorithm: str) -> int:
    """Return how many groups of ranks have requests of their own, after reporting an algorithm that has none.

    `--dp-size` counts them where `--enable-dp-attention` stands, and servers beside each other elsewhere.
    """
    groups = arguments.number("--attn-dp-size") or 1
    if groups == 1 and "--enable-dp-attention" in arguments.values:
        groups = arguments.number("--dp-size") or 1
    if groups > 1 and algorithm in ("STANDALONE", *LOOKS_UP):
        arguments.refuse(f"attention under data parallelism with {algorithm}", "SGLang starts no such server")
    return groups


def _adapters(arguments: Arguments) -> bool:
    """Return whether requests may have adapters."""
    return not arguments.values.keys().isdisjoint(("--enable-lora", "--lora-paths"))


def _model(arguments: Arguments, name: str, written: str) -> tuple[Path, ModelFacts] | None:
    """Return a model's directory and what it says, or None after reporting that it cannot be read."""
    return arguments.model(name, written, read_model)


def _draft(arguments: Arguments, target: tuple[Path, ModelFacts] | None) -> tuple[str, str]:
    """Return the draft's directory, and where that comes from; an empty one where SGLang has none by itself."""
    name = "--speculative-draft-model-path"
    if (written := arguments.text(name)) or target is None:
        return written, name
    architecture = architecture_of(target[1].values)
    if OWN_MODULES.fullmatch(architecture):
        return arguments.text("--model-path"), f"modules of its own, which SGLang takes for {architecture}"
    return "", name


def _sizes(
    arguments: Arguments,
    algorithm: str,
    target: tuple[Path, ModelFacts] | None,
    draft: tuple[Path, ModelFacts] | None,
) -> tuple[Fact, Fact, Fact] | None:
    """Return steps, topk and nodes by what an algorithm has of them, or None where it cannot be said."""
    if algorithm in LOOKS_UP:
        return form(arguments)
    if algorithm in BLOCKS:
        return None if draft is None else block_drafts.form(arguments, draft[1])
    return _shape(arguments, algorithm, target)


def _shape(
    arguments: Arguments, algorithm: str, target: tuple[Path, ModelFacts] | None
) -> tuple[Fact, Fact, Fact] | None:
    """Return steps, topk and nodes, or None after reporting which of them are missing."""
    names = [f"--speculative-{key}" for key in ("num-steps", "eagle-topk", "num-draft-tokens")]
    steps, topk, nodes = map(arguments.number, names)
    if not any(name in arguments.values for name in names):
        architecture = architecture_of(target[1].values) if target is not None else ""
        origin = f"SGLang's choice for {architecture or algorithm}, as no argument says it"
        return tuple(Fact(size, origin) for size in shape(algorithm, architecture))  # type: ignore[return-value]
    needed = names[:2] if topk == 1 else names
    for name in needed:
        if name not in arguments.values:
            arguments.wrong(f"{name} is missing", "write all that is drafted, or leave it all to SGLang")
    if steps is None or topk is None or (topk > 1 and nodes is None):
        return None
    if topk == 1:
        return (
            Fact(steps, names[0]),
            Fact(1, names[1]),
            Fact(steps + 1, "num_steps + 1, as SGLang takes it with topk 1"),
        )
    return Fact(steps, names[0]), Fact(topk, names[1]), Fact(nodes or 0, names[2])


def _buckets(arguments: Arguments, kept: int, most: int) -> tuple[tuple[int, ...], str]:
    """Return the sizes of batches that SGLang captures for so many requests; ``most`` is its own limit."""
    given, limit = arguments.numbers("--cuda-graph-bs-decode"), arguments.number("--cuda-graph-max-bs-decode")
    largest = min(kept, limit or max(given, default=most))
    sizes, origin = given, "--cuda-graph-bs-decode"
    if not given:
        sizes, origin = captured(largest), "batches that SGLang captures"
    buckets = sorted({*(size for size in sizes if size < largest), largest})
    while len(buckets) > MOST_BUCKETS:  # every other one of the larger half, where padding costs least
        middle = len(buckets) // 2
        buckets = [*buckets[:middle], *buckets[:middle:-2][::-1]]
    return tuple(buckets), origin


def _rows(arguments: Arguments, kept: int, written: int | None, groups: int) -> Fact:
    """Return how many requests have rows: those that run, and those on their way from a server that prefills."""
    origin = "--max-running-requests" if written else "SGLang's default with speculation"
    origin += f", of which a group of ranks has one in {groups}" if groups > 1 else ""
    if arguments.text("--disaggregation-mode") != "decode":
        return Fact(kept, origin)
    name = "--disaggregation-decode-extra-slots"
    extra = 0 if arguments.text(name) == "0" else arguments.number(name)
    extra = on_their_way(written) if extra is None else extra
    return Fact(kept + extra, f"{origin}, and {extra} on their way from the server that prefills")


def _attention(
    arguments: Arguments, gpu: Gpu, target: ModelFacts, page: int | None, topk: int, *, in_blocks: bool
) -> tuple[dict[str, Fact], Fact]:
    """Return by role the attention backend, and the tokens per page."""
    names = ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend")
    base, prefill, decode = (_RENAMED.get(arguments.text(name), arguments.text(name)) for name in names)
    own = arguments.text("--speculative-draft-attention-backend")
    mode = arguments.text("--speculative-attention-mode", "prefill")
    written = bool(base or prefill or decode)
    written_topk = 1 if in_blocks else arguments.number("--speculative-eagle-topk")
    known, cache, architecture = (
        drafts(written_topk, page),
        facts_of(target.values).cache,
        architecture_of(target.values),
    )
    deterministic = "--enable-deterministic-inference" in arguments.values
    row = default(gpu.arch, cache, architecture, known, deterministic=deterministic)
    if gpu.is_cpu:
        row = replace(row, backend="intel_amx", page_size=None, forced=False, decode=None, draft=None)
    if not base and (not prefill or prefill != decode):
        base, decode, own = row.backend, decode or ("" if written else row.decode or ""), own or row.draft or ""
    base = "triton" if (base, arguments.text("--kv-cache-dtype")) == ("fa3", "fp8_e5m2") else base or prefill
    if "cutedsl_mla" in (base, decode) and not prefill:
        prefill = "trtllm_mla"
    by_role = roles(prefill or base, decode or base, own or None, mode)
    origin = _why(gpu, cache, architecture, known, topk)
    facts = {role: Fact(name, _origin(arguments, role, mode) or origin) for role, name in by_role.items()}
    if in_blocks:
        of_prefill = Fact(prefill or base, _origin(arguments, "verify", "prefill") or origin)
        facts = {"draft": block_drafts.attention(own, of_prefill, gpu), "verify": facts["verify"]}
        own = str(facts["draft"].value)
    deciding = {base, decode, *({prefill} & DECIDES_AS_PREFILL), *({own} & DECIDES_AS_DRAFT)}
    row = row if not written or row.caches else replace(row, page_size=None, forced=False)
    small = gpu.arch in B200 and cache == "mha" and known != TREE
    return facts, _page(page, row, deciding, fa4_is_large=small)


def _page(written: int | None, row: Default, deciding: set[str], *, fa4_is_large: bool) -> Fact:
    """Return the tokens per page: what is written, or what a backend that decides it takes instead."""
    size, origin = written, "--page-size"
    if row.page_size is not None and (row.forced or written is None):
        size, origin = row.page_size, f"SGLang's choice with {row.backend} attention"
    for backend in sorted(deciding):
        if (taken := page_of(backend, size)) is not None:
            size, origin = taken, f"what {backend} attention takes"
    if "fa4" in deciding and fa4_is_large:
        return Fact(128, "what fa4 attention takes")
    return Fact(size, origin) if size is not None else Fact(1, "SGLang's default")


def _why(gpu: Gpu, cache: str, architecture: str, known: str, topk: int) -> str:
    """Return why SGLang takes an attention backend, in words."""
    exception = ", before it takes a tree" if known == UNWRITTEN and topk > 1 and not gpu.is_cpu else ""
    tree = " and trees" if known == TREE else ""
    return f"SGLang's choice on {gpu.title} for {architecture or 'such a model'}, {cache}{tree}{exception}"


def _origin(arguments: Arguments, role: str, mode: str) -> str:
    """Return the argument that gives a role its attention backend; an empty text for SGLang's own choice."""
    many = "decode" if mode == "decode" or role == "draft" else "prefill"
    names = [f"--{many}-attention-backend", "--attention-backend"]
    names[:0] = [] if role == "verify" else ["--speculative-draft-attention-backend"]
    return next((name for name in names if arguments.text(name)), "")


def _settings(arguments: Arguments, *, modules: bool) -> dict[str, object]:
    """Return what was said of each of `SETTINGS`, or comes of the target, which has a module for each step or not."""
    settings = arguments.settings() | ({"enable_multi_layer_eagle": True} if modules else {})
    if "--enable-dp-attention" in arguments.values:  # what `--dp-size` counts is then no server beside this one
        settings.pop("dp_size", None)
    return settings


def _hint(refusal: Refusal, server: Server) -> str | None:
    """Return what would be served instead."""
    if refusal.about in SETTINGS | DATA_PARALLEL:
        alone = refusal.about in SETTINGS and server.groups == 1
        served = served_values(refusal.about, data_parallel=not alone)
        name = argument(refusal.about)
        return f"leave {name} out" + (
            "" if served[0] in (None, False) else f", or write {' or '.join(map(str, served))}"
        )
    if refusal.about.startswith("attention "):
        role = refusal.about.removeprefix("attention ")
        model, in_block = server.target if role == "verify" else server.draft, server.blocks and role == "draft"
        names = [
            name
            for name, backend in BACKENDS.items()
            if backend.device == server.device
            and (model is None or model.cache in backend.over(role, model))
            and (server.topk == 1 or backend.mask is not None)
            and not (server.groups > 1 and backend.planned)
            and (model is None or backend.sees(role, model) or not model.window)
            and (backend.blocks or not in_block)
        ]
        name = "--speculative-draft-attention-backend" if in_block else "--attention-backend"
        return f"served here: {', '.join(names)} ({name})" if names else None
    chain = f"{BREADTH} 1" if server.looks_up else "--speculative-eagle-topk 1, with --speculative-num-steps"
    return {
        "topk": f"write {chain}",
        "head_rows": "leave --speculative-token-map out",
    }.get(refusal.about)


def roles(prefill: str, decode: str, draft: str | None, mode: str) -> dict[str, str]:
    """The attention backend of every role, as SGLang gives them out.

    `prefill` and `decode` are those of the server, `draft` is `speculative_draft_attention_backend` or None, `mode`
    `speculative_attention_mode`: in `decode` many tokens of a request are the decode backend's, too.
    """
    many = decode if mode == "decode" else prefill
    return {"draft": draft or decode, "verify": many, "extend": draft or many}

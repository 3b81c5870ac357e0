"""The arguments of SGLang's server -> the server that they start: each value with where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from specc.compiler.config.archs import CPU, Gpu, cpu
from specc.compiler.config.models import Fact, ModelFacts, read_model
from specc.compiler.config.models.states import GDN
from specc.engines.sglang.check.command_line import ADAPTIVE, RECORDS, UNREAD, Arguments, argument, attention_groups
from specc.engines.sglang.check.defaults import (
    B200,
    RING,
    TREE,
    UNWRITTEN,
    Default,
    captured,
    compressed_kernels,
    default,
    drafts,
    max_requests,
    most_captured,
    on_their_way,
    pages_of,
)
from specc.engines.sglang.check.models import architecture_of, blocks_attention, facts_of, own_attention
from specc.engines.sglang.check.preset import SGLANG
from specc.engines.sglang.check.speculation import ALGORITHMS, DraftSource, algorithm_of, draft_source
from specc.engines.sglang.served import (
    BACKENDS,
    KNOWN_BACKENDS,
    NAMES,
    STEPS,
    TOPK,
    KindOfDraft,
    Refusal,
    Server,
    backend_of,
    kind_of,
    refusals,
    served_anyhow,
)

MOST_BUCKETS = 64
"""As many as a configuration may have."""

DEVICES = tuple(dict.fromkeys(backend.device for backend in BACKENDS.values()))

_RENAMED = {old: backend.name for backend in KNOWN_BACKENDS.values() for old in backend.formerly}
"""Attention backends by older names."""


@dataclass(frozen=True)
class Started:
    """The server that arguments start.

    Attributes:
        gpu: what it runs on.
        algorithm: by the program's name.
        models: by side the directory and what it says; without a draft where no model drafts.
        draft_origin: where the draft's directory comes from.
        attention: by role the attention backend.
        page_size: tokens per page.
        num_steps, topk, num_draft_tokens: what is drafted.
        max_requests: requests at once.
        buckets: sizes of batches that are captured.
        buckets_origin: where they come from.
        facts: those on which it hangs whether programs are served.
        kind: how it drafts.
        left_off: beside what SGLang does not change the number of steps though it is asked to, in words.

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
    kind: KindOfDraft
    left_off: str = ""

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
        if self.left_off:
            yield "adaptive", f"no, SGLang leaves the number of steps as it is beside {self.left_off}"
        drafts = f"{self.models['draft'][0]}: " if "draft" in self.models else ""
        yield "draft", f"{drafts}{self.draft_origin}"
        yield "batches", f"up to {self.buckets[-1]}, {len(self.buckets)} of them: {self.buckets_origin}"
        if self.facts.untried:
            yield "untried", f"no program has run with {', '.join(self.facts.untried)} attention on a GPU yet"


def started(arguments: Arguments, gpu: Gpu) -> Started:
    """Return the server that the arguments start on a GPU; what it does not serve is reported in them.

    Raises DiagnosticError with all that is missing or cannot be read.
    """
    algorithm, device = algorithm_of(arguments), arguments.text("--device", CPU if gpu.is_cpu else "cuda")
    gpu = cpu("--device cpu") if device == CPU and not gpu.is_cpu else gpu
    served = algorithm in ALGORITHMS and device in DEVICES and gpu.arch.startswith(SGLANG.gpus)
    arguments.refuse_unread(UNREAD)
    if _adapters(arguments):
        _check_started(arguments, kind_of(algorithm), "adapters", f"LoRA with {algorithm}")
    if device not in DEVICES:
        arguments.refuse(f"--device {device[:60]}", f"there are {', '.join(DEVICES)}")
    if not gpu.arch.startswith(SGLANG.gpus):
        arguments.refuse(f"{gpu.arch} ({gpu.origin})", f"programs run on {SGLANG.gpus}...")
    target = arguments.model("--model-path", arguments.text("--model-path"), read_model)
    drafting = draft_source(arguments, algorithm, target)
    requests, ranks = arguments.number("--max-running-requests"), arguments.number("--tp-size") or 1
    groups = _groups(arguments, drafting)
    usual = max_requests("" if target is None else architecture_of(target[1].values))
    kept = max(1, (requests or usual) // groups)
    buckets, buckets_origin = _buckets(arguments, kept, most_captured(gpu, ranks))
    page = arguments.number("--page-size")
    kind = drafting.kind
    read = served and not arguments.misread
    if target is None or kind is None or drafting.lacks or drafting.sizes is None or not read:
        arguments.findings.raise_if_errors()
        raise AssertionError("what is missing was reported")
    attention, page_size = _attention(arguments, gpu, target[1], page, drafting)
    kind.check(arguments, (page_size.value, page_size.origin), str(attention["verify"].value))
    if device == CPU:
        _check_started(arguments, kind, "cpu", f"{drafting.algorithm} on a CPU")
    facts = _facts(arguments, drafting, target[1], attention, gpu, device, ranks, groups)
    models = {"target": target} | ({} if drafting.draft is None else {"draft": drafting.draft})
    server = Started(
        gpu, drafting.algorithm, models, drafting.origin, attention, page_size, *drafting.sizes,
        _rows(arguments, kept, requests, groups), buckets, buckets_origin, facts, kind, drafting.left_off,
    )  # fmt: skip
    for refusal in refusals(facts):
        arguments.refuse(refusal.what, _hint(refusal, facts))
    return server


def _facts(
    arguments: Arguments,
    drafting: DraftSource,
    target: ModelFacts,
    attention: Mapping[str, Fact],
    gpu: Gpu,
    device: str,
    ranks: int,
    groups: int,
) -> Server:
    """Return the facts on which it hangs whether programs are served."""
    draft, kind, of_target = drafting.draft, drafting.kind, facts_of(target.values)
    mapped = kind is not None and kind.token_maps.get(drafting.algorithm, True)
    return Server(
        target=of_target,
        draft=None if draft is None else facts_of(draft[1].values, kind),
        kind=kind,
        topk=drafting.topk,
        attention={role: str(fact.value) for role, fact in attention.items()},
        device=device,
        ranks=ranks,
        groups=groups,
        head_rows=bool(arguments.text("--speculative-token-map")) and mapped,
        adapters=_adapters(arguments),
        candidates=drafting.candidates,
        ring=_ring(arguments, drafting) if of_target.state == GDN else 0,
        kept_at_ends=bool(of_target.state) and _kept_at_ends(arguments, device),
        settings=_settings(arguments, kind) | _kernels(arguments, target, gpu, ranks),
    )


def _ring(arguments: Arguments, drafting: DraftSource) -> int:
    """Return how many tokens' records SGLang keeps of a state, after reporting too few for a step; 0 for none."""
    if RECORDS not in arguments.values:
        return 0
    name = "--linear-replayssm-cache-len"
    ring, nodes = arguments.number(name) or RING, 0 if drafting.sizes is None else int(drafting.sizes[2].value)
    if ring < nodes:
        arguments.refuse(f"{name} {ring} with steps of {nodes} nodes", "write a power of two that is no less")
    return ring


def _kept_at_ends(arguments: Arguments, device: str) -> bool:
    """Return whether SGLang keeps for prefixes the states that texts end with, as its own resolution has it."""
    name = "--mamba-radix-cache-strategy"
    if "--disable-radix-cache" in arguments.values or arguments.text(name, "auto") != "auto":
        return "--disable-radix-cache" not in arguments.values and arguments.text(name) == "no_buffer"
    ahead = "--disable-overlap-schedule" not in arguments.values and device != CPU
    return not ahead and (arguments.number("--page-size") or 1) == 1


def _check_started(arguments: Arguments, kind: KindOfDraft | None, about: str, what: str) -> None:
    """Report what SGLang itself does not start with a kind of draft."""
    if kind is not None and about in kind.unstarted:
        arguments.refuse(what, kind.unstarted[about])


def _groups(arguments: Arguments, drafting: DraftSource) -> int:
    """Return how many groups of ranks have requests of their own, after reporting an algorithm that has none."""
    groups = attention_groups(arguments)
    if groups > 1:
        what = f"attention under data parallelism with {drafting.algorithm}"
        _check_started(arguments, drafting.kind, "groups", what)
    return groups


def _adapters(arguments: Arguments) -> bool:
    """Return whether requests may have adapters."""
    return not arguments.values.keys().isdisjoint(("--enable-lora", "--lora-paths"))


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
    arguments: Arguments, gpu: Gpu, target: ModelFacts, page: int | None, drafting: DraftSource
) -> tuple[dict[str, Fact], Fact]:
    """Return by role the attention backend, and the tokens per page."""
    names = ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend")
    base, prefill, decode = (_RENAMED.get(arguments.text(name), arguments.text(name)) for name in names)
    own = arguments.text("--speculative-draft-attention-backend")
    mode = arguments.text("--speculative-attention-mode", "prefill")
    written = bool(base or prefill or decode)
    kind = drafting.kind
    written_topk = arguments.number("--speculative-eagle-topk")
    if kind is not None and kind.chains_only:
        written_topk = 1
    known, cache, architecture = (
        drafts(written_topk, page),
        facts_of(target.values).cache,
        architecture_of(target.values),
    )
    deterministic = "--enable-deterministic-inference" in arguments.values
    row = default(gpu.arch, cache, architecture, known, deterministic=deterministic)
    row = Default("intel_amx") if gpu.is_cpu else row
    if not base and (not prefill or prefill != decode):
        row = row or _unsaid(arguments, gpu, architecture)
        prefill, decode = (
            of or ("" if written else said) for of, said in ((prefill, row.prefill), (decode, row.decode))
        )
        base, own = row.backend, own or row.draft.get((kind and kind.written) or drafting.algorithm, "")
    base = "triton" if (base, arguments.text("--kv-cache-dtype")) == ("fa3", "fp8_e5m2") else base or prefill
    prefill = prefill or backend_of(base).prefill or backend_of(decode).prefill
    by_role = roles(prefill or base, decode or base, own or None, mode)
    origin = _why(gpu, cache, architecture, known, drafting.topk)
    facts = {role: Fact(name, _origin(arguments, role, mode) or origin) for role, name in by_role.items()}
    of_prefill = prefill or base, _origin(arguments, "verify", "prefill") or origin
    draft = target if drafting.draft is None else drafting.draft[1]
    for role, model in {role: target if role == "verify" else draft for role in facts}.items():
        if (of_layers := own_attention(model.values)) is not None:
            facts[role] = Fact(of_layers, f"what layers of {architecture_of(model.values)} have")
    newest = gpu.arch in B200
    if kind is not None and (of_draft := kind.attention(own, of_prefill, newest=newest, on_cpu=gpu.is_cpu)):
        facts |= {"draft": Fact(*of_draft)}
        own = str(of_draft[0])
    if drafting.draft is not None and (of_layers := blocks_attention(drafting.draft[1].values)) is not None:
        facts |= {"draft": Fact(of_layers, f"what layers of {architecture_of(drafting.draft[1].values)} have")}
        own = of_layers
    parts = {"attention": base, "prefill": prefill, "decode": decode, "draft": own}
    row = row if row is not None and (row.kept or not written) else Default("")
    return drafting.roles(facts), _page(page, row, pages_of(parts, gpu.arch, cache, known))


def _unsaid(arguments: Arguments, gpu: Gpu, architecture: str) -> NoReturn:
    """Report that SGLang has not said which attention it takes."""
    what = f"{SGLANG.title} has not said which attention it takes on {gpu.title} for {architecture or 'such a model'}"
    arguments.wrong(what, "write --attention-backend")
    arguments.findings.raise_if_errors()
    raise AssertionError("it was reported")


def _page(written: int | None, row: Default, deciding: Mapping[str, Sequence[int]]) -> Fact:
    """Return the tokens per page: what is written, or what a backend that decides it takes instead."""
    size, origin = written, "--page-size"
    if row.page_size is not None and (row.forced or written is None):
        size, origin = row.page_size, f"SGLang's choice with {row.backend} attention"
    for backend, pages in deciding.items():
        if size not in pages:
            size, origin = pages[0], f"what {backend} attention takes"
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


def _settings(arguments: Arguments, kind: KindOfDraft | None) -> dict[str, object]:
    """Return what was said of each of `SETTINGS`, or comes of the kind of draft, which SGLang may take by itself."""
    settings = arguments.settings() | ({kind.setting[0]: True} if kind is not None and kind.setting[0] else {})
    if "--enable-dp-attention" in arguments.values:  # what `--dp-size` counts is then no server beside this one
        settings.pop("dp_size", None)
    return settings


def _kernels(arguments: Arguments, target: ModelFacts, gpu: Gpu, ranks: int) -> dict[str, object]:
    """Return the setting of kernels for compressed keys where that is left to SGLang, which takes some by itself."""
    name = "dsv4_attn_backend"
    kernels = compressed_kernels(gpu.arch, str(target.values.get("architecture", "")), ranks)
    return {name: kernels} if kernels and arguments.text(argument(name), "auto") == "auto" else {}


def _hint(refusal: Refusal, server: Server) -> str | None:
    """Return what would be served instead."""
    if refusal.about in NAMES:
        served, _ = served_anyhow(server.conditions)[refusal.about]
        name = argument(refusal.about)
        if served[0] == "auto":  # which may be what is refused
            return f"write {name} {served[1]}"
        return f"leave {name} out" + (
            "" if served[0] in (None, False) else f", or write {' or '.join(map(str, served))}"
        )
    if refusal.about.startswith("attention "):
        role = refusal.about.removeprefix("attention ")
        in_block = server.kind is not None and server.kind.blocks and role == "draft"
        model = server.model(role)
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
    steps, topk, _ = (STEPS, TOPK, "") if server.kind is None else server.kind.shaped_by
    return {
        "topk": f"write {topk} 1" + (f", with {steps}" if steps else ""),
        "head_rows": "leave --speculative-token-map out",
        "candidates": f"leave {ADAPTIVE} out",
        "kept_at_ends": "write --mamba-radix-cache-strategy extra_buffer, or --disable-radix-cache",
        "enable_linear_replayssm_spec": f"leave {RECORDS} out",
    }.get(refusal.about)


def roles(prefill: str, decode: str, draft: str | None, mode: str) -> dict[str, str]:
    """The attention backend of every role, as SGLang gives them out.

    `prefill` and `decode` are those of the server, `draft` is `speculative_draft_attention_backend` or None, `mode`
    `speculative_attention_mode`: in `decode` many tokens of a request are the decode backend's, too.
    """
    many = decode if mode == "decode" else prefill
    return {"draft": draft or decode, "verify": many, "extend": draft or many}

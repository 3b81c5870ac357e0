"""The configuration of a program for a server of SGLang, each value with where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from specc.compiler.config.estimate.proposed import sizes, written
from specc.compiler.config.layer_sizes import sizes_of
from specc.compiler.config.models import Fact, ModelFacts
from specc.compiler.config.models.hub import named
from specc.compiler.config.models.states import GDN, KDA
from specc.compiler.config.proposal import quoted, yaml_of
from specc.compiler.config.resolved import Config
from specc.compiler.config.rules.shapes import shape_called
from specc.compiler.config.wanted import Wanted, listed
from specc.compiler.support.files.paths import PathError, path_of
from specc.engines.pasted import DTYPES, check_of_draft, configuration_name, served_by_program
from specc.engines.sglang.check.command_line import ADAPTIVE, RECORDS, RETURNED, THRESHOLDS, Arguments
from specc.engines.sglang.check.models import architecture_of
from specc.engines.sglang.check.preset import SGLANG
from specc.engines.sglang.check.server import Started
from specc.engines.sglang.check.speculation import modules_of
from specc.engines.sglang.check.weighing import verified
from specc.engines.sglang.served import BACKENDS, beside_budgets, refusals
from specc.runtime.plan.shape import Shape

_KV_DTYPES = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp8_e5m2": "float8_e5m2",
    "fp8_e4m3": "float8_e4m3fn",
}
_GRAMMARS = ("xgrammar", "llguidance")
"""Grammar backends that make bitmasks."""

_DRAFT_KV = ("--speculative-draft-kv-cache-dtype", "--kv-cache-dtype")


def configuration(arguments: Arguments, server: Started, wanted: Wanted) -> str:
    """Return the YAML of the program that a server with these arguments runs.

    Raises DiagnosticError with all that is missing, cannot be read, or is not served, of the server as well.
    """
    server = _branched(arguments, server, wanted)
    wanted = verified(arguments, server, wanted)
    _check_sampled(arguments, wanted)
    wanted = replace(wanted, returned=_returned(arguments, wanted))
    for what in beside_budgets(replace(server.facts, draws=wanted.weighs)) if wanted.budget else ():
        arguments.refuse(f"--budget with {what}", _without_budget(server, what))
    lines = [
        f"# Written for a server of {SGLANG.title} from its arguments.",
        f"name: {configuration_name(arguments, wanted.name, f'sglang_{server.algorithm.lower()}')}",
        "engine: sglang",
        f"algorithm: {server.algorithm} # --speculative-algorithm {arguments.text('--speculative-algorithm')}",
        *_shape(arguments, server, wanted),
        f"page_size: {server.page_size.value} # {server.page_size.origin}",
        f"max_requests: {server.max_requests.value} # {server.max_requests.origin}",
        f"buckets: {list(server.buckets)} # {server.buckets_origin}",
        f"archs: [{server.gpu.arch}] # {server.gpu.origin}",
        *_ranks(arguments, server, wanted),
        *wanted.lines(),
        *_model(arguments, server, "target", wanted),
        *wanted.of_target(),
        *(_model(arguments, server, "draft", wanted) if "draft" in server.models else []),
        *(wanted.of_draft() if "draft" in server.models else []),
    ]
    draft = server.models.get("draft")
    check_of_draft(arguments, wanted, draft and draft[1].facts, server.kind.model_less)
    arguments.findings.raise_if_errors()
    return yaml_of(lines)


def served(config: Config) -> str:
    """Return in a line which requests a program of this configuration serves."""
    named = ("temperature", "sampling_seed"), ("return_logprob", "top_logprobs_num")
    return served_by_program(config, "SGLang", *named)


def _branched(arguments: Arguments, server: Started, wanted: Wanted) -> Started:
    """Return the server with the branches of a program that has its own, after reporting what they do not go with."""
    shapes = _called(listed(wanted.shapes))
    topk = max((shape.topk for shape in shapes), default=1)
    if not server.kind.blocks or topk == 1:
        return server
    steps = max(shape.num_steps for shape in shapes)
    facts = replace(server.facts, topk=topk)
    branched = replace(server, num_steps=Fact(steps, "--shapes"), topk=Fact(topk, "--shapes"), facts=facts)
    known = [*refusals(server.facts)]
    for refusal in (refusal for refusal in refusals(facts) if refusal not in known):
        arguments.refuse(refusal.what, "leave trees out of --shapes")
    return branched


def _without_budget(server: Started, what: str) -> str:
    """Return what would be served instead of a budget of rows."""
    verifies = [name for name, backend in BACKENDS.items() if not backend.whole(server.facts.topk)]
    of_attention = what.endswith(f"{server.attention['verify'].value} attention")
    return "leave --budget out" + (f", or write --attention-backend {' or '.join(verifies)}" if of_attention else "")


def _ranks(arguments: Arguments, server: Started, wanted: Wanted) -> Iterator[str]:
    """Return the line of how many ranks share out what attention reads, after reporting what they cannot share."""
    ranks, groups = server.facts.ranks, server.facts.groups
    logits, head = ("--logits", wanted.logits, "gathered"), ("--head", wanted.head, "engine")
    for (name, value, served), beside in ((logits, server.facts.whole), (head, server.facts.headless)):
        if beside is not None and value != served:
            arguments.refuse(f"{name} {value} {beside}", f"leave {name} out")
    if ranks > groups:
        yield f"tensor_parallel: {ranks // groups} # --tp-size" + (", --attn-dp-size" if groups > 1 else "")


def _shape(arguments: Arguments, server: Started, wanted: Wanted) -> list[str]:
    """Return the lines of what is drafted, in one shape or in several, and of a tree's mask."""
    sizes = {"num_steps": server.num_steps, "topk": server.topk, "num_draft_tokens": server.num_draft_tokens}
    lines = [f"{key}: {size.value} # {size.origin}" for key, size in sizes.items()]
    several = wanted.shapes or len(wanted.proposed) > 1 or len(server.facts.candidates) > 1
    if wanted.states != "engine" and several:
        arguments.refuse(f"--states {wanted.states} with several shapes", "leave --states out")
    kept = server.facts.target
    if wanted.states != "engine" and RECORDS in arguments.values and kept is not None and kept.state in (GDN, KDA):
        arguments.refuse(f"--states {wanted.states} with {RECORDS}", "leave one of them out")
    candidates = server.facts.candidates
    if candidates:
        _check_candidates(arguments, candidates, wanted.shapes)
        lines = [f"shapes: # {ADAPTIVE}", *(f"  - {{num_steps: {steps}}}" for steps in reversed(candidates))]
    elif wanted.shapes:
        lines = _of_shapes(arguments, _shapes(arguments, server, listed(wanted.shapes) or [wanted.shapes]), wanted)
    if len(wanted.proposed) > 1:
        lines = ["shapes: # by an estimate", *written(wanted.proposed)]
    if server.facts.mask is None:
        return lines
    lines.append(f"mask: {server.facts.mask} # what {server.attention['verify'].value} attention reads")
    length = arguments.number("--context-length")
    if length is not None and server.facts.mask == "full":
        longest = SGLANG.longest(length, int(server.num_steps.value))
        lines.append(f"context_length: {longest} # --context-length {length}, and room for two steps")
    return lines


def _check_candidates(arguments: Arguments, candidates: Sequence[int], shapes: str) -> None:
    """Report shapes that are others than the numbers of steps among which the server changes."""
    own = {str(steps) for steps in candidates}
    if shapes and {*listed(shapes)} != own:
        message = f"--shapes '{shapes[:60]}' is not {', '.join(map(str, candidates))}, the candidates of {ADAPTIVE}"
        arguments.wrong(message, f"leave --shapes out, or {ADAPTIVE}, for the server as well")


def _of_shapes(arguments: Arguments, shapes: Sequence[Shape], wanted: Wanted) -> list[str]:
    """Return the lines of shapes: a list, or what all have that have the budgets of a key."""
    if not wanted.budget:
        return ["shapes: # --shapes", *(f"  - {{{sizes(shape)}}}" for shape in shapes)]
    if len(shapes) == 1:
        return [f"{size} # --shapes" for size in sizes(shapes[0]).split(", ")]
    if any(shape.is_tree for shape in shapes):
        arguments.refuse("--budget with a tree beside other --shapes", "leave --budget out")
    return [f"num_steps: {sorted(shape.num_steps for shape in shapes)} # --shapes"]


def _called(names: Sequence[str]) -> list[Shape]:
    """Return the shapes of those names that are one's."""
    return [shape for name in names if (shape := shape_called(name)) is not None]


def _shapes(arguments: Arguments, server: Started, names: Sequence[str]) -> Sequence[Shape]:
    """Return the shapes of these names, after reporting those of which the server's own is not the largest."""
    shapes = _called(names)
    if len(shapes) < len(names):
        unread = next(name for name in names if shape_called(name) is None)
        hint = "names are such as 3 of a chain of 3 drafts, 0, and 5x4x8 of 5 steps, topk 4 and 8 nodes"
        arguments.wrong(f"--shapes '{unread[:60]}' is not the name of a shape", hint)
        return ()
    largest = tuple(map(max, zip(*(shape[:3] for shape in shapes), strict=True)))
    own = tuple(int(size.value) for size in (server.num_steps, server.topk, server.num_draft_tokens))
    if (largest[1:] != own[1:]) if server.kind.own_branches else (largest != own):
        hint = "start the server with " + " ".join(server.kind.arguments(*largest))
        arguments.wrong("the server's own shape is not the largest of --shapes in steps, topk and nodes", hint)
    for what in server.facts.single if len(shapes) > 1 else ():
        arguments.refuse(f"--shapes with {what}", "leave --shapes out")
    return shapes


def _check_sampled(arguments: Arguments, wanted: Wanted) -> None:
    """Report what makes SGLang draw tokens otherwise than a program."""
    asked = listed(wanted.sampling)
    if not wanted.draws and not asked:
        return
    for name in THRESHOLDS:
        if arguments.text(name, "1.0") not in ("1", "1.0"):
            arguments.refuse(f"{name} {arguments.text(name)[:60]} with sampling", f"leave {name} out, or write 1.0")
    backend = arguments.text("--grammar-backend", _GRAMMARS[0])
    if "grammar" in asked and backend not in _GRAMMARS:
        arguments.refuse(f"--grammar-backend {backend[:60]} with grammars", f"there are {', '.join(_GRAMMARS)}")


def _returned(arguments: Arguments, wanted: Wanted) -> dict[str, str]:
    """Return the outputs that answers are made of, with their arguments, after reporting one that nobody asks for."""
    for name, output in RETURNED.items():
        if output in listed(wanted.outputs) and name not in arguments.values:
            arguments.wrong(f"--outputs {output} is for a server with {name}", f"write {name}, for the server as well")
    return {output: name for name, output in RETURNED.items() if name in arguments.values}


def _model(arguments: Arguments, server: Started, role: str, wanted: Wanted) -> list[str]:
    """Return the lines of one model."""
    directory, facts = server.models[role]
    origin = "--model-path" if role == "target" else server.draft_origin
    lines = [f"{role}:", f"  model: {quoted(named(directory))} # {origin}"]
    if role == "draft":
        lines += [*_token_map(arguments, server, wanted), *_modules(server, facts)]
    lines += sizes_of(facts, chain=server.topk.value == 1)
    lines += _columns(arguments, facts) if wanted.logits == "sharded" else []
    dtype, why = _dtype(arguments, server, role)
    own = facts.facts.get("dtype")
    lines += [] if own is not None and own.value == dtype else [f"  dtype: {dtype} # {why}"]
    return [*lines, *_kv_dtype(arguments, ("--kv-cache-dtype",) if role == "target" else _DRAFT_KV)]


def _modules(server: Started, draft: ModelFacts) -> Iterator[str]:
    """Return the line of how many modules draft, where the draft does not say how many it has."""
    if "num_mtp_modules" in draft.facts:
        return
    own = modules_of(draft)
    if server.kind.each_step:
        yield f"  num_layers: {server.num_steps.value} # {server.kind.each_step}"
    elif server.kind.head and own is not None and isinstance(own.count, int):
        yield f"  num_layers: {own.count} # as many as {own.architecture} has, SGLang's class for its modules"


def _columns(arguments: Arguments, facts: ModelFacts) -> list[str]:
    """Return the line of the columns of all ranks' logits; none where the model does not say how many tokens it has."""
    whole, ranks = facts.facts.get("vocab_size"), arguments.number("--tp-size") or 1
    tokens = facts.facts.get("draft_vocab_size", whole)
    if tokens is None:
        return []
    columns = SGLANG.columns(int(tokens.value), ranks)
    return [f"  padded_vocab_size: {columns} # the head of {tokens.value} tokens, as SGLang pads it for {ranks} ranks"]


def _token_map(arguments: Arguments, server: Started, wanted: Wanted) -> list[str]:
    """Return the line of the map by which SGLang takes rows of some heads, of no other draft."""
    written, counts = arguments.text("--speculative-token-map"), server.kind.token_maps.get(server.algorithm)
    if not written or counts is False:  # SGLang leaves a map out of a head that has its own
        return []
    if not counts:
        hint = "leave it out: SGLang's head scores all tokens"
        arguments.refuse(f"--speculative-token-map of {server.algorithm}", hint)
    if wanted.token_map is not None:
        message = "--token-map and --speculative-token-map both say which tokens are drafted"
        arguments.wrong(message, "leave one of them out: the second cuts the head of SGLang's own step as well")
    try:
        path = path_of(written)
    except PathError as error:
        arguments.wrong(f"--speculative-token-map '{written[:80]}' is not a path: {error}")
        return []
    if counts and not path.is_file():
        hint = "download it, and give the file: names of the Hub are not looked up"
        arguments.wrong(f"--speculative-token-map '{written[:200]}' is not a file", hint)
    return [f"  token_map: {quoted(str(path.resolve()))} # --speculative-token-map"]


def _dtype(arguments: Arguments, server: Started, role: str) -> tuple[str, str]:
    """Return the element type of a model, and why, after reporting one that the server cannot run."""
    target, written = server.models["target"][1], arguments.text("--dtype", "auto")
    if (forced := forced_dtype(target)) is not None:
        return forced
    if written != "auto":
        if written not in DTYPES and role == "target":
            arguments.wrong(f"--dtype '{written[:60]}' is unknown", f"there are auto, {', '.join(DTYPES)}")
        return DTYPES.get(written, written), f"--dtype {written}"
    own, (others, _) = own_dtype(server.models[role][1]), own_dtype(target)
    if role == "draft" and not server.kind.own_dtype and own[0] != others:
        message = f"with --dtype auto the head is of {own[0]} and its target of {others}, and SGLang's step fails"
        arguments.wrong(message, f"write --dtype {others}, for the server as well: both are then of that")
    return own


def forced_dtype(target: ModelFacts) -> tuple[str, str] | None:
    """Return the element type in which SGLang runs a target and its draft whatever is written, and why; or None."""
    quantised = target.facts.get("quant_method")
    if architecture_of(target.values) == "GptOssForCausalLM" and quantised is not None and quantised.value == "mxfp4":
        return "bfloat16", "SGLang runs a target of mxfp4 in it, and its draft"
    return None


def own_dtype(model: ModelFacts) -> tuple[str, str]:
    """Return the element type of a model that nothing is said of, and why."""
    own = model.facts.get("dtype")
    if own is not None and own.value != "float32":
        return str(own.value), own.origin
    halved = "bfloat16" if model.model_type.startswith("gemma") else "float16"
    return halved, "--dtype auto: SGLang runs models of float32 in 16 bits"


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

"""The configuration of a program for a server of vLLM, each value with where it comes from."""

from __future__ import annotations

from dataclasses import replace

from specc.compiler.config.layer_sizes import sizes_of
from specc.compiler.config.models import Fact
from specc.compiler.config.models.hub import named
from specc.compiler.config.proposal import quoted, yaml_of
from specc.compiler.config.resolved import Config
from specc.compiler.config.wanted import Wanted
from specc.engines.pasted import check_of_draft, configuration_name, served_by_program
from specc.engines.vllm.check.command_line import SPECULATION, Arguments
from specc.engines.vllm.check.preset import VLLM
from specc.engines.vllm.check.server import Started
from specc.engines.vllm.check.speculation import numbers
from specc.engines.vllm.served import ADAPTIVE, BLOCK, PROBABILISTIC

USUAL = "target_only"
"""The key `verify` where nothing says another one."""


def configuration(arguments: Arguments, server: Started, wanted: Wanted) -> str:
    """Return the YAML of the program that a server with these arguments runs.

    Raises DiagnosticError with all that is missing or cannot be read.
    """
    drafting, (buckets, origin) = server.drafting, server.buckets
    wanted = _verified(arguments, server, wanted)
    name = configuration_name(arguments, wanted.name, f"vllm_{server.algorithm.lower()}")
    coupled = wanted.draws and not wanted.weighs and drafting.draft is not None and not _is_partial(server, wanted)
    lines = [
        f"# Written for a server of {VLLM.title} from its arguments.",
        f"name: {name}",
        "engine: vllm",
        f"algorithm: {server.algorithm} # method {drafting.method.value}: {drafting.method.origin}",
        _num_steps(arguments, drafting.num_steps),
        "topk: 1 # vLLM has no trees",
        f"page_size: {server.page_size.value} # {server.page_size.origin}",
        f"max_requests: {server.max_requests.value} # {server.max_requests.origin}",
        f"buckets: {list(buckets)} # {origin}",
        f"archs: [{server.gpu.arch}] # {server.gpu.origin}",
        *([f"tensor_parallel: {server.ranks} # --tensor-parallel-size"] if server.ranks > 1 else []),
        *([f"budget: given # {SPECULATION}.{ADAPTIVE}"] if server.facts.adaptive else []),
        *wanted.lines(),
        *(["draft_sampling: coupled # drafts use the noise that verifies them"] if coupled else []),
        *_look_ups(arguments, server),
        *_model(server, "target", "--model"),
        *(_model(server, "draft", drafting.draft_origin) if drafting.draft is not None else []),
        *(wanted.of_draft() if drafting.draft is not None else []),
    ]
    facts = None if drafting.draft is None else server.models["draft"][1].facts
    check_of_draft(arguments, wanted, facts, "drafts are looked up")
    arguments.findings.raise_if_errors()
    return yaml_of(lines)


def _verified(arguments: Arguments, server: Started, wanted: Wanted) -> Wanted:
    """Return what is wanted, with the key `verify` as the server draws drafts and weighs them; others are reported."""
    own = server.facts.weighs
    name = f"{SPECULATION}.draft_sample_method"
    if own is not None and server.facts.kind is not None and wanted.of_draft():
        arguments.refuse(f"--head {wanted.head} beside drafts that are drawn ({name})", "leave --head out")
    if server.facts.adaptive and wanted.of_draft():
        hint = "leave --head out: confidences are made of scores by vLLM's own head"
        arguments.refuse(f"--head {wanted.head} beside adaptive verification", hint)
    if wanted.verify is None:
        settings = server.facts.settings
        together = settings.get("rejection_sample_method") == BLOCK
        weighed_by = f"{SPECULATION}.rejection_sample_method" if together else name
        return replace(wanted, verify=own or USUAL, verified_by=weighed_by if own else "--verify")
    if wanted.weighs != (own is not None):
        hint = "leave --verify out" if own else f'write {name} "{PROBABILISTIC}", for the server as well'
        beside = f"{name} {PROBABILISTIC if own else 'greedy'}"
        arguments.refuse(f"--verify {wanted.verify} beside {beside}", hint)
    return wanted


def served(config: Config) -> str:
    """Return in a line which requests a program of this configuration serves."""
    return served_by_program(config, "vLLM", ("temperature",), ("logprobs", "logprobs"))


def _is_partial(server: Started, wanted: Wanted) -> bool:
    """Whether a head that the program computes has a part of the tokens, as the draft's own vocabulary or on a rank."""
    facts = server.models["draft"][1].facts
    whole, part = (facts[key].value if key in facts else None for key in ("vocab_size", "draft_vocab_size"))
    partial = wanted.token_map is not None or part not in (None, whole)
    return bool(wanted.of_draft()) and (partial or server.ranks > 1)


def _num_steps(arguments: Arguments, most: Fact) -> str:
    """Return the line of how many drafts a step has, of several where the server has a table of numbers."""
    several = numbers(arguments, int(most.value))
    if several == [most.value]:
        return f"num_steps: {most.value} # {most.origin}"
    return f"num_steps: {several} # {most.origin}, and its _per_batch_size"


def _look_ups(arguments: Arguments, server: Started) -> list[str]:
    """Return the lines of what is looked up, after reporting that nothing says how long a text may be."""
    kind = server.facts.kind
    if kind is None or not kind.whole_text:
        return []
    if server.longest is None:
        hint = "write --max-model-len, for the server as well"
        arguments.wrong("drafts are looked up in as many tokens as a text may have, and nothing says how many", hint)
        return []
    options = {kind.whole_text: server.longest.value, **server.drafting.options}
    said = ", ".join(f"{name}: {value}" for name, value in options.items())
    return [f"options: {{{said}}} # {server.longest.origin}, {kind.origin}"]


def _model(server: Started, role: str, origin: str) -> list[str]:
    """Return the lines of one model."""
    directory, facts = server.models[role]
    lines = [f"{role}:", f"  model: {quoted(named(directory))} # {origin}"]
    own = facts.facts.get("dtype")
    if role == "target" and (own is None or own.value != server.dtype.value):
        lines.append(f"  dtype: {server.dtype.value} # {server.dtype.origin}")
    if role == "draft" and directory == server.models["target"][0] and "num_mtp_modules" not in facts.facts:
        lines.append("  num_layers: 1 # the module of this type of model")
    return [*lines, *sizes_of(facts, chain=True)]

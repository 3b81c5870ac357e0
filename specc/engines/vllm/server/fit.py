"""Whether a program is the one that a server's arguments and models describe."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ..._drawn import weighs
from ..._heads import TOKEN_MAP
from .. import seam
from ..requests.proposals import logits_dtypes
from ..served import ADAPTIVE, KindOfDraft, Server, facts, is_assistant, refusals
from ..tables import SHARE


def misfits(plans: Mapping[Any, Any], config: Any, kind: type, served: Collection[type]) -> list[str]:
    """What is in the way of running a program in a server of this VllmConfig; nothing if it fits.

    `plans` are the program's by shape, the deepest first; `kind` is the class of the server's own speculator, `served`
    are those that a program may stand for.
    """
    if kind not in served:
        names = ", ".join(sorted(drafter.__name__ for drafter in served))
        return [f"drafts are those of {kind.__name__}, served are {names}"]
    plan, spec = next(iter(plans.values())), config.speculative_config
    server = facts(config)
    faults = [*map(str, refusals(server)), *_arguments(plan, config, server), *_models(plan, config)]
    faults += [*_drawn(plan, config, server), *_shared(plan, server)]
    if lacking := sorted(numbers(spec) - {shape.num_steps for shape in plans}):
        known, asked = (", ".join(map(str, sorted(some))) for some in ((shape.num_steps for shape in plans), lacking))
        faults.append(f"num_speculative_tokens_per_batch_size asks for {asked} drafts, num_steps is {known}")
    return faults


def numbers(speculative: Any) -> frozenset[int]:
    """The numbers of drafts that a server's table by batch size has, of its SpeculativeConfig; none without one."""
    most, table = speculative.num_speculative_tokens, speculative.num_speculative_tokens_per_batch_size
    return frozenset(min(most, drafts) for _, _, drafts in table or ())


def _arguments(plan: Any, config: Any, server: Server) -> Iterator[str]:
    spec, most = config.speculative_config, config.scheduler_config.max_num_seqs
    if (told := plan.runs_as or plan.algorithm) != server.algorithm:
        yield f"the program is of {told}, the server's method is {server.drafting}"
    if plan.size("S") != spec.num_speculative_tokens:
        yield f"num_steps is {plan.size('S')} in the program, {spec.num_speculative_tokens} in the server"
    if most > plan.size("P") - 1:
        yield f"the server keeps {most} requests, the program {plan.size('P') - 1} (max_requests)"
    if plan.buckets[-1] > most:
        yield f"the largest bucket is {plan.buckets[-1]}, the server keeps {most} requests (max_num_seqs)"
    ranks = config.parallel_config.tensor_parallel_size
    if plan.computes_head and plan.ranks != ranks:
        yield f"tensor_parallel is {plan.ranks} in the program, tensor_parallel_size is {ranks} in the server"
    if server.kind is not None and told == server.algorithm:
        yield from _options(plan, server.kind, config)


def _shared(plan: Any, server: Server) -> Iterator[str]:
    """Tell where a server's requests have other numbers of rows than the program knows of."""
    if server.adaptive and SHARE not in plan.inputs:
        yield f"every request has a row for all drafts in the program, the server has {ADAPTIVE}: write budget: given"
    if SHARE in plan.inputs and not seam.there(seam.SHARES):
        yield "budget is given in the program, and this vLLM does not say how many rows a request has"


def _drawn(plan: Any, config: Any, server: Server) -> Iterator[str]:
    """Tell where program and server draw or weigh drafts in different ways."""
    spec, mine = config.speculative_config, weighs(plan)
    if mine != (server.weighs is not None):
        how = "drawn and weighed" if mine else "not weighed by what they are drawn from"
        yield f"drafts are {how} in the program, draft_sample_method is {spec.draft_sample_method} in the server"
    elif mine and plan.computes_head:
        yield "drafts are drawn from a head that the program computes, and the server keeps scores of its own"
    elif mine and not (server.kind is not None and server.kind.rescores):
        (drawn,), kept = logits_dtypes(plan), config.model_config.head_dtype
        if drawn != kept:
            yield f"drafts are drawn from {drawn} in the program, the server keeps {kept}"


def _options(plan: Any, kind: KindOfDraft, config: Any) -> Iterator[str]:
    """What differs in the options that vLLM has keys for, by the program's names and vLLM's."""
    wanted = {kind.whole_text: ("max_model_len", config.model_config.max_model_len)} if kind.whole_text else {}
    wanted |= {mine: (key, getattr(config.speculative_config, key)) for mine, key in kind.written.items()}
    for mine, (argument, value) in wanted.items():
        if plan.options[mine] != value:
            yield f"options.{mine} is {plan.options[mine]} in the program, {argument} is {value} in the server"


def _models(plan: Any, config: Any) -> Iterator[str]:
    models = {"target": config.model_config, "draft": config.speculative_config.draft_model_config}
    for role, mine in plan.models.items():
        model, dtype = models[role], str(models[role].dtype).removeprefix("torch.")
        dtype = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}.get(dtype, dtype)
        # Heads of a part of the tokens hand over scores of all, unless the program computes them.
        sizes = {"vocab_size": config.model_config.get_vocab_size(), "hidden_size": _width(model)}
        if role == "draft" and TOKEN_MAP in plan.tables():  # of the model's own, or by a file
            own = getattr(model.hf_config, "draft_vocab_size", None)
            sizes["vocab_size"] = mine.vocab_size if own in (None, sizes["vocab_size"]) else own
        kinds = {"dtype": dtype} if role == "draft" and plan.computes_head else {"dtype": dtype, "logits_dtype": dtype}
        for name, server_value in (sizes | kinds).items():
            if getattr(mine, name) != server_value:
                yield f"{name} of the {role} is {getattr(mine, name)} in the program, {server_value} in the server"


def _width(model: Any) -> int:
    """How wide the hidden states of a ModelConfig are; vLLM says of an assistant how wide those are that it reads."""
    assistant = is_assistant(getattr(model.hf_config, "model_type", ""))
    width: int = model.hf_text_config.hidden_size if assistant else model.get_hidden_size()
    return width

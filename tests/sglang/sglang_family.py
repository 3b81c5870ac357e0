"""Engines of a family of models of its own, and what holds of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_fixtures import asked, started
from engine_job import LIMIT_S
from head_layouts import EXAMPLES
from sglang_files import EXACT, ON_GPU
from sglang_lora import ADAPTERS, merged, with_adapters
from sglang_mixed import Oracle
from sglang_programs import build_program
from sglang_server import PLANNED, PREFILL_CHUNK, THROWN_OUT, Served, Variant, accept_length, greedy, serve
from sglang_workload import without_aborts, workload
from transformers import AutoModelForCausalLM, AutoTokenizer

NEAR, BEST = 2**-5, 0.97
"""In 16 bits: how far below the best score that of an emitted token may be, as a part of it; and how many are best."""

ALIKE = 0.05
"""Where near ties may go either way: how much sooner answers may part from those without speculation than those of
SGLang's own step."""

in_float32 = pytest.mark.skipif(not EXACT, reason="in 16 bits a near tie may go either way")
in_16_bits = pytest.mark.skipif(EXACT, reason="in float32 texts are the same")

FEWER = 60
"""Requests where a part of them is enough."""
UNCACHED = {"disable_radix_cache": True}
"""SGLang's cache of prefixes shifts no prompt for STANDALONE drafts (docs/sglang-figures.md): what a draft reads of a
kept one depends on which prompt filled it last, and so on how busy the machine is. Its engines keep none."""

ADAPTED = {"enable_lora": True, "max_loras_per_batch": 3, **({} if ON_GPU else {"lora_backend": "torch_native"})}
"""So few adapters in memory, of which none is one, that some are thrown out for others."""


Apart = Callable[[Mapping[str, Any], Mapping[str, Any]], bool]
"""Says of a request and its answer that the text is not compared."""


def none_apart(request: Mapping[str, Any], output: Mapping[str, Any]) -> bool:
    """All texts are compared."""
    return False


@dataclass(frozen=True)
class Family:
    """Models, and engines of them that serve the same requests; none is aborted in the one without speculation.

    Attributes:
        alone: the engine without speculation, whose texts are those of all.
        programs: engines with a program.
        write: writes the models into a folder.
        requests: made for the folder with the models; see `serve.py`.
        own: the engine that drafts the same without a program; by default that of each program on one rank.
        arguments: arguments of every engine beside those of its variant.
        adapters: names of those that every engine is given, folders beside the models (LoRA).
        settings: environment variables of those with a program.
        anew: whether requests begin anew after every few forwards, though there is room for all.
        left: why steps may be left to SGLang.
        pools: SGLang's classes of the memory of target and draft, by the algorithm; empty if they are not looked at.
        accepted: what the mean accepted length of all is above.
        apart: whether the text of a request, with its answer, is not compared.

    """

    alone: Variant
    programs: Sequence[Variant]
    write: Callable[[Path], object]
    requests: Callable[[Path], Sequence[Mapping[str, Any]]]
    own: Variant | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    adapters: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    anew: bool = False
    left: frozenset[str] = frozenset({"logprobs", "sampling"})
    pools: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    accepted: float = 1.5
    apart: Apart = none_apart

    def __str__(self) -> str:
        """The target's name, for the names of tests and of parts of them."""
        return self.alone.target

    def own_of(self, program: Variant) -> Variant:
        """The engine that drafts as a program does, without any; on one rank where that changes no text.

        It overlaps where SGLang does not start otherwise, since it plans the places of states.
        """
        alone = {} if ON_GPU else {"ranks": 1, "groups": 1, "experts": False}
        changed = {"overlap": program.kept == PLANNED, "samples": False, "states": "engine"}
        return self.own or replace(program, program=False, **changed, **alone)


@dataclass(frozen=True)
class Running:
    """A family's folder of models, and what its engines answered."""

    models: Path
    answers: Mapping[Variant, Future[Served]]

    def of(self, variant: Variant) -> Served:
        """What an engine answered, once it has."""
        return self.answers[variant].result()


class FamilyTests:
    """What holds of all families: a file has it as a class of its own, with its engines; `conftest.py` hands them out.

    Attributes:
        compared: families with an engine each, of SGLang's own step as well where nobody else tests it.
        beside: families with a program each, and the engine of SGLang's own step that drafts as it does.

    """

    compared: Sequence[tuple[Family, Variant]]
    beside: Sequence[tuple[Family, Variant, Variant]]

    @in_float32
    def test_texts_are_those_without_speculation(self, family: Family, engine: Variant, engines: Running) -> None:
        """Requests that were thrown out or aborted count, too."""
        same_texts(engines.of(engine), engines.of(family.alone), apart=family.apart)

    @in_16_bits
    def test_texts_part_in_16_bits_no_sooner_than_sglangs_own(
        self, family: Family, engine: Variant, own: Variant, engines: Running
    ) -> None:
        """As far as near ties let texts be the same."""
        as_alike(engines.of(engine), engines.of(own), engines.of(family.alone))

    def test_every_slot_and_row_is_free_or_cached_at_the_end(
        self, family: Family, engine: Variant, engines: Running
    ) -> None:
        """Of every group of ranks, after steps in which drafts were accepted."""
        served = engines.of(engine)
        for group in groups_of(served):
            all_accounted_for(group)
        assert accept_length(served) > family.accepted

    def test_the_program_accepts_as_much_as_sglangs_own_step(
        self, engine: Variant, own: Variant, engines: Running
    ) -> None:
        """By texts that are the same."""
        accepts_as_much(engines.of(engine), engines.of(own), apart=0.03)


def groups_of(served: Served) -> list[Mapping[str, Any]]:
    """What `specc_testing` has of each group of ranks with requests of their own: of one, where all have the same."""
    return [*served.state["groups"].values()]


def start(family: Family, pool: ThreadPoolExecutor, tests: Iterable[pytest.Item], models: Path, jobs: Path) -> Running:
    """Its engine without speculation, and those that some tests ask for as `engine` or `own`."""
    family.write(models)
    requests = family.requests(models)

    def run(variant: Variant) -> Served:
        engine = {**variant.engine(models), **family.arguments}
        if variant.algorithm == "STANDALONE":
            engine |= UNCACHED
        if family.adapters:
            engine |= adapted(models, family.adapters)
        wheel = build_program(engine, jobs / f"{variant}-wheel", *variant.options) if variant.program else None
        settings, job = {**(family.settings if variant.program else {})}, jobs / f"{variant}-job"
        settings |= THROWN_OUT if family.anew and variant.algorithm else {}
        of_all = without_aborts(requests) if variant == family.alone else requests
        limit_s = LIMIT_S * -(-variant.ranks // 2)
        return serve(engine, of_all, job, overlap=variant.overlap, wheel=wheel, settings=settings, limit_s=limit_s)

    of_these = [variant for variant in asked(tests, "engine", "own") if variant.target == family.alone.target]
    return Running(models, started(pool, [family.alone, *of_these], run))


def adapted(models: Path, names: Iterable[str]) -> dict[str, Any]:
    """Arguments of an engine whose requests may have adapters of these names, folders beside the models."""
    return ADAPTED | {"lora_paths": [f"{name}={models / name}" for name in names]}


def of_merged_weights(family: Family, engines: Running) -> None:
    """Without speculation every third text is that of the weights that its adapter changes, by transformers.

    The target's own would say something else.
    """
    oracles = {name: Oracle(merged(engines.models, str(family), name)) for name in (None, *family.adapters)}
    answers, others = [*greedy(engines.of(family.alone))][::3], 0
    for number, request, output in answers:
        prompt, answer = request.get("input_ids") or oracles[None].tokens(request["text"]), output["token_ids"]
        assert oracles[request["adapter"]].follow(prompt, answer), number
        others += not oracles[None].follow(prompt, answer)
    assert others > len(answers) / 3


def serve_adapted(program: Variant, models: Path, folder: Path) -> tuple[Served, Served]:
    """What a program and an engine without speculation answer to the same requests, most of which have adapters."""
    requests = with_adapters(without_aborts(workload(FEWER, seed=7)), seed=7)
    adapters = adapted(models, ADAPTERS)
    engine, alone = (variant.engine(models) | adapters for variant in (program, Variant(target=program.target)))
    wheel = build_program(engine, folder / "wheel", *program.options)
    served = serve(engine, requests, folder / "job", overlap=program.overlap, wheel=wheel, settings=THROWN_OUT)
    return served, serve(alone, requests, folder / "alone")


def same_texts(served: Served, alone: Served, apart: Apart = none_apart) -> None:
    """Greedy requests have the texts of an engine that does not speculate, though some were thrown out.

    Those of aborted requests as far as both go: SGLang does not cut their last step where the text would end.
    """
    for number, request, output in greedy(served):
        expected = alone.outputs[number]
        if apart(request, output):
            continue
        if output["finish_reason"]["type"] == "abort":
            tokens, whole = output["token_ids"], expected["token_ids"]
            assert len(tokens) >= request["abort_after"], number
            assert tokens[: len(whole)] == whole[: len(tokens)], number
        else:
            for key in ("token_ids", "text", "finish_reason"):
                assert output[key] == expected[key], (number, key)
    assert sum(output["num_retractions"] for output in served.outputs) > 0


def same_logprobs(served: Served, alone: Served) -> None:
    """Requests that want log-probabilities have those of an engine that does not speculate."""
    asked = [number for number, request in enumerate(served.requests) if request.get("logprobs")]
    assert len(asked) > 5
    for number in asked:
        logprobs, expected = (run.outputs[number]["logprobs"] for run in (served, alone))
        assert [token for _, token in logprobs] == served.outputs[number]["token_ids"]
        assert [value for value, _ in logprobs] == pytest.approx([value for value, _ in expected], abs=1e-3), number


def best_in_16_bits(served: Served) -> None:
    """On a GPU greedy requests have the tokens that the target of `write_models` scores best, by transformers' float32.

    Near ties may go either way, and a text goes on from the one it took.
    """
    model = AutoModelForCausalLM.from_pretrained(EXAMPLES / "target", dtype=torch.bfloat16).to("cuda", torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLES / "target")
    best, emitted = 0, 0
    for number, request, output in greedy(served):
        prompt, answer = tokenizer(request["text"]).input_ids, output["token_ids"]
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + answer], device="cuda")).logits[0, len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(answer, device="cuda")[:, None])[:, 0]
        most = logits.max(-1).values
        assert bool((most - chosen <= NEAR * most.abs()).all()), number
        best, emitted = best + int((chosen == most).sum()), emitted + len(answer)
    assert best > BEST * emitted


def as_alike(served: Served, own: Served, alone: Served) -> None:
    """Answers part from those without speculation no sooner than those of SGLang's own step."""
    assert alike(served, alone) > alike(own, alone) - ALIKE


def alike(served: Served, alone: Served) -> float:
    """What part of greedy answers comes before they part from those of an engine without speculation."""
    same, whole = 0, 0
    for number, _, output in greedy(served):
        pairs = [*zip(output["token_ids"], alone.outputs[number]["token_ids"], strict=False)]
        same += [*(mine == other for mine, other in pairs), False].index(False)
        whole += len(pairs)
    return same / whole


def accepts_as_much(served: Served, own: Served, apart: float = 0.02) -> None:
    """Requests with the same texts have the accepted length of SGLang's own step, within such a part of it.

    On the whole: what else is in a batch, and when, changes single steps.
    """
    pairs = zip(greedy(served), greedy(own), strict=True)
    same = [mine["token_ids"] == other["token_ids"] for (_, _, mine), (_, _, other) in pairs]
    assert sum(same) > len(same) / (4 if ON_GPU else 2)
    assert accept_length(served, own) == pytest.approx(accept_length(own, served), rel=apart)


def much_happened(served: Served, *, overlap: bool, retractions: int = 0) -> None:
    """The workload did what it is for: more requests were thrown out than that, others aborted, cached, in chunks."""
    outputs = served.outputs
    assert served.state["specc_testing"]["overlap"] == overlap
    assert sum(output["num_retractions"] for output in outputs) > retractions
    assert sum(output["cached_tokens"] for output in outputs) > 1000
    assert max(output["prompt_tokens"] for output in outputs) > 3 * PREFILL_CHUNK
    assert sum(output["finish_reason"]["type"] == "abort" for output in outputs) > 5


def all_accounted_for(state: Mapping[str, Any]) -> None:
    """Every row, and every slot of each pool, is free or cached at the end; `state` is what `specc_testing` has."""
    assert state["idle"]
    for slots in state["slots"]:
        assert slots["free"] + slots["cached"] == slots["owned_once"] == slots["all"]
        assert slots["protected"] == 0
    assert state["rows_free"] == state["rows_free_once"] == state["rows"]

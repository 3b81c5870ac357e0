"""Programs on two ranks inside vLLM: the texts of one rank, and on both the same state after every step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_fixtures import asked, side_by_side, started
from engine_prompts import PREAMBLES, TAILS
from head_layouts import EXAMPLES
from transformers import AutoTokenizer
from vllm_files import ON_GPU
from vllm_models import ASSISTANT, GEMMA
from vllm_programs import build_program, plugin_wheel, same_program, settings
from vllm_server import ROWS, Served, Variant, serve
from vllm_workload import STREAM, greedy, is_greedy, without_aborts, workload

pytestmark = pytest.mark.skipif(ON_GPU, reason="one GPU has one rank")
HEAD = Variant("eagle", "eagle", program=True, drafting="coupled", ranks=2)
"""It draws; each rank has one of two heads of keys and values, of the target and of the draft."""
MODEL = Variant("draft_model", "standalone", ahead=True, program=True, ranks=2)
"""It is greedy; its draft has one head of keys and values, which both ranks keep."""
CHOOSING = Variant("eagle", "eagle", ahead=True, program=True, ranks=2, shapes=(0, 1, 3), shape="auto")
"""It is greedy, and its policy says how many drafts there are, in the process that schedules."""
COMPUTED = [
    replace(MODEL, head="weights"),
    Variant("eagle3", "eagle3_part", ahead=True, program=True, head="weights", ranks=2),
]
"""Ranks share out the head of their draft as vLLM does, or have sent each other the entries of a part of the tokens."""
ASSISTED = Variant("mtp", ASSISTANT, target=GEMMA, ahead=True, program=True, ranks=2)
"""It is greedy, and its draft reads what each rank has of the target's keys and values."""
RECURRENT = Variant(
    "mtp", "qwen3_next", target="qwen3_next", half=True, cached=True, ahead=True, program=True, ranks=2
)  # fmt: skip
"""It is greedy, and each rank keeps half of a recurrent state, at the ends of blocks as well."""
both = pytest.mark.parametrize("ranked", [HEAD, MODEL, ASSISTED, RECURRENT, *COMPUTED], ids=str)
every = pytest.mark.parametrize("ranked", [HEAD, MODEL, ASSISTED, RECURRENT, CHOOSING, *COMPUTED], ids=str)
DRAWN: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 12, "top_p": 0.9},
    {"temperature": 1.2, "repetition_penalty": 1.3},
    {"temperature": 0.7},
]
"""Without seeds of their own: each rank draws one for every request."""
TOKENS = 16


def requests(tokenize: Callable[[str], list[int]]) -> list[dict[str, Any]]:
    """A stream of all kinds, behind it requests that draw, and behind these greedy ones with long answers."""
    made = workload(tokenize, seed=4)[:STREAM]
    for place, kind in enumerate(DRAWN):
        sampling = {"max_tokens": TOKENS, "ignore_eos": True, **kind}
        text = PREAMBLES[place] + TAILS[place]
        made.append({"prompt": tokenize(text), "sampling": sampling, "after": [STREAM - 1, 1]})
    behind = {"after": [len(made) - 1, TOKENS]}
    return [*made, *(greedy(tokenize(TAILS[place]), 40) | behind for place in range(ROWS))]


@pytest.fixture(scope="module")
def engines(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[Variant, Future[Served]]]:
    """One after the other: ranks wait for each other in loops, and two of them keep a small machine busy."""
    made = AutoTokenizer.from_pretrained(EXAMPLES / "target")
    folder, given = tmp_path_factory.mktemp("ranks"), requests(lambda text: made(text).input_ids)
    wanted: list[Variant] = [*dict.fromkeys(asked(request.session.items, "ranked"))]
    alone = [replace(variant, ranks=1) for variant in wanted if variant.drafting]

    def run(variant: Variant) -> Served:
        where = folder / str(variant)
        wheel = build_program(same_program(variant), models, where.with_suffix(".wheel")) if variant.program else None
        asked_for = without_aborts(given) if variant.method is None else given
        return serve(variant.engine(models), asked_for, where, wheel=wheel, settings=settings(variant, models))

    with side_by_side(1) as pool:
        compared = [own(variant) for variant in wanted if not variant.shapes]
        yield started(pool, [*(variant.plain for variant in wanted), *wanted, *alone, *compared], run)


def own(variant: Variant) -> Variant:
    """VLLM's own steps in the same server."""
    return replace(variant.own, drafting="")


def greedy_ones(served: Served) -> list[int]:
    """The requests whose text is determined, and that nobody ends."""
    return [
        number
        for number, request in enumerate(served.requests)
        if is_greedy(request) and "abort_after" not in request
    ]  # fmt: skip


@every
def test_texts_are_those_without_speculation_on_one_rank(ranked: Variant, engines: Any) -> None:
    program_run, plain = engines[ranked].result(), engines[ranked.plain].result()
    numbers = greedy_ones(program_run)
    assert len(numbers) > STREAM / 2
    for number in numbers:
        assert program_run.outputs[number]["token_ids"] == plain.outputs[number]["token_ids"], number


@both
def test_accepted_lengths_are_those_of_vllms_own_step_on_two_ranks(ranked: Variant, engines: Any) -> None:
    """At every verification."""
    program_run, own_run = engines[ranked].result(), engines[own(ranked)].result()
    assert own_run.counts is None
    lengths = list[int]()
    for number in greedy_ones(program_run):
        assert program_run.outputs[number]["token_ids"] == own_run.outputs[number]["token_ids"], number
        assert program_run.outputs[number].get("accepted") == own_run.outputs[number].get("accepted"), number
        lengths += program_run.outputs[number].get("accepted", [])
    assert sum(lengths) > 1.3 * len(lengths) > 50


@pytest.mark.parametrize("ranked", [HEAD], ids=str)
def test_texts_that_are_drawn_are_those_of_one_rank(ranked: Variant, engines: Any) -> None:
    """From the same seeds, whatever a sum over ranks is rounded to; how they are distributed is tested on one rank."""
    together, alone = (engines[variant].result() for variant in (ranked, replace(ranked, ranks=1)))
    places = range(STREAM, STREAM + len(DRAWN))
    texts = [[served.outputs[place]["token_ids"] for place in places] for served in (together, alone)]
    assert texts[0] == texts[1]
    assert len({tuple(text) for text in texts[0]}) == len(DRAWN)
    assert all(len(text) == TOKENS for text in texts[0])


@every
def test_the_program_ran_on_both_ranks(ranked: Variant, engines: Any) -> None:
    """One rank counts. That drafts, tokens, lengths and seeds of ranks are alike is looked at after every step."""
    program_run = engines[ranked].result()
    assert program_run.counts is not None
    assert program_run.counts["program_steps"] > program_run.seen["steps"] / 3
    assert len(program_run.seen["speculators"]) == 2
    assert len({*program_run.seen["speculators"]}) == 1
    assert program_run.seen["speculators"][0].endswith("Drafts")
    assert program_run.log.count("runs the decode steps") == 1
    assert program_run.seen["mixed"] > 0
    assert program_run.seen["free_blocks"] == program_run.seen["num_blocks"] - 1


@pytest.mark.parametrize("ranked", [CHOOSING, replace(CHOOSING, shape="1")], ids=str)
def test_ranks_follow_the_policy_of_the_process_that_schedules(ranked: Variant, engines: Any) -> None:
    """It counts by times of the first rank, or has one number by name; left alone, ranks would draft the most."""
    program_run = engines[ranked].result()
    ran = {int(shape) for shape, steps in program_run.counts["by_shape"].items() if steps}
    assert ran <= {*ranked.shapes} if ranked.shape == "auto" else ran == {int(ranked.shape)}
    assert program_run.log.count("specc: milliseconds of a step") == int(ranked.shape == "auto")


DRIFTING = """
def register():
    from vllm.distributed.parallel_state import get_tp_group
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    sample = GPUModelRunner.sample_tokens

    def drifting(self, *given, **named):
        done = sample(self, *given, **named)
        self.req_states.draft_tokens[:, 0] += get_tp_group().rank_in_group
        return done

    GPUModelRunner.sample_tokens = drifting
"""


def test_ranks_that_are_not_alike_end_the_job(models: Path, tmp_path: Path) -> None:
    """So that they are looked at: one has other drafts here."""
    job = Variant("eagle", "eagle", ranks=2).engine(models), [greedy([5, 6, 7], 8)], tmp_path / "job"
    with pytest.raises(RuntimeError, match="watched_state of ranks"):
        serve(*job, wheel=plugin_wheel(DRIFTING, tmp_path))


ODD = """
import sys

PROGRAMS = ("specc_program_served", "specc_program_other")

def register():
    from vllm import plugins
    from vllm.v1.worker.gpu_worker import Worker

    made = Worker.__init__

    def begin(self, *given, **named):
        made(self, *given, **named)
        programs = plugins.specc_programs
        {odd}

    Worker.__init__ = begin
"""
ANOTHER = "programs[:] = [program for program in programs if program.__name__ == PROGRAMS[self.rank]]"
NONE = "programs[:] = [program for program in programs if program.__name__ == PROGRAMS[0] and not self.rank]"
UNBOUND = """programs[:] = [program for program in programs if program.__name__ == PROGRAMS[0]]
        drafts = [name for name in sys.modules if name.startswith("specc_program_") and name.endswith("_vllm.drafts")]
        for name in drafts if self.rank else ():
            sys.modules[name].Steps = vars(sys.modules[name])["Steps"] and None"""


@pytest.mark.parametrize(
    ("odd", "difference"),
    [
        (ANOTHER, r"the program is specc_program_served \S+ on rank 0, specc_program_other \S+ on rank 1"),
        (NONE, r"the program is specc_program_served \S+ on rank 0, None on rank 1"),
        (UNBOUND, "a bound program is True on rank 0, False on rank 1"),
    ],
    ids=["another", "none", "unbound"],
)
def test_ranks_that_would_run_other_steps_run_vllms(odd: str, difference: str, models: Path, tmp_path: Path) -> None:
    """On all ranks, and the log says why, once."""
    variant = Variant("eagle", "eagle", program=True, ranks=2)
    wheels = [build_program(same_program(variant), models, tmp_path / "served")]
    wheels.append(build_program(same_program(variant), models, tmp_path / "other", buckets=(1, 2), name="other"))
    wheel = plugin_wheel(ODD.format(odd=odd), tmp_path, wheels)
    job = variant.engine(models), [greedy([5, 6, 7], 8)], tmp_path / "job"
    served = serve(*job, wheel=wheel, settings={"SPECC_PROGRAM": ""})
    lines = [line for line in served.log.splitlines() if "ranks would not run the same steps" in line]
    (line,) = lines
    assert re.search(f"steps: {difference}. vLLM's own steps run", line)
    assert served.counts is None
    assert len(served.outputs[0]["accepted"]) > 1

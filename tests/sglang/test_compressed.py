"""Models of DeepSeek-V4's kind: keys that are compressed beside a window, residual streams, and a module that drafts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from engine_prompts import PREAMBLES
from sglang_compressed import PAGE, WINDOW, write_compressed
from sglang_family import Family, FamilyTests, Running, in_float32
from sglang_files import ON_GPU
from sglang_server import Variant, greedy
from sglang_workload import workload

REQUESTS = 200
LONG, NEARLY = "".join(PREAMBLES) * 2, "".join((*PREAMBLES, *PREAMBLES[:3]))
"""What some prompts begin with: more than a page, which others find then, and nearly one, which answers fill."""
OWN = Variant("EAGLE", "compressed", target="compressed", attention="dsv4", page=PAGE)
COMPRESSED = Family(
    replace(OWN, algorithm=None, draft=""),
    [
        replace(OWN, program=True, overlap=True),
        replace(OWN, program=True, samples=True),
        replace(OWN, program=True, overlap=True, ranks=2),
    ],
    lambda folder: write_compressed(folder / "compressed"),
    lambda _: [behind(number, request) for number, request in enumerate(workload(REQUESTS, seed=3))],
    own=OWN,
    arguments={"max_total_tokens": 16 * PAGE, "chunked_prefill_size": PAGE, "swa_full_tokens_ratio": 0.75},
    anew=True,
    pools={"EAGLE": ["DeepSeekV4TokenToKVPool", "DeepSeekV4TokenToKVPool"]},
)
"""Windows have a KV pool of their own, and entries of 4 and of 128 tokens one each. Some requests are aborted, and some
begin anew with all that they have said."""


def behind(number: int, request: Mapping[str, Any]) -> dict[str, Any]:
    """The same request, if its number is even behind a longer text."""
    return {**request, "text": {0: LONG, 2: NEARLY}.get(number % 4, "") + request["text"]}


FAMILIES = (COMPRESSED,) * (not ON_GPU)
PROGRAMS = [(family, program) for family in FAMILIES for program in family.programs]
COMPARED = [*PROGRAMS, *((family, OWN) for family in FAMILIES)]
each_program = pytest.mark.parametrize(("family", "engine"), PROGRAMS, ids=str)


class TestCompressed(FamilyTests):
    compared, beside = COMPARED, [(family, program, family.own_of(program)) for family, program in PROGRAMS]


@each_program
def test_the_program_ran_the_steps_that_it_serves(family: Family, engine: Variant, engines: Running) -> None:
    state = engines.of(engine).state
    assert state["specc"]["proof"] == "passed"
    assert state["specc"]["served"] > 100
    assert state["specc"]["left"].keys() <= (set() if engine.samples else family.left)
    assert state["specc_testing"]["overlap"] == engine.overlap
    assert state["specc_testing"]["pools"] == family.pools[engine.algorithm]


@in_float32
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_texts_are_longer_than_windows_and_pages(family: Family, engines: Running) -> None:
    """Some in several chunks, and some behind pages that others have left."""
    outputs = [output for _, _, output in greedy(engines.of(family.alone))]
    assert max(output["prompt_tokens"] for output in outputs) > PAGE > WINDOW
    assert sum(output["cached_tokens"] >= PAGE for output in outputs) > 3

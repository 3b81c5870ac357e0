"""Models of DeepSeek-V4's kind: keys that are compressed beside a window, residual streams, a module that drafts.

Those of DeepSeek-V4.1's look n-grams and pictures up, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compressed_models import PAGE, STREAMS, WIDTH, WINDOW, Sizes, write_compressed
from engine_job import specc
from engine_prompts import PREAMBLES
from sglang_family import Family, FamilyTests, Running, as_alike, in_float32
from sglang_files import ON_GPU, printed
from sglang_ngrams import write_ngrams
from sglang_programs import write_program
from sglang_server import Variant, greedy
from sglang_vision import with_pictures
from sglang_workload import workload

REQUESTS, FEWER = 200, int(os.environ.get("SPECC_TEST_REQUESTS", "60"))
OF_RANKS = FEWER // 2
"""Requests where several ranks share a few processors."""
LONG, NEARLY = "".join(PREAMBLES) * 2, "".join((*PREAMBLES, *PREAMBLES[:3]))
"""What some prompts begin with: more than a page, which others find then, and nearly one, which answers fill."""
OWN = Variant("EAGLE", "compressed", target="compressed", attention="dsv4", page=PAGE)
ROOM = {"max_total_tokens": 16 * PAGE, "chunked_prefill_size": PAGE, "swa_full_tokens_ratio": 0.75}
COMPRESSED = Family(
    replace(OWN, algorithm=None, draft=""),
    [replace(OWN, program=True, overlap=True), replace(OWN, program=True, samples=True)],
    lambda folder: write_compressed(folder / "compressed"),
    lambda _: [behind(number, request) for number, request in enumerate(workload(REQUESTS, seed=3))],
    own=OWN,
    arguments=ROOM,
    anew=True,
    pools={"EAGLE": ["DeepSeekV4TokenToKVPool", "DeepSeekV4TokenToKVPool"]},
)
"""Windows have a KV pool of their own, and entries of 4 and of 128 tokens one each. Some requests are aborted, and some
begin anew with all that they have said."""
BLOCK = Variant("DSPARK", "blocks", target="blocks", attention="dsv4", page=PAGE)
FILLED = Family(
    replace(BLOCK, algorithm=None, draft=""),
    [replace(BLOCK, program=True, overlap=True), replace(BLOCK, program=True, samples=True, head="weights")],
    lambda folder: write_compressed(folder / "blocks", blocks=True),
    lambda _: [behind(number, request) for number, request in enumerate(workload(REQUESTS, seed=5))],
    own=BLOCK,
    arguments=ROOM,
    anew=True,
    pools={"DSPARK": ["DeepSeekV4TokenToKVPool", "DeepSeekV4TokenToKVPool"]},
)
"""A draft among the target's own weights that fills in blocks. Its layers see a window of the target's hidden rows."""
SPREAD = Sizes(experts=4, groups=4)
"""Of models that four ranks share out, or two."""
SINGLE = replace(OWN, draft="single", target="single")
SHARED = Family(
    replace(SINGLE, algorithm=None, draft=""),
    [
        replace(SINGLE, program=True, overlap=True, ranks=2),
        replace(SINGLE, program=True, overlap=True, samples=True, ranks=4, experts=True),
    ],
    lambda folder: write_compressed(folder / "single", streams=1, sizes=SPREAD),
    lambda _: [behind(number, request) for number, request in enumerate(workload(OF_RANKS, seed=4, bursts=1))],
    arguments=ROOM,
    anew=True,
)
"""Models with one residual stream, whose heads ranks share out, and once its experts; keys are every rank's."""

PARTED = replace(BLOCK, draft="parted", target="parted")
SHARED_BLOCKS = Family(
    replace(PARTED, algorithm=None, draft=""),
    [replace(PARTED, program=True, overlap=True, ranks=ranks) for ranks in (2, 4)],
    lambda folder: write_compressed(folder / "parted", blocks=True, sizes=SPREAD),
    lambda _: [behind(number, request) for number, request in enumerate(workload(OF_RANKS, seed=6, bursts=1))],
    arguments=ROOM,
    anew=True,
)
"""Ranks have a part each of the target's head, by which blocks are scored, and of what the Markov head adds."""

NGRAMS = Variant("DSPARK", "ngrams", target="ngrams", attention="dsv4", page=PAGE)
LOOKED_UP = Family(
    replace(NGRAMS, algorithm=None, draft=""),
    [replace(NGRAMS, program=True, overlap=True), replace(NGRAMS, program=True, samples=True, head="weights")],
    lambda folder: write_ngrams(folder / "ngrams"),
    lambda folder: seen(folder, FEWER, 7),
    own=NGRAMS,
    arguments=ROOM,
    anew=True,
    pools={"DSPARK": ["DeepSeekV4TokenToKVPool", "DeepSeekV4TokenToKVPool"]},
)
"""Layers hash the last tokens of a text, which a step has to commit. Some requests have pictures."""
TAIL = replace(NGRAMS, draft="tails", target="tails")
TAILS = Family(
    replace(TAIL, algorithm=None, draft=""),
    [replace(TAIL, program=True, overlap=True)],
    lambda folder: write_ngrams(folder / "tails"),
    lambda folder: seen(folder, FEWER, 7),
    own=TAIL,
    arguments=ROOM | {"enable_decoder_swa_bounded_replay": True},
    anew=True,
    apart=lambda _, output: output["prompt_tokens"] + output["completion_tokens"] > WINDOW,
)
"""The same as SGLang does it by itself on a GPU: late layers prefill the last window of a text alone, as if nothing
stood before it. So longer texts depend on where a prefill ends: a chunk's, or that of one that was thrown out."""
PARTED_NGRAMS = replace(NGRAMS, draft="tables", target="tables")
SHARED_NGRAMS = Family(
    replace(PARTED_NGRAMS, algorithm=None, draft=""),
    [replace(PARTED_NGRAMS, program=True, overlap=True, ranks=ranks, experts=True) for ranks in (2, 4)],
    lambda folder: write_ngrams(folder / "tables", SPREAD),
    lambda folder: seen(folder, OF_RANKS, 8),
    arguments=ROOM,
    anew=True,
)
"""Ranks have a part each of the tables of n-grams and of the experts."""


def seen(folder: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """So many requests, some of them with pictures, which lie in the folder."""
    return [behind(number, request) for number, request in enumerate(with_pictures(workload(count, seed=seed), folder))]


def behind(number: int, request: Mapping[str, Any]) -> dict[str, Any]:
    """The same request, if its number is even behind a longer text."""
    return {**request, "text": {0: LONG, 2: NEARLY}.get(number % 4, "") + request["text"]}


WHOLE = COMPRESSED, FILLED, LOOKED_UP
FAMILIES = () if ON_GPU else (*WHOLE, TAILS, SHARED, SHARED_BLOCKS, SHARED_NGRAMS)
PROGRAMS = [(family, program) for family in FAMILIES for program in family.programs]
COMPARED = [*PROGRAMS, (COMPRESSED, OWN), (FILLED, BLOCK), (LOOKED_UP, NGRAMS), (TAILS, TAIL)] if FAMILIES else []
each_program = pytest.mark.parametrize(("family", "engine"), PROGRAMS, ids=str)


class TestCompressed(FamilyTests):
    compared, beside = COMPARED, [(family, program, family.own_of(program)) for family, program in PROGRAMS]


@each_program
def test_the_program_ran_the_steps_that_it_serves(family: Family, engine: Variant, engines: Running) -> None:
    state = engines.of(engine).state
    assert state["specc"]["proof"] == "passed"
    assert state["specc"]["served"] > (50 if family in WHOLE else 10)  # a busy machine's steps have more requests
    assert state["specc"]["left"].keys() <= (set() if engine.samples else family.left)
    assert state["specc_testing"]["overlap"] == engine.overlap
    assert state["specc_testing"]["pools"] == COMPRESSED.pools["EAGLE"]


@in_float32
@pytest.mark.parametrize("family", FAMILIES[:1], ids=str)
def test_texts_are_longer_than_windows_and_pages(family: Family, engines: Running) -> None:
    """Some in several chunks, and some behind pages that others have left."""
    outputs = [output for _, _, output in greedy(engines.of(family.alone))]
    assert max(output["prompt_tokens"] for output in outputs) > PAGE > WINDOW
    assert sum(output["cached_tokens"] >= PAGE for output in outputs) > 3


@in_float32
@pytest.mark.parametrize("family", [LOOKED_UP][: len(FAMILIES)], ids=str)
def test_much_is_written_behind_pictures(family: Family, engines: Running) -> None:
    """Whose tokens are no part of an n-gram."""
    answers = [(request, output) for _, request, output in greedy(engines.of(family.programs[0]))]
    assert sum(output["completion_tokens"] for request, output in answers if "pictures" in request) > 100


@in_float32
@pytest.mark.parametrize(("family", "engine", "own"), [(TAILS, *TAILS.programs, TAIL)][: len(FAMILIES)], ids=str)
def test_texts_of_any_length_part_no_sooner_than_sglangs_own(
    family: Family, engine: Variant, own: Variant, engines: Running
) -> None:
    """Where late layers prefill ends of texts alone, the longer ones may differ."""
    as_alike(engines.of(engine), engines.of(own), engines.of(family.alone))


@pytest.mark.parametrize("streams", [1, STREAMS])
def test_hidden_rows_are_as_wide_as_sglang_carries_them(streams: int, tmp_path: Path) -> None:
    """Rows that are carried are as wide in the plan as SGLang gives them to its draft, and has them on idle ranks."""
    write_compressed(tmp_path / OWN.target, streams)
    config = write_program(OWN.engine(tmp_path) | ROOM, tmp_path / "program")
    specc("build", str(config), "--emit", "plan", "-o", str(tmp_path / "program"), "--quiet")
    plan = json.loads(next((tmp_path / "program").glob("**/*plan.json")).read_text())
    (hidden,) = (field for field in plan["carry"] if field["name"] == "hidden")
    (widths,) = json.loads(printed("real_widths.py", str(tmp_path / OWN.target)).splitlines()[-1])
    width = int(hidden["axes"][1])
    assert (hidden["dtype"], width) == ("f32", streams * WIDTH)
    assert widths == {"given": width, "left": width, "idle": width, "bytes": 4 * width}

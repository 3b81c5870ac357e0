"""Prefill and decode on two servers: the one that decodes has a program, and the one that prefills keeps still.

Keys and values, and what SGLang sends along with them, go from process to process; every step is SGLang's own, on a CPU
but for the transport, which is a stand-in. Prompts are prefilled in chunks, some requests are aborted, and some thrown
out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_fixtures import asked, side_by_side, started
from sglang_disaggregated import serve_apart
from sglang_family import UNCACHED, all_accounted_for, in_float32, same_texts
from sglang_files import AT_A_TIME
from sglang_mixed import COUNT, GRAMMARS, Oracle, is_greedy, mixed
from sglang_programs import build_program
from sglang_server import PLAIN, Served, Variant, accept_length, greedy, serve
from sglang_workload import without_aborts, workload

pytestmark = in_float32
REQUESTS = 200
HEADS = [
    Variant("EAGLE", "eagle", overlap=True, program=True),
    Variant("EAGLE", "eagle", topk=4, num_draft_tokens=12, program=True),
    Variant("EAGLE3", "eagle3_part", topk=4, num_draft_tokens=12, overlap=True, program=True),
    Variant("EAGLE", "eagle", overlap=True, program=True, token_map=True),
]
"""Drafts that go on from hidden states, which SGLang hands over."""
MODELS = [
    Variant("STANDALONE", "standalone", overlap=True, program=True),
    Variant("STANDALONE", "standalone", topk=4, num_draft_tokens=12, program=True),
]
"""Drafts of which SGLang hands nothing over: it serves no such requests on two servers by itself."""
PROGRAMS = [*HEADS, *MODELS]
SAMPLES = Variant("EAGLE", "eagle", topk=4, num_draft_tokens=12, overlap=True, program=True, samples=True)
each_program = pytest.mark.parametrize("variant", PROGRAMS, ids=str)
Sides = Mapping[str, Served]


def arguments(variant: Variant, models: Path) -> dict[str, Any]:
    """Of an engine; what a STANDALONE draft reads of a cached prefix depends on how busy a machine is."""
    return variant.engine(models) | (UNCACHED if variant.algorithm == "STANDALONE" else {})


def built(engine: Mapping[str, Any], variant: Variant, folder: Path) -> dict[str, Path]:
    """The program of the server that decodes, which both have installed."""
    wheel = build_program({**engine, "disaggregation_mode": "decode"}, folder, *variant.options)
    return {"decode": wheel, "prefill": wheel}


def own(program: Variant) -> Variant:
    """The engine that drafts the same without a program; on one server where SGLang serves it on two not at all."""
    return replace(program, program=False)


@pytest.fixture(scope="module")
def apart(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[Variant, Future[Sides]]]:
    """What came of both servers, and of those that do all by themselves as `decode`."""
    folder, requests = tmp_path_factory.mktemp("apart"), workload(REQUESTS, seed=1)

    def run(variant: Variant) -> Sides:
        engine, job = arguments(variant, models), folder / str(variant)
        if variant == PLAIN:
            return {"decode": serve(engine, without_aborts(requests), job)}
        if variant in map(own, MODELS):
            return {"decode": serve(engine, requests, job, overlap=variant.overlap)}
        wheels = built(engine, variant, folder / f"{variant}-wheel") if variant.program else None
        return serve_apart(engine, requests, job, overlap=variant.overlap, wheels=wheels)

    with side_by_side(AT_A_TIME // 2) as pool:
        yield started(pool, [PLAIN, *asked(request.session.items, "variant", "stock")], run)


@each_program
def test_texts_are_those_without_speculation(variant: Variant, apart: Mapping[Variant, Future[Sides]]) -> None:
    """Of one server: whoever was aborted, thrown out, or ended with the token that came."""
    served = apart[variant].result()["decode"]
    same_texts(served, apart[PLAIN].result()["decode"])
    assert sum(output["finish_reason"]["type"] == "abort" for output in served.outputs) > 5
    assert sum(output["completion_tokens"] == 1 for output in served.outputs) > 5
    assert accept_length(served) > 1.5


@each_program
def test_logprobs_are_those_without_speculation(variant: Variant, apart: Mapping[Variant, Future[Sides]]) -> None:
    """The first token's came with it."""
    served, plain = (apart[name].result()["decode"] for name in (variant, PLAIN))
    asked_for = [number for number, request in enumerate(served.requests) if request.get("logprobs")]
    assert len(asked_for) > 5
    for number in asked_for:
        logprobs, expected = (run.outputs[number]["logprobs"] for run in (served, plain))
        assert [token for _, token in logprobs] == served.outputs[number]["token_ids"]
        assert [value for value, _ in logprobs] == pytest.approx([value for value, _ in expected], abs=1e-3), number


@each_program
def test_the_program_ran_the_steps_of_the_server_that_decodes(
    variant: Variant, apart: Mapping[Variant, Future[Sides]]
) -> None:
    """SGLang those with a request that it does not serve; on the other server none runs, though one must."""
    decode, prefill = (apart[variant].result()[role] for role in ("decode", "prefill"))
    report = decode.state["specc"]
    assert (report["program"], report["proof"]) == ("specc_program_served", "passed")
    assert report["served"] > 300
    assert report["left"].keys() == {"logprobs", "sampling"}
    assert "specc" not in prefill.state
    assert "specc: no program runs, since this server only prefills" in prefill.log


@each_program
def test_every_slot_and_row_of_both_is_free_or_cached_at_the_end(
    variant: Variant, apart: Mapping[Variant, Future[Sides]]
) -> None:
    for served in apart[variant].result().values():
        all_accounted_for(served.state["specc_testing"])
    assert apart[variant].result()["decode"].state["specc_testing"]["overlap"] == variant.overlap


@pytest.mark.parametrize(("variant", "stock"), [(each, own(each)) for each in PROGRAMS], ids=map(str, PROGRAMS))
def test_every_request_takes_as_many_steps_as_with_sglangs_own(
    variant: Variant, stock: Variant, apart: Mapping[Variant, Future[Sides]]
) -> None:
    """Of those who are not thrown out: who is comes back without the keys and values of its draft."""
    program, alone = (apart[name].result()["decode"] for name in (variant, stock))
    compared = 0
    for (number, _, output), (_, _, expected) in zip(greedy(program), greedy(alone), strict=True):
        both = (output, expected)
        if not any(meta["num_retractions"] or meta["finish_reason"]["type"] == "abort" for meta in both):
            assert output.get("spec_verify_ct") == expected.get("spec_verify_ct"), number
            compared += 1
    assert compared > REQUESTS / 2


def test_requests_are_sampled_as_they_ask(models: Path, tmp_path: Path) -> None:
    """Behind the first token, which SGLang samples where it prefills: token for token as plain Python draws.

    Penalties are for all that was emitted, that token among it, and grammars go on from it.
    """
    engine, oracle = SAMPLES.engine(models) | GRAMMARS, Oracle()
    wheels = built(engine, SAMPLES, tmp_path / "wheel")
    sides = serve_apart(
        engine, mixed(random.Random(3))[:COUNT], tmp_path / "job", overlap=SAMPLES.overlap, wheels=wheels
    )
    served = sides["decode"]
    assert served.state["specc"]["left"] == {}
    for number, (request, output) in enumerate(zip(served.requests, served.outputs, strict=True)):
        came, tokens = int(not is_greedy(request["sampling"])), output["token_ids"]
        assert oracle.expected(dict(request), tokens)[came:] == tokens[came:], number
        assert "logprobs" not in output or [token for _, token in output["logprobs"]] == tokens
    assert sum(len(output["token_ids"]) for output in served.outputs) > 500
    for served in sides.values():
        all_accounted_for(served.state["specc_testing"])


def test_a_request_that_lacks_its_hidden_states_ends_alone(models: Path, tmp_path: Path) -> None:
    """By name; those of its batch have the texts that they have without it."""
    variant, lacking = HEADS[0], 2
    engine = arguments(variant, models)
    texts = ("def main():\n", "import os\n", "class Foo:\n    def __init__(self", "import sys\n")
    sampling = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    requests = [{"text": text, "sampling": sampling} for text in texts]
    wheels = built(engine, variant, tmp_path / "wheel")
    settings = {"SPECC_TEST_LACK": f"{lacking:06}"}
    sides = serve_apart(engine, requests, tmp_path / "job", overlap=True, wheels=wheels, settings=settings)
    plain = serve(arguments(PLAIN, models), requests, tmp_path / "plain")
    for number, (output, expected) in enumerate(zip(sides["decode"].outputs, plain.outputs, strict=True)):
        if number == lacking:
            assert output["finish_reason"]["type"] == "abort"
            assert output["finish_reason"]["message"] == "no hidden states came from the server that prefilled"
        else:
            assert output["token_ids"] == expected["token_ids"], number
    for served in sides.values():
        all_accounted_for(served.state["specc_testing"])

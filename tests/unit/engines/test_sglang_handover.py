"""Requests that another server has prefilled, on stand-ins of SGLang's modules: what came becomes a program's carry."""

from __future__ import annotations

import logging
import math
import re
from typing import Any

import pytest
import torch
from fakes.nested import several
from fakes.sglang_modules import FINISH_ABORT, Req
from fakes.sglang_server import PROGRAM, Server, adapter, part
from sampling_oracle import drawn
from test_sglang_worker import ALL, BATCHES, DRAWS, PROMPTS, QLEN, SCORED, Serve, counted, plan_of, run, serve

__all__ = ["serve"]
TOPK, WIDTH, TOKENS = 3, 4, 20


@pytest.fixture
def decoding(serve: Serve) -> Any:
    """Starts servers that decode what another one prefills."""
    return lambda *given, **named: serve(*given, mode="decode", **named)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("algorithm", "keys", "scored"),
    [("EAGLE", (), None), ("STANDALONE", (), None), ("EAGLE", QLEN, None), ("STANDALONE", QLEN, None),
     ("EAGLE", (), SCORED)],
    ids=["eagle", "own", "tree", "own-tree", "map"],
)  # fmt: skip
def test_steps_go_on_as_behind_a_prefill_of_ones_own(
    decoding: Serve, algorithm: str, keys: Any, scored: list[int] | None, overlap: bool
) -> None:
    """As many tokens in every step: of drafts that came, and of a language model's, which are made here."""
    plan = plan_of(algorithm, *keys, scored=None if scored is None else len(scored))
    server = decoding(plan, overlap=overlap, scored=scored)
    server.receive({row: PROMPTS[row] for row in (3, 1)})
    server.receive({row: PROMPTS[row] for row in (6, 2)})
    assert server.relay.written == 2 * overlap, "lengths are told, and the rest is where the relay has it"
    run(server, BATCHES)
    assert server.steps == counted(plan, BATCHES, scored)
    assert max(max(counts) for counts in server.steps.values()) > 2, "drafts are accepted"
    report = server.worker.steps.report()
    assert (report["served"], report["left"], report["proof"]) == (len(BATCHES), {}, "passed")


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("algorithm", "scored"), [("EAGLE", None), ("EAGLE", SCORED), ("STANDALONE", None)])
def test_steps_of_sglang_s_own_go_on_there_too(
    decoding: Serve, algorithm: str, scored: list[int] | None, overlap: bool
) -> None:
    plan = plan_of(algorithm, scored=None if scored is None else len(scored))
    server = decoding(plan, overlap=overlap, scored=scored)
    server.receive({row: PROMPTS[row] for row in (3, 1, 2)})
    server.receive({6: PROMPTS[6]}, min_new_tokens=2)
    run(server, BATCHES)
    assert server.steps == counted(plan, BATCHES, scored)
    assert server.worker.steps.tally.left == {"min_new_tokens": sum(6 in rows for rows in BATCHES)}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("algorithm", ["EAGLE", "STANDALONE"])
def test_drafts_that_came_were_sure(decoding: Serve, algorithm: str, overlap: bool) -> None:
    """Of a program that weighs drafts by what they were drawn from, in rows that had other requests."""
    server = decoding(plan_of(algorithm, ("verify", "rejection")), overlap=overlap)
    server.receive({3: [8, 8, 3], 1: PROMPTS[1]})
    run(server, [[3, 1], [3], [1]])
    server.receive({3: PROMPTS[3]})
    pools = server.worker.steps.step.pools
    (draft,) = pools["topk_index"][3].tolist()
    chances = pools["draft_logits0"][3].softmax(-1)
    assert chances.argmax() == draft and chances.max() == 1
    assert pools["draft_mass0"][3].tolist() == [0, 1, 1]
    run(server, [[3], [3, 1], [3]])
    assert server.steps[3] == counted(plan_of(algorithm), [[3]] * 3)[3]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_row_has_what_came_last(decoding: Serve, overlap: bool) -> None:
    """When a request has ended, or was thrown out, its row is another one's."""
    server = decoding(plan_of("EAGLE"), overlap=overlap)
    server.receive({3: [8, 8, 3], 1: PROMPTS[1]})
    run(server, [[3, 1], [3], [1]])
    server.receive({3: PROMPTS[3]})
    run(server, [[3], [3, 1], [3]])
    assert server.steps[3] == counted(server.plan, [[3]] * 3)[3]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("algorithm", ["EAGLE", "STANDALONE"])
def test_requests_are_sampled_as_they_ask(decoding: Serve, algorithm: str, overlap: bool) -> None:
    """From their second token on: the first one is of the server that prefilled, here the most probable one."""
    server = decoding(plan_of(algorithm, *DRAWS), overlap=overlap)
    for row, prompt in PROMPTS.items():
        server.receive({row: prompt}, sampling_seed=row, temperature=1.5, top_k=ALL)

    def says(row: int, text: list[int]) -> int:
        heat = 1.5 if len(text) > len(PROMPTS[row]) else 0.0
        return drawn(server.scores(text).tolist(), row, heat, len(text))

    run(server, BATCHES, says)
    assert server.worker.steps.tally.left == {}
    assert server.worker.steps.admission._batch is None, "no prefill follows"


def spoiled(req: Req, **given: Any) -> None:
    vars(req).update(given)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        {"hidden_states_tensor": None},
        {"output_topk_index": torch.full((16,), 1 << 40)},
        {"output_topk_p": None},
        {"output_topk_index": torch.tensor(1)},
        {"output_topk_p": torch.full((16,), math.nan)},
        {"hidden_states_tensor": [1.0]},
        {"hidden_states_tensor": torch.full((4,), math.inf)},
    ],
    ids=lambda given: "-".join(map(repr, (next(iter(given)), str(next(iter(given.values())))[:12]))),
)
def test_a_request_that_lacks_something_ends_by_name_and_others_go_on(
    decoding: Serve, given: dict[str, Any], overlap: bool
) -> None:
    server = decoding(plan_of("EAGLE"), overlap=overlap)
    server.receive(PROMPTS, lambda req: spoiled(req, **(given if req.kv.req_pool_idx == 6 else {})))
    ended = {row: req.to_finish for row, req in server.requests.items() if req.to_finish is not None}
    assert ended.keys() == {6}
    assert ended[6].err_type == "SpeccHandoverError"
    assert "from the server that prefilled" in ended[6].message
    batches = [[3, 1, 2], [1, 2], [2, 3], [3]]
    run(server, batches)
    assert server.steps[3] == counted(server.plan, batches)[3]


def test_a_request_that_ends_already_keeps_its_reason(decoding: Serve) -> None:
    server = decoding(plan_of("EAGLE"))
    aborted = FINISH_ABORT("aborted")
    server.receive({3: PROMPTS[3]}, lambda req: spoiled(req, to_finish=aborted, hidden_states_tensor=None))
    assert server.requests[3].to_finish is aborted


def sent(**other: object) -> dict[str, Any]:
    """What came of a request that lacks nothing, with something else."""
    drafts = torch.tensor([0, TOKENS - 1, 4, -7, TOKENS])  # behind the first TOPK is what nobody reads
    return {"numbers": drafts, "chances": torch.rand(5), "hidden": torch.rand(WIDTH)} | other


NO_CHANCES = (math.nan, math.inf, -math.inf, -0.5, 1.5)
NOT_THERE = (
    torch.rand(5, device="meta"),
    torch.rand(5).to_sparse(),
    several(torch.rand(3), torch.rand(2)),
    torch.tensor(1),
    torch.rand(1, 5),
    [0, 1, 2],
    3,
    "x",
)
ODD = {
    "numbers": (*NOT_THERE, torch.rand(5), torch.tensor([True] * 5), torch.zeros(5, 2, dtype=torch.int64)),
    "chances": (*NOT_THERE, torch.zeros(5, dtype=torch.complex64), torch.ones(5, dtype=torch.int64)),
    "hidden": (*NOT_THERE, torch.zeros(WIDTH, dtype=torch.complex64), torch.ones(WIDTH, dtype=torch.int64)),
}


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({}, None),
        ({"numbers": None}, "no 3 drafts"),
        ({"chances": torch.rand(TOPK - 1)}, "no 3 drafts"),
        ({"hidden": None}, "no hidden states"),
        ({"hidden": torch.rand(16)}, r"of the shape \(16,\) .* not \(4,\)"),
        ({"numbers": torch.tensor([0, TOKENS, 1])}, "none of 20 tokens: 0, 20"),
        ({"numbers": torch.tensor([0, 3, -1])}, "none of 20 tokens: -1, 3"),
        *(({name: odd}, "drafts, chances and hidden states came .* as ") for name, odds in ODD.items() for odd in odds),
        *(({"chances": torch.tensor([0.5, chance, 0.1])}, "a chance that is none") for chance in NO_CHANCES),
        ({"chances": torch.tensor([0.0, 1.0, 0.5, math.nan])}, None),
        *(({"hidden": torch.tensor([0.5, value, 0.1, 0.0])}, "not finite") for value in (math.nan, math.inf)),
        ({"hidden": torch.tensor([0.5, 1e200, 0.1, 0.0], dtype=torch.float64)}, "not finite in torch.float32"),
        ({"hidden": torch.rand(WIDTH).bfloat16(), "chances": torch.rand(5).double()}, None),
        ({"numbers": torch.tensor([1, 2, 3], dtype=torch.int32)}, None),
    ],
)
def test_what_came_is_checked(serve: Serve, other: dict[str, Any], says: str | None) -> None:
    serve(plan_of("EAGLE"))
    found = adapter("handover").lacking(**sent(**other), topk=TOPK, width=WIDTH, dtype=torch.float32, scored=TOKENS)
    assert found is None if says is None else re.search(says, found)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_batch_of_nobody_leaves_nothing(decoding: Serve, overlap: bool) -> None:
    server = decoding(plan_of("EAGLE"), overlap=overlap)
    batch = server._batch([], part("model_executor.forward_batch_info.ForwardMode").PREBUILT, torch.tensor([]))
    kept = server.algorithm.build_disagg_draft_input(batch, torch.tensor([]), server.relay)
    assert (len(kept.bonus_tokens), kept.topk_index.shape) == (0, (0, 1))


@pytest.mark.parametrize("overlap", [False, True])
def test_somebody_elses_algorithm_is_handed_over_the_same_way(decoding: Serve, overlap: bool) -> None:
    """Of which SGLang takes nothing over by itself; the carry says what came."""
    server = decoding(plan_of("EAGLE"), overlap=overlap)
    server.algorithm = part("speculative.spec_registry.CustomSpecAlgo")()
    server.receive(PROMPTS)
    run(server, BATCHES)
    assert server.steps == counted(server.plan, BATCHES)


def test_without_a_program_sglang_takes_over_by_itself(decoding: Serve) -> None:
    server = decoding(plan_of("EAGLE"), speculative_num_draft_tokens=5)
    assert server.worker.steps is None
    server.receive(PROMPTS)
    run(server, BATCHES)
    assert server.steps == counted(server.plan, BATCHES)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_server_that_prefills_keeps_still(
    serve: Serve, overlap: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Though a program must run: another server does its steps."""
    monkeypatch.setenv("SPECC_PROGRAM", PROGRAM)
    monkeypatch.setenv("SPECC_FALLBACK", "refuse")
    caplog.set_level(logging.INFO)
    server: Server = serve(plan_of("EAGLE"), overlap=overlap, mode="prefill")
    assert server.worker.steps is None
    assert "no program runs, since this server only prefills" in caplog.text
    server.begin(PROMPTS, top_k=ALL)
    assert all(len(req.output_ids) == 1 and req.to_finish is None for req in server.requests.values())


def test_a_version_that_lacks_what_is_taken_over_runs_no_program_there(
    decoding: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = decoding(plan_of("EAGLE"))
    fit, seam = adapter("server.fit"), adapter("seam")
    plans = {server.plan.shape: server.plan}
    assert fit.misfits(plans, server.worker) == []
    monkeypatch.setitem(seam.MAY, seam.HANDOVER, "managers.schedule_batch.Req: nothing_of_the_kind")
    assert fit.misfits(plans, server.worker) == [f"this SGLang lacks something for it: {seam.HANDOVER}"]

"""Experts that are shared out over ranks, in a program's forwards on stand-ins of SGLang's modules."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.sglang_server import Server
from test_sglang_shapes import MIXED, plans_of, shuffle
from test_sglang_worker import BATCHES, PROMPTS, QLEN, Serve, plan_of, run, serve

from specc.runtime.step import Step

__all__ = ["serve"]
LARGEST = 4


@pytest.fixture
def padded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step has the rows of the largest bucket, as captured ones have those of some bucket."""
    decode = Step.decode
    monkeypatch.setattr(Step, "decode", lambda step, batch, **how: decode(step, batch, **{"at_least": LARGEST} | how))


def addresses(server: Server) -> list[dict[int, set[int]]]:
    """Of both models, by tokens of a request, where numbers of tokens were."""
    worker = server.worker
    return [runner.model.counted for runner in (worker.target_worker.model_runner, worker.draft_worker.draft_runner)]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("algorithm", "keys"), [("EAGLE", ()), ("STANDALONE", ()), ("EAGLE", QLEN)])
@pytest.mark.usefixtures("padded")
def test_rows_of_padding_are_no_tokens(serve: Serve, algorithm: str, keys: Any, overlap: bool) -> None:
    """Forwards of both models find how many are, which the models check, always at the same place."""
    plan = plan_of(algorithm, *keys)
    server = serve(plan, overlap=overlap, experts=2)
    server.begin(PROMPTS)
    run(server, BATCHES)
    target, draft = addresses(server)
    branches, nodes, path = plan.size("K"), plan.size("N"), plan.size("S") + 1
    assert [*target] == [nodes] and {*draft} == {branches, path}
    assert all(len(places) == 1 for places in (*target.values(), *draft.values()))
    assert server.worker.steps.report()["served"] == len(BATCHES)


@pytest.mark.usefixtures("padded")
def test_of_every_shape(serve: Serve) -> None:
    plans = plans_of(MIXED, mask="qlen")
    server = serve(plans[0], others=plans[1:], experts=2)
    shuffle(server)
    server.begin(PROMPTS)
    run(server, [*BATCHES, *BATCHES])
    assert {*addresses(server)[0]} == {plan.size("N") for plan in plans}
    assert server.worker.steps.report()["served"] == 2 * len(BATCHES)


@pytest.mark.usefixtures("padded")
def test_where_each_rank_has_all_experts_nothing_is_said(serve: Serve) -> None:
    server = serve(plan_of("EAGLE"))
    server.begin(PROMPTS)
    run(server, BATCHES)
    assert addresses(server) == [{}, {}]
    assert server.worker.steps.report()["served"] == len(BATCHES)

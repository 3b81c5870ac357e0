"""Attention under data parallelism, on stand-ins of SGLang's modules: other ranks are what they say."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from fakes.sglang_modules import SETTINGS
from fakes.sglang_parallel import MLPSyncBatchInfo
from fakes.sglang_server import Server, adapter
from test_sglang_fit import misfits, setting
from test_sglang_worker import BATCHES, PROMPTS, QLEN, Serve, counted, plan_of, run, serve

__all__ = ["serve"]
OTHERS = "requests of another rank"
DRAFTS = [("EAGLE", False), ("MULTI_LAYER_EAGLE", False), ("MULTI_LAYER_EAGLE", True)]
"""Algorithms whose drafts run beside others; of modules, whether each reads what the one before made."""
overlapping = pytest.mark.parametrize("overlap", [False, True])
of_drafts = pytest.mark.parametrize(("algorithm", "chained"), DRAFTS)


@pytest.fixture(autouse=True)
def others(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool, bool]]:
    """What the other rank says: how many requests it has, whether it prefills, whether its program serves them."""
    votes = [(4, False, True)]
    monkeypatch.setattr(MLPSyncBatchInfo, "others", votes)
    return votes


def widths(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Filled with how many rows the target verifies in each step."""
    rows: list[int] = []
    target = server.engine.target

    def verify(**given: Any) -> Any:
        rows.append(len(given["rows"]))
        return target(**given)

    monkeypatch.setattr(server.engine, "target", verify)
    return rows


@overlapping
@pytest.mark.parametrize("keys", [(), QLEN])
def test_steps_have_the_rows_of_the_rank_that_has_most(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, keys: Any, overlap: bool
) -> None:
    """Filled up with padding; texts, and what is accepted, are as without."""
    plan = plan_of("EAGLE", *keys)
    server = serve(plan, overlap=overlap, groups=2)
    rows = widths(server, monkeypatch)
    server.begin(PROMPTS)
    others = [1, 3, 0, 4, 2, 1, 0]
    for batch, most in zip(BATCHES, others, strict=True):
        MLPSyncBatchInfo.others[:] = [(most, False, True)]
        server.decode(batch)
    run(server, [])
    assert rows == [plan.bucket(max(len(batch), most)) for batch, most in zip(BATCHES, others, strict=True)]
    assert server.steps == counted(plan, BATCHES)
    assert server.worker.steps.report()["served"] == len(BATCHES)


@overlapping
@of_drafts
def test_a_rank_without_requests_runs_rows_of_padding(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, algorithm: str, overlap: bool, chained: bool
) -> None:
    """And changes nothing of those that it has, which go on where they were."""
    plan = plan_of(algorithm)
    server = serve(plan, overlap=overlap, groups=2, chained=chained)
    rows = widths(server, monkeypatch)
    server.begin(PROMPTS)
    for batch in BATCHES:
        result = server.idle()
        assert (len(result.accept_lens), len(result.new_seq_lens), result.next_token_ids.numel()) == (0, 0, 0)
        assert len(result.next_draft_input.bonus_tokens) == 0
        server.decode(batch)
    run(server, [])
    assert rows == [4] * (2 * len(BATCHES))
    assert server.steps == counted(plan, BATCHES)
    report = server.worker.steps.report()
    assert (report["served"], report["idle"], report["left"]) == (2 * len(BATCHES), len(BATCHES), {})


@overlapping
@of_drafts
@pytest.mark.parametrize("other", [(2, False, False), (9, True, True)], ids=["served not", "prefilled"])
def test_a_step_that_another_rank_leaves_to_sglang(
    serve: Serve,
    others: list[tuple[int, bool, bool]],
    other: tuple[int, bool, bool],
    algorithm: str,
    overlap: bool,
    chained: bool,
) -> None:
    """Is SGLang's here, too, also where there are no requests; texts go on either way."""
    server = serve(plan_of(algorithm), overlap=overlap, groups=2, chained=chained)
    server.begin(PROMPTS)
    for place, batch in enumerate(BATCHES):
        others[:] = [other if place % 2 else (1, False, True)]
        server.decode(batch)
        assert (server.idle().accept_lens is None) == bool(place % 2)
    run(server, [])
    assert server.steps == counted(server.plan, BATCHES)
    assert server.worker.steps.tally.left == {OTHERS: len(BATCHES) // 2}


def test_ranks_vote_for_what_the_program_serves(serve: Serve) -> None:
    """Whatever others do: each says so before it knows. What it says of a prefill is heard by nobody."""
    server = serve(plan_of("EAGLE"), groups=2)
    server.begin({row: PROMPTS[row] for row in (3, 1, 2)})
    server.begin({6: PROMPTS[6]}, min_new_tokens=2)
    votes = MLPSyncBatchInfo.sent
    assert [row[:2] for row in votes] == [[3, 1], [1, 1]]
    del votes[:]
    run(server, [[3, 1], [3, 6], [2]])
    server.idle()
    server.worker.steps.switch(False)
    run(server, [[2]])
    server.idle()
    assert votes == [[2, 0, 1], [2, 0, 0], [1, 0, 1], [0, 0, 1], [1, 0, 0], [0, 0, 0]]
    assert server.worker.steps.tally.left == {"min_new_tokens": 1, "switched off": 1}


def test_who_has_more_requests_than_the_program_votes_against(serve: Serve) -> None:
    server = serve(plan_of("EAGLE", ("buckets", (1, 2))), groups=2)
    server.begin(PROMPTS)
    run(server, [[3, 1, 6]])
    assert MLPSyncBatchInfo.sent[-1] == [3, 0, 0]


def test_without_a_program_nothing_more_is_gathered(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(plan_of("EAGLE"), groups=2)
    monkeypatch.setattr(adapter("server.lockstep").LockStep, "current", None)
    server._gather(None)
    assert MLPSyncBatchInfo.sent[-1] == [0, 0]


def test_on_one_rank_nothing_is_agreed_on(serve: Serve) -> None:
    assert serve(plan_of("EAGLE")).worker.steps.lockstep is None
    assert adapter("server.lockstep").LockStep.current is None


def test_rows_that_ranks_of_a_group_cannot_share_out_evenly_are_summed_up(serve: Serve) -> None:
    """Three ranks share a gather: of 4 nodes in a bucket of 1 or 2 rows, not of 3 steps."""
    server = serve(plan_of("EAGLE"), groups=2)
    SETTINGS.parallel.attn_tp_size = server.worker.steps._parts.gathered._of_group = 3
    server.begin(PROMPTS)
    run(server, BATCHES)


@of_drafts
def test_drafts_run_in_the_group_of_their_ranks(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, algorithm: str, chained: bool
) -> None:
    """Around each forward of the draft, or of its modules, and none of the target."""
    server = serve(plan_of(algorithm), groups=2, chained=chained)
    entered = list[str]()
    place = "sglang.srt.speculative.spec_utils.draft_tp_context"
    monkeypatch.setattr(place, lambda layout: (entered.append(layout), nullcontext())[1])
    server.begin(PROMPTS)
    run(server, BATCHES)
    assert entered == ["of drafts"] * len(BATCHES) * server.plan.size("S")


BESIDE = {
    "prefill and decode on two servers under data parallelism (disaggregation_mode decode)": setting(
        "disagg", "disaggregation_mode", "decode"
    ),
    "multi-layer EAGLE of another algorithm": setting("spec", "enable_multi_layer_eagle", True),
    "LoRA under data parallelism": lambda server: setattr(server.worker.server_args, "enable_lora", True),
}


@pytest.mark.parametrize("what", BESIDE)
def test_what_is_not_served_beside_it(serve: Serve, what: str) -> None:
    server = serve(plan_of("EAGLE"), groups=2)
    assert misfits(server) == []
    BESIDE[what](server)
    assert misfits(server) == [f"{what} is not served"]


@pytest.mark.parametrize(("name", "groups"), [("MiMoV2MTP", 2), ("Step3p5MTP", 1), ("Step3p5MTP", 2)])
def test_modules_whose_embedding_is_shared_out_have_the_tokens_of_one_group(
    serve: Serve, name: str, groups: int
) -> None:
    server = serve(plan_of("MULTI_LAYER_EAGLE"), groups=groups)
    model = server.worker.draft_worker.draft_runner.model
    model.__class__ = type(name, (type(model),), {})
    refused = "attention under data parallelism with modules whose embedding all ranks share out is not served"
    assert misfits(server) == ([refused] if (name, groups) == ("Step3p5MTP", 2) else [])

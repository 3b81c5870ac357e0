"""Batches of vLLM's whose requests have different numbers of drafts, as the host or the device alone knows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fakes.models import target_scores
from fakes.vllm_server import PROGRAM, Server
from fakes.vllm_tables import VLLM
from vllm_batches import MANY_PROMPTS, plan_of

ROWS = [*MANY_PROMPTS]
STEPS = 14
ALGORITHMS = ["STANDALONE", "EAGLE", "MULTI_LAYER_EAGLE", "FROZEN_KV_MTP", "DFLASH", "NGRAM"]
GIVEN = ("budget", "given")
Serve = Callable[..., Server]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts servers."""
    monkeypatch.setenv("SPECC_CAPTURE", "none")
    with VLLM.starting(Server, PROGRAM) as start:
        yield start


@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_texts_are_the_targets_own(serve: Serve, algorithm: str, *, on_device: bool) -> None:
    """And every step accepts of the drafts that it verifies those that are right, also of none."""
    rng = random.Random(3)
    server = serve(plan_of(algorithm, GIVEN), ahead=8)
    server.begin(MANY_PROMPTS)
    differ = 0
    for _ in range(STEPS):
        rows = rng.sample(ROWS, rng.randint(1, len(ROWS)))
        drafts = [rng.randint(0, 3) for _ in rows]
        server.decode(rows, drafts=drafts, scheduled=3 if on_device else None)
        differ += len({*drafts}) > 1
    server.judge()
    assert differ > STEPS / 3
    assert not server.program.left
    assert server.program.report()["served"] == STEPS


def test_a_program_without_leaves_what_differs(serve: Serve) -> None:
    server = serve(plan_of("EAGLE"))
    server.begin(MANY_PROMPTS)
    server.decode(ROWS, drafts=[3, 2, 3, 1])
    server.judge()
    assert server.program.left == {"fewer drafts than 3": 1}


def test_log_probabilities_are_of_the_rows_that_a_request_has(serve: Serve) -> None:
    server = serve(plan_of("EAGLE", GIVEN))
    server.begin(MANY_PROMPTS)
    server.runner.sampler.sampling_states.num_logprobs[ROWS] = 2
    server.join(ROWS)
    before = [server.text(row) for row in ROWS]
    server.decode(ROWS, drafts=[3, 0, 2, 1], scheduled=3)
    asked = server.output.logprobs_tensors
    assert server.program.report()["served"] == 1
    starts = [0, 4, 5, 8]
    for start, row, text in zip(starts, ROWS, before, strict=True):
        emitted = server.text(row)[len(text) :]
        for place, token in enumerate(emitted):
            scores = target_scores(server.target.model, [*text, *emitted[:place]]).log_softmax(-1)
            assert int(asked.logprob_token_ids[start + place, 0]) == token
            assert float(asked.logprobs[start + place, 0]) == pytest.approx(float(scores[token]), abs=1e-4)


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE"])
def test_vllms_estimator_reads_what_is_drafted_from(serve: Serve, algorithm: str) -> None:
    """Every draft's logits, at the temperature of the request that has the row, by its place in the batch."""
    server = serve(plan_of(algorithm, GIVEN), enable_adaptive_verification=True)
    server.begin(MANY_PROMPTS)
    speculator: Any = server.runner.speculator
    heats = torch.tensor([1.5, 0.0, 0.5, 9.0, 9.0, 2.0])
    server.runner.sampler.sampling_states.temperature.gpu = heats  # of requests whose tokens are no concern here
    drafted, score = list[torch.Tensor](), speculator.compute_draft_logits
    speculator.compute_draft_logits = lambda *given: drafted.append(score(*given)) or drafted[-1]
    for rows in (ROWS, ROWS[2:], ROWS[:1]):
        drafted.clear()
        speculator.draft_token_confidence_probs.fill_(torch.nan)
        server.decode(rows, drafts=[3, 0, 2, 1][: len(rows)], scheduled=3)
        found = speculator.draft_token_confidence_probs
        heat = torch.tensor([float(heats[row]) or 1.0 for row in rows])[:, None]
        wanted = torch.stack([(logits / heat).softmax(-1).amax(-1) for logits in drafted], 1)
        assert wanted.shape == (len(rows), 3)
        assert torch.allclose(found[: len(rows)], wanted)
        assert found[len(rows) :].isnan().all()


def test_a_server_that_verifies_adaptively_needs_a_program_that_is_given_rows(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    assert serve(plan_of("EAGLE"), enable_adaptive_verification=True).program is None
    assert "every request has a row for all drafts in the program" in caplog.text
    assert serve(plan_of("EAGLE", GIVEN), enable_adaptive_verification=True).program is not None
    assert serve(plan_of("NGRAM", GIVEN), enable_adaptive_verification=True).program is None
    assert "adaptive verification with the method ngram is not served" in caplog.text


def test_no_step_of_it_is_tried_beside_vllms_own(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    new = ["v1.worker.gpu.model_runner.GPUModelRunner.sample"]
    assert serve(plan_of("EAGLE", GIVEN), new=new).program is None
    assert "steps with budget: given are not tried beside vLLM's own" in caplog.text


def test_a_request_without_room_for_drafts_is_left(serve: Serve) -> None:
    """What it has not been given blocks for: the host has scheduled its bonus token alone."""
    server = serve(plan_of("EAGLE", GIVEN), ahead=4)
    server.begin(MANY_PROMPTS)
    for row in 3 * ROWS:
        server.decode([row], drafts=0)
    server.judge()
    assert server.program.left.keys() == {"no blocks for drafts"}
    assert server.program.served

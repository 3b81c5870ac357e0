"""Programs as vLLM's decode steps, on stand-ins of its modules: texts, what is left to vLLM, what is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from fakes.models import target_scores
from fakes.vllm_modules import MultiModuleMTPSpeculator, Worker
from fakes.vllm_sampling import bad_behind
from fakes.vllm_server import PROGRAM, Server
from fakes.vllm_tables import VLLM, InputBatch
from penalties_oracle import changed
from sampling_oracle import drawn
from torch import Tensor
from vllm_batches import MANY_BATCHES as BATCHES
from vllm_batches import MANY_PROMPTS as PROMPTS
from vllm_batches import plan_of, run

from specc.engines._plugin import SEEDS
from specc.runtime.capabilities.sampling import Sampling

Serve = Callable[..., Server]
ALGORITHMS = ["STANDALONE", "EAGLE", "MULTI_LAYER_EAGLE", "FROZEN_KV_MTP", "DFLASH", "DSPARK", "NGRAM"]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts servers."""
    monkeypatch.delenv("SPECC_PROGRAM", raising=False)
    monkeypatch.setenv("SPECC_CAPTURE", "none")
    with VLLM.starting(Server, PROGRAM) as start:
        yield start


@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_texts_are_the_targets_own(serve: Serve, algorithm: str, cuda: bool) -> None:
    """On a GPU tokens are on their way to the host while the next step runs."""
    server = serve(plan_of(algorithm), cuda=cuda)
    server.begin(PROMPTS)
    run(server, BATCHES)
    server.judge()
    assert server.program.report() == {
        "program": PROGRAM, "version": "0.1.0+p1", "capture": "none", "sampling": [], "served": len(BATCHES),
        "left": {},
    }  # fmt: skip


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_steps_of_either_go_on_where_the_other_stopped(serve: Serve, algorithm: str) -> None:
    server = serve(plan_of(algorithm))
    server.begin(PROMPTS)
    server.runner.sampler.num_token_ids[5] = 1
    run(server, BATCHES)
    server.decode([0, 2], drafts=2)
    run(server, BATCHES)
    server.judge()
    assert server.program.left == {
        "log-probabilities of given tokens": 2 * sum(5 in rows for rows in BATCHES),
        "fewer drafts than 3": 1,
    }
    assert server.program.served == 2 * sum(5 not in rows for rows in BATCHES)


@pytest.mark.parametrize("longest", [36, 39])
@pytest.mark.parametrize("algorithm", ALGORITHMS[:-1])
def test_nothing_is_written_behind_the_longest_text(serve: Serve, algorithm: str, longest: int) -> None:
    """Nor into blocks that nobody has: the program stops where its window would end behind, and no step before."""
    plan = plan_of(algorithm)
    server = serve(plan, longest=longest)
    server.begin({0: PROMPTS[5], 3: PROMPTS[2]})
    lengths = list[int]()
    while len(server.text(0)) < longest:
        before, served = len(server.text(0)), server.program.served
        server.decode([0])
        lengths += [before - 1] * (server.program.served > served)
        server.settle()
    server.judge()
    left = server.program.left
    assert max(lengths) + plan.kv.window <= longest
    assert left.total() and {*left} <= {"a text near max_model_len", "fewer drafts than 3"}


def test_modules_that_read_images_are_vllms_own(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(MultiModuleMTPSpeculator, "inputs_embeds", torch.zeros(1))
    server = serve(plan_of("MULTI_LAYER_EAGLE"))
    assert "modules of the draft read embeddings of images" in caplog.text
    server.begin(PROMPTS)
    run(server, BATCHES)
    server.judge()
    assert server.program is None


def test_nothing_is_written_behind_a_requests_blocks(serve: Serve) -> None:
    """Of an engine that has no slots ahead of a step."""
    plan = plan_of("EAGLE")
    server = serve(plan, ahead=0)
    server.begin(PROMPTS)
    for _ in range(3):
        run(server, BATCHES)
        server.settle()
    server.judge()
    assert server.program.left.keys() == {"no blocks for drafts"}
    assert server.program.served > 3


@pytest.mark.parametrize("algorithm", ALGORITHMS[:-1])
def test_blocks_of_a_size_that_is_no_power_of_two(serve: Serve, algorithm: str) -> None:
    """Texts go on from one block into the next, and end with the last."""
    server = serve(plan_of(algorithm, ("page_size", 48)), longest=112)
    server.begin(PROMPTS)
    while max(len(server.text(row)) for row in PROMPTS) < 100:
        run(server, BATCHES[:1])
        server.settle()
    server.judge()
    assert {*server.program.left} <= {"a text near max_model_len", "fewer drafts than 3"}
    assert server.program.served > 20


def test_a_batch_beyond_the_largest_bucket_is_vllms(serve: Serve) -> None:
    server = serve(plan_of("EAGLE", ("buckets", (1, 2))))
    server.begin(PROMPTS)
    run(server, BATCHES)
    server.judge()
    assert server.program.left == {"more than 2 requests": sum(len(rows) > 2 for rows in BATCHES)}


def test_batches_that_are_no_steps_of_a_programs(serve: Serve) -> None:
    server = serve(plan_of("EAGLE"), ahead=8)
    server.begin(PROMPTS)
    server.decode([2, 0])
    sampler, penalties = server.runner.sampler, server.runner.sampler.logits_processors[0]
    given: dict[str, Any] = {
        "counts": [4, 4],
        "seq_lens_cpu_upper_bound": torch.tensor([11, 10]),
        "num_draft_tokens": 6,
    }
    batch, refuses = partial(InputBatch, np.array([2, 0]), **given), server.program.refuses
    assert refuses(sampler, batch()) is None
    assert refuses(sampler, batch(has_prefill=True)) == "a prefill in the batch"
    sampler.needs_logits_processing[0] = penalties.use_penalty[0] = True
    server.join([0])
    assert refuses(sampler, batch()) == "penalties, biases or other processors of logits"


@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits", "processed_logprobs"])
@pytest.mark.parametrize("algorithm", ["EAGLE", "NGRAM"])
def test_log_probabilities_are_those_of_the_targets_scores(serve: Serve, algorithm: str, mode: str) -> None:
    """Of every emitted token and of the best beside it, as many as any request of the batch asks for."""
    server = serve(plan_of(algorithm))
    server.begin(PROMPTS)
    server.runner.sampler.logprobs_mode = mode
    asked = server.runner.sampler.sampling_states.num_logprobs
    asked[[2, 5]] = [0, 3]
    for rows in BATCHES:
        before = {row: server.text(row) for row in rows}
        server.decode(rows)
        logprobs, most = server.output.logprobs_tensors, max(asked[rows])
        if most < 0:
            assert logprobs is None
            continue
        assert logprobs.cu_num_generated_tokens == [4 * place for place in range(len(rows) + 1)]
        assert logprobs.logprobs.shape == (4 * len(rows), 1 + most)
        for place, row in enumerate(rows):
            emitted = server.text(row)[len(before[row]) :]
            for i, token in enumerate(emitted):
                scores = target_scores(server.target.model, before[row] + emitted[:i])
                scores = scores if mode == "raw_logits" else scores.log_softmax(-1)
                assert logprobs.logprob_token_ids[4 * place + i, 0] == token
                assert logprobs.selected_token_ranks[4 * place + i] == 1
                assert torch.allclose(logprobs.logprobs[4 * place + i, 0], scores[token])
                assert torch.allclose(logprobs.logprobs[4 * place + i, 1:], scores.topk(int(most)).values)
    server.judge()
    assert server.program.left == {}


def test_log_probabilities_that_are_vllms(serve: Serve) -> None:
    """Of what is drawn from, where that is not the target's scores, and of tokens that a request names."""
    server = serve(plan_of("EAGLE", ("verify", "target_only"), ("sampling", ("top_k",))), ahead=8)
    sampler, states = server.runner.sampler, server.runner.sampler.sampling_states
    sampler.logprobs_mode = "processed_logprobs"
    batch = InputBatch(np.array([2, 0]), [4, 4], torch.tensor([7, 6]), 6)
    server.begin({2: PROMPTS[2], 0: PROMPTS[0]}, temperature=1.0, seed=3)
    assert server.program.refuses(sampler, batch) is None

    def refused() -> str | None:
        server.join([0, 2])
        reason: str | None = server.program.refuses(sampler, batch)
        return reason

    states.num_logprobs[0] = 2
    assert refused() is None, "nothing is processed"
    sampler.admit(0, temperature=0.5)
    assert refused() == "log-probabilities of processed scores"
    sampler.logprobs_mode = "raw_logprobs"
    assert refused() is None
    sampler.logprobs_mode, states.num_logprobs[[0, 2]] = "processed_logprobs", [-1, 2]
    assert refused() is None, "it is another's scores that are processed"
    sampler.num_token_ids[2] = 1
    assert refused() == "log-probabilities of given tokens"


@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize("algorithm", ["EAGLE", "NGRAM"])
def test_tokens_that_requests_forbid(serve: Serve, algorithm: str, processed: bool) -> None:
    """Before some length, and behind others; log-probabilities know of it where they are processed."""
    plan = plan_of(algorithm)
    server, asked = serve(plan), {0: 30, 5: 14}
    sampler, vocabulary = server.runner.sampler, plan.size("V")
    early, words = (processor for processor in sampler.logits_processors if not hasattr(processor, "use_penalty"))
    stops = [*range(0, vocabulary, 2)]
    early.early = {row: (length, stops) for row, length in asked.items()}
    early.use_logit_bias[[*asked]] = True
    words.num_bad_words.np[2] = 1
    server.begin(PROMPTS)
    sampler.needs_logits_processing[[0, 2, 5]] = True
    sampler.sampling_states.num_logprobs[5] = 0
    sampler.logprobs_mode = "processed_logprobs" if processed else "raw_logprobs"

    def left(row: int, text: list[int]) -> torch.Tensor:
        scores = target_scores(server.target.model, text).clone()
        none = bad_behind(text[-1], vocabulary) if row == 2 else stops if len(text) < asked.get(row, 0) else []
        scores[none] = -torch.inf
        return scores

    def says(row: int, text: list[int]) -> int:
        return int(left(row, text).argmax())

    for rows in BATCHES:
        before = {row: server.text(row) for row in rows}
        server.decode(rows)
        for place, row in enumerate(rows) if 5 in rows else ():
            emitted = server.text(row)[len(before[row]) :]
            for i, token in enumerate(emitted):
                text = before[row] + emitted[:i]
                scores = left(row, text) if processed else target_scores(server.target.model, text)
                named = server.output.logprobs_tensors.logprobs[4 * place + i, 0]
                assert torch.allclose(named, scores.log_softmax(-1)[token])
    server.decode([0, 5, 2], drafts=2)
    run(server, BATCHES)
    server.judge(says, says)
    assert server.program.left == {"fewer drafts than 3": 1}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE", "NGRAM"])
def test_texts_obey_grammars(serve: Serve, algorithm: str, known: bool) -> None:
    """As far as the scheduler says that a grammar knows the drafts; no other draft is accepted."""
    plan = plan_of(algorithm)
    server, half = serve(plan), plan.size("V") // 2

    def even(text: list[int]) -> set[int]:
        return set(range(len(text) % 2, plan.size("V"), 2))

    server.grammars, server.known = {2: even, 1: lambda _: {*range(half, plan.size("V"))}}, known

    def says(row: int, text: list[int]) -> int:
        scores = target_scores(server.target.model, text)
        allowed = sorted(server.grammars[row](text)) if row in server.grammars else range(plan.size("V"))
        return max(allowed, key=scores.tolist().__getitem__)

    server.begin(PROMPTS)
    run(server, BATCHES)
    server.decode([2, 1], drafts=2)
    run(server, BATCHES)
    server.judge(says, says)
    assert server.program.left == {"fewer drafts than 3": 1}
    accepted = [count for row in (1, 2) for _, count in server.steps[row]]
    assert (max(accepted) > 1) == known


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE", "FROZEN_KV_MTP"])
def test_texts_that_are_drawn(serve: Serve, algorithm: str) -> None:
    """With what a request asks for in the row that it has, by whoever had the row before."""
    plan = plan_of(algorithm, ("verify", "target_only"), ("sampling", ("top_k",)))
    server = serve(plan)
    asked: dict[int, dict[str, Any]] = {
        2: {"seed": 7, "temperature": 1.5}, 0: {}, 5: {"seed": -3, "temperature": 0.7, "top_k": 20},
        1: {"seed": 9, "temperature": 1.0},
    }  # fmt: skip
    for row, prompt in PROMPTS.items():
        server.begin({row: prompt}, **asked[row])

    def says(row: int, text: list[int]) -> int:
        of = {"seed": 0, "temperature": 0.0, "top_k": 0} | asked[row]
        scores = target_scores(server.target.model, text).tolist()
        return drawn(scores, of["seed"] % SEEDS, of["temperature"], len(text), of["top_k"])

    run(server, BATCHES)
    server.judge(says)
    server.end(1)
    asked[1] = {"seed": 9, "temperature": 2.0}
    server.begin({1: [3, 3]}, **asked[1])
    run(server, BATCHES)
    server.judge(says)
    assert server.program.left == {}
    assert server.program.report()["sampling"] == ["seed", "temperature", "top_k"]


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE"])
def test_texts_with_penalties(serve: Serve, algorithm: str) -> None:
    """For what prompt and text have, whoever ran which step of the request, or of the one before it in its row."""
    plan = plan_of(algorithm, ("verify", "target_only"), ("sampling", ("penalties",)))
    server = serve(plan)
    asked: dict[int, dict[str, Any]] = {
        2: {"seed": 7, "temperature": 1.5, "frequency_penalty": 0.5, "presence_penalty": -0.25},
        0: {"repetition_penalty": 1.5}, 5: {}, 1: {"frequency_penalty": 1.5},
    }  # fmt: skip
    prompts = dict(PROMPTS)

    def says(row: int, text: list[int]) -> int:
        heat, seed = asked[row].get("temperature", 0.0), asked[row].get("seed", 0)
        penalties = {name: value for name, value in asked[row].items() if name.endswith("penalty")}
        logits, begin = target_scores(server.target.model, text), len(prompts[row])
        scores = changed(logits, text[:begin], text[begin:], Sampling(**penalties))
        return drawn(scores, seed, heat, len(text))

    def begin(row: int) -> None:
        server.begin({row: prompts[row]}, **asked[row])

    def first(row: int, text: list[int]) -> int:
        penalties = {name: value for name, value in asked[row].items() if name.endswith("penalty")}
        scores = changed(target_scores(server.target.model, text), text, [], Sampling(**penalties))
        return scores.index(max(scores))

    for row in prompts:
        begin(row)
    for _ in range(2):
        run(server, BATCHES)
        server.decode([0, 1, 5], drafts=2)
    server.judge(says, first)
    server.end(1)
    asked[1], prompts[1] = {"repetition_penalty": 0.5, "seed": 3, "temperature": 1.0}, [3, 3, 9]
    begin(1)
    run(server, BATCHES)
    server.judge(says, first)
    assert server.program.left == {"fewer drafts than 3": 2}
    names = {"seed", "temperature", "repetition_penalty", "frequency_penalty", "presence_penalty"}
    assert {*server.program.report()["sampling"]} == names


def test_scores_that_are_no_numbers_are_counted(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(plan_of("EAGLE"))
    server.begin(PROMPTS)
    server.decode([2, 0, 1])
    assert server.output.num_nans is None
    server.runner.sampler.compute_nans = True
    scored = server.target.compute_logits

    def spoiled(hidden: Tensor) -> Tensor:
        logits = scored(hidden)
        logits[6, 50] = torch.nan
        return logits

    monkeypatch.setattr(server.target, "compute_logits", spoiled)
    server.decode([2, 0, 1])
    assert server.output.num_nans is not None
    assert server.output.num_nans.tolist() == [0, 1, 0]


@pytest.mark.parametrize("v2", [True, False])
def test_a_server_of_the_first_model_runner_is_told_of(
    serve: Serve, v2: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(plan_of("EAGLE"))
    caplog.clear()
    Worker(server.runner, v2=v2).load_model()
    assert ("first model runner" in caplog.text) != v2


def test_a_server_that_no_program_fits_runs_vllms_steps(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(plan_of("EAGLE"), rejection_sample_method="fly")
    assert server.program is None
    server.begin(PROMPTS)
    run(server, BATCHES)
    server.judge()
    monkeypatch.setenv("SPECC_PROGRAM", PROGRAM)
    with pytest.raises(RuntimeError, match=f"{PROGRAM}=?.*this server has no step that a program runs"):
        Worker(server.runner).load_model()


def test_a_program_that_must_run_ends_a_server_that_it_does_not_fit(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECC_PROGRAM", PROGRAM)
    with pytest.raises(RuntimeError, match=f"{PROGRAM} does not fit this server: another rejection sampler"):
        serve(plan_of("EAGLE"), rejection_sample_method="fly")

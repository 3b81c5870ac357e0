"""Log-probabilities of emitted tokens, and of the best ones: those of one forward of the target over the whole text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from penalties_oracle import changed
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from typer.testing import CliRunner

from specc.cli.main import app
from specc.lab.engine.engine import Engine
from specc.lab.engine.memory.attention import plain_attention
from specc.lab.engine.serving.requests.request import Completion, Sampling, Score, StopConditions, TokenEvent

from .conftest import Case, Models, config_text
from .local_pair import completions_of
from .test_shapes import Turns
from .tree_engine import Config, base_texts, make_engine, program_of, target_of

NEW, BEST = 16, 3
ASKED = ("penalties", "logit_bias", "top_k", "top_p", "min_p")
DRAWS = {"verify": "target_only", "sampling": ASKED}
CONFIGS = {
    "greedy-chain": Config("EAGLE", 1, 3, 4, 1, logprobs="raw", best=BEST),
    "greedy-tree": Config("STANDALONE", 3, 3, 12, 4, overlap=True, logprobs="processed", best=BEST),
    "raw-chain": Config("STANDALONE", 1, 3, 4, 1, overlap=True, logprobs="raw", best=BEST, **DRAWS),
    "processed-chain": Config("DFLASH", 1, 3, 4, 1, logprobs="processed", best=BEST, **DRAWS),
    "processed-tree": Config("EAGLE", 2, 3, 7, 4, overlap=True, logprobs="processed", best=BEST, **DRAWS),
    "look-up": Config("NGRAM", 2, 3, 7, 16, overlap=True, logprobs="processed", **DRAWS),
    "rejection": Config("STANDALONE", 1, 3, 4, 1, logprobs="processed", best=BEST, **DRAWS | {"verify": "rejection"}),
    "greedy-budget": Config("EAGLE3", 1, 3, 4, 1, logprobs="raw", best=BEST, budget=2),
    "raw-budget": Config("EAGLE", 1, 3, 4, 16, logprobs="raw", best=BEST, budget=2, **DRAWS),
    "processed-budget": Config("DFLASH", 1, 3, 4, 1, overlap=True, logprobs="processed", best=BEST, budget=2, **DRAWS),
    "greedy-tree-budget": Config("STANDALONE", 3, 3, 12, 4, overlap=True, logprobs="processed", best=BEST, budget=4),
    "raw-tree-budget": Config("EAGLE", 2, 3, 7, 4, mask="slots", logprobs="raw", best=BEST, budget=3, **DRAWS),
}
for mode in ("rejection", "block"):
    CONFIGS[f"{mode}-budget"] = replace(CONFIGS["rejection"], budget=3, verify=mode, overlap=mode == "block")
PROMPTS = [base_texts()[0][:12], base_texts()[1][:5], base_texts()[2][:33], base_texts()[0][:1]]
SAMPLINGS = [
    Sampling(0.0, repetition_penalty=1.5, logit_bias={7: 1.5, 40: -100.0}, top_k=2),
    Sampling(0.7, 3, frequency_penalty=0.6, presence_penalty=-0.3, top_k=9, top_p=0.9),
    Sampling(1.2, 5, min_p=0.05),
    Sampling(2.0, 7),
]
"""Of each prompt of a program that draws; the first is greedy, so that nothing but penalties and biases count."""


def distribution(scores: Tensor, prompt: Sequence[int], output: Sequence[int], how: Sampling) -> Tensor:
    """What the token after a text is drawn from, by transformers' processors: logits f32[V], -inf for what is cut."""
    logits = torch.tensor([changed(scores, prompt, output, how)])
    if how.temperature < 1e-6:
        return logits[0]
    chain = LogitsProcessorList([TemperatureLogitsWarper(how.temperature)])
    chain += [TopKLogitsWarper(how.top_k)] if how.top_k else []
    chain += [TopPLogitsWarper(how.top_p)] if how.top_p < 1 else []
    chain += [MinPLogitsWarper(how.min_p)] if how.min_p else []
    return chain(torch.tensor([[*prompt, *output]]), logits)[0]


def expected(completion: Completion, how: Sampling, config: Config) -> list[Tensor]:
    """Log-probabilities f32[V] after every text before an emitted token, of one forward over all of it."""
    prompt, output = list(completion.prompt_ids), list(completion.token_ids)
    model = target_of().model
    with torch.no_grad(), plain_attention(model):
        scores = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1].float()
    if config.logprobs == "processed":
        rows = [distribution(row, prompt, output[:i], how) for i, row in enumerate(scores)]
        scores = torch.stack(rows)
    return list(scores.log_softmax(-1))


def check(completion: Completion, how: Sampling, config: Config) -> None:
    """All that is said of a completion, to within 1e-4."""
    assert len(completion.scores) == len(completion.token_ids) > 0
    for token, score, row in zip(
        completion.token_ids, completion.scores, expected(completion, how, config), strict=True
    ):
        assert score.logprob == pytest.approx(row[token].item(), abs=1e-4)
        tokens, logprobs = [token for token, _ in score.best], [logprob for _, logprob in score.best]
        assert len(set(tokens)) == len(tokens) == config.best
        assert logprobs == pytest.approx(row.topk(config.best).values.tolist(), abs=1e-4)
        assert [row[token].item() for token in tokens] == pytest.approx(logprobs, abs=1e-4)


def samplings_of(config: Config) -> list[Sampling]:
    """How each prompt is sampled; greedily by a program that draws nothing."""
    return [Sampling(0.0)] * len(PROMPTS) if config.verify == "greedy" else SAMPLINGS


def run(engine: Engine, config: Config) -> list[Completion]:
    """All prompts at once; some are thrown out on the way."""
    order = [engine.add(p, StopConditions(NEW), sampling=s) for p, s in zip(PROMPTS, samplings_of(config), strict=True)]
    done: dict[int, Completion] = {}
    for step in count():
        if not engine.has_work:
            break
        if step in (1, 3) and engine.scheduler.running:
            engine.scheduler.retract(engine.scheduler.running[step % len(engine.scheduler.running)])
        done |= {completion.request_id: completion for completion in engine.step()}
    return [done[request] for request in order]


@pytest.mark.parametrize("name", CONFIGS)
def test_of_all_that_is_emitted(name: str) -> None:
    """The first token's too, and those of requests that were prefilled again; as they are streamed."""
    config, events = CONFIGS[name], list[TokenEvent]()
    completions = run(make_engine(config, padded=True, on_token=events.append), config)
    assert any(length > 1 for completion in completions for length in completion.accept_lens)
    assert sum(completion.retractions for completion in completions) == 2
    for completion, how in zip(completions, samplings_of(config), strict=True):
        check(completion, how, config)
        assert tuple(event.score for event in events if event.request_id == completion.request_id) == completion.scores


@pytest.mark.parametrize(("budget", "names"), [(None, (4, 1, 2)), ((2, "all"), (4, "4b2", 1, "2b2", "4b2"))])
def test_at_changing_shapes(budget: tuple[int | str, ...] | None, names: tuple[int | str, ...]) -> None:
    """Depths, and budgets of rows, some of which leave nothing out."""
    config = replace(CONFIGS["processed-chain"], algorithm="STANDALONE", steps=4, nodes=5, shallower=(1, 2))
    config = replace(config, budget=budget)
    for completion, how in zip(run(make_engine(config, shape=Turns(config, *names)), config), SAMPLINGS, strict=True):
        check(completion, how, config)


@pytest.mark.parametrize("name", ["greedy-tree", "processed-chain", "look-up"])
def test_after_a_handover(name: str) -> None:
    """The first token's comes with the request."""
    config = CONFIGS[name]
    moved = completions_of(config, zip(PROMPTS, samplings_of(config), strict=True), NEW)
    for completion, how in zip(moved, samplings_of(config), strict=True):
        check(completion, how, config)


def test_nothing_is_said_unless_asked_for() -> None:
    config = replace(CONFIGS["greedy-chain"], logprobs="", best=0)
    engine = make_engine(config)
    assert program_of(engine).plan.scores is None
    assert {completion.scores for completion in run(engine, config)} == {()}


def test_scores_follow_what_is_accepted() -> None:
    """Where a text ends inside a step, what is dropped has none."""
    config = CONFIGS["greedy-chain"]
    (whole,) = make_engine(config).generate([PROMPTS[2]], StopConditions(NEW))
    for most in range(1, 6):
        (cut,) = make_engine(config).generate([PROMPTS[2]], StopConditions(most))
        assert cut.token_ids == whole.token_ids[:most]
        assert [score.logprob for score in cut.scores] == pytest.approx(
            [score.logprob for score in whole.scores[:most]], abs=1e-5
        )
        assert all(isinstance(score, Score) for score in cut.scores)


def test_on_the_command_line(tmp_path: Path, models: dict[str, Models]) -> None:
    """As JSON, and as a table; transformers' own log-softmax of the text."""
    case = Case("NGRAM", "trained")
    text = config_text(case, models["trained"]) + "outputs: [logprobs]\nbest_logprobs: 3\n"
    (tmp_path / "a.yaml").write_text(text)
    built = CliRunner().invoke(app, ["build", str(tmp_path / "a.yaml"), "-o", str(tmp_path), "--emit", "wheel"])
    assert built.exit_code == 0, built.output
    (wheel,) = tmp_path.rglob("*.whl")
    asked = ["run", str(wheel), "--target", str(models["trained"].target), "--prompt", "import os\n"]
    asked += ["--max-new-tokens", "5", "--logprobs", "2"]
    record = json.loads(CliRunner().invoke(app, [*asked, "--format", "json"]).stdout)["completions"][0]
    assert "scores" not in record
    model = AutoModelForCausalLM.from_pretrained(models["trained"].target)
    prompt, output = record["prompt_ids"], record["token_ids"]
    with torch.no_grad():
        rows = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    assert [entry["token"] for entry in record["logprobs"]] == output
    for entry, row in zip(record["logprobs"], rows, strict=True):
        assert entry["logprob"] == pytest.approx(row[entry["token"]].item(), abs=1e-4)
        best = row.topk(2)
        assert [candidate["token"] for candidate in entry["best"]] == best.indices.tolist()
        assert [candidate["logprob"] for candidate in entry["best"]] == pytest.approx(best.values.tolist(), abs=1e-4)
    table = CliRunner().invoke(app, asked).stderr
    assert all(f"{entry['logprob']:.4f}" in table for entry in record["logprobs"])
    refused = CliRunner().invoke(app, [*asked[:-1], "4"])
    assert (refused.exit_code, "best_logprobs: 3" in refused.output) == (2, True)

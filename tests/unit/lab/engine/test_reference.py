"""What completions are compared with: near-ties told apart, and settings of the model that do not count."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
import typer
from fakes import program as fake_program
from fakes.program import FakeProgram, make_plan
from typer.testing import CliRunner, Result

from specc.lab.commands.run import run
from specc.lab.engine import reference
from specc.lab.engine.engine import Engine
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.reference import compare, greedy
from specc.lab.engine.serving.requests.request import StopConditions

from .conftest import save_tokenizer
from .models_for_tests import make_model

PROMPTS = ((5, 9, 2, 30, 11), (40, 41, 42), (7, 7, 8, 6, 5, 4))
LENGTH = 12
TEXTS = ("--prompt", "".join(chr(30 + token) for token in PROMPTS[0]), "--prompt", "#")


def tied(dtype: torch.dtype = torch.bfloat16) -> TargetModel:
    """A model that scores two tokens equal, the first that it writes and the one after."""
    model = make_model().to(dtype)
    first = greedy(TargetModel(model), PROMPTS[0], 1)[0]
    with torch.no_grad():
        model.lm_head.weight[first + 1] = model.lm_head.weight[first]
    return TargetModel(model)


def complete(target: TargetModel, *, takes_last: bool) -> list[reference.Completion]:
    """What the engine writes when a program takes the first or the last of tokens with equal scores."""
    engine = Engine(FakeProgram(make_plan(target, None), takes_last=takes_last), target)
    return engine.generate(PROMPTS, StopConditions(LENGTH))


def test_ties_are_no_differences_in_16_bits() -> None:
    target = tied()
    verdicts = [compare(target, done, LENGTH) for done in complete(target, takes_last=True)]
    assert all(verdict.right for verdict in verdicts)
    assert not verdicts[0].identical
    tie = verdicts[0].ties[0]
    assert (tie.position, tie.found) == (0, tie.expected + 1)
    assert tie.found_score == tie.expected_score
    assert all(compare(target, done, LENGTH).identical for done in complete(target, takes_last=False))


def test_ties_are_differences_in_32_bits() -> None:
    target = tied(torch.float32)
    verdict = compare(target, complete(target, takes_last=True)[0], LENGTH)
    assert (verdict.right, verdict.position, verdict.ties) == (False, 0, ())


def test_a_difference_after_a_tie_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tied()
    done = complete(target, takes_last=True)[0]
    last = done.token_ids[-1]
    wrong = reference.replace(done, token_ids=(*done.token_ids[:-1], 96 - last if last != 48 else 3))
    verdict = compare(target, wrong, LENGTH)
    assert verdict.ties
    assert (verdict.right, verdict.position, verdict.expected) == (False, LENGTH - 1, last)
    short = reference.replace(done, token_ids=done.token_ids[:-1])
    assert not compare(target, short, LENGTH).right


@pytest.mark.parametrize(("steps", "near"), [(0, True), (1, True), (2, False)])
@pytest.mark.parametrize("value", [3.0, 0.011, -117.0])
def test_a_step_of_the_format_is_near(steps: int, near: bool, value: float) -> None:
    score = torch.tensor(value, dtype=torch.bfloat16)
    near_score = score.clone()
    for _ in range(steps):
        near_score = (near_score.view(torch.int16) + 1).view(torch.bfloat16)
    scores = torch.stack((torch.zeros_like(score), score, near_score)).float()
    assert reference._nearly_equal(scores, 1, 2, torch.bfloat16) is near
    assert reference._nearly_equal(scores, 2, 1, torch.bfloat16) is near
    assert not reference._nearly_equal(scores, 1, 2, torch.float32)


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Return a function that runs `specc run` on a model, with a program that takes the last of equal scores."""

    def call(target: TargetModel, *options: str) -> Result:
        target.model.save_pretrained(tmp_path)
        save_tokenizer(tmp_path)
        module = ModuleType("specc_fake_tied")
        module.load = lambda device: FakeProgram(make_plan(target, None), takes_last=True)  # pyright: ignore
        module.Batch = fake_program.Batch  # pyright: ignore
        monkeypatch.setitem(sys.modules, module.__name__, module)
        app = typer.Typer()
        app.command()(run)
        return CliRunner().invoke(app, [module.__name__, "--target", str(tmp_path), "--max-new-tokens", "12", *options])

    return call


def test_ties_are_shown_with_both_scores(invoke: Callable[..., Result]) -> None:
    target = tied()
    result = invoke(target, *TEXTS, "--check", "--format", "json")
    assert result.exit_code == 0, result.output
    checks = [item["check"] for item in json.loads(result.output)["completions"]]
    assert any(check["ties"] for check in checks)
    assert all(check["position"] is None for check in checks)
    result = invoke(target, *TEXTS, "--check")
    assert result.exit_code == 0, result.output
    (tie, *_) = next(check["ties"] for check in checks if check["ties"])
    line = f"new token {tie['position']} is {tie['found']} (scored {tie['found_score']:.9g}) instead of"
    assert "yes, up to near-ties of the target's scores in bf16: " in result.output
    assert line in result.output
    assert invoke(tied(torch.float32), *TEXTS, "--check").exit_code == 1


SETTINGS = {
    "repetition_penalty": 1.8,
    "suppress_tokens": list(range(2, 50)),
    "begin_suppress_tokens": [60],
    "no_repeat_ngram_size": 2,
    "min_new_tokens": 30,
    "forced_eos_token_id": 1,
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_that_change_generate_are_named_and_ignored(setting: str, invoke: Callable[..., Result]) -> None:
    model = make_model()
    plain = greedy(TargetModel(model), PROMPTS[0], LENGTH)
    setattr(model.generation_config, setting, SETTINGS[setting])
    target = TargetModel(model)
    assert greedy(target, PROMPTS[0], LENGTH) == plain
    assert getattr(model.generation_config, setting) == SETTINGS[setting]
    result = invoke(target, "--prompt", "hello", "--check")
    assert result.exit_code == 0, result.output
    assert f"warning[run/ignored-settings]: generation settings of the target are ignored: {setting}: " in result.stderr
    record = json.loads(invoke(target, "--prompt", "hello", "--check", "--format", "json").stdout)
    assert [warning["code"] for warning in record["warnings"]] == ["run/ignored-settings"]
    assert record["completions"][0]["check"]["identical"]


def test_usual_settings_are_no_news(invoke: Callable[..., Result]) -> None:
    model = make_model()
    model.generation_config.do_sample, model.generation_config.temperature = True, 0.7
    assert "warning" not in invoke(TargetModel(model), "--prompt", "hello").stderr

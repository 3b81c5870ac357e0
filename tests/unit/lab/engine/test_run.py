"""`specc run` over the fake program."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from prometheus_client.parser import text_string_to_metric_families
from torch import Tensor
from typer.testing import CliRunner, Result

from specc.lab.commands.run import run
from specc.lab.engine import reference
from specc.lab.engine.serving.requests.request import Sampling
from specc.runtime.plan.plan import Plan

from .conftest import NAME

PROMPTS = ["hello", "a longer prompt, of words", "x"]


@pytest.fixture
def invoke(fake_package: Callable[..., ModuleType], model_dirs: dict[str, Path]) -> Callable[..., Result]:
    """Return a function that runs the command on the fake package."""
    app = typer.Typer()
    app.command()(run)

    def call(*arguments: str, draft: str = "twin", package: str = NAME) -> Result:
        fake_package(draft)
        options = ["--target", str(model_dirs["target"]), "--draft", str(model_dirs[draft])]
        return CliRunner().invoke(app, [package, *options, *arguments])

    return call


def with_prompts(texts: list[str]) -> list[str]:
    """Return the options for prompts."""
    return [word for text in texts for word in ("--prompt", text)]


@pytest.mark.parametrize("draft", ["twin", "stranger", "head"])
def test_several_prompts_are_identical_to_generate(invoke: Callable[..., Result], draft: str) -> None:
    result = invoke(*with_prompts(PROMPTS), "--max-new-tokens", "12", "--check", draft=draft)
    assert result.exit_code == 0, result.output
    assert result.output.count("identical to generate: yes") == 3
    assert all(text in result.output for text in PROMPTS)
    assert "mean accepted length" in result.output
    assert "tokens/s" in result.output


def test_a_rotated_program_is_refused(invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "rotated", True)
    result = invoke("--prompt", "hello")
    assert result.exit_code == 1
    assert "error[run/model-unsupported]: the program leaves the target's forward to the engine" in result.output
    assert "hint: engines that run the target themselves serve it" in result.output


def test_json(invoke: Callable[..., Result]) -> None:
    result = invoke(*with_prompts(PROMPTS), "--format", "json", "--check", "--max-new-tokens", "9")
    record = json.loads(result.output)
    assert [item["prompt"] for item in record["completions"]] == PROMPTS
    assert all(item["check"]["identical"] and item["finish_reason"] for item in record["completions"])
    assert record["stats"]["requests"] == 3


def test_metrics_are_written_beside_the_output(invoke: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "metrics.prom"
    result = invoke(*with_prompts(PROMPTS), "--format", "json", "--metrics", str(file))
    families = {family.name: family for family in text_string_to_metric_families(file.read_text())}
    completions = json.loads(result.output)["completions"]
    (tokens,) = families["specc_emitted_tokens"].samples
    assert tokens.value == sum(len(item["token_ids"]) for item in completions)
    finished = {sample.labels["reason"]: sample.value for sample in families["specc_finished_requests"].samples}
    assert Counter(item["finish_reason"] for item in completions) == Counter(finished)
    lost = invoke("--prompt", "x", "--metrics", str(tmp_path / "none" / "file"))
    assert lost.exit_code == 1
    assert "error[emit/io]: cannot write" in lost.stderr


def test_a_shape_is_one_that_the_program_has(invoke: Callable[..., Result]) -> None:
    assert invoke("--prompt", "x", "--shape", "3", "--check").exit_code == 0
    refused = invoke("--prompt", "x", "--shape", "7")
    assert refused.exit_code == 2
    assert "there is 3, and not 7" in refused.stderr


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_one_prompt_streams_the_same_text(invoke: Callable[..., Result], stream: str) -> None:
    plain = json.loads(invoke("--prompt", "speculate", "--format", "json").output)["completions"][0]["text"]
    result = invoke("--prompt", "speculate", stream)
    assert plain in result.output
    assert len(plain) > 10


def test_a_stop_string_cuts_the_text(invoke: Callable[..., Result]) -> None:
    free = json.loads(invoke("--prompt", "speculate", "--format", "json").output)["completions"][0]["text"]
    stop = free[6:8]
    result = invoke("--prompt", "speculate", "--format", "json", "--stop", stop, "--check")
    completion = json.loads(result.output)["completions"][0]
    assert completion["text"] == free[: free.index(stop)]
    assert completion["finish_reason"] == "stop"
    assert completion["check"]["identical"]
    assert result.exit_code == 0


def test_a_text_ends_where_the_context_does_and_says_so(invoke: Callable[..., Result]) -> None:
    result = invoke(*with_prompts(PROMPTS), "--max-new-tokens", "5000", "--max-context", "32", "--check")
    assert result.exit_code == 0, result.output
    assert result.output.count("identical to generate: yes") == 3
    assert result.output.count("ended by the context of 32 tokens, see --max-context") == 2  # one ends by EOS
    assert "ended by" not in invoke("--prompt", "x", "--max-new-tokens", "4", "--check").output


def test_prompts_from_files(invoke: Callable[..., Result], tmp_path: Path) -> None:
    lines, listed = tmp_path / "p.txt", tmp_path / "p.json"
    lines.write_text("one\n\ntwo\n")
    listed.write_text(json.dumps(["three\nlines"]))
    for file, expected in ((lines, ["zero", "one", "two"]), (listed, ["zero", "three\nlines"])):
        result = invoke("--prompt", "zero", "--prompts", str(file), "--format", "json", "--max-new-tokens", "2")
        assert [item["prompt"] for item in json.loads(result.output)["completions"]] == expected


def test_a_difference_is_shown_and_exits_with_1(invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    right = reference._generate

    def wrong(*arguments: Any) -> tuple[tuple[int, ...], list[Tensor]]:
        tokens, scores = right(*arguments)
        return (*tokens[:3], tokens[3] ^ 1, *tokens[4:]), scores

    monkeypatch.setattr(reference, "_generate", wrong)
    result = invoke("--prompt", "hello", "--check")
    assert result.exit_code == 1
    assert "identical to generate: no, first at new token 3: " in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--prompt", "x", "--max-new-tokens", "0"],
        ["--prompt", "x", "--stop", ""],
        ["--prompt", "x", "--max-context", "100000"],
        ["--prompt", "x" * 300],
        ["--prompt", ""],
        ["--prompt", "x", "--logit-bias", "17"],
        ["--prompt", "x", "--logit-bias", "a:1"],
        ["--prompt", "x", "--logit-bias", "17:101"],
        ["--prompt", "x", "--repetition-penalty", "0"],
        ["--prompt", "x", "--frequency-penalty", "0.5"],
        ["--prompt", "x", "--check", "--presence-penalty", "0.5"],
        ["--prompt", "x", "--regex", "a"],
        ["--prompt", "x", "--json-schema", "{}"],
        ["--prompt", "x", "--regex", "a", "--json-schema", "{}"],
        ["--prompt", "x", "--regex", "a", "--check"],
    ],
)
def test_usage_errors(invoke: Callable[..., Result], arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output


def test_how_tokens_are_drawn(invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option says its own part of it."""
    asked: list[Sampling] = []

    def generate(_: Any, __: Any, ___: Any, sampling: Sampling, ____: Any) -> list[Any]:
        asked.append(sampling)
        return []

    monkeypatch.setattr("specc.lab.commands.run._generate", generate)
    options = "--temperature 0.5 --seed 7 --top-k 4 --top-p 0.75 --min-p 0.25 --repetition-penalty 1.5"
    more = "--frequency-penalty -0.5 --presence-penalty 2 --logit-bias 17:-1.5 --logit-bias 3:4"
    result = invoke("--prompt", "x", *options.split(), *more.split())
    assert result.exit_code == 0, result.output
    assert asked == [Sampling(0.5, 7, 4, 0.75, 0.25, 1.5, -0.5, 2.0, {17: -1.5, 3: 4.0})]


def test_a_grammar_that_a_program_was_built_without_is_named(invoke: Callable[..., Result], tmp_path: Path) -> None:
    """A schema may be text or the name of a file; either way it is not ignored."""
    (tmp_path / "schema.json").write_text('{"type": "object"}')
    for schema in (' {"type": "object"}', str(tmp_path / "schema.json")):
        result = invoke("--prompt", "x", "--json-schema", schema)
        assert result.exit_code == 2
        assert "was built without json_schema, see 'sampling'" in " ".join(result.output.split())


@pytest.mark.parametrize("corpus", [False, True])
def test_a_program_without_draft_model(
    fake_package: Callable[..., ModuleType], model_dirs: dict[str, Path], tmp_path: Path, corpus: bool
) -> None:
    app = typer.Typer()
    app.command()(run)
    fake_package(None, corpus=corpus)
    (tmp_path / "words").write_text("hello, speculate of words")
    options = [NAME, "--target", str(model_dirs["target"]), *with_prompts(PROMPTS), "--check", "--max-new-tokens", "12"]
    words = ["--corpus", str(tmp_path / "words")]
    result = CliRunner().invoke(app, [*options, *(words if corpus else [])])
    assert result.exit_code == 0, result.output
    assert result.output.count("identical to generate: yes") == 3
    for wrong, named in (([] if corpus else words, "--corpus"), (["--draft", str(model_dirs["twin"])], "--draft")):
        refused = CliRunner().invoke(app, [*options, *(words if corpus and wrong else []), *wrong])
        assert refused.exit_code == 2
        assert named in refused.output


def test_a_program_with_a_draft_model_needs_it(
    fake_package: Callable[..., ModuleType], model_dirs: dict[str, Path]
) -> None:
    app = typer.Typer()
    app.command()(run)
    fake_package("twin")
    result = CliRunner().invoke(app, [NAME, "--target", str(model_dirs["target"]), "--prompt", "x"])
    assert result.exit_code == 2
    assert "the program needs one" in result.output


@pytest.mark.parametrize("as_json", [False, True])
def test_inputs_that_are_wrong_are_diagnostics(invoke: Callable[..., Result], tmp_path: Path, as_json: bool) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    format = ["--format", "json"] if as_json else []
    for result, code in (
        (invoke("--prompt", "x", *format, package="specc_no_such"), "run/wheel-missing"),
        (invoke("--prompts", str(tmp_path / "none"), *format), "config/unreadable"),
        (invoke("--prompt", "x", "--json-schema", str(tmp_path / "none"), *format), "config/unreadable"),
        (invoke("--prompts", str(bad), *format), "config/wrong-type"),
        (invoke("--prompt", "x", "--target", str(tmp_path), *format), "run/model-unreadable"),
    ):
        assert result.exit_code == 1
        if as_json:
            assert json.loads(result.stdout)[0]["code"] == code
        else:
            assert f"error[{code}]: " in result.stderr
            assert not result.stdout


@pytest.mark.parametrize("prompt", ["ab\udcff", "\ud83d"])
def test_a_prompt_that_is_no_text(invoke: Callable[..., Result], tmp_path: Path, prompt: str) -> None:
    """Half of a character: as a command line has it of bytes that are no UTF-8, or as JSON may say it."""
    file = tmp_path / "p.json"
    file.write_text(json.dumps(["fine", prompt, "\U0001f600"]))
    result = invoke("--prompt", "x", "--prompts", str(file), package="no_such_program")
    assert result.exit_code == 1
    place = len(prompt) - 1
    assert f"error[run/bad-prompt]: prompt 2 of '{file}' has half of a character at place {place}" in result.stderr
    assert "= hint: " in result.stderr
    result = invoke("--prompt", "x", "--prompt", prompt)
    assert "error[run/bad-prompt]: prompt 2 of the command line has half of" in result.stderr
    assert invoke("--prompt", "x", "--stop", prompt).exit_code == 2


def test_a_prompt_that_is_too_long_is_named(invoke: Callable[..., Result]) -> None:
    result = invoke(*with_prompts(["x", "speculate " * 9]), "--max-context", "32")
    assert result.exit_code == 2
    assert "prompt 2, 'speculate speculate ': the prompt has" in " ".join(result.stderr.split())


def test_directories_that_are_none(invoke: Callable[..., Result], model_dirs: dict[str, Path]) -> None:
    for name in ("x" * 5000, "gpt2", "~no_such_user"):
        result = invoke("--prompt", "x", "--target", name)
        assert result.exit_code == 1
        assert "error[run/model-unreadable]: cannot load the target model" in result.stderr

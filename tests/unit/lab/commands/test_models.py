"""`specc list --models`, and that docs/models.md has the same table: pytest FILE --update-golden writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from specc.cli.main import app
from specc.engines.sglang.served import ServedModel, Server, refusals

PAGE = Path(__file__).parents[4] / "docs" / "models.md"
BEGIN, END = "<!-- specc list --models -->\n", "<!-- end -->"


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    """What the command says as JSON."""
    done = CliRunner().invoke(app, ["list", "--models", "--format", "json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["models"]


def table(rows: list[dict[str, str]]) -> str:
    """The rows as the page has them."""
    heads = [*rows[0]]
    lines = [[head.replace("model_type", "type") for head in heads], ["---"] * len(heads)]
    lines += [
        [f"`{row[heads[0]]}`", f"`{row[heads[1]]}`" if row[heads[1]] else "", *[*row.values()][2:]] for row in rows
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def test_the_page_has_the_table(rows: list[dict[str, str]], request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(before + BEGIN + "\n" + table(rows) + "\n" + END + rest.partition(END)[2])
    assert f"{BEGIN}\n{table(rows)}\n{END}" in PAGE.read_text()


def verdicts(rows: list[dict[str, str]], model_type: str) -> list[str]:
    """The cells of a type: the reference engine, SGLang, vLLM."""
    (row,) = (row for row in rows if row["model_type"] == model_type)
    return [*row.values()][2:]


def test_rows_are_what_is_refused(rows: list[dict[str, str]]) -> None:
    assert verdicts(rows, "llama") == ["chain, tree", "chain, tree", "chain"]
    assert verdicts(rows, "deepseek_v3") == ["chain, tree", "chain", "chain"]  # a latent cache
    assert verdicts(rows, "qwen3_next") == ["chain, tree", "chain", "chain"]
    assert verdicts(rows, "gpt_oss") == ["chain, tree", "chain", "chain"]
    assert verdicts(rows, "gemma3_text") == ["chain, tree", "chain", "chain"]
    assert verdicts(rows, "deepseek_v32")[0] == "no: sparse attention"
    assert verdicts(rows, "mamba") == ["no: no KV cache"] * 3


def test_a_rule_that_changes_changes_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table asks the rules: it has no list of its own."""

    def stricter(server: Server) -> Any:
        yield from refusals(server if server.target != ServedModel() else Server(target=ServedModel(state="unknown")))

    monkeypatch.setattr("specc.engines.sglang.check.models.refusals", stricter)
    from specc.lab.commands.model_types import rows as changed_rows

    first = next(row for row in changed_rows() if row["model_type"] == "apertus")
    assert first["SGLang 0.5.23"] == "no: recurrent state"

"""README.md: its commands run as they are written, print what it shows, and its figures are those of the documents."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch
from fakes.drafts import Engine

from specc.compiler.passes.pipeline import PASSES

from .pages import ROOT, blocks, clone, compare, run

README = (ROOT / "README.md").read_text()
BLOCKS = blocks("README.md")
COMMANDS = [command for block in BLOCKS if block.language == "console" for command in block.commands()]
SGLANG = (ROOT / "docs" / "sglang-figures.md").read_text()
HOW = ("greedy", "drawn")
MISTAKE = ("hidden_size: 4096, num_layers: 1,", "hidden_size: 2048, num_layers: 1,")
"""The draft of README's configuration, and the one of which it shows the diagnostic."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a user has after the commands of README, word for word, in order, each of which succeeds."""
    folder = clone(tmp_path_factory.mktemp("clone"))
    for command, shown in COMMANDS:
        if command.startswith("make "):
            continue  # CI itself runs them
        done = run(folder, "bash", "-c", command)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}"
        if shown:
            compare(shown, done.stdout)
    return folder


def test_commands_are_what_a_user_types(folder: Path) -> None:
    words = [command.split()[:2] for command, _ in COMMANDS]
    expected = ["make setup", ". .venv/bin/activate", "specc init", "specc build", "specc inspect", "specc run"]
    assert [" ".join(pair) for pair in words] == [*expected, "pip install"]
    assert list((folder / "dist").glob("specc_program_target_eagle-*.whl"))


def test_what_make_does_ci_does() -> None:
    run = (ROOT / ".ci/run").read_text()
    called = {word for line in run.splitlines() for word in line.split() if "make " in line}
    called |= {word for chosen in re.findall(r'beside="(.*?)"', run) for word in chosen.split()}
    named = set(re.findall(r"`make (\w+)`", README)) | {
        word for command, _ in COMMANDS if command.startswith("make ") for word in command.split()[1:]
    }
    assert {"setup", "demo", "site", "test"} == named
    assert named <= called


def test_python_runs(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With the forwards and the table of the fake engine."""
    (block,) = (block for block in BLOCKS if block.language == "python")
    monkeypatch.setattr(sys, "path", [str(folder / "site"), *sys.path])
    import specc_program_target_eagle as k

    engine = Engine.of_plan(k.plan)
    engine.prompts = {1: [5, 6, 7], 2: [8, 9]}
    given = {"callbacks": engine, "req_to_token": engine.table, "rows": [1, 2], "prompt_lengths": [3, 2]}
    with torch.inference_mode():
        exec(block.text, {**given, "seq_lens": [3, 2]})
    tokens = [int(word) for word in re.findall(r"\d+", capsys.readouterr().out)]
    assert 1 <= len(tokens) <= 4
    assert {"prefill_target", "prefill_draft", "draft", "target", "extend"} == {name for name, _ in engine.calls}


def test_the_mistake_is_shown_as_it_is(folder: Path) -> None:
    (config,) = (block for block in BLOCKS if block.file == "eagle.yaml")
    (shown,) = (block for block in BLOCKS if block.language == "text")
    (folder / "eagle.yaml").write_text(config.text)
    assert run(folder, "specc", "check", "eagle.yaml").returncode == 0
    assert config.text.count(MISTAKE[0]) == 1
    (folder / "eagle.yaml").write_text(config.text.replace(*MISTAKE))
    done = run(folder, "specc", "check", "eagle.yaml")
    assert done.returncode == 1
    compare(shown.text, done.stdout)


SERVERS = {
    "chain of 3 drafts, greedy": ("chain, 1024 tokens", "chain", "EAGLE chain, 8 B", "glue of the chain"),
    "chain of 3 drafts, drawn": ("chain, drawn, 1024", "chain, drawn", None, "glue of the drawn chain"),
    "SGLang's default tree, greedy": (
        "default tree, 1024", "default tree", "default tree, 8 B", "glue of the default tree",
    ),
    "SGLang's default tree, drawn": (
        "default tree, drawn, 1024", "default tree, drawn", "default tree, 8 B, drawn", "glue of the drawn tree",
    ),
}  # fmt: skip
"""README's rows -> those of docs/sglang-figures.md: ratios at every batch and the same again, the trace at batch 1, and
its glue again."""
RANKS = {
    "SGLang's all-reduce, 8 B, chain", "SGLang's all-reduce, 8 B, default tree",
    "two ranks, 70 B of half the layers, chain",
}  # fmt: skip


def cells(text: str, name: str) -> list[str]:
    """The cells of the row of a table that begins so."""
    (row,) = re.findall(rf"^\| {re.escape(name)} \|(.*)\|$", text, re.M)
    return [cell.strip() for cell in row.split("|")]


def both(*figures: str) -> str:
    """What was measured twice, as README writes it: the less and the more, or the one that there is."""
    return " to ".join(sorted({figure for figure in figures if figure}, key=float))


def test_figures_are_those_of_the_documents() -> None:
    for row, (ratios, again, trace, glue_again) in SERVERS.items():
        steps, launches, glue, *_ = cells(README, row)
        pairs = zip(cells(SGLANG, ratios), cells(SGLANG, again), strict=True)
        assert steps == ", ".join(both(*(cell.partition(" ")[0] for cell in pair)) for pair in pairs)
        times = [cells(SGLANG, glue_again)]
        if trace is not None:
            _, counts, _, traced, _ = cells(SGLANG, f"{trace} | 1")
            assert launches == counts.replace(", ", " → ")
            times.append(traced.split(", "))
        assert glue == " → ".join(both(*side) for side in zip(*times, strict=True)) + " µs"
    text = " ".join(README.split())
    for row in RANKS:
        ratios = sorted(cell.partition(" ")[0] for cell in cells(SGLANG, row))
        assert f"{ratios[0]} to {ratios[-1]}" in text
    measured = (ROOT / "docs" / "benchmarks.md").read_text()
    for form in ("chain", "tree"):
        glue = re.search(rf"^\| {form}: whole step \| ([\d.]+ to [\d.]+) \|", measured, re.M)
        assert glue
        assert re.search(rf"^\| .*{form}.*\| {glue[1]} times as fast \|$", README, re.M)


def test_the_first_screen_says_what_the_table_says() -> None:
    """The least and the most of the ratios of a step, of trees and of the greedy chain."""
    rows = {kind: [float(word) for word in re.findall(r"\d\.\d\d", cells(README, kind)[0])] for kind in SERVERS}
    gains = " ".join(README[README.index("**What it gains.**") : README.index("**What it does not do.**")].split())
    trees = [(min(rows[f"SGLang's default tree, {how}"]), max(rows[f"SGLang's default tree, {how}"])) for how in HOW]
    assert re.findall(r"(0\.\d\d) to (0\.\d\d)", gains) == [(f"{least:.2f}", f"{most:.2f}") for least, most in trees]
    chain = sorted({round(100 * (1 - ratio)) for ratio in rows["chain of 3 drafts, greedy"]})
    assert f"A greedy chain gains {chain[0]} to {chain[-1]} %." in gains


@pytest.mark.parametrize("name", ["overview", "step"])
def test_the_picture_is_what_its_script_draws(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    drawing, picture = importlib.import_module("drawing"), importlib.import_module(name)
    for suffix, colours in drawing.THEMES.items():
        file = f"docs/assets/{name}{suffix}.svg"
        assert (ROOT / file).read_text() == picture.draw(colours)
        assert file in README


def test_the_pictures_say_what_is_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches as they were measured, and passes in the order in which they run."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    import overview
    import step

    assert step.measured()["launches"] == (49, 7)
    assert [name for name in PASSES if name in overview.PASSES] == list(overview.PASSES)

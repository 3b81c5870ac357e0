"""The few lines that a story begins with, and the choices that they are taken from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from programs import EXAMPLES, config_text
from typer.testing import CliRunner

from specc.cli.main import app
from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_config, load_text
from specc.compiler.driver.build import ShapeBuild, build_program
from specc.compiler.explain import brief
from specc.compiler.explain.program import steps
from specc.compiler.explain.story import PassStory, RemarkStory, Story, tell
from specc.compiler.pass_manager.pass_base import REMOVED, Choice, Rejected
from specc.runtime.plan.nodes import Launch


@pytest.fixture(scope="module")
def wide() -> ShapeBuild:
    """A large tree whose rows are drawn along the path."""
    return build_program(load_config(EXAMPLES / "eagle-tree-sampled-wide.yaml", names(), needs)).shapes[0]


@pytest.fixture(scope="module")
def story(wide: ShapeBuild) -> Story:
    return tell(wide)


@pytest.fixture(scope="module")
def chain() -> Story:
    text = config_text("STANDALONE", num_steps=2)
    return tell(build_program(load_text(text, Path("small.yaml"), names(), needs)).shapes[0])


def choosing(story: Story, *chosen: tuple[str, Choice]) -> Story:
    """A story in which passes have made these choices and no others."""
    passes = [PassStory(name, "", (RemarkStory("", None, choice),)) for name, choice in chosen]
    return replace(story, passes=tuple(passes))


def decided(of: str, cost: float, *others: float) -> Choice:
    return Choice(of, "this", "", tuple(Rejected("that", "", rejected_cost) for rejected_cost in others), cost, "bytes")


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize(
    "example", ["eagle-tree-sampled-wide", "standalone-chain", "ngram-tree", "eagle3-tree-sharded"]
)
def test_some_ten_lines_as_wide_as_the_terminal(example: str, width: int) -> None:
    path = str(EXAMPLES / f"{example}.yaml")
    done = CliRunner().invoke(app, ["explain", path], env={"COLUMNS": str(width)})
    lines = done.stdout.splitlines()
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= (14 if width == 160 else 26)
    assert "--full" in lines[-1] + lines[-2]


def test_what_each_line_says(story: Story) -> None:
    lines = dict(brief.lines(story))
    assert lines["form"] == "tree of 48 nodes: topk is 8; selected and linked every step"
    forwards = "4 a step; hidden states: every row of target; one row of draft_0, extend; nothing of draft_1"
    assert lines["forwards"] == forwards
    assert lines["launches"].startswith("10 a step in one graph, no wait for the host: prepare_rows, duplicate_tail, ")
    assert "verify_draw_0..3" in lines["launches"]
    assert lines["carries"].startswith("8,312 bytes a request: bonus, topk_p, ")
    assert lines["arena"] == "9,635,584 bytes, 12,890,368 without sharing"
    assert lines["removed"] == "%draft_hidden1 of model.draft and 2 more"
    assert "lazy (101.9 us), not eager (729.6 us)" in " ".join(text for _, text in brief.lines(story))


@pytest.mark.parametrize(
    ("draft", "line"),
    [
        ({"head": "weights"}, "12,288 bytes of weights, the engine's own, read 3 times a step"),
        ({"head": "int8"}, "6,528 bytes of weights, a copy beside the engine's, read 3 times a step"),
        (
            {"head": "weights", "vocab_size": 40, "token_map": "engine"},
            "5,120 bytes of weights, a copy beside the engine's, read 3 times a step",
        ),
    ],
)
def test_what_is_read_of_a_head(draft: dict[str, object], line: str) -> None:
    """Of 96 tokens with 64 weights of 16 bits each, or of 8 and a scale."""
    text = config_text("EAGLE", draft={"dtype": "bfloat16", **draft}, target={"dtype": "bfloat16"})
    told_of = tell(build_program(load_text(text, Path("small.yaml"), names(), needs)).shapes[0])
    assert dict(brief.lines(told_of))["head"] == line


def test_what_is_read_of_biases() -> None:
    """Of 96 tokens with 8 weights of 8 bits each and a scale, for every draft; what the engine's own are is its own."""
    models = {"hidden_size": 32, "num_aux_layers": 2, "markov_rank": 8, "dtype": "bfloat16"}
    for head in ("engine", "int8"):
        text = config_text("DSPARK", draft=models | {"head": head}, target={"hidden_size": 32, "dtype": "bfloat16"})
        lines = dict(brief.lines(tell(build_program(load_text(text, Path("small.yaml"), names(), needs)).shapes[0])))
        assert lines.get("biases") == (
            None if head == "engine" else "1,152 bytes of weights, a copy beside the engine's, read 3 times a step"
        )


def test_a_drawn_draft_of_a_part_has_a_table_of_entries() -> None:
    draft = {"vocab_size": 40, "token_map": "engine"}
    text = config_text("EAGLE", draft=draft, verify="rejection")
    told_of = tell(build_program(load_text(text, Path("small.yaml"), names(), needs)).shapes[0])
    wanted = "384 bytes that say which of the draft's entries a token is"  # of 96 tokens
    assert dict(brief.lines(told_of))["entries"] == wanted


def test_what_a_pass_chose_is_not_what_it_removed(story: Story) -> None:
    removed, kept = Choice("a", REMOVED, ""), decided("b", 1)
    chosen = choosing(story, ("another", decided("c", 1)), ("pass", removed), ("pass", kept), ("pass", decided("d", 1)))
    assert brief.choice_of(chosen, "pass") == kept
    assert brief.choice_of(choosing(story, ("pass", removed)), "pass") is None


def test_what_is_carried_no_more_comes_first(chain: Story) -> None:
    gone = [choice.of for choice in brief.removed(chain)]
    assert gone[:2] == ["carry @hidden", "carry @topk_p"]
    assert gone[2].startswith("%")
    assert len(gone) == sum(choice.chosen == REMOVED for _, _, choice in chain.choices())


def test_the_weightiest_decisions(story: Story) -> None:
    chosen = choosing(
        story,
        ("one", decided("a", 10, 20, 90)),
        ("one", decided("b", 1000, 1600)),
        ("two", decided("c", 10, 500)),
        ("three", decided("d", 10, 5)),
        ("four", decided("e", 0, 5)),
        ("five", decided("prefill_draw", 1, 1000)),
        ("plan-memory", decided("arena", 1, 1000)),
        ("six", Choice("f", "this", "")),
    )
    assert [choice.of for _, choice in brief.weighty(chosen)] == ["c", "b"]


def test_names_that_count_on() -> None:
    assert brief.spans(["a_0", "a_1", "a_2", "b", "a_3", "c_1", "c_3"]) == "a_0..2, b, a_3, c_1, c_3"


def test_a_cost_with_its_unit() -> None:
    texts = [brief.cost_of(cost, "graphs") for cost in (1, 2, 1234, 0.25, None)]
    assert texts == ["1 graph", "2 graphs", "1,234 graphs", "0.2 graphs", ""]


def test_values_are_spelled_as_in_a_file() -> None:
    assert [brief.spelled(value) for value in (None, True, (), (1, 2), 128256)] == [
        "",
        "true",
        "none",
        "1, 2",
        "128256",
    ]


def test_rows_are_chosen_by_their_estimates(wide: ShapeBuild) -> None:
    (choice,) = [decision for name, _, decision in tell(wide).choices() if decision.of == "rows that are drawn"]
    (rejected,) = choice.rejected
    assert (choice.chosen, rejected.what, choice.unit) == ("lazy", "eager", "us")
    assert rejected.cost is not None and choice.cost is not None and rejected.cost > choice.cost


def test_programs_share_a_row_as_an_estimate_says(story: Story) -> None:
    """No other number that is told of is estimated to take less."""
    splits = [choice for name, _, choice in story.choices() if name == "specialize-buckets"]
    assert len(splits) == 9
    for choice in splits:
        assert choice.rejected and choice.unit == "tiles"
        assert all(choice.cost <= rejected.cost for rejected in choice.rejected)
    grids = {node.name: node.grid[64] for node in story.plan.nodes("step") if isinstance(node, Launch)}
    assert grids["verify_draw_0"] == (64, 13, 1)
    assert grids["draft_topk_0"] == (64, 8, 1), "eight branches"
    chosen = {choice.of: choice.chosen for choice in splits}
    assert chosen["verify_draw_0"] == "13 programs share a row"
    assert chosen["draft_topk_0"] == "a program has a row"


def test_a_launch_is_held_against_one_for_each_op(story: Story) -> None:
    launches = {step.node.name: step for step in steps(story.plan) if isinstance(step.node, Launch)}
    formed = [choice for name, _, choice in story.choices() if name == "form-kernels"]
    assert {choice.of for choice in formed} == launches.keys()
    for choice in formed:
        ops = launches[choice.of].node.ops
        assert choice.cost == launches[choice.of].bytes
        assert [rejected.what for rejected in choice.rejected] == [f"{len(ops)} launches"] * (len(ops) > 1)
        assert all(rejected.cost >= choice.cost for rejected in choice.rejected)


def test_what_was_removed_would_have_taken_bytes(chain: Story) -> None:
    """A hidden row of 64 numbers of f32 for each of four requests."""
    kept = {choice.of: [rejected.cost for rejected in choice.rejected] for choice in brief.removed(chain)}
    assert kept["carry @hidden"] == [4 * 64 * 4]
    assert kept["carry @topk_p"] == [4 * 1 * 4]
    assert kept["%prefill_target_hidden of model.prefill_target"] == [None], "a row for each token of the prompts"


def test_a_launch_of_many_ops_saves_bytes(story: Story) -> None:
    """Each of four levels would have its logits read, and its row of them written and read again."""
    (choice,) = [
        decision for name, _, decision in story.choices() if (name, decision.of) == ("form-kernels", "verify_draw_0")
    ]
    (rejected,) = choice.rejected
    assert rejected.cost is not None and choice.cost is not None
    assert rejected.cost - choice.cost > 2 * 64 * 128256 * 4 - 4096


def test_the_page_shows_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    command = "explain examples/eagle-tree-sampled-wide.yaml"
    done = CliRunner().invoke(app, command.split(), env={"COLUMNS": "160"})
    assert f"```console\n$ specc {command}\n{done.stdout}```\n" in (EXAMPLES.parent / "docs/explain.md").read_text()

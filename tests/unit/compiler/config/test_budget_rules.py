"""Budgets of rows as they are written: the shapes that they load to, and where they are wrong."""

from __future__ import annotations

import pytest

from specc.cli.check import summary
from specc.compiler.config.schema import json_schema

from .conftest import VALID, Find, Load
from .test_codes import only
from .test_schema import errors

CHAIN = VALID.replace("num_draft_tokens: 4\n", "").replace("outputs: [accept_index]\n", "").replace("topk: 1\n", "")


def budget(value: str, steps: str = "3") -> str:
    """A configuration with a budget, in its line 3."""
    return CHAIN.replace("num_steps: 3\n", f"budget: {value}\nnum_steps: {steps}\n")


def listed(*shapes: str) -> str:
    """A configuration with a list of shapes, the first of them in its line 4."""
    return CHAIN.replace("num_steps: 3\n", "shapes:\n" + "".join(f"  - {{{shape}}}\n" for shape in shapes))


@pytest.mark.parametrize(
    ("value", "steps", "names"),
    [
        ("2", "3", "3b2"),
        ("[2]", "3", "3b2"),
        ("[2, 3]", "3", "3b2 3b3"),
        ("[2, all]", "3", "3b2 3"),
        ("2", "[1, 3]", "1 3b2"),
        ("[2, 4]", "[0, 2, 5]", "0 2b2 5b2 5b4"),
        ("[2, 4, all]", "[0, 2, 5]", "0 2b2 2 5b2 5b4 5"),
    ],
)
def test_a_chain_has_the_budgets_that_leave_a_draft_out(load: Load, value: str, steps: str, names: str) -> None:
    config = load(budget(value, steps)).config
    assert " ".join(map(str, config.shapes)) == names
    assert config.shape == config.shapes[-1]
    assert {config.buckets_of[shape] for shape in config.shapes} == {(1, 8, 64)}


def test_shapes_have_budgets_of_their_own(load: Load) -> None:
    loaded = load(
        listed("num_steps: 5, budget: [2, 4], buckets: [8, 64]", "num_steps: 5", "num_steps: 2", "num_steps: 0")
    )
    assert " ".join(map(str, loaded.config.shapes)) == "0 2 5b2 5b4 5"
    assert [config.config.buckets for config in loaded.shapes()] == [(1, 8, 64), (8, 64), (8, 64), *[(1, 8, 64)] * 2]
    assert [config.location("num_steps").line for config in loaded.shapes()] == [5, 4, 4, 6, 7]
    assert [config.location("budget").line for config in loaded.shapes()][1:3] == [4, 4]
    assert loaded.config.drafted == "chain of 0, 2 or 5"


def test_a_tree_has_the_budgets_that_leave_a_node_out(load: Load) -> None:
    """And beside it there may be a step that drafts nothing."""
    tree = "num_steps: 3, topk: 2, num_draft_tokens: 8, budget: [2, 6, all]"
    assert " ".join(map(str, load(listed(tree, "num_steps: 0")).config.shapes)) == "0 3x2x8b2 3x2x8b6 3x2x8"
    alone = load(listed(tree.replace("[2, 6, all]", "7"))).config
    assert (str(alone.shape), alone.shape.words) == ("3x2x8b7", "a tree of 7 drafts, 3 deep, 7 rows a request")


def test_a_summary_names_the_budgets(load: Load) -> None:
    assert ", 2 rows a request, " in summary(load(budget("2")).config)
    assert ", 2 or 3 or all rows a request, " in summary(load(budget("[2, 3, all]")).config)
    assert "rows" not in summary(load(CHAIN).config)


@pytest.mark.parametrize(
    ("text", "code", "message", "column"),
    [
        (budget("4"), "legal/budget", "budget is 4, and a chain of 3 drafts has 4 rows", 9),
        (budget("[2, 4]"), "legal/budget", "budget is 4, and a chain of 3 drafts has 4 rows", 13),
        (budget("6", "[1, 5]"), "legal/budget", "budget is 6, and a chain of 5 drafts has 6 rows", 9),
        (budget("all"), "legal/budget", "budget is all, which leaves no draft out", 9),
        (budget("[3, 2]"), "config/out-of-range", "budgets must ascend, and 2 follows 3", 13),
        (budget("[all, 2]"), "config/out-of-range", "budgets must ascend, and 2 follows all", 15),
        (budget("[2, 2]"), "config/out-of-range", "budgets must ascend, and 2 follows 2", 13),
        (budget("1"), "config/out-of-range", "'budget' must be at least 2, and this is 1", 9),
        (budget("[2, 65]"), "config/out-of-range", "'budget[1]' must be at most 64, and this is 65", 13),
        (budget("none"), "config/wrong-type", "'budget' takes an integer", 9),
        (budget("[]"), "config/out-of-range", "'budget' must have at least", 9),
    ],
)
def test_what_is_wrong_with_a_budget(find: Find, text: str, code: str, message: str, column: int) -> None:
    finding = only(find(text))
    assert (finding.code, message in finding.message) == (code, True), finding.message
    assert finding.location is not None
    assert (finding.location.line, finding.location.column) == (3, column)


@pytest.mark.parametrize(
    ("shapes", "code", "message"),
    [
        (["num_steps: 3, budget: 4"], "legal/budget", "budget is 4, and a chain of 3 drafts has 4 rows"),
        (["num_steps: 3, budget: all"], "legal/budget", "budget is all, which leaves no draft out"),
        (["num_steps: 3, budget: 2", "num_steps: 3, budget: [2, all]"], "config/out-of-range", "3b2 is listed twice"),
        (
            ["num_steps: 3, topk: 2, num_draft_tokens: 6, budget: 6"],
            "legal/budget",
            "6, and a tree of 6 nodes has 6 rows",
        ),
        (["num_steps: 3, budget: 2", "num_steps: 3, topk: 2, num_draft_tokens: 6"], "config/not-yet", "beside other"),
        (
            ["num_steps: 3, topk: 2, num_draft_tokens: 6, budget: 2", "num_steps: 2, topk: 2, num_draft_tokens: 6"],
            "config/not-yet",
            "a budget of rows with a tree beside other shapes",
        ),
    ],
)
def test_what_is_wrong_with_budgets_of_shapes(find: Find, shapes: list[str], code: str, message: str) -> None:
    finding = only(find(listed(*shapes)))
    assert (finding.code, message in finding.message) == (code, True), finding.message
    assert finding.location is not None


def test_packed_rows_of_a_tree_have_a_mask(find: Find) -> None:
    text = listed("num_steps: 3, topk: 2, num_draft_tokens: 6, budget: 2") + "mask: none\n"
    assert only(find(text)).message == "a budget of rows with a tree and mask: none is not implemented in this version"


@pytest.mark.parametrize("scored", ["", "outputs: [logprobs]\nbest_logprobs: 3\n"], ids=["tokens", "scores"])
@pytest.mark.parametrize("verify", ["greedy", "target_only", "rejection", "block"])
def test_tokens_may_be_drawn_and_scored(load: Load, find: Find, verify: str, scored: str) -> None:
    """In an engine of one's own, and in SGLang."""
    text = budget("2").replace("verify: greedy", f"verify: {verify}") + scored
    assert load(text).config.shape.budget == 2
    assert load(text + "engine: sglang\n").config.shape.budget == 2
    (finding, *_) = find(text + "engine: vllm\n")
    assert finding.code == "config/engine-unsupported"
    assert "a budget of rows is not served" in finding.message


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("draft_sampling: coupled", "draft_sampling: coupled"),
        ("outputs: [accept_index]", "the output accept_index"),
        ("step: rotated", "step: rotated"),
    ],
)
def test_what_is_not_built_with_drafts_that_are_drawn(find: Find, key: str, what: str) -> None:
    verify = "target_only" if "coupled" in key else "rejection"
    text = budget("2").replace("verify: greedy", f"verify: {verify}\n{key}")
    messages = [finding.message for finding in find(text)]
    assert f"a budget of rows with {what} is not implemented in this version" in messages


GIVEN = "step: rotated\nverify: {verify}\n"


@pytest.mark.parametrize("verify", ["greedy", "target_only", "rejection", "block"])
def test_an_engine_that_runs_the_target_may_say_the_rows(load: Load, verify: str) -> None:
    """Also where drafts are coupled, as nothing is chosen by what they are."""
    text = budget("given").replace("verify: greedy\n", GIVEN.format(verify=verify))
    coupled = "draft_sampling: coupled\n" if verify == "target_only" else ""
    config = load(text + coupled).config
    assert (config.shape.budget, config.packed, config.settled("budget")) == (None, 4, "given")
    assert ", given rows, page " in summary(load(text + coupled + "engine: vllm\n").config)


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (budget("given"), "legal/budget", "budget is given, and no engine runs the target by itself"),
        (budget("[2, given]"), "config/out-of-range", "budget: given is of a configuration with one shape, and of no"),
        (listed("num_steps: 3, budget: given"), "config/out-of-range", "budget: given is of a configuration with one"),
        (
            budget("given", "[1, 3]").replace("verify: greedy\n", GIVEN.format(verify="greedy")),
            "config/not-yet",
            "budget: given with several num_steps is not implemented in this version",
        ),
        (
            budget("given") + "engine: sglang\n",
            "config/engine-unsupported",
            "rows that the engine gives are not served",
        ),
    ],
)
def test_what_is_wrong_with_rows_that_are_given(find: Find, text: str, code: str, message: str) -> None:
    (finding,) = (finding for finding in find(text) if message in finding.message)
    assert finding.code == code
    assert finding.location is not None


def test_a_head_that_the_program_computes_has_no_rows_given(find: Find) -> None:
    text = budget("given").replace("verify: greedy\n", GIVEN.format(verify="greedy"))
    head = text.replace("draft:\n", "draft:\n  head: weights\n")
    messages = [finding.message for finding in find(head)]
    assert "budget: given with draft.head is not implemented in this version" in messages, head


def test_shapes_stand_in_place_of_the_budget(find: Find) -> None:
    finding = only(find(listed("num_steps: 3").replace("shapes:", "budget: 2\nshapes:")))
    assert finding.message == "the shapes say what is drafted, and budget says it, too"


def test_the_schema_has_budgets() -> None:
    schema = json_schema(("EAGLE",))
    for right in (2, [2], [2, 3, "all"], "given"):
        assert list(errors(right, schema["properties"]["budget"], schema)) == []
    for wrong in (1, 65, "2", [1], ["none"]):
        assert list(errors(wrong, schema["properties"]["budget"], schema)), wrong

"""docs/tour.md says how many launches a step has at most: compared with plans over a grid of configurations."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from programs import load, planned

from specc.compiler.algorithms import needs
from specc.compiler.driver.compile import compile_module
from specc.compiler.ir.declarations import Node

TOUR = (Path(__file__).parents[4] / "docs" / "tour.md").read_text()
ROW = re.compile(r"^\| (`[A-Z`, 0-9_]+`) \| ((?:2 )?S \+ \d|\d) \| ((?:2 )?S \+ \d|\d|) ?\|$", re.MULTILINE)
BOUNDS = {name: row.group(2, 3) for row in ROW.finditer(TOUR) for name in re.findall(r"\w+", row[1])}
"""What the table says of chain and tree, by algorithm."""

TREES: list[dict[str, Any]] = [
    {"mask": "qlen"},
    {"mask": "bitpacked", "overlap": False},
    {"mask": "full", "context_length": 128, "outputs": ["hidden_states", "logprobs"]},
    {"mask": "none", "outputs": ["accept_index"], "overlap": False},
    {"mask": "slots", "outputs": ["hidden_states"]},
]
CHAINS: list[dict[str, Any]] = [{}, {"overlap": False, "outputs": ["accept_index", "hidden_states", "logprobs"]}]


def launches(algorithm: str, **keys: Any) -> int:
    """Launches of one decode step."""
    module = compile_module(load(algorithm, **keys)).module
    return sum(node.phase != "prefill" and node.node == "launch" for node in module.decls_of(Node))


def test_the_table_has_every_algorithm() -> None:
    assert {name: bool(tree) for name, (_, tree) in BOUNDS.items()} == {
        name: needs(name).trees
        for name in (
            "STANDALONE",
            "EAGLE",
            "EAGLE3",
            "FROZEN_KV_MTP",
            "MULTI_LAYER_EAGLE",
            "DFLASH",
            "DSPARK",
            "DFLASH2",
            "NGRAM",
        )
    }


@pytest.mark.parametrize(
    ("algorithm", "shape"), [(name, shape) for name in BOUNDS for shape in (0, 1) if BOUNDS[name][shape]]
)
def test_no_step_has_more_and_one_has_as_many(algorithm: str, shape: int) -> None:
    """Every depth and page size with all that a form may be, but not all three with each other."""
    bound, slack = BOUNDS[algorithm][shape], []
    for (number, more), steps in product(enumerate(TREES if shape else CHAINS), (1, 3)):
        page = (1, 16)[(number + steps // 2) % 2]
        tree = {"topk": 2, "num_draft_tokens": 3} if shape else {}
        count = launches(algorithm, num_steps=steps, page_size=page, **tree, **more)
        of_steps = {"S": 1, "2": 2}.get(bound[0], 0) if "S" in bound else 0
        slack.append(int(bound[-1]) + of_steps * steps - count)
    assert min(slack) == 0


@pytest.mark.parametrize(
    ("algorithm", "shape"), [(name, shape) for name in BOUNDS for shape in (0, 1) if BOUNDS[name][shape]]
)
def test_a_grammar_costs_none(algorithm: str, shape: int) -> None:
    """Masks are applied where a token is drawn; calls of the host between launches merge and part none."""
    for more in TREES if shape else CHAINS:
        keys = {"num_steps": 3, "verify": "target_only", **more}
        keys |= {"topk": 2, "num_draft_tokens": 3} if shape else {}
        assert launches(algorithm, sampling=["grammar"], **keys) == launches(algorithm, **keys)


SHAPES = [{"num_steps": 3, "topk": 2, "num_draft_tokens": 6}, {"num_steps": 3}, {"num_steps": 1}]


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE", "EAGLE3"])
@pytest.mark.parametrize("verify", ["greedy", "target_only"])
def test_a_change_of_shape_costs_none(algorithm: str, verify: str) -> None:
    """A step among several shapes is what it is alone, also of a request that comes from another one: it knows not."""
    several = planned(algorithm, shapes=[*SHAPES, {"num_steps": 0}], verify=verify)
    for plan, shape in zip(several, SHAPES, strict=False):
        (alone,) = planned(algorithm, verify=verify, **shape)
        assert plan.shape == alone.shape
        for bucket, cost in plan.totals.items():
            own = alone.totals[bucket]
            assert cost.launches_in_graph == own.launches_in_graph
            assert cost.launches_outside_graph == own.launches_outside_graph == 0
        assert len(plan.externals("step")) == len(alone.externals("step"))


@pytest.mark.parametrize(
    ("algorithm", "more"),
    [
        *[("STANDALONE", 1), ("EAGLE", 2), ("EAGLE3", 2), ("FROZEN_KV_MTP", 2), ("DFLASH", 2)],
        *[("DSPARK", 2), ("DFLASH2", 2)],
    ],
)
@pytest.mark.parametrize("verify", ["greedy", "target_only", "rejection", "block"])
def test_a_budget_takes_a_launch_and_another_for_hidden_rows(algorithm: str, more: int, verify: str) -> None:
    """Rows are shared out by one; a draft that reads the target's rows has them brought to their requests.

    The best draft behind a Markov head is ranked in a launch of its own, which puts it into the chain, since the sum
    over its scores is asked for as well.
    """
    keys = {"num_steps": 3, "verify": verify}
    more += (3 - 1) * (algorithm == "DSPARK" and verify in ("greedy", "target_only"))
    assert launches(algorithm, budget=2, **keys) == launches(algorithm, **keys) + more

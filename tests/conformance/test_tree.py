"""Trees: specc's reference ops and kernels against SGLang's tree builder and verifier, and against a walk by hand.

K from 1 to 8, S from 1 to 6, every N of the small shapes and N from the whole range of the others; ties, zeros, and
poison (scores that are no probabilities: NaN, infinite, negative, above one).

What is compared, and how:

* Where a ranking has no ties, SGLang selects with its own torch.topk, and everything must be equal.
* With ties torch.topk may keep any of the equals; SGLang then gets the selection of `tree_cases.py` (lowest candidate
  first), which specc must find by itself. So it is with poison: torch.topk ranks NaN first, specc last.
* SGLang links a tree by first child and next sibling, specc by parents; `links` derives the former from the latter.
* A candidate whose parent was not kept (poison only) is linked nowhere by either. SGLang counts its depth from where
  the walk breaks off, specc from the step that drafted it: positions below such a candidate are not compared.
* SGLang's Triton kernel gives the masks `full` and `qlen`; `bitpacked` is compared with its `qlen` mask, packed.
* Most of SGLang's answers come from the bodies of its kernels run as plain Python (`plain_triton.py`), because Triton's
  interpreter takes half a minute for a tree of 300 nodes; hundreds of trees run in both, which must agree.
* specc's kernels run on hundreds of the trees, in Triton's interpreter: selection on given scores (how probabilities
  are rounded is another matter, and SGLang's are torch's), then verification and compaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from .compare import SIDES, same
from .conftest import Answers
from .tree_cases import parent_columns, tree_tokens

Found = tuple[str, Any, Any, Any]
ORPHAN_BIT = 16
COMMITTED = ("predict", "accept_index", "accept_lens", "new_seq_lens", "bonus")
sides = pytest.mark.parametrize("implementation", SIDES)


def trees(answers: Answers, implementation: str = "reference") -> Iterator[Found]:
    """(label, case, specc's answer, SGLang's) of every batch of trees that the side has answered."""
    both = zip(answers.cases["tree"], answers.specc[implementation]["tree"], answers.oracle["tree"], strict=True)
    for number, (case, result, expected) in enumerate(both):
        if result is not None:
            shape = f"K = {case['branches']}, S = {case['steps']}, N = {case['nodes']}"
            yield f"batch {number} ({shape})", case, result, expected


def links(parent: Tensor) -> tuple[Tensor, Tensor]:
    """First child and next sibling, i64[B, N], -1 for none, from the parents i64[B, N]."""
    following, sibling = torch.full_like(parent, -1), torch.full_like(parent, -1)
    for b, parents in enumerate(parent.tolist()):
        for column in reversed(range(1, len(parents))):
            above = parents[column]
            if above >= 0:
                sibling[b, column] = following[b, above]
                following[b, above] = column
    return following, sibling


def below_an_orphan(parent: Tensor) -> Tensor:
    """bool[B, N]: nodes from which no way leads to the root."""
    current = parent.clone()
    current[:, 0] = 0
    for _ in range(parent.shape[1]):
        current = torch.where(current > 0, parent.gather(1, current.clamp(min=0)), current)
    return current < 0


@sides
def test_tokens_and_links(answers: Answers, implementation: str) -> None:
    for label, _, result, expected in trees(answers, implementation):
        assert same(result["tokens"], expected["tokens"]), label
        for column, link in zip(links(result["parent"]), ("next", "sibling"), strict=True):
            assert same(column, expected[link]), f"{label}: {column} is not SGLang's {link} {expected[link]}"


@sides
def test_parents_by_hand(answers: Answers, implementation: str) -> None:
    for label, case, result, _ in trees(answers, implementation):
        assert result["parent"].tolist() == parent_columns(case), label
        assert same(result["tokens"], tree_tokens(case)), label
        unlinked = result["parent"] < 0
        unlinked[:, 0] = False
        if implementation == "reference":
            assert same(result["orphan"], unlinked), label
        else:
            assert (result["health"] == torch.where(unlinked.any(1), ORPHAN_BIT, 0)).all(), label


@sides
def test_positions(answers: Answers, implementation: str) -> None:
    for label, _, result, expected in trees(answers, implementation):
        lost = below_an_orphan(result["parent"])
        positions, expected_positions = result["positions"], expected["positions"].view_as(result["positions"])
        assert same(positions.masked_fill(lost, 0), expected_positions.masked_fill(lost, 0)), label


@sides
def test_masks(answers: Answers, implementation: str) -> None:
    weights, seen = 2 ** torch.arange(8), Counter[str]()
    for label, case, result, expected in trees(answers, implementation):
        mask = expected["mask"].view(-1, case["nodes"], case["nodes"])
        seen.update(result.keys() & {"mask", "packed", "full"})
        if "mask" in result:
            assert same(result["mask"], mask), label
        if "packed" in result:
            width = result["packed"].shape[-1]
            padded = torch.nn.functional.pad(mask, (0, 8 * width - case["nodes"])).unflatten(-1, (width, 8))
            assert same(result["packed"], (padded * weights).sum(-1).to(torch.uint8)), label
        if "full" in result:
            flat = expected["full"] if case["full"] else flattened(mask, case["seq_lens"])
            assert same(result["full"][: len(flat)], flat), label
    assert min(seen[mode] for mode in ("mask", "packed", "full")) > 30


def flattened(mask: Tensor, seq_lens: Tensor) -> Tensor:
    """The flat mask of bool[B, N, N]: rows with the prefix before them, one request after the other."""
    rows = zip(mask, seq_lens.tolist(), strict=True)
    return torch.cat([torch.cat([own.new_ones(len(own), length), own], 1).flatten() for own, length in rows])


@sides
@pytest.mark.parametrize("field", COMMITTED)
def test_verification_and_commit(answers: Answers, implementation: str, field: str) -> None:
    """Kernels write `predict` along the accepted path, SGLang and the reference op by node."""
    for label, case, result, expected in trees(answers, implementation):
        values, expected_values = result[field], expected[field]
        if field == "predict" and implementation == "reference":
            values = values.flatten()
        elif field == "predict":
            on_path = torch.arange(case["steps"] + 1) < expected["accept_lens"][:, None]
            expected_values = expected_values[expected["accept_index"].clamp(min=0).long()].masked_fill(~on_path, 0)
        assert same(values, expected_values), f"{label}: {values} is not SGLang's {expected_values}"


def accepted(case: Any, parents: list[int], tokens: list[int], target: list[int]) -> list[int]:
    """Columns of the accepted path, by a walk in plain Python."""
    path = [0]
    while len(path) <= case["steps"]:
        agreeing = [
            column
            for column, parent in enumerate(parents)
            if column and parent == path[-1] and tokens[column] == target[path[-1]]
        ]
        if not agreeing:
            break
        path.append(min(agreeing))
    return path


@sides
def test_values_of_nodes_follow_the_path(answers: Answers, implementation: str) -> None:
    """Compaction: row i is that of the i-th accepted node; rows after the last are not looked at."""
    for label, case, result, _ in trees(answers, implementation):
        walks = zip(parent_columns(case), tree_tokens(case).tolist(), case["target"].tolist(), strict=True)
        for b, (parents, tokens, target) in enumerate(walks):
            path = accepted(case, parents, tokens, target)
            assert result["accept_lens"][b] == len(path), label
            assert same(result["states"][b, : len(path)], case["states"][b, path]), label
            emitted = [target[node] for node in path]
            assert result["extend_ids"][b].tolist() == emitted + [0] * (case["steps"] + 1 - len(path)), label
            assert result["bonus"][b] == emitted[-1], label
            assert result["select"][b] == b * (case["steps"] + 1) + len(path) - 1, label


def test_kernels_run_hundreds_of_trees(answers: Answers) -> None:
    counts, shapes = Counter[str](), set[tuple[int, int]]()
    for _, case, result, expected in trees(answers, "kernels"):
        shapes.add((case["branches"], case["steps"]))
        counts["trees"] += len(case["bonus"])
        counts["padded"] += case["padding"] > 0
        counts["orphans"] += int((result["health"] != 0).sum())
        counts["long paths"] += int((expected["accept_lens"] > 4).sum())
    assert len(shapes) > 30
    assert counts["trees"] > 350
    assert min(counts.values()) > 10, counts


def test_the_cases_cover_what_they_should(answers: Answers) -> None:
    shapes, lengths = set[tuple[int, int]](), Counter[int]()
    counts = Counter[str]()
    for _, case, result, expected in trees(answers):
        count = len(case["bonus"])
        shapes.add((case["branches"], case["steps"]))
        lengths.update(expected["accept_lens"].tolist())
        counts["trees"] += count
        counts["in Triton's interpreter"] += count * case["interpreted"]
        counts["selected by SGLang"] += count * (not case["given"])
        counts["flat masks"] += count * case["full"]
        counts["orphans"] += int(result["orphan"].sum())
        counts["unreachable"] += int(below_an_orphan(result["parent"]).sum())
        counts["large"] += count * (case["nodes"] > 100)
    assert shapes == {(branches, steps) for branches in range(1, 9) for steps in range(1, 7)}
    assert min(lengths[accepted] for accepted in range(1, 8)) >= 20
    wanted = {"trees": 2500, "in Triton's interpreter": 400, "selected by SGLang": 900, "flat masks": 900}
    wanted |= {"orphans": 500, "large": 200}
    assert all(counts[name] >= least for name, least in wanted.items()), counts
    assert counts["unreachable"] > counts["orphans"]


@pytest.mark.parametrize("implementation", ["oracle", "reference"])
def test_the_worked_trace(answers: Answers, implementation: str) -> None:
    """B = 2, K = 2, S = 3, N = 6: request 0 accepts the root's first child, request 1 nothing."""
    trace = (answers.oracle if implementation == "oracle" else answers.specc["reference"])["tree"][0]
    following, sibling = (trace["next"], trace["sibling"]) if implementation == "oracle" else links(trace["parent"])
    assert trace["positions"].flatten().tolist() == [5, 6, 6, 7, 7, 7, 3, 4, 4, 5, 5, 5]
    assert following.tolist() == [[1, 3, 4, -1, -1, -1]] * 2
    assert sibling.tolist() == [[-1, 2, -1, -1, 5, -1]] * 2
    assert trace["accept_index"].tolist() == [[0, 1, -1, -1], [6, -1, -1, -1]]
    assert trace["accept_lens"].tolist() == [2, 1]
    assert trace["predict"].flatten().tolist() == [11, 90, 0, 0, 0, 0, 91, 0, 0, 0, 0, 0]
    assert trace["new_seq_lens"].tolist() == [7, 4]
    assert trace["bonus"].tolist() == [90, 91]

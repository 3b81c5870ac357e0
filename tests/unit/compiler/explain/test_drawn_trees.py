"""The nodes of a picture: a tree as drafting selects it, and a comb."""

from __future__ import annotations

import pytest

from specc.compiler.explain.page.drafting import DraftedNode, comb, grown, products


def test_a_small_tree() -> None:
    """Two branches, two steps: of probabilities 1/2, 1/4; 1/4, 1/8; 1/8, 1/16 the best four."""
    assert grown(2, 2, 5) == [
        DraftedNode(0, -1, 0),
        DraftedNode(1, 0, 1),
        DraftedNode(2, 0, 1),
        DraftedNode(3, 1, 2),
        DraftedNode(4, 1, 2),
        DraftedNode(None, 2, 2),
        DraftedNode(None, 2, 2),
    ]


@pytest.mark.parametrize(("topk", "steps", "nodes"), [(2, 3, 6), (4, 3, 16), (8, 5, 64), (3, 1, 4), (4, 2, 2)])
def test_a_grown_tree(topk: int, steps: int, nodes: int) -> None:
    drawn = grown(topk, steps, nodes)
    assert len(drawn) == 1 + topk + (steps - 1) * topk * topk
    columns = [node.column for node in drawn if node.column is not None]
    assert columns == list(range(nodes))
    for place, node in enumerate(drawn[1:], start=1):
        assert node.parent < place
        assert node.depth == drawn[node.parent].depth + 1
        if node.column is not None:
            assert drawn[node.parent].column is not None, "a node is kept with its parent"
    for level in range(1, steps):
        parents = {node.parent for node in drawn if node.depth == level + 1}
        assert len(parents) == topk, "a frontier has a node for each branch"


def test_products() -> None:
    """Places of two candidates, of 1/2 and 1/4: the paths of 1/2, 1/4 twice, and of those of 1/8 the first one."""
    assert [(node.column, node.parent, node.depth) for node in products(2, 2, 5)] == [
        (0, -1, 0), (1, 0, 1), (2, 0, 1), (3, 1, 2), (4, 2, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(("topk", "steps", "nodes"), [(2, 3, 6), (4, 3, 16), (8, 5, 64), (3, 1, 4), (1, 3, 4)])
def test_products_are_a_tree(topk: int, steps: int, nodes: int) -> None:
    drawn = products(topk, steps, nodes)
    assert [node.column for node in drawn] == list(range(nodes))
    assert all(drawn[node.parent].depth + 1 == node.depth <= steps for node in drawn[1:])
    assert max(sum(other.parent == node.column for other in drawn) for node in drawn) <= topk


def test_a_comb_is_cut_at_its_last_node() -> None:
    assert [(node.column, node.parent, node.depth) for node in comb(3, 6)] == [
        (0, -1, 0), (1, 0, 1), (2, 1, 2), (3, 2, 3), (4, 0, 1), (5, 4, 2),
    ]  # fmt: skip

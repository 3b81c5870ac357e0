"""Graphs of nodes against those of networkx: order, what follows from what, the fewest edges, the longest path."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specc.ir.graph import CircleError, Digraph, reachable

NODES = st.integers(0, 9)
EDGES = st.lists(st.tuples(NODES, NODES), max_size=30)


@given(st.lists(NODES, max_size=4), EDGES, st.permutations(range(10)))
def test_against_networkx(nodes: list[int], edges: list[tuple[int, int]], rank: list[int]) -> None:
    """Any graph; edges that would make a circle are turned round in half of them by the numbers of their ends."""
    for pairs in (edges, [(min(pair), max(pair)) for pair in edges if pair[0] != pair[1]]):
        ours, theirs = Digraph(nodes, pairs), nx.DiGraph(pairs)
        theirs.add_nodes_from(nodes)
        assert set(ours.edges) == set(theirs.edges)
        assert ours.after.keys() == set(theirs.nodes)
        assert {node: set(others) for node, others in ours.before().items()} == {
            node: set(theirs.predecessors(node)) for node in theirs
        }
        for node in theirs:
            assert reachable([node], ours.after.__getitem__) - {node} == nx.descendants(theirs, node)
        assert ours.has_circle == (not nx.is_directed_acyclic_graph(theirs))
        if ours.has_circle:
            for ask in (ours.sorted, ours.reduced, ours.longest):
                with pytest.raises(CircleError):
                    ask()
            continue
        assert ours.sorted(rank.__getitem__) == list(nx.lexicographical_topological_sort(theirs, rank.__getitem__))
        assert ours.longest() == len(nx.dag_longest_path(theirs))
        reduced = nx.transitive_reduction(theirs)
        assert {node: set(others) for node, others in ours.reduced().items()} == {
            node: set(reduced.predecessors(node)) for node in theirs
        }


def test_nodes_that_may_come_in_any_order_come_as_they_came() -> None:
    assert Digraph("bca", [("c", "d")]).sorted() == ["b", "c", "a", "d"]

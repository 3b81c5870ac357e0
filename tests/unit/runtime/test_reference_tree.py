"""Tree ops against a tree built node by node."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from torch import Tensor

from specc.runtime.semantics.reference import OPS


def test_repeat_and_gather() -> None:
    x = torch.arange(4.0).view(2, 2)
    (repeated,) = OPS["tree.repeat"]((x,), {}, {"K": 3})
    assert repeated.tolist() == [[[0.0, 1.0]] * 3, [[2.0, 3.0]] * 3]
    rows = torch.arange(8).view(2, 2, 2)
    (gathered,) = OPS["tree.gather"]((rows, torch.tensor([[3, 0], [1, 2]])), {}, {"K": 2})
    assert gathered.tolist() == [[[2, 3], [0, 1]], [[4, 5], [6, 7]]]


def test_positions() -> None:
    (positions,) = OPS["tree.positions"]((torch.tensor([5, 3]), torch.tensor([[0, 1, 1], [0, 1, 2]])), {}, {})
    assert positions.tolist() == [[5, 6, 6], [3, 4, 5]]


@pytest.mark.parametrize("seed", range(10))
def test_grow(seed: int) -> None:
    rng = random.Random(seed)
    count, k = 2, rng.randint(1, 4)
    values = [0.0, 0.25, 0.5, 1.0, math.nan]
    scores = torch.tensor([[rng.choice(values) for _ in range(k)] for _ in range(count)])
    p = torch.tensor([[[rng.choice(values) for _ in range(k)] for _ in range(k)] for _ in range(count)])
    index = torch.randint(0, 99, (count, k, k))
    tokens, kept_scores, kept, candidates = OPS["tree.grow"]((scores, p, index), {}, {"K": k})
    for b in range(count):
        paths = [float(scores[b, c // k] * p[b, c // k, c % k]) for c in range(k * k)]
        order = sorted(range(k * k), key=lambda c: (math.isnan(paths[c]), -paths[c] if paths[c] == paths[c] else 0, c))
        assert kept[b].tolist() == order[:k]
        assert tokens[b].tolist() == [int(index[b, c // k, c % k]) for c in order[:k]]
        assert kept_scores[b].tolist() == pytest.approx([paths[c] for c in order[:k]], nan_ok=True)
        assert candidates[b].reshape(-1).tolist() == pytest.approx(paths, nan_ok=True)


@pytest.mark.parametrize("seed", range(12))
def test_products_are_the_best_of_all_paths(seed: int) -> None:
    """Every path over the places is written out, and the best are kept; no two are equal."""
    rng = random.Random(seed)
    steps, k = rng.randint(1, 4), rng.randint(1, 4)
    paths = [path for depth in range(1, steps + 1) for path in itertools.product(range(k), repeat=depth)]
    nodes = 1 + rng.randint(1, min(len(paths), 30))
    source = torch.Generator().manual_seed(seed)
    p = torch.rand(2, steps, k, generator=source).sort(dim=2, descending=True).values * 0.9
    index = torch.randint(0, 10**6, (2, steps, k), generator=source)
    operands = torch.tensor([3, 0]), torch.tensor([7, 8], dtype=torch.int32), p, index
    tokens, parent, depth = OPS["tree.product"](operands, {"steps": steps}, {"N": nodes})
    assert (tokens[1].any(), depth[1].any(), set(parent[1].tolist())) == (False, False, {-1})
    of_column: list[tuple[int, ...]] = [()]
    for column in range(1, nodes):
        above = of_column[int(parent[0, column])]
        choices = [c for c in range(k) if int(index[0, len(above), c]) == int(tokens[0, column])]
        assert len(choices) == 1 and int(depth[0, column]) == len(above) + 1
        of_column.append((*above, *choices))
    scores = {path: math.prod(float(p[0, place, c]) for place, c in enumerate(path)) for path in paths}
    assert of_column[1:] == sorted(paths, key=scores.__getitem__, reverse=True)[: nodes - 1]
    assert (int(tokens[0, 0]), int(parent[0, 0]), int(depth[0, 0])) == (7, -1, 0)


def test_products_that_are_equal() -> None:
    """The node that stands first is asked first, and for its sibling before its child."""
    p, index = torch.ones(1, 3, 2), torch.arange(6).view(1, 3, 2)
    operands = torch.tensor([1]), torch.tensor([9], dtype=torch.int32), p, index
    tokens, parent, depth = OPS["tree.product"](operands, {"steps": 3}, {"N": 7})
    assert tokens[0].tolist() == [9, 0, 1, 2, 2, 3, 4]
    assert parent[0].tolist() == [-1, 0, 0, 1, 2, 1, 3]
    assert depth[0].tolist() == [0, 1, 1, 2, 2, 2, 3]


class Node:
    """A candidate of a tree grown in the obvious way."""

    def __init__(self, parent: Node | None, token: int, score: float, number: int) -> None:
        self.parent = parent
        self.token = token
        self.score = score
        self.number = number
        self.depth: int = parent.depth + 1 if parent else 1


def grow_tree(rng: random.Random, k: int, steps: int, nan: float) -> tuple[list[Node], dict[str, list[Tensor]]]:
    """All candidates of one request, and the operands that describe them.

    With ``nan`` that share of the numbers is NaN, and some are no probabilities.
    """

    def score() -> float:
        return math.nan if rng.random() < nan else rng.choice([0.0, 0.25, 0.5, 0.75, 2.0 if nan else 1.0])

    frontier = [Node(None, rng.randrange(99), score(), i) for i in range(k)]
    everything = list(frontier)
    operands: dict[str, list[Tensor]] = {"scores": [], "tokens": [], "kept": []}
    operands["scores"].append(torch.tensor([[node.score for node in frontier]]))
    operands["tokens"].append(torch.tensor([[node.token for node in frontier]]))
    for _ in range(1, steps):
        p = torch.tensor([[[score() for _ in range(k)] for _ in range(k)]])
        index = torch.randint(0, 99, (1, k, k))
        current = torch.tensor([[node.score for node in frontier]])
        _, _, kept, candidates = OPS["tree.grow"]((current, p, index), {}, {"K": k})
        first = len(everything)
        for c, value in enumerate(candidates.reshape(-1).tolist()):
            token = int(index[0, c // k, c % k])
            everything.append(Node(frontier[c // k], token, value, first + c))
        frontier = [everything[first + c] for c in kept[0].tolist()]
        operands["scores"].append(candidates)
        operands["tokens"].append(index)
        operands["kept"].append(kept)
    return everything, operands


@pytest.mark.parametrize("scored", [False, True], ids=["by-id", "best-first"])
@pytest.mark.parametrize("seed", range(60))
def test_select(seed: int, scored: bool) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    k, steps = rng.randint(1, 3), rng.randint(1, 4)
    everything, operands = grow_tree(rng, k, steps, rng.choice([0.0, 0.3]))
    nodes = rng.randint(2, len(everything) + 1)
    rows, bonus = torch.tensor([4]), torch.tensor([7], dtype=torch.int32)
    parts = (*operands["scores"], *operands["tokens"], *operands["kept"][: max(steps - 2, 0)])
    opcode = "tree.select_scored" if scored else "tree.select"
    results = OPS[opcode]((rows, bonus, *parts), {"steps": steps}, {"K": k, "N": nodes, "B": 1})
    results, scores = results[:4], results[4:]
    tokens, parent, depth, orphan = (result[0].tolist() for result in results)

    def rank(node: Node) -> tuple[float, int]:
        return (math.inf if math.isnan(node.score) else -node.score, node.number)

    chosen = sorted(everything, key=rank)[: nodes - 1]
    for handed in scores:
        assert handed[0].tolist() == pytest.approx([node.score for node in chosen], nan_ok=True)
    if not scored:
        chosen.sort(key=lambda node: node.number)
    assert tokens == [7, *(node.token for node in chosen)]
    assert depth == [0, *(node.depth for node in chosen)]
    columns: dict[Node | None, int] = {None: 0} | {node: i for i, node in enumerate(chosen, start=1)}
    above = [columns.get(node.parent, -1) for node in chosen]
    above = [-1 if column > own else column for own, column in enumerate(above, start=1)]  # no parent is behind
    assert parent == [-1, *above]
    assert orphan == [False, *(column < 0 for column in above)]
    assert {tuple(result.shape) for result in results} == {(1, nodes)}
    assert [result.dtype for result in results] == [torch.int64, torch.int64, torch.int64, torch.bool]


def test_some_trees_have_orphans_and_no_probabilities_make_any() -> None:
    """A candidate's parent is no less probable than the candidate, and stands before it."""
    orphans = dict.fromkeys((0.0, 0.3), 0)
    for seed in range(40):
        for nan in orphans:
            torch.manual_seed(seed)
            everything, operands = grow_tree(random.Random(seed), 3, 4, nan)
            nodes = random.Random(seed).randint(2, len(everything) + 1)
            parts = (*operands["scores"], *operands["tokens"], *operands["kept"][:2])
            operands_ = (torch.tensor([1]), torch.tensor([7], dtype=torch.int32), *parts)
            orphans[nan] += int(OPS["tree.select"](operands_, {"steps": 4}, {"K": 3, "N": nodes})[3].sum())
    assert orphans[0.0] == 0
    assert orphans[0.3] > 0


@pytest.mark.parametrize("seed", range(30))
def test_the_most_probable_nodes_of_a_batch_are_trees(seed: int) -> None:
    """Of any number of them, whatever a request's own ratio is; no choice of as many has more expected tokens."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    grown = [grow_tree(rng, 2, 2, 0.0) for _ in range(2)]
    joined = [
        torch.cat(parts) for kind in ("scores", "tokens") for parts in zip(*(g[1][kind] for g in grown), strict=True)
    ]
    rows, bonus = torch.tensor([2, 5]), torch.tensor([3, 4], dtype=torch.int32)
    dims = {"K": 2, "N": 7, "B": 2, "A": 3}
    _, parent, _, orphan, scores = OPS["tree.select_scored"]((rows, bonus, *joined), {"steps": 2}, dims)
    agreement = torch.tensor([[rng.uniform(0, 5), rng.uniform(0, 5)] for _ in range(2)])
    (estimate,) = OPS["budget.estimate_paths"]((scores, parent, agreement), {}, dims)
    assert not orphan.any()
    nodes = [(b, column) for b in range(2) for column in range(1, 7)]
    for each in range(1, 8):
        lens, _ = OPS["budget.take"]((estimate, rows), {}, {"G": each})
        taken = {(b, column) for b, column in nodes if column < lens[b]}
        assert len(taken) == min(2 * each - 2, len(nodes))
        assert all(int(parent[b, column]) == 0 or (b, int(parent[b, column])) in taken for b, column in taken)
        worth = sum(float(estimate[b, column - 1]) for b, column in taken)
        others = itertools.combinations(nodes, len(taken))
        best = max(sum(float(estimate[b, column - 1]) for b, column in choice) for choice in others)
        assert worth == pytest.approx(best)


def test_select_handles_each_request_by_itself() -> None:
    first = [grow_tree(random.Random(seed), 2, 3, 0.0)[1] for seed in (1, 2)]
    joined = tuple(
        torch.cat([a, b])
        for kind, count in PARTS.items()
        for a, b in zip(first[0][kind][:count], first[1][kind][:count], strict=True)
    )
    dims = {"K": 2, "N": 5, "B": 2}
    rows, bonus = torch.tensor([2, 5]), torch.tensor([3, 4], dtype=torch.int32)
    together = OPS["tree.select"]((rows, bonus, *joined), {"steps": 3}, dims)
    padded = OPS["tree.select"]((torch.tensor([2, 0]), bonus, *joined), {"steps": 3}, dims)
    for b in range(2):
        parts = tuple(t for kind, count in PARTS.items() for t in first[b][kind][:count])
        alone = OPS["tree.select"]((rows[b : b + 1], bonus[b : b + 1], *parts), {"steps": 3}, dims)
        for joined_result, alone_result in zip(together, alone, strict=True):
            assert torch.equal(joined_result[b], alone_result[0])
    for padded_result, joined_result, sentinel in zip(padded, together, (0, -1, 0, False), strict=True):
        assert torch.equal(padded_result[0], joined_result[0])
        assert set(padded_result[1].tolist()) == {sentinel}


PARTS = {"scores": 3, "tokens": 3, "kept": 1}
"""Operands of a selection over three steps, of what each step has grown."""


def test_the_tree_of_the_worked_trace() -> None:
    """K = 2, S = 3, N = 6: both first tokens, one child of the first, both children of the second."""
    scores = (torch.tensor([[0.6, 0.4]]), torch.tensor([[[0.5, 0.1], [0.39, 0.38]]]), torch.zeros(1, 2, 2))
    tokens = (torch.tensor([[1, 2]]), torch.tensor([[[3, 4], [5, 6]]]), torch.tensor([[[7, 8], [9, 10]]]))
    operands = (torch.tensor([3]), torch.tensor([50], dtype=torch.int32), *scores, *tokens, torch.tensor([[0, 2]]))
    ids, parent, depth, orphan = OPS["tree.select"](operands, {"steps": 3}, {"K": 2, "N": 6})
    assert ids.tolist() == [[50, 1, 2, 3, 5, 6]]
    assert parent.tolist() == [[-1, 0, 0, 1, 2, 2]]
    assert not orphan.any()
    (positions,) = OPS["tree.positions"]((torch.tensor([5]), depth), {}, {})
    assert positions.tolist() == [[5, 6, 6, 7, 7, 7]]


def test_chains_are_trees_of_one_branch() -> None:
    drafted = [torch.tensor([[4]]), torch.tensor([[[5]]]), torch.tensor([[[6]]])]
    scores = [torch.tensor([[0.5]]), torch.tensor([[[0.0]]]), torch.tensor([[[math.nan]]])]
    operands = (torch.tensor([1]), torch.tensor([3], dtype=torch.int32), *scores, *drafted, torch.tensor([[0]]))
    ids, parent, depth, orphan = OPS["tree.select"](operands, {"steps": 3}, {"K": 1, "N": 4})
    assert ids.tolist() == [[3, 4, 5, 6]]
    assert parent.tolist() == [[-1, 0, 1, 2]]
    assert depth.tolist() == [[0, 1, 2, 3]]
    assert not orphan.any()


@pytest.mark.parametrize("seed", range(12))
def test_masks(seed: int) -> None:
    """Every mode shows the ancestors that one finds by walking up, whatever the parents are."""
    rng = random.Random(seed)
    count, nodes, width = rng.randint(1, 3), rng.randint(2, 20), rng.choice([1, 2, 4])
    width, context = max(width, -(-nodes // 8)), 12
    parent = [[rng.randrange(-1, nodes) for _ in range(nodes)] for _ in range(count)]
    lengths = [rng.randint(0, context) for _ in range(count)]
    seen = [[ancestors(links, node) for node in range(nodes)] for links in parent]
    operands = torch.tensor(lengths), torch.tensor(parent)
    (square,) = OPS["tree.mask"](operands, {"mode": "qlen", "width": 0}, {})
    assert square.dtype == torch.bool
    assert square.tolist() == [[[c in columns for c in range(nodes)] for columns in rows] for rows in seen]
    (packed,) = OPS["tree.mask"](operands, {"mode": "bitpacked", "width": width}, {})
    assert (packed.dtype, packed.shape) == (torch.uint8, (count, nodes, width))
    words = [[int.from_bytes(bytes(word), "little") for word in rows] for rows in packed.tolist()]
    assert words == [[sum(1 << c for c in columns) for columns in rows] for rows in seen]
    (flat,) = OPS["tree.mask"](operands, {"mode": "full", "width": nodes * (context + nodes)}, {})
    assert (flat.dtype, flat.shape) == (torch.bool, (count, nodes * (context + nodes)))
    wanted = [
        flag
        for length, rows in zip(lengths, seen, strict=True)
        for columns in rows
        for flag in [True] * length + [c in columns for c in range(nodes)]
    ]
    assert flat.reshape(-1)[: len(wanted)].tolist() == wanted


@pytest.mark.parametrize("seed", range(12))
def test_slots_of_what_is_seen(seed: int) -> None:
    """The slots of the same ancestors in order, and slot 0 behind them; of padding rows as well."""
    rng = random.Random(seed)
    count, nodes = rng.randint(1, 3), rng.choice([2, 3, 7, 20, 65])
    parent = [[rng.randrange(-1, nodes) for _ in range(nodes)] for _ in range(count)] + [[-1] * nodes]
    slots = [rng.sample(range(2**31 - 3 * nodes, 2**31), nodes) for _ in range(count)] + [[0] * nodes]
    mask, counts = OPS["tree.seen_slots"]((torch.tensor(slots), torch.tensor(parent)), {}, {})
    assert (mask.dtype, counts.dtype, mask.is_contiguous()) == (torch.int32, torch.int32, True)
    seen = [[sorted(ancestors(links, node)) for node in range(nodes)] for links in parent]
    assert counts.tolist() == [[len(columns) for columns in rows] for rows in seen]
    assert counts[-1].tolist() == [1] + [2] * (nodes - 1)
    seen_slots = [[[own[c] for c in columns] for columns in rows] for own, rows in zip(slots, seen, strict=True)]
    assert mask.tolist() == [[line + [0] * (nodes - len(line)) for line in rows] for rows in seen_slots]


def ancestors(parent: list[int], node: int) -> set[int]:
    """A node, all it hangs on as far as one gets without going in circles, and the root's column."""
    reached, passed = {0}, set[int]()
    while node >= 0 and node not in passed:
        passed.add(node)
        node = parent[node]
    return reached | passed

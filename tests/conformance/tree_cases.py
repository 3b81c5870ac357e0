"""Trees that both sides get: probabilities, tokens, what is kept of them, and a target that follows some branch.

What is kept is worked out here too, by sorting in plain Python: the best score first, the lowest candidate on ties, NaN
below everything. SGLang leaves ties to torch.topk, which breaks them as it likes; so where a ranking has ties (or
numbers that are no probabilities) this selection is given to SGLang, and elsewhere it finds its own.
"""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import Tensor

Case = dict[str, Any]
RANDOM = 950
"""Random batches besides every small shape."""

KINDS = ("distinct", "distinct", "ties", "peaked", "zeros", "poisoned")
SMALL_K, SMALL_S, LARGEST_K, LARGEST_S = 3, 3, 8, 6
INTERPRETED, FULL = 20, 40
"""Most nodes of a tree that SGLang's kernels also run in Triton's interpreter, and of one that gets the flat mask."""


def tree_cases() -> list[Case]:
    """A tree by hand, every shape with few branches and steps, and random ones over all shapes."""
    cases, pick = [worked_trace()], random.Random(0)
    for branches in range(1, SMALL_K + 1):
        for steps in range(1, SMALL_S + 1):
            for nodes in range(2, most_nodes(branches, steps) + 1):
                cases.append(tree_case(len(cases), branches, steps, nodes, count=8))
    for _ in range(RANDOM):
        branches, steps = pick.randint(1, LARGEST_K), pick.randint(1, LARGEST_S)
        nodes = pick.randint(2, most_nodes(branches, steps))
        cases.append(tree_case(len(cases), branches, steps, nodes, count=pick.randint(1, 4)))
    return cases


def most_nodes(branches: int, steps: int) -> int:
    """The root and every candidate."""
    return 1 + branches + (steps - 1) * branches * branches


def tree_case(seed: int, branches: int, steps: int, nodes: int, count: int) -> Case:
    """`count` trees of one shape.

    `padding`, `kernels`, `mode` and `splits` are specc's alone: rows of padding behind the batch, whether its kernels
    run it (the larger a tree, the rarer), the mask that they write, how they cut a vocabulary. `states` are two numbers
    per node, to be compacted.
    """
    pick, source = random.Random(seed), torch.Generator().manual_seed(seed)
    vocab, kind = pick.choice((3, 6, 40, 100_000)), pick.choice(KINDS)
    shapes = [(count, branches), *[(count, branches, branches)] * (steps - 1)]
    case: Case = {
        "branches": branches,
        "steps": steps,
        "nodes": nodes,
        "p": [probabilities(kind, source, shape) for shape in shapes],
        "index": [torch.randint(0, vocab, shape, generator=source) for shape in shapes],
        "seq_lens": torch.randint(1, 60, (count,), generator=source),
        "bonus": torch.randint(0, vocab, (count,), generator=source, dtype=torch.int32),
        "states": torch.randn(count, nodes, 2, generator=source),
        "poisoned": kind == "poisoned",
        "padding": pick.randint(0, 2),
        "interpreted": nodes <= INTERPRETED and pick.random() < 0.25,
        "full": nodes <= FULL and pick.random() < 0.5,
        "vocab": vocab,
        "splits": pick.choice((1, 1, 1, 2, 3)),
        "kernels": branches > 1 and vocab < 100 and pick.random() < min(0.35, 3 / nodes),
        "mode": pick.choice(("qlen", *(["bitpacked"] if nodes <= 64 else []), "full")),
    }
    case |= select(case)
    return case | {"target": follow(case, pick, vocab)}


def probabilities(kind: str, source: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """f32 of a shape, descending along the last axis, but for poison."""
    if kind == "poisoned":  # no probabilities: negative, above one, infinite or NaN
        values = torch.randn(shape, generator=source) * 2
        for value in (math.nan, math.inf, -math.inf):
            values = values.masked_fill(torch.rand(shape, generator=source) < 0.04, value)
        return values
    if kind == "ties":
        values = torch.tensor([1.0, 0.5, 0.25])[torch.randint(0, 3, shape, generator=source)]
    elif kind == "peaked":  # of twice as many tokens; the small ones underflow to denormal numbers and to zero
        logits = torch.randn(*shape[:-1], 2 * shape[-1], generator=source) * 25
        values = logits.softmax(-1).topk(shape[-1]).values
    else:
        values = torch.rand(shape, generator=source)
    if kind == "zeros":
        values = values.masked_fill(torch.rand(shape, generator=source) < 0.5, 0.0)
    return values.sort(dim=-1, descending=True).values


def select(case: Case) -> Case:
    """The scores of every step, what each but the first keeps, i64[B, K], the candidates of the tree, i64[B, N - 1].

    `given` says that a ranking has ties, or is none of probabilities.
    """
    scores, kept, tied = case["p"][0], [], False
    steps, pools = [scores], [scores]
    for p in case["p"][1:]:
        steps.append(scores[:, :, None] * p)
        grown = steps[-1].flatten(1)
        pools.append(grown)
        kept.append(best(grown, case["branches"]))
        tied = tied or has_ties(grown)
        scores = grown.gather(1, kept[-1])
    pool = torch.cat(pools, dim=1)
    chosen = best(pool, case["nodes"] - 1).sort(dim=1).values
    return {"scores": steps, "kept": kept, "chosen": chosen, "given": tied or has_ties(pool) or case["poisoned"]}


def best(scores: Tensor, count: int) -> Tensor:
    """i64[B, count]: the places of the largest scores f32[B, n]."""
    rows = []
    for row in scores.tolist():
        keys = [-math.inf if math.isnan(value) else value for value in row]
        rows.append(sorted(range(len(keys)), key=lambda place, keys=keys: (-keys[place], place))[:count])
    return torch.tensor(rows, dtype=torch.int64).view(len(rows), count)


def has_ties(scores: Tensor) -> bool:
    """Whether a row of f32[B, n] holds a value twice."""
    return any(len(set(row)) < len(row) for row in scores.tolist())


def tree_tokens(case: Case) -> Tensor:
    """i64[B, N]: the root and the chosen candidates."""
    pool = torch.cat([index.flatten(1) for index in case["index"]], dim=1)
    return torch.cat([case["bonus"].to(torch.int64)[:, None], pool.gather(1, case["chosen"])], dim=1)


def parent_columns(case: Case) -> list[list[int]]:
    """Parent of every column of every request, -1 for the root and where it was not chosen. By hand, from the ids."""
    branches, squared = case["branches"], case["branches"] ** 2
    columns = []
    for b, chosen in enumerate(case["chosen"].tolist()):
        column = {candidate: place for place, candidate in enumerate(chosen, start=1)}
        parents = [-1]
        for candidate in chosen:
            step, place = divmod(candidate - branches, squared)
            if candidate < branches:
                parents.append(0)
            elif step == 0:
                parents.append(column.get(place // branches, -1))
            else:
                above = case["kept"][step - 1][b, place // branches].item()
                parents.append(column.get(branches + squared * (step - 1) + int(above), -1))
        columns.append(parents)
    return columns


def follow(case: Case, pick: random.Random, vocab: int) -> Tensor:
    """i64[B, N]: the target's own tokens: of most nodes the token of a child, often of the one with most below it."""
    rows = []
    for parents, tokens in zip(parent_columns(case), tree_tokens(case).tolist(), strict=True):
        children = [[c for c, parent in enumerate(parents) if parent == node] for node in range(len(parents))]
        height = [0] * len(parents)
        for node in reversed(range(len(parents))):
            height[node] = max((height[child] + 1 for child in children[node]), default=0)
        row = []
        for below in children:
            deepest = max(below, key=height.__getitem__, default=0)
            of_a_child = tokens[pick.choice(below)] if below else pick.randrange(vocab)
            row.append(
                pick.choice((tokens[deepest] if below else of_a_child, of_a_child, of_a_child, pick.randrange(vocab)))
            )
        rows.append(row)
    return torch.tensor(rows, dtype=torch.int64)


def worked_trace() -> Case:
    """A tree by hand: K = 2, S = 3, N = 6, lengths 5 and 3; request 0 accepts node 1, request 1 nothing."""
    steps = [
        [0.6, 0.4],
        [[0.5, 0.1], [0.6, 0.5]],
        [[0.2, 0.1], [0.2, 0.1]],
    ]
    tokens = [[11, 12], [[21, 22], [23, 24]], [[31, 32], [33, 34]]]
    case: Case = {"branches": 2, "steps": 3, "nodes": 6}
    case["p"] = [torch.tensor([step, step]) for step in steps]
    case["index"] = [torch.tensor([step, step]) for step in tokens]
    target = [[11, 90, 0, 0, 0, 0], [91, 0, 0, 0, 0, 0]]
    case |= {
        "seq_lens": torch.tensor([5, 3]),
        "bonus": torch.tensor([1, 2], dtype=torch.int32),
        "target": torch.tensor(target),
        "states": torch.arange(24.0).view(2, 6, 2),
        "poisoned": False,
        "padding": 0,
        "interpreted": True,
        "full": True,
        "vocab": 100,
        "splits": 2,
        "kernels": True,
        "mode": "qlen",
    }
    return case | select(case)

"""What nodes see, from the masks of programs in SGLang, against walks from each node to the root."""

from __future__ import annotations

import random

import pytest
import torch

from specc.engines.sglang.masks import seen


@pytest.mark.parametrize("seed", range(8))
def test_every_mask_says_the_same(seed: int) -> None:
    """Behind what is counted may stand any slot, one of the window's as well."""
    rng = random.Random(seed)
    nodes, lengths = rng.randint(2, 20), [rng.randint(0, 9) for _ in range(rng.randint(1, 3))]
    slots = torch.tensor([rng.sample(range(1, 1000), nodes) for _ in lengths])
    wanted = torch.zeros(len(lengths), nodes, nodes, dtype=torch.bool)
    mask, counts = torch.zeros(wanted.shape, dtype=torch.int32), torch.zeros(slots.shape, dtype=torch.int32)
    for b in range(len(lengths)):
        paths = [[0]]
        for node in range(1, nodes):
            paths.append([*rng.choice(paths), node])
        for node, path in enumerate(paths):
            wanted[b, node, path] = True
            counts[b, node] = len(path)
            mask[b, node] = torch.cat((slots[b, path], slots[b, [rng.randrange(nodes)] * (nodes - len(path))]))
    lens = torch.tensor(lengths)
    rows = [
        torch.cat((torch.ones(nodes, n, dtype=torch.bool), tree), 1) for n, tree in zip(lengths, wanted, strict=True)
    ]
    assert torch.equal(seen(slots, lens, mask, counts), wanted)
    assert torch.equal(seen(slots, lens, wanted, None), wanted)
    assert torch.equal(seen(slots, lens, torch.cat([row.flatten() for row in rows]), None), wanted)


def test_a_chain_is_causal() -> None:
    visible = seen(torch.arange(6).view(2, 3), torch.tensor([4, 0]), None, None)
    assert visible.tolist() == [[[True, False, False], [True, True, False], [True, True, True]]] * 2

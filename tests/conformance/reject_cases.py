"""Chains whose drafts were drawn: logits of both models, temperatures, keys, and the coins that the keys give."""

from __future__ import annotations

import random
from typing import Any

import torch
from sampling_oracle import f32, philox2x32
from torch import Tensor

REJECTED = 24
WORD = 0xFFFFFFFF


def reject_cases() -> list[dict[str, Any]]:
    """Every case."""
    return [reject_case(seed) for seed in range(REJECTED)]


def reject_case(seed: int) -> dict[str, Any]:
    """One step of a batch. `padding`, `splits`, `block` and `keys` are specc's alone, `last` is SGLang's."""
    pick, source = random.Random(seed), torch.Generator().manual_seed(seed)
    count, steps, vocab = pick.randint(1, 4), pick.randint(1, 5), pick.choice((3, 30, 64, 100))
    target = 2 * torch.randn(count, steps + 1, vocab, generator=source)
    draft = 2 * torch.randn(count, steps, vocab, generator=source) * pick.choice((0.1, 0.5)) + target[:, :steps]
    temperature = torch.tensor([pick.choice((0.5, 1.0, 2.0)) for _ in range(count)])
    shares = (draft / temperature[:, None, None]).softmax(-1)
    drawn = torch.multinomial(shares.flatten(0, 1), 1, generator=source).view(count, steps)
    keys = torch.randint(-(2**63), 2**63 - 1, (count,), generator=source)
    return {
        "block_verification": bool(seed % 2),
        "temperature": temperature,
        "target": target,
        "draft": draft,
        "tokens": torch.cat([torch.randint(0, vocab, (count, 1), generator=source), drawn], dim=1),
        "coin_keys": keys,
        "coins": torch.stack([coins(int(key), steps) for key in keys]),
        "keys": torch.randint(-(2**63), 2**63 - 1, (count, steps + 1), generator=source),
        "last": torch.rand(count, generator=source),
        "padding": pick.randint(0, 2),
        "splits": pick.choice((1, 2, 3)),
        "block": pick.choice((64, 256)),
    }


def coins(key: int, count: int) -> Tensor:
    """The first uniforms of a key."""
    words = [philox2x32([number, key >> 32 & WORD], key & WORD)[0] for number in range(count)]
    return torch.tensor([min(f32(f32(f32(word) + 0.5) * 2.0**-32), 1 - 2.0**-24) for word in words])

"""Seeded inputs that both sides get. Plain tensors and numbers, so that they travel in a file."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import Tensor

from .reject_cases import reject_cases
from .tree_cases import tree_cases

Case = dict[str, Any]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CHAINS, NAN_CHAINS, ARGMAXES = 60, 10, 70


def all_cases() -> dict[str, list[Case]]:
    """Every case, by kind."""
    chains = [chain_case(seed) for seed in range(CHAINS)]
    chains += [chain_case(1000 + seed, target_nan=True) for seed in range(NAN_CHAINS)]
    argmaxes = [argmax_case(seed) for seed in range(ARGMAXES)]
    return {"chain": chains, "argmax": argmaxes, "tree": tree_cases(), "reject": reject_cases()}


def chain_case(seed: int, *, target_nan: bool = False) -> Case:
    """One or two decode steps of a batch of chains, with what the forwards return in each.

    `draft_offset` 0 is the shifted stream of drafts that read hidden states; 1 the true positions of an ordinary model.
    `padding`, `splits` and `block` are specc's alone: rows of padding behind the batch, and how it cuts a vocabulary.
    """
    pick, source = random.Random(seed), torch.Generator().manual_seed(seed)
    count, steps, pool = pick.randint(1, 4), pick.randint(1, 5), pick.randint(6, 12)
    vocab, width, dtype = pick.choice((2, 30, 64, 257, 700)), pick.randint(1, 40), pick.choice(DTYPES)
    context = 40 + 3 * (steps + 2)
    case: Case = {
        "rows": torch.randperm(pool - 1, generator=source)[:count] + 1,
        "steps": steps,
        "draft_offset": pick.randint(0, 1),
        "table": torch.randperm(pool * context, generator=source).to(torch.int32).view(pool, context) + 1,
        "seq_lens": torch.randint(1, 40, (pool,), generator=source),
        "bonus": torch.randint(0, vocab, (pool,), generator=source, dtype=torch.int32),
        "topk_index": torch.randint(0, vocab, (pool, 1), generator=source),
        "padding": pick.randint(0, 2),
        "splits": pick.choice((1, 1, 2, 3)),
        "block": pick.choice((256, 1024)),
        "target_nan": target_nan,
    }
    if pick.random() < 0.6:
        case["hidden"] = torch.randn(pool, width, generator=source).to(dtype)
    first, rounds = case["topk_index"][case["rows"], 0], []
    for _ in range(1 if target_nan else 2):
        rounds.append(forwards(pick, source, case, first, vocab, dtype))
        first = plain_argmax(rounds[-1]["extend_logits"])
    case["rounds"] = rounds
    return case


def forwards(
    pick: random.Random, source: torch.Generator, case: Case, first: Tensor, vocab: int, dtype: torch.dtype
) -> Case:
    """What draft, target and extend return in one step. The target agrees with most drafts.

    Target and extend rows hold no NaN unless the case is about that; draft rows may, beside larger values.
    """
    count, steps = len(case["rows"]), case["steps"]
    draft = [logits_rows(pick, source, count, vocab, dtype, DRAFT_KINDS) for _ in range(steps - 1)]
    target = torch.stack([logits_rows(pick, source, count, vocab, dtype, CLEAN_KINDS) for _ in range(steps + 1)], 1)
    drafts = torch.stack([first, *(plain_argmax(logits) for logits in draft)], 1)
    for b in range(count):
        for c in range(steps):
            if pick.random() < 0.75:
                target[b, c, drafts[b, c]] = math.inf  # the lowest of several infinities wins, so not always
    if case["target_nan"]:
        for b in range(count):
            target[b, pick.randrange(steps + 1), pick.randrange(vocab)] = math.nan if pick.random() < 0.5 else -1.0
    given: Case = {
        "draft_logits": draft,
        "target_logits": target,
        "extend_logits": logits_rows(pick, source, count, vocab, dtype, CLEAN_KINDS),
    }
    if "hidden" in case:
        given["extend_hidden"] = torch.randn(count, case["hidden"].shape[1], generator=source).to(dtype)
    return given


def argmax_case(seed: int) -> Case:
    """Rows of every kind for one argmax; some vocabularies are wider than SGLang's block of 8192."""
    pick, source = random.Random(seed), torch.Generator().manual_seed(seed)
    count, columns = pick.randint(1, 6), pick.randint(2, 6)
    vocab = pick.choice((1, 2, 50, 333, 1024, 8193, 9000))
    return {
        "logits": logits_rows(pick, source, count, vocab, pick.choice(DTYPES), ALL_KINDS),
        "positions": torch.randint(0, 2**40, (count,), generator=source),
        "tokens": torch.randint(0, vocab, (count, columns), generator=source),
        "column": pick.randrange(columns),
        "splits": pick.choice((1, 2, 3, 8)),
        "block": pick.choice((1024, 2048)),
    }


CLEAN_KINDS = ("plain", "ties", "infinities", "zeros")
DRAFT_KINDS = (*CLEAN_KINDS, "some nan")
ALL_KINDS = (*DRAFT_KINDS, "all -inf", "all nan", "nan and -inf", "nan and lowest", "one survivor")


def logits_rows(
    pick: random.Random,
    source: torch.Generator,
    count: int,
    vocab: int,
    dtype: torch.dtype,
    kinds: tuple[str, ...],
) -> Tensor:
    """T[count, vocab], each row of a random kind."""
    return torch.stack([logits_row(pick.choice(kinds), source, vocab) for _ in range(count)]).to(dtype)


def logits_row(kind: str, source: torch.Generator, vocab: int) -> Tensor:
    """One row f32[vocab]."""
    row = torch.randn(vocab, generator=source)
    some = torch.rand(vocab, generator=source) < 0.3
    some[int(torch.randint(vocab, (), generator=source))] = True
    if kind == "ties":
        return torch.randint(-2, 3, (vocab,), generator=source).float()
    if kind == "infinities":
        return row.masked_fill(some, math.inf)
    if kind == "zeros":  # the largest value is a zero of either sign
        return torch.where(some, torch.copysign(torch.zeros(vocab), row), -row.abs() - 1)
    if kind == "some nan":
        row = row.masked_fill(some, math.nan)
        row[int(torch.randint(vocab, (), generator=source))] = 5.0
    if kind.startswith("all"):
        return torch.full((vocab,), -math.inf if kind == "all -inf" else math.nan)
    if kind in ("nan and -inf", "nan and lowest", "one survivor"):
        row = torch.where(some, math.nan, -math.inf if kind != "nan and lowest" else -2e30)
    if kind == "one survivor":
        row[int(torch.randint(vocab, (), generator=source))] = -3.0
    return row


def plain_argmax(logits: Tensor) -> Tensor:
    """i64[B]: the lowest index of the largest value, NaN ignored."""
    return torch.argmax(torch.nan_to_num(logits.float(), nan=-math.inf, posinf=math.inf, neginf=-math.inf), dim=-1)

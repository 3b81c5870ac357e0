"""Rows that no model should say, and parameters at their bounds: what may be drawn then, and a session that looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from penalties_oracle import changed
from programs import load
from sampling_oracle import allowed
from torch import Tensor

from specc.compiler.driver.build import Build, build_program
from specc.runtime.backends import Backend
from specc.runtime.batch import Batch
from specc.runtime.capabilities.sampling import Sampling
from specc.runtime.plan.nodes import External
from specc.runtime.plan.plan import Plan
from specc.runtime.step import Step

from .markov import MarkovEngine
from .memory import Memory

INF, NAN, LARGEST = math.inf, math.nan, 3e38
VOCAB, COLUMNS, STEPS = 18, 64, 3
TARGET_BIT = 2
"""Of the health word: a row of the target is bad."""
CPU = torch.device("cpu")
ALL = ("penalties", "logit_bias", "grammar", "top_k", "top_p", "min_p")
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"num_steps": 2},
    "target_only": {"num_steps": 2, "verify": "target_only", "sampling": ALL},
    "tree": {"num_steps": 2, "topk": 2, "num_draft_tokens": 5, "verify": "target_only", "sampling": ALL},
    "rejection": {"num_steps": 2, "verify": "rejection", "sampling": ALL},
    "block": {"num_steps": 2, "verify": "block", "sampling": ALL},
}


def _row(token: int) -> list[float]:
    """What comes after a token: of every kind of rows that are extreme, and ordinary ones between them."""
    any_ = [0.3 * ((v * 7 + token * 5) % 13) - 2 for v in range(VOCAB)]
    few = [x if v % 5 == token % 5 else -INF for v, x in enumerate(any_)]
    return {
        0: any_,
        1: [-INF] * VOCAB,
        2: [NAN] * VOCAB,
        3: [-2.0 if v == 17 else -INF for v in range(VOCAB)],
        4: [NAN if v % 3 else x for v, x in enumerate(any_)],
        5: [INF if v in (5, 16) else x for v, x in enumerate(any_)],
        6: [3.0] * VOCAB,
        7: [LARGEST if v == 9 else -LARGEST for v in range(VOCAB)],
        8: few,
        9: [-LARGEST if v == 12 else -INF for v in range(VOCAB)],
        10: [NAN if v == 4 else -INF for v in range(VOCAB)],
        11: [INF] * VOCAB,
    }.get(token, any_)


TARGET = torch.tensor([[_row(token) for token in range(VOCAB)]] * 2)
DRAFT = torch.stack([TARGET[0].roll(shift, 0) for shift in (0, 5)])
"""At every other position the target's own, else those of other tokens."""
SAMPLINGS = [
    Sampling(0.0, 1),
    Sampling(1.0, 2),
    Sampling(float(1 << 20), 3),
    Sampling(1e-6, 4),
    Sampling(2.0, 5, top_k=1),
    Sampling(3.0, 6, top_k=VOCAB),
    Sampling(3.0, 7, top_k=(1 << 30) - 1, top_p=1.0, min_p=0.0),
    Sampling(1.0, 8, top_p=0.0),
    Sampling(4.0, 9, min_p=1.0),
    Sampling(1.5, 10, 3, 0.9, 0.1, 1024.0, 2.0, 2.0, {5: 100.0, 9: -100.0}),
    Sampling(float(1 << 20), 11, 0, 0.5, 1e-30, 2.0**-10, -2.0, -2.0),
    Sampling(0.0, 12, repetition_penalty=1024.0, frequency_penalty=-2.0, logit_bias={17: -100.0}),
]
MAY: list[set[int]] = [set(), {3}, {0, 1, 2, 12}, {*range(VOCAB)}, {17}, {9, 11}] * 3
"""By the token before what grammars allow, nothing among it."""


def masks(grammars: Sequence[bool]) -> Tensor:
    """Words i32[P, V, 1], of pool rows with a grammar and without."""
    words = torch.tensor([[sum(1 << v for v in may)] for may in MAY], dtype=torch.int32)
    return torch.stack([words if grammar else torch.full_like(words, -1) for grammar in grammars])


def possible(
    context: Sequence[int], prompt: int, how: Sampling, *, grammar: bool, accepts: bool
) -> tuple[set[int], bool]:
    """The tokens that may come after a text, whose first are the prompt, and whether the row is bad.

    accepts: whether drafts are accepted by probabilities, for which no logit is divided by the temperature alone.
    """
    row = TARGET[(len(context) - 1) % 2, context[-1]]
    logits = changed(row, context[:prompt], context[prompt:], how)
    logits = [x if not grammar or v in MAY[context[-1]] else -INF for v, x in enumerate(logits)]
    bad = any(map(math.isnan, logits))
    logits = torch.tensor([-INF if math.isnan(x) else x for x in logits]).tolist()
    if max(logits) == -INF:
        return {0}, True
    if how.temperature < 1e-6:
        return {logits.index(max(logits))}, bad or max(logits) == INF
    scaled = (torch.tensor(logits) * torch.tensor(1.0).div(how.temperature)).tolist()
    if math.isinf(max(scaled)):  # of several infinite ones the first is drawn
        first = scaled.index(max(scaled))
        return {first, *(v for v, x in enumerate(scaled) if accepts and x == max(scaled))}, True
    return {*allowed(logits, how.temperature, how.top_k, how.top_p, how.min_p)} - {
        v for v, x in enumerate(logits) if x == -INF
    }, bad


def build(mode: str, rows: int) -> Build:
    """The program of a mode."""
    small = {"hidden_size": 16, "num_layers": 1, "num_kv_heads": 1, "head_dim": 4, "vocab_size": VOCAB}
    keys = {"buckets": [rows], "max_requests": rows, "context_length": COLUMNS, **MODES[mode]}
    return build_program(load("STANDALONE", target=small, draft=small, **keys))


def play(
    plan: Plan, backend: Backend, requests: Sequence[tuple[Sampling, int, bool]], steps: int = STEPS
) -> list[list[int]]:
    """Write texts, one for each way to sample, last token of the prompt, and grammar; every token is a possible one."""
    rows = [*range(1, len(requests) + 1)]
    engine = MarkovEngine([0, 0], TARGET, DRAFT, masks([False, *(grammar for _, _, grammar in requests)]))
    engine.last[1:] = torch.tensor([last for _, last, _ in requests])
    kv = {owner: Memory.of_pool(pool, COLUMNS + 1, CPU).buffers for owner, pool in plan.kv_pools.items()}
    table = torch.arange(1, COLUMNS + 1, dtype=torch.int32).repeat(plan.size("P"), 1)
    step = Step(plan, backend, CPU, engine, table, kv, poison=0x5A)
    texts = [[0, last] for _, last, _ in requests]
    computed = [node for node in plan.nodes("step") if not isinstance(node, External)]
    accepts = any(call.op == "sample.accept" for node in computed for call in node.ops)
    if plan.samples:
        step.set_sampling(rows, [how for how, _, _ in requests], [(text, ()) for text in texts])
    result = step.prefill(Batch(rows, [2] * len(rows))).to_host()
    for turn in range(1 + steps):
        for b, (how, _, grammar) in enumerate(requests):
            for token in result.tokens(b):
                may, bad = possible(texts[b], 2, how, grammar=grammar, accepts=accepts)
                assert token in may, (how, texts[b], token, may)
                assert result.health[b] & TARGET_BIT or not bad, (how, texts[b])
                texts[b].append(token)
        if turn < steps:
            result = step.decode(Batch(rows, [len(text) - 1 for text in texts])).to_host()
    return texts


def crowd(mode: str) -> list[tuple[Sampling, int, bool]]:
    """Requests of every kind after every kind of row, of a mode."""
    if mode == "greedy":
        return [(SAMPLINGS[0], last, False) for last in range(VOCAB)]
    return [(how, last, grammar) for how in SAMPLINGS for last in range(VOCAB) for grammar in (False, True)]

"""Whole programs write texts that are distributed as the target's, token by token, whatever requests ask for.

Thousands of requests of every kind in a batch, each with a seed of its own; what is expected is computed in plain
Python, one token after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Any

import pytest
import rejection_oracle
import torch
from fakes.markov import MarkovEngine
from fakes.memory import Memory
from penalties_oracle import changed
from programs import planned
from sampling_oracle import allowed
from torch import Tensor

from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.capabilities.sampling import Sampling
from specc.runtime.memory.arena import allocate
from specc.runtime.plan.parameters import PARAMETERS
from specc.runtime.plan.plan import TOKEN_MAP, Plan
from specc.runtime.plan.shape import Shape
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.semantics.reference import OPS, STORES
from specc.runtime.step import Step

Patch = Callable[[pytest.MonkeyPatch], object]
Turns = Callable[[Tensor], Iterable[tuple[int | Shape, Tensor]]]
"""Of the requests i64[n] that go on, which of them run at which shape, one step after the other."""
CPU = torch.device("cpu")
VOCAB, COLUMNS = 18, 32
ALPHABET = (0, 7, 16, 17)
"""What the target may say, in two tiles; its draft says more. 0 is also what stands where nothing is emitted."""
PROMPT = [5, 7, 0]
PART = [2, 5, 7, 8, 11, 13, 16]
"""What a draft of a part of the tokens scores: half of what the target may say, and more."""
LENGTH = 4
"""Tokens of a text, the first of them by the prefill."""
ALL = ("penalties", "logit_bias", "grammar", "top_k", "top_p", "min_p")
SMALL: dict[str, Any] = {"hidden_size": 16, "num_layers": 1, "num_kv_heads": 1, "head_dim": 4, "vocab_size": VOCAB}


@dataclass(frozen=True)
class Kind:
    """Requests of one kind: how they are sampled, whether they have a grammar, and how many of 1024 there are."""

    sampling: Sampling
    grammar: bool = False
    share: int = 32


KINDS = [
    Kind(Sampling(0.8)),
    Kind(Sampling(1.7)),
    Kind(Sampling(1.2, top_k=2)),
    Kind(Sampling(1.0, top_p=0.75)),
    Kind(Sampling(1.3, min_p=0.3)),
    Kind(Sampling(1.0, repetition_penalty=1.6)),
    Kind(Sampling(1.0, frequency_penalty=0.9)),
    Kind(Sampling(0.9, presence_penalty=-1.1)),
    Kind(Sampling(1.0, logit_bias={0: -1.5, 16: 0.7, 5: 1.0})),
    Kind(Sampling(1.0), grammar=True),
    Kind(Sampling(1.4, None, 3, 0.93, 0.02, 1.4, 0.6, -0.3, {7: 0.8, 17: -0.4}), True, 352),
    Kind(Sampling(0.7, None, 3, 0.97, 0.01, 0.7, -0.5, 0.4, {16: -0.6}), True, 352),
]
assert sum(kind.share for kind in KINDS) == 1024
TARGET, DRAFT = (1.3 * torch.randn(2, VOCAB, VOCAB, generator=torch.Generator().manual_seed(n)) for n in (3, 4))
DRAFT = 0.5 * DRAFT + TARGET
TARGET[..., [v for v in range(VOCAB) if v not in ALPHABET]] = -math.inf
DRAFT[..., ALPHABET] += 2.0
MAY = [{*ALPHABET} - {ALPHABET[v % 4]} for v in range(VOCAB)]
"""By the token before what a grammar allows."""


def next_token(kind: Kind, text: Sequence[int]) -> list[float]:
    """The probabilities of the token after prompt and text, in the order of docs/semantics.md."""
    how, whole = kind.sampling, [*PROMPT, *text]
    row = TARGET[(len(whole) - 1) % 2, whole[-1]]
    logits = changed(row, PROMPT, text, how)
    if kind.grammar:
        logits = [x if v in MAY[whole[-1]] else -math.inf for v, x in enumerate(logits)]
    kept = allowed(logits, how.temperature, how.top_k, how.top_p, how.min_p)
    return rejection_oracle.softmax(logits, how.temperature, kept)


@cache
def distribution(number: int, before: tuple[int, ...] = (), length: int = LENGTH) -> Tensor:
    """Of all texts of a kind that go on ``before``: f64[4 ** length]."""
    found: list[float] = []

    def write(text: list[int], chance: float) -> None:
        if len(text) == len(before) + length:
            found.append(chance)
            return
        row = next_token(KINDS[number], text) if chance else [0.0] * VOCAB
        for token in ALPHABET:
            write([*text, token], chance * row[token])

    write([*before], 1.0)
    return torch.tensor(found, dtype=torch.float64)


def plans_of(rows: int, algorithm: str = "STANDALONE", **keys: Any) -> tuple[Plan, ...]:
    """The program for batches of up to so many requests, the deepest plan first."""
    more = {"buckets": [rows], "max_requests": rows, "context_length": COLUMNS, "sampling": list(ALL)}
    return planned(algorithm, **{"target": SMALL, "draft": SMALL, **more, **keys})


def kinds_of(rows: int) -> Tensor:
    """The numbers of the kinds of so many requests, mixed."""
    shares = torch.tensor([kind.share for kind in KINDS])
    numbers = torch.arange(len(KINDS)).repeat_interleave(shares).repeat(rows // 1024)
    return numbers[torch.randperm(rows, generator=torch.Generator().manual_seed(rows))]


def bind(
    plans: Sequence[Plan], kinds: Tensor, draft: Tensor = DRAFT, made: Callable[..., MarkovEngine] = MarkovEngine,
    **brought: Tensor,
) -> Step:  # fmt: skip
    """A binding whose pool rows, from 1 on, are of these kinds; the engine that is `made` brings tables."""
    words = torch.tensor([sum(1 << v for v in MAY[last]) for last in range(VOCAB)], dtype=torch.int32)
    grammars = torch.tensor([False, *(KINDS[n].grammar for n in kinds.tolist())])
    bitmask = torch.where(grammars[:, None], words, -1)[..., None].contiguous()
    tables = brought | ({TOKEN_MAP: torch.tensor(PART)} if TOKEN_MAP in plans[0].inputs else {})
    engine = made(PROMPT, TARGET, draft[..., PART] if TOKEN_MAP in tables else draft, bitmask)
    table = torch.arange(1, COLUMNS + 1, dtype=torch.int32).repeat(len(kinds) + 1, 1)
    kv = {owner: Memory.of_pool(pool, COLUMNS + 1, CPU).buffers for owner, pool in plans[0].kv_pools.items()}
    memory, shapes = allocate(plans, CPU, poison=0x5A), dict[Shape, Step]()
    for plan in plans:
        shapes[plan.shape] = Step(
            plan, ReferenceBackend(), CPU, engine, table, kv, tables, memory=memory, shapes=shapes
        )
    return shapes[plans[0].shape]


def say(step: Step, kinds: Tensor, seeds: Tensor) -> None:
    """How all requests are sampled, as `set_sampling` writes it, of what the program was built with."""
    bias = torch.zeros(len(KINDS), VOCAB)
    for number, kind in enumerate(KINDS):
        for token, value in kind.sampling.logit_bias:
            bias[number, token] = value
    counts = torch.zeros(VOCAB, dtype=torch.int32).index_fill(0, torch.tensor(PROMPT), 1)
    columns = {"seed": seeds, "logit_bias": bias[kinds], "counts": counts}
    for name in PARAMETERS:
        columns.setdefault(name, torch.tensor([getattr(kind.sampling, name) or 0 for kind in KINDS])[kinds])
    for name, values in columns.items():
        if (pool := step.pools.get(f"sampling_{name}")) is not None:
            pool[1:] = values.to(pool.dtype)


def in_turn(*depths: int) -> Turns:
    """Everybody at these depths, one after the other and again."""
    turn = cycle(depths)
    return lambda at: [(next(turn), at)]


def emitted(
    step: Step, rows: int, steps: int = 0, turns: Turns | None = None, wanted: int = LENGTH
) -> tuple[Tensor, Tensor]:
    """What all requests write in so many steps, or until all have the ``wanted`` tokens.

    i64[rows, wanted + 8], and lengths.
    """
    every = torch.arange(1, rows + 1)
    found = torch.zeros(rows, wanted + 8, dtype=torch.int64)
    found[:, 0] = step.prefill(Batch(every, [len(PROMPT)] * rows)).outputs["bonus"]
    length = torch.ones(rows, dtype=torch.int64)
    for _ in range(steps or wanted):
        left = every - 1 if steps else (length < wanted).nonzero()[:, 0]
        for shape, at in turns(left) if turns else [(step.shape, left)]:
            result = step.at(shape).decode(Batch(every[at], len(PROMPT) - 1 + length[at]))
            predict = result.outputs["predict"].long()
            found[at[:, None], length[at, None] + torch.arange(predict.shape[1])] = predict
            length[at] += result.outputs["accept_lens"].long()
            assert not result.outputs["health"].any()
    return found, length


def write(
    plans: Sequence[Plan], count: int, turns: Turns | None = None, chunk: int = 1 << 13, wanted: int = LENGTH,
    of: Callable[[int], Tensor] = kinds_of, draft: Tensor = DRAFT, step: Step | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Texts i64[count, wanted] of seeds one after the other, and the kinds i64[count] of who wrote them.

    step: what `bind` gave, where the turns look at it.
    """
    kinds, found = of(chunk), list[Tensor]()
    step = bind(plans, kinds, draft) if step is None else step
    for first in range(0, count, chunk):
        say(step, kinds, torch.arange(first, first + chunk))
        found.append(emitted(step, chunk, turns=turns, wanted=wanted)[0][:, :wanted])
    return torch.cat(found), kinds.repeat(count // chunk)


def coded(found: Tensor) -> Tensor:
    """The numbers i64[n] of texts i64[n, length] of the alphabet."""
    letters = torch.full((VOCAB,), -1)
    letters[list(ALPHABET)] = torch.arange(4)
    assert (letters[found] >= 0).all()
    return (letters[found] * 4 ** torch.arange(found.shape[1]).flip(0)).sum(1)


def surprises(found: Tensor, kinds: Tensor) -> list[float]:
    """How probable texts of each kind are, if the target has written them: by chi-square, rare texts together."""
    code = coded(found)
    return [surprise(code[kinds == number], distribution(number)) for number in range(len(KINDS))]


def surprise(code: Tensor, p: Tensor) -> float:
    wanted, counts = p * len(code), torch.bincount(code, minlength=len(p))
    if counts[p == 0].any():
        return 0.0
    rare = wanted < 10
    wanted, counts = (torch.cat([of[~rare], of[rare].sum()[None]]) for of in (wanted, counts.double()))
    square = ((counts - wanted) ** 2 / wanted.clamp(min=1e-9)).sum()
    return torch.special.gammaincc(torch.tensor((len(wanted) - 1) / 2).double(), square / 2).item()


CHAIN: dict[str, Any] = {"num_steps": 2}
REDUCED: dict[str, Any] = {"draft": SMALL | {"vocab_size": len(PART), "token_map": "engine"}}
TREE: dict[str, Any] = {"num_steps": 2, "topk": 2, "num_draft_tokens": 5}
PROGRAMS = {
    "chain": CHAIN | {"verify": "target_only"},
    "tree": TREE | {"verify": "target_only"},
    "rejection": CHAIN | {"verify": "rejection"},
    "block": CHAIN | {"verify": "block"},
    "rejection of a part": CHAIN | {"verify": "rejection"} | REDUCED,
    "block of a part": CHAIN | {"verify": "block"} | REDUCED,
}


# --- all outcomes of every draw ---------------------------------------------------------------------------------------


class Outcomes:
    """Draws of a batch: request b has the outcomes that the digits of its number are, and how probable they are."""

    def __init__(self, count: int) -> None:
        """Nothing is drawn yet; `left` is what of the numbers i64[count] was not used."""
        self.left, self.chance = torch.arange(count), torch.ones(count, dtype=torch.float64)

    def draw(self, operands: tuple[Tensor, ...], attrs: dict[str, Any], dims: object) -> tuple[Tensor, Tensor]:
        """`sample.draw` of all rows of the requests."""
        logits, _, _, scales, *cuts = operands
        values = logits.double()
        for cut in cuts:
            values = torch.where(logits.float() < cut[..., None], -math.inf, values)
        p = (values * scales[..., None]).softmax(-1).view(len(self.left), -1, VOCAB)
        drawn = list[Tensor]()
        for column in range(p.shape[1]):
            drawn.append(torch.tensor(ALPHABET)[self.left % 4])
            self.left = self.left // 4
            self.chance *= p[:, column].gather(1, drawn[-1][:, None])[:, 0]
        index = torch.stack(drawn, 1).view(scales.shape).to(DTYPES[attrs["dtype"]])
        return index, torch.zeros(scales.shape, dtype=torch.bool)


@pytest.mark.parametrize(
    ("name", "nodes", "steps", "kinds"), [("chain", 3, 1, KINDS), ("chain", 3, 2, KINDS[-2:]), ("tree", 5, 1, KINDS)]
)
def test_all_outcomes(
    name: str, nodes: int, steps: int, kinds: Sequence[Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a prefill and some steps, whichever tokens are drawn at all nodes: exactly the target's probabilities.

    What is not emitted then of LENGTH tokens is as the target goes on.
    """
    count = 4 ** (1 + nodes * steps)
    plans = plans_of(count, **PROGRAMS[name])
    for kind in kinds:
        outcomes = Outcomes(count)
        monkeypatch.setitem(OPS, "sample.draw", outcomes.draw)
        number = KINDS.index(kind)
        numbers = torch.full((count,), number)
        step = bind(plans, numbers)
        say(step, numbers, numbers)
        found, length = emitted(step, count, steps)
        assert not outcomes.left.any()
        assert outcomes.chance.sum() == pytest.approx(1, abs=1e-5)
        wanted = distribution(number)
        got = torch.zeros_like(wanted)
        for end in range(1, LENGTH + 1):
            here = length.clamp(max=LENGTH) == end
            code, like = coded(found[here, :end]), wanted.view(4**end, -1)
            chance = torch.zeros(4**end, dtype=torch.float64).index_add(0, code, outcomes.chance[here])
            got += (chance[:, None] * like / like.sum(1, keepdim=True).clamp(min=1e-300)).flatten()
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-7)


# --- many draws -------------------------------------------------------------------------------------------------------

MOST, FEWER = 1 << 16, 1 << 14
"""Texts: as many as are written without ``--texts``, and as many as tell a biased program from a right one."""


@cache
def written(name: str, count: int) -> tuple[Tensor, Tensor]:
    """Texts of a program and the kinds of who wrote them."""
    return write(plans_of(1 << 13, **PROGRAMS[name]), count)


@pytest.mark.parametrize("name", ["chain", "rejection", "block", "rejection of a part", "block of a part"])
def test_texts_of_all_kinds(name: str, request: pytest.FixtureRequest) -> None:
    """Requests of all kinds in one batch: with every feature alone, and with all of them."""
    count = request.config.getoption("--texts", default=MOST)
    assert min(found := surprises(*written(name, count))) > 1e-4, found


@pytest.mark.parametrize("verify", ["target_only", "rejection", "block"])
@pytest.mark.parametrize("turns", [(0, 2), (2, 0, 0, 1)], ids=str)
def test_depths_change_in_the_middle_of_a_text(verify: str, turns: tuple[int, ...]) -> None:
    """To no drafts and back: what `target_only` writes does not depend on it, and nothing else is biased by it."""
    found, kinds = write(plans_of(1 << 13, num_steps=sorted(set(turns)), verify=verify), MOST // 2, in_turn(*turns))
    if verify == "target_only":
        assert torch.equal(found, written("chain", MOST)[0][: MOST // 2])
    assert min(chances := surprises(found, kinds)) > 1e-4, chances


def test_a_tree_draws_what_a_chain_draws() -> None:
    """Token for token, so that its texts are distributed alike."""
    found, kinds = written("tree", FEWER)
    wanted, others = written("chain", FEWER)
    assert torch.equal(kinds, others)
    assert torch.equal(found, wanted)


def with_operands(name: str, wrong: Callable[[list[Any]], Sequence[Any]]) -> Patch:
    """An op that gets what ``wrong`` makes of its operands."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = OPS[name]
        monkeypatch.setitem(OPS, name, lambda operands, *rest: right(tuple(wrong([*operands])), *rest))

    return patch


def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn of the target's row stands where what the drafts leave of it should."""
    right = OPS["sample.residual"]
    monkeypatch.setitem(OPS, "sample.residual", lambda given, *rest: (given[5], right(given, *rest)[1]))


def other_entries(given: list[Any]) -> Sequence[Any]:
    """Another token for each entry of the draft's vocabulary, before the masses and rows of its two drafts."""
    return [*given[:-5], given[-5].roll(1), *given[-4:]]


def at_one(given: list[Any]) -> Sequence[Any]:
    """The mass of a draft's row, which has no cuts, at temperature 1."""
    return given if len(given) == 5 else [*given[:2], torch.ones_like(given[2]), given[3]]


BIASED: dict[str, tuple[str, Patch]] = {
    "warm": ("chain", with_operands("sample.keys", lambda given: [given[0], 1.1 * given[1], given[2]])),
    "paths": ("chain", with_operands("sample.penalize_nodes", lambda given: [*given[:-1], given[-1].roll(1, 1)])),
    "counts": (
        "chain",
        lambda monkeypatch: monkeypatch.setitem(STORES, "carry.count", lambda given, pool: pool[given[0]]),
    ),
    "shares": ("chain", with_operands("sample.top_p", lambda given: [given[0], given[1] / 2, *given[2:]])),
    "least": ("tree", with_operands("sample.min_p", lambda given: [given[0], given[1] / 2, *given[2:]])),
    "biases": ("tree", with_operands("sample.bias", lambda given: [given[0], -given[1]])),
    "ranks": (
        "block",
        with_operands("sample.top_k", lambda given: [*given[:2], given[2] + (given[2] > 0), *given[3:]]),
    ),
    "masks": ("rejection", with_operands("sample.allow", lambda given: [given[0], given[1].roll(1, 0)])),
    "cuts": ("rejection", with_operands("sample.mass", lambda given: [*given[:4], *(cut - 1 for cut in given[4:])])),
    "left": ("rejection", whole),
    "whole": ("block", whole),
    "entries": ("block of a part", with_operands("sample.residual", other_entries)),
    "translated": ("rejection of a part", with_operands("vocab.translate", lambda given: [given[0] * 0, *given[1:]])),
    "drafts": ("block", with_operands("sample.mass", at_one)),
}
"""Programs and what is wrong in them."""


@pytest.mark.parametrize("fault", BIASED)
def test_a_bias_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same test, of fewer texts."""
    name, patch = BIASED[fault]
    patch(monkeypatch)
    assert min(surprises(*write(plans_of(1 << 13, **PROGRAMS[name]), FEWER))) < 1e-6

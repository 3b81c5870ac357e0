"""Verification by rejection and by block: exactly the target's distribution, and every draw as an oracle draws it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import pytest
import rejection_oracle as oracle
import torch
from sampling_oracle import allowed
from test_sampling import surprise
from torch import Tensor

from specc.runtime.semantics import rejection
from specc.runtime.semantics.reference import OPS

DRAWS = 1_000_000
MODES = ("rejection", "block")
each_mode = pytest.mark.parametrize("mode", MODES)
COLUMN = 1 << 32
INF, NAN = math.inf, math.nan

# --- what is computed, by fractions -----------------------------------------------------------------------------------


def rows_of(rng: random.Random, vocab: int) -> Callable[[tuple[int, ...]], list[Fraction]]:
    """Probabilities after any text, some of them 0."""

    @cache
    def row(text: tuple[int, ...]) -> list[Fraction]:
        parts = [rng.choice([0, 1, 1, 2, 5, 9]) for _ in range(vocab)]
        parts[rng.randrange(vocab)] += 1
        return [Fraction(part, sum(parts)) for part in parts]

    return row


@pytest.mark.parametrize(("steps", "vocab"), [(1, 4), (2, 3), (3, 2), (3, 3)])
def test_all_outcomes(steps: int, vocab: int) -> None:
    """The texts of several positions have exactly the target's probabilities, and a block never accepts fewer."""
    more = 0
    for number in range(6):
        rng = random.Random(f"{steps}/{vocab}/{number}")
        p, q = rows_of(rng, vocab), rows_of(rng, vocab)
        means: list[Any] = []
        for mode in MODES:
            probabilities, mean = oracle.joint(mode, p, q, steps, vocab)
            means.append(mean)
            for text in product(range(vocab), repeat=steps + 1):
                wanted = math.prod((p(text[:i])[token] for i, token in enumerate(text)), start=Fraction(1))
                assert probabilities.get(text, 0) == wanted, (mode, text)
        assert means[1] >= means[0]
        more += means[1] > means[0]
    assert more > 0 or steps == 1


def test_all_outcomes_of_a_draft_that_is_right() -> None:
    """Where q is p everything is accepted."""
    p = rows_of(random.Random(4), 3)
    for mode in MODES:
        assert oracle.joint(mode, p, p, 3, 3)[1] == 4


def sure(q: Callable[[tuple[int, ...]], list[Fraction]], least: Fraction) -> oracle.Judges:
    """A draft is judged if the largest probability of its row, and of the rows before, come to so much."""
    return lambda drafts: math.prod(max(q(drafts[:i])) for i in range(len(drafts) + 1)) >= least


def own(q: Callable[[tuple[int, ...]], list[Fraction]], least: Fraction) -> oracle.Judges:
    """A draft is judged if its probability, and those of the drafts before, come to so much."""
    return lambda drafts: math.prod(q(drafts[:i])[draft] for i, draft in enumerate(drafts)) >= least


@pytest.mark.parametrize(("steps", "vocab"), [(1, 4), (2, 3), (3, 2), (3, 3)])
def test_all_outcomes_where_drafts_are_left_out(steps: int, vocab: int) -> None:
    """Exactly the target's probabilities if rows and drafts before decide, and others if a draft itself does."""
    wrong, some = 0, 0
    for number in range(8):
        rng = random.Random(f"left out {steps}/{vocab}/{number}")
        p, q = rows_of(rng, vocab), rows_of(rng, vocab)
        least = Fraction(rng.randint(1, 9), 10)
        for mode in MODES:
            found, mean = oracle.joint(mode, p, q, steps, vocab, sure(q, least))
            late, _ = oracle.joint(mode, p, q, steps, vocab, own(q, least), late=True)
            texts = [*product(range(vocab), repeat=steps + 1)]
            wanted = {
                text: math.prod((p(text[:i])[t] for i, t in enumerate(text)), start=Fraction(1)) for text in texts
            }
            assert all(found.get(text, 0) == wanted[text] for text in texts), mode
            wrong += any(late.get(text, 0) != wanted[text] for text in texts)
            some += 1 < mean < oracle.joint(mode, p, q, steps, vocab)[1]
    assert wrong > 4
    assert some > 2 or steps == 1


# --- that it is computed ----------------------------------------------------------------------------------------------


def keys_of(seeds: Tensor, temperature: Tensor, positions: Tensor, kind: int) -> tuple[Tensor, Tensor]:
    """Keys and scales by the op."""
    keys, scales = OPS["sample.keys"]((seeds, temperature, positions), {"offset": 0, "kind": kind}, {})
    return keys, scales


def drafted(logits: Tensor, seeds: Tensor, temperature: Tensor, roots: Tensor, column: int) -> Tensor:
    """Drafts i64[B] of logits [B, V] by the ops, as programs draw them."""
    keys, scales = keys_of(seeds, temperature, roots + column * COLUMN, oracle.DRAFT)
    return OPS["sample.draw"]((logits, seeds * 0 + 1, keys, scales), {"dtype": "i64", "keep": ""}, {})[0]


def decided(
    mode: str, logits: Tensor, q: list[Tensor], drafts: Tensor, seeds: Tensor, temperature: Tensor, roots: Tensor,
    cuts: Tensor | None = None, lens: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Tokens i64[B, A] after the nodes, how many are emitted i64[B], and bad rows, by the ops.

    Drafts behind the first ``lens`` i32[B] nodes are not judged.
    """
    tokens = torch.cat([seeds[:, None] * 0, drafts], dim=1)
    places = roots[:, None] + 1 + torch.arange(tokens.shape[1])
    keys, scales = keys_of(seeds, temperature, places, oracle.TOKEN)
    coins, _ = keys_of(seeds, temperature, roots, oracle.COIN)
    rows, given = seeds * 0 + 1, [] if cuts is None else [cuts]
    drawn, bad = OPS["sample.draw"]((logits, rows, keys, scales, *given), {"dtype": "i32", "keep": ""}, {})
    mass = mass_of(logits, rows, scales, tokens, *given, ahead=1)
    masses = [mass_of(each, rows, scales[:, i], drafts[:, i]) for i, each in enumerate(q)]
    if lens is not None:
        (tokens,) = OPS["budget.cut"]((tokens, lens), {}, {})
        masses = [OPS["budget.judged"]((each, tokens), {"column": i}, {})[0] for i, each in enumerate(masses)]
    attrs = {"mode": mode, "parts": len(q), "cut": len(given), "most": 1 if mode == "rejection" else len(q)}
    (weights,) = OPS["sample.weigh"]((rows, coins, scales, mass, *masses), attrs, {})
    operands = tokens, logits, rows, keys, scales, drawn, mass, weights, *given, *masses, *q
    left, sums = OPS["sample.residual"](operands, attrs, {})
    (index,) = OPS["sample.accept"]((tokens, rows, coins, drawn, weights, left, sums), {}, {})
    _, _, emitted = OPS["verify.greedy"]((tokens, index, rows), {}, {"A": tokens.shape[1]})
    return index.long(), emitted.long(), bad


def mass_of(*operands: Tensor, ahead: int = 0) -> Tensor:
    """What makes probabilities of rows, with that of an entry of each: by the op."""
    return OPS["sample.mass"](operands, {"ahead": ahead, "keep": ""}, {})[0]


@each_mode
@pytest.mark.parametrize(("cut", "short"), [(False, False), (True, False), (False, True), (True, True)])
def test_as_the_oracle_decides(mode: str, cut: bool, short: bool) -> None:
    """Token for token, from rows of any temperature; with a cut that drafts may be below, and drafts left out."""
    count, steps, vocab = 300, 3, 7
    source = torch.Generator().manual_seed(11)
    logits, q = (2 * torch.randn(count, n, vocab, generator=source) for n in (steps + 1, steps))
    q = (logits[:, :steps] + q).float()
    seeds = torch.randint(2**63 - 1, (count,), generator=source)
    roots = torch.randint(2**31, (count,), generator=source)
    temperature = torch.tensor([0.0, 0.3, 1.0, 4.0, 1e4])[torch.arange(count) % 5]
    drafts = torch.stack([drafted(q[:, i], seeds, temperature, roots, i) for i in range(steps)], dim=1)
    cuts = logits.sort(-1).values[..., 3].clone() if cut else None
    rooms = torch.randint(0, steps + 1, (count,), generator=source) if short else torch.full((count,), steps)
    where = seeds, temperature, roots, cuts, 1 + rooms.int() if short else None
    index, lens, bad = decided(mode, logits, list(q.unbind(1)), drafts, *where)
    assert not bad.any()
    lengths: dict[int, int] = {}
    for b in range(count):
        seed, root, t, room = int(seeds[b]), int(roots[b]), float(temperature[b]), int(rooms[b])
        for i in range(steps):
            assert drafts[b, i] == oracle.draft_drawn(q[b, i].tolist(), t, seed, root, i)
        if t == 0:
            best = logits[b].argmax(-1).tolist()
            agreed = [i for i in range(steps) if drafts[b, i] != best[i]]
            wanted = best[: min([room, *agreed]) + 1]
        else:
            rows = logits[b].tolist()
            kept = [allowed(row, t, 4, 1.0, 0.0) if cut else None for row in rows]
            p = [oracle.softmax(row, t, some) for row, some in zip(rows, kept, strict=True)]
            shares = [oracle.softmax(row, t) for row in q[b].tolist()]
            wanted = oracle.emitted(mode, p[: room + 1], shares[:room], drafts[b, :room].tolist(), seed, root)
        assert index[b, : lens[b]].tolist() == wanted, b
        lengths[len(wanted)] = lengths.get(len(wanted), 0) + 1
    assert min(lengths.get(n, 0) for n in range(1, steps + 2)) > 5


def texts(mode: str, target: Tensor, draft: Tensor, steps: int, wanted: int, *, column: int = COLUMN) -> Tensor:
    """Texts i64[DRAWS / wanted, wanted], by models whose logits [V, V] follow the last token.

    They have seeds one after the other. Step after step, with the noise of programs, until all have so many tokens.
    """

    def write(seeds: Tensor) -> Tensor:
        text = torch.zeros(len(seeds), wanted + 1 + steps + 1, dtype=torch.int64)
        length = torch.zeros_like(seeds)
        while len(at := (length < wanted).nonzero()[:, 0]):
            given = seeds[at], torch.ones(len(at)), 5 + length[at]
            nodes, q = [text[at, length[at]]], list[Tensor]()
            for i in range(steps):
                q.append(draft[nodes[-1]])
                nodes.append(drafted(q[-1], given[0], given[1], given[2] + i * (column - COLUMN), i))
            tokens = torch.stack(nodes, dim=1)
            index, lens, _ = decided(mode, target[tokens], q, tokens[:, 1:], *given)
            text[at[:, None], length[at, None] + 1 + torch.arange(steps + 1)] = index
            length[at] += lens
        return text[:, 1 : wanted + 1]

    return torch.cat([write(seeds) for seeds in torch.arange(DRAWS // wanted).split(1 << 15)])


P = torch.tensor([[1.0, 0.0, -1.0], [0.0, 1.5, 0.5], [-0.5, 0.2, 0.1]])
Q = torch.tensor([[0.0, 0.3, 0.0], [1.0, 0.5, -1.0], [-0.5, 1.0, 0.4]])
"""Logits after each token, of a target and a draft."""


def of_texts(written: Tensor) -> float:
    """How probable these texts are, if the target has written them."""
    p = P.double().softmax(-1)
    wanted, code = torch.ones(1, dtype=torch.float64), torch.zeros_like(written[:, 0])
    last = torch.zeros(1, dtype=torch.int64)
    for column in range(written.shape[1]):
        wanted = (wanted[:, None] * p[last]).flatten()
        last = torch.arange(3).repeat(len(last))
        code = code * 3 + written[:, column]
    return surprise(code, wanted)


@each_mode
def test_a_million_draws(mode: str) -> None:
    """In texts of four, over several steps, each with as many drafts as are accepted."""
    assert of_texts(texts(mode, P, Q, 2, 4)) > 1e-3


@pytest.mark.parametrize("fault", ["left", "sharp", "reused"])
def test_a_bias_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same test: a token drawn from p where a draft is rejected, probabilities that are two percent too sharp,
    and noise of a block that another block has used."""
    column, steps = COLUMN, 2
    if fault == "left":
        draw = rejection.sample_draw
        rows = P[0].double().softmax(-1).log().float()  # of the root, whose token is 0
        monkeypatch.setattr(
            rejection, "sample_draw", lambda given, *rest: draw((rows.expand_as(given[0]), *given[1:]), *rest)
        )
        steps = 1
    elif fault == "sharp":
        above: Callable[..., Any] = rejection._above
        monkeypatch.setattr(rejection, "_above", lambda logits, *rest: 1.02 * above(logits, *rest))
    else:
        column = 1
    assert of_texts(texts("block", P, Q, steps, 4, column=column)) < 1e-6


# --- rows of any kind -------------------------------------------------------------------------------------------------

ROWS = {
    "nothing": [-INF] * 4,
    "nan": [0.0, NAN, 1.0, -INF],
    "infinite": [0.0, INF, 1.0, INF],
    "one": [-INF, -INF, -2.0, -INF],
    "equal": [3.0] * 4,
    "far": [0.0, 3e38, -3e38, 1.0],
    "beyond": [0.0, 3e38, INF, 3e38],
    "any": [0.5, -1.0, 2.0, 0.0],
}
WORST = {"nothing": {0}, "nan": {0, 2}, "infinite": {1}, "one": {2}, "far": {1}, "beyond": {1, 2}}
"""What may come of a row."""


@each_mode
@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1.0, 2.0**20])
def test_extreme_rows(mode: str, temperature: float) -> None:
    """Of target and draft, one beside the other: what is emitted is a token that the target's row allows."""
    count = 40
    for (name, row), (draft_name, drawn) in product(ROWS.items(), ROWS.items()):
        seeds = torch.arange(count)
        roots, hot = seeds + 3, torch.full((count,), temperature)
        logits, q = torch.tensor(row).expand(count, 3, -1), [torch.tensor(drawn).expand(count, -1)] * 2
        drafts = torch.stack([drafted(q[i], seeds, hot, roots, i) for i in range(2)], dim=1)
        index, lens, bad = decided(mode, logits, q, drafts, seeds, hot, roots)
        emitted = {int(t) for b in range(count) for t in index[b, : lens[b]]}
        assert emitted <= WORST.get(name, {0, 1, 2, 3}), (name, draft_name)
        overflown = name == "far" and temperature == 1e-6
        assert bool(bad.all()) == bool(bad.any()) == (name in ("nothing", "nan", "infinite", "beyond") or overflown)
        if row is drawn and name not in ("nothing", "nan"):
            assert (lens == 3).all(), name


@each_mode
def test_drafts_below_the_cut(mode: str) -> None:
    """Are never accepted, whatever they were drawn from; a draft that is all that is left always is."""
    count = 2000
    seeds, roots, temperatures = torch.arange(count), torch.full((count,), 9), torch.ones(count)
    logits, q = torch.tensor([0.0, 1.0, 2.0, 3.0]).expand(count, 3, -1), [torch.zeros(count, 4)] * 2
    drafts = torch.stack([drafted(q[i], seeds, temperatures, roots, i) for i in range(2)], dim=1)
    for cut, kept in ((1.5, {2, 3}), (2.5, {3})):
        index, lens, _ = decided(mode, logits, q, drafts, seeds, temperatures, roots, torch.full((count, 3), cut))
        assert {int(t) for b in range(count) for t in index[b, : lens[b]]} == kept
        assert not (lens > 1)[drafts[:, 0] < cut].any()
        assert (lens > 1)[drafts[:, 0] == 3].all()


def left_of(target: list[float], draft: list[float], token: int) -> tuple[set[int], Tensor]:
    """What is drawn after a rejected draft, of many requests, and how much is left."""
    count = 1000
    logits, q = (torch.tensor(row).expand(count, n, -1) for row, n in ((target, 2), (draft, 1)))
    tokens, rows = torch.tensor([0, token]).expand(count, -1), torch.arange(count) + 1
    keys, scales = keys_of(rows, torch.ones(count), rows[:, None] + torch.arange(2), oracle.TOKEN)
    drawn, _ = OPS["sample.draw"]((logits, rows, keys, scales), {"dtype": "i32", "keep": ""}, {})
    mass, draft_mass = (
        mass_of(logits, rows, scales, tokens, ahead=1),
        mass_of(q[:, 0], rows, scales[:, 0], tokens[:, 1]),
    )
    weights = torch.tensor([1.0, 0.0]).expand(count, -1)
    operands = tokens, logits, rows, keys, scales, drawn, mass, weights, draft_mass, q[:, 0]
    index, sums = OPS["sample.residual"](operands, {"parts": 1, "cut": 0, "most": 1}, {})
    assert not index[:, 1].any()
    assert not sums[:, 1].any()
    return set(index[:, 0].tolist()), sums[:, 0]


def test_nothing_is_left() -> None:
    """A draft that rounding rejects, though p is q: another token comes of p, without the draft."""
    tokens, sums = left_of([1.0, 2.0, -INF, 0.0], [1.0, 2.0, -INF, 0.0], 1)
    assert tokens == {0, 3}
    assert not sums.any()
    assert left_of([-INF, 2.0], [-INF, 2.0], 1)[0] == {1}
    tokens, sums = left_of([0.0, 0.0, -INF, -INF], [0.0, -INF, -INF, -INF], 0)
    assert tokens == {1}
    assert torch.equal(sums, torch.full((1000,), 0.5))
    assert left_of([0.0, 0.0, -INF, -INF], [-INF, -INF, 0.0, -INF], 9)[0] == {0, 1}

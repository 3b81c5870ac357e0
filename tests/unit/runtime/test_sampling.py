"""What is drawn from logits: the published generator, exactly the softmax, and who says how a request is sampled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from programs import load, planned
from sampling_oracle import drawn, philox2x32, philox4x32
from test_torn import machine_of
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specc.compiler.driver.build import build_program
from specc.runtime.batch import Batch
from specc.runtime.capabilities.sampling import Sampling
from specc.runtime.errors import BatchError, FieldError, SamplingError
from specc.runtime.plan.parameters import HOTTEST, SEEDS
from specc.runtime.semantics import sample
from specc.runtime.semantics.reference import OPS
from specc.runtime.state.carry import Carry
from specc.runtime.step import Step

ONES = 0xFFFFFFFF
DRAWS = 1_000_000
LOGITS = (2.0, -1.0, 0.5, 0.5, -math.inf, 3.0, -9.0, 1.25, *(-math.inf,) * 6, 1.0, 0.0, 2.5, -2.0, 0.5)
"""Of a tile and a part of the next."""


@pytest.mark.parametrize("of", [0, ONES])
def test_published_words(of: int) -> None:
    """Of Random123's known answers, and of this project's oracle in whole numbers."""
    word = torch.tensor([of])
    four = sample.philox4x32((word, word, word, word), (word, word))
    two = sample.philox2x32((word, word), word, rounds=10)
    published = {
        0: ([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], [0xFF1DAE59, 0x6CD10DF2]),
        ONES: ([0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD], [0x2C3F628B, 0xAB4FD7AD]),
    }
    assert ([int(x) for x in four], [int(x) for x in two]) == published[of]
    assert (philox4x32([of] * 4, [of] * 2), philox2x32([of] * 2, of, 10)) == published[of]


def draw(logits: Tensor, seeds: Tensor, temperature: float, positions: Tensor, cut: float = -math.inf) -> Tensor:
    """Tokens i64[n] by the ops' semantics."""
    parts: list[Tensor] = []
    for some in torch.arange(len(seeds)).split(1 << 16):
        ones = torch.ones(len(some))
        given = seeds[some], ones * temperature, positions[some]
        keys, scales = OPS["sample.keys"](given, {"offset": 0, "kind": 0}, {})
        operands = logits.expand(len(some), -1), ones, keys, scales, ones * cut
        index, bad = OPS["sample.draw"](operands, {"dtype": "i64", "keep": ""}, {})
        assert not bad.any()
        parts.append(index)
    return torch.cat(parts)


def surprise(tokens: Tensor, p: Tensor) -> float:
    """How probable counts are that differ as much from those of p, by chi-square."""
    counts, wanted = torch.bincount(tokens, minlength=len(p)), p * len(tokens)
    assert not counts[p == 0].any()
    square = ((counts - wanted)[p > 0] ** 2 / wanted[p > 0]).sum()
    return torch.special.gammaincc(torch.tensor((int((p > 0).sum()) - 1) / 2).double(), square.double() / 2).item()


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("along", ["seeds", "positions"])
def test_a_million_draws(temperature: float, along: str) -> None:
    """Of the softmax that transformers' own temperature gives: independent by seed, and by position."""
    logits = torch.tensor(LOGITS)
    numbers, fixed = torch.arange(DRAWS), torch.full((DRAWS,), 7)
    seeds, positions = (numbers, fixed) if along == "seeds" else (fixed, numbers)
    warped: Any = TemperatureLogitsWarper(temperature)(torch.zeros(1, 1, dtype=torch.long), logits[None])
    p = warped[0].double().softmax(-1)
    tokens = draw(logits, seeds, temperature, positions)
    assert surprise(tokens, p) > 1e-3
    pairs = tokens[0::2] * len(p) + tokens[1::2]  # neighbours are independent
    assert surprise(pairs, (p[:, None] * p[None, :]).flatten()) > 1e-3


def test_a_bias_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same test: a temperature that is two percent too high, and a generator of one round."""
    logits, p = torch.tensor(LOGITS), torch.tensor(LOGITS).double().softmax(-1)
    numbers, fixed = torch.arange(DRAWS), torch.full((DRAWS,), 7)
    assert surprise(draw(logits, numbers, 1.02, fixed), p) < 1e-6
    weak: Callable[..., Any] = sample.philox2x32
    monkeypatch.setattr(sample, "philox2x32", lambda counter, key: weak(counter, key, 1))
    assert surprise(draw(logits, fixed, 1.0, numbers), p) < 1e-6


@pytest.mark.parametrize("temperature", [1e-3, 1e-4, 1e-5, 1e-6])
@pytest.mark.parametrize("size", [1000.0, -3e4, 1e-30])
def test_equal_logits_are_as_likely_as_each_other(size: float, temperature: float) -> None:
    """However large beside the noise: two of a tile, and one of another."""
    logits = torch.tensor([size - 5e4] * 40)
    best = torch.tensor([3, 9, 38])
    logits[best] = size
    tokens = draw(logits, torch.arange(20_000), temperature, torch.full((20_000,), 7))
    assert surprise(tokens, torch.zeros(40).double().index_fill(0, best, 1 / 3)) > 1e-3


def test_as_the_oracle_draws() -> None:
    """Token for token, over every range of seeds, positions and temperatures."""
    source = torch.Generator().manual_seed(3)
    for temperature in (0.0, 9e-7, 1e-6, 1e-5, 0.3, 1.0, 5.0, float(HOTTEST)):
        logits = torch.randn(40, 31, generator=source)
        seeds = torch.randint(2**63 - 1, (40,), generator=source)
        positions = torch.randint(2**40, (40,), generator=source)
        for row, seed, position in zip(logits, seeds, positions, strict=True):
            (token,) = draw(row, seed[None], temperature, position[None])
            assert token == drawn(row.tolist(), int(seed), temperature, int(position))


def cuts_of(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    """The cuts f32[B, n] of logits [B, n, V] by the ops, one after the other."""
    count, scales = len(logits), torch.full(logits.shape[:2], 1.0 / temperature)
    (cuts,) = OPS["sample.top_k"]((logits, scales, torch.full((count,), top_k, dtype=torch.int32)), {}, {})
    (cuts,) = OPS["sample.top_p"]((logits, scales, torch.full((count,), top_p), cuts), {}, {})
    (cuts,) = OPS["sample.min_p"]((logits, scales, torch.full((count,), min_p), cuts), {}, {})
    return cuts


@pytest.mark.parametrize("top_k", [0, 1, 7, 50, 99])
@pytest.mark.parametrize(("top_p", "min_p"), [(1.0, 0.0), (0.9, 0.0), (0.3, 0.0), (1.0, 0.2), (0.8, 0.05), (0.0, 0.0)])
def test_filters_are_those_of_transformers(top_k: int, top_p: float, min_p: float) -> None:
    """The same tokens are left, with the same probabilities."""
    logits = 3 * torch.randn(6, 2, 50, generator=torch.Generator().manual_seed(top_k))
    for temperature in (0.5, 1.0, 2.0):
        cuts = cuts_of(logits, temperature, top_k, top_p, min_p)
        kept = torch.where(logits < cuts[..., None], -math.inf, logits) / temperature
        warpers: list[Any] = [TemperatureLogitsWarper(temperature)]
        warpers += [TopKLogitsWarper(top_k)] if top_k else []
        warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
        warpers += [MinPLogitsWarper(min_p)] if min_p else []
        warped = logits.view(-1, 50)
        for warper in warpers:
            warped = warper(torch.zeros(len(warped), 1, dtype=torch.long), warped)
        assert torch.equal(kept.view(-1, 50) == -math.inf, warped == -math.inf)
        torch.testing.assert_close(kept.view(-1, 50).softmax(-1), warped.softmax(-1), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("seed", range(12))
def test_all_processors_of_transformers(seed: int) -> None:
    """Repetition penalty, temperature, top-k, top-p and min-p, all or some of them: what is left, and its shares."""
    source = torch.Generator().manual_seed(seed)
    logits, texts = 3 * torch.randn(5, 50, generator=source), torch.randint(50, (5, 9), generator=source)
    chosen = [(1.4, 0.6, 1.0)[seed % 3], (0.7, 1.8)[seed % 2], (0, 12, 50)[seed // 2 % 3], (0.9, 1.0)[seed // 3 % 2]]
    repetition, temperature, top_k, top_p, min_p = *chosen, (0.0, 0.04)[seed // 4 % 2]
    counts = torch.zeros(5, 50, dtype=torch.int32).scatter_(1, texts[:, :4], 1)  # a prompt, and an output
    counts = counts.scatter_add(1, texts[:, 4:], torch.full((5, 5), 2, dtype=torch.int32))
    none = torch.zeros(5)
    (changed,) = OPS["sample.penalize"]((logits, counts, none + repetition, none, none), {}, {})
    cuts = cuts_of(changed[:, None], temperature, top_k, top_p, min_p)
    filtered = torch.where(changed < cuts, -math.inf, changed) / temperature
    processors: list[Any] = [RepetitionPenaltyLogitsProcessor(repetition), TemperatureLogitsWarper(temperature)]
    processors += [TopKLogitsWarper(top_k)] if top_k else []
    processors += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    processors += [MinPLogitsWarper(min_p)] if min_p else []
    for processor in processors:
        logits = processor(texts, logits)
    assert torch.equal(filtered == -math.inf, logits == -math.inf)
    torch.testing.assert_close(filtered.softmax(-1), logits.softmax(-1), rtol=1e-5, atol=1e-7)


def test_filters_of_extreme_rows() -> None:
    """Ties stay together, and whatever a row holds, something is left of what it had."""
    inf, nan = math.inf, math.nan
    rows = torch.tensor(
        [[[1.0, 3.0, 3.0, 3.0, 0.0]], [[nan, -inf, 2.0, nan, 1.0]], [[-inf] * 5], [[inf, 0.0, inf, 1.0, nan]]]
    )
    wanted = {
        (2, 1.0, 0.0): [3.0, 1.0, -inf, inf],
        (0, 0.1, 0.0): [3.0, 2.0, -inf, inf],
        (0, 1.0, 1.0): [3.0, 2.0, -inf, inf],
    }
    for (top_k, top_p, min_p), cuts in wanted.items():
        thresholds = cuts_of(rows, 1.0, top_k, top_p, min_p)[:, 0]
        assert thresholds.tolist() == cuts, (top_k, top_p, min_p)
    assert (cuts_of(rows, 1.0, 0, 1.0, 0.0) == -inf).all()
    assert (cuts_of(rows, 1.0, 99, 1.0, 0.0) == -inf).all()


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(3, 1.0, 0.0), (0, 0.7, 0.0), (4, 0.95, 0.1)])
def test_a_million_filtered_draws(top_k: int, top_p: float, min_p: float) -> None:
    """Of the softmax of what is left."""
    logits, seeds = torch.tensor(LOGITS), torch.arange(DRAWS)
    cut = cuts_of(logits.view(1, 1, -1), 1.0, top_k, top_p, min_p).item()
    p = torch.where(logits < cut, -math.inf, logits).double().softmax(-1)
    assert 1 < (p > 0).sum() < len(p) - 1
    assert surprise(draw(logits, seeds, 1.0, seeds * 0, cut), p) > 1e-3


def test_extreme_rows() -> None:
    """Never a token out of range: nothing but -inf, NaN beside numbers, infinities, equal logits."""
    seeds, positions = torch.arange(200), torch.arange(200)
    keys, scales = OPS["sample.keys"]((seeds, torch.full((200,), 1.0), positions), {"offset": 0, "kind": 0}, {})
    rows = {
        "nothing": torch.full((200, 5), -math.inf),
        "nan": torch.tensor([0.0, math.nan, 1.0, -math.inf, 0.0]).expand(200, -1),
        "infinite": torch.tensor([0.0, math.inf, 1.0, math.inf, 0.0]).expand(200, -1),
        "one": torch.tensor([-math.inf, -math.inf, -math.inf, -2.0, -math.inf]).expand(200, -1),
    }
    outcomes: dict[str, tuple[set[int], bool]] = {}
    for name, logits in rows.items():
        operands = logits, torch.ones_like(seeds), keys, scales
        index, bad = OPS["sample.draw"](operands, {"dtype": "i64", "keep": ""}, {})
        outcomes[name] = {*index.tolist()}, bool(bad.all())
        assert bad.all() == bad.any()
    assert outcomes == {"nothing": ({0}, True), "nan": ({0, 2, 4}, True), "infinite": ({1}, True), "one": ({3}, False)}


@pytest.mark.parametrize(
    ("temperature", "seed"),
    [
        *((wrong, 0) for wrong in (-0.1, math.nan, math.inf, HOTTEST + 1, "1", True, None)),
        *((1.0, wrong) for wrong in (-1, 2**63 - 1, 1.5, True, "7")),
    ],
)
def test_parameters_out_of_range(temperature: Any, seed: Any) -> None:
    with pytest.raises(SamplingError, match=r"temperature is from 0 to 1048576, not|seed is an integer from 0 to"):
        Sampling(temperature, seed)


@pytest.mark.parametrize(
    ("name", "bad"), [("top_k", (-1, 1.0, True, 2**30)), ("top_p", (-0.1, 1.1, math.nan, None)), ("min_p", (2, "0"))]
)
def test_filters_out_of_range(name: str, bad: tuple[Any, ...]) -> None:
    for value in bad:
        with pytest.raises(SamplingError, match=f"^{name} is"):
            Sampling(1.0, 0, **{name: value})


class TestRows:
    """Of a program that samples."""

    @pytest.fixture
    def step(self) -> Step:
        """Bound, after a first prefill and step of rows 2, 4 and 1."""
        (built,) = build_program(load("STANDALONE", verify="target_only")).shapes
        return machine_of(built.plan).step

    def test_they_are_in_the_pools(self, step: Step) -> None:
        step.set_sampling([3, 1], [Sampling(0.5, 11), Sampling(0.0, 12)])
        assert step.pools["sampling_seed"][[3, 1]].tolist() == [11, 12]
        assert step.pools["sampling_temperature"][[3, 1]].tolist() == [0.5, 0.0]
        assert step.pools["sampling_temperature"][0] == 0

    def test_records_are_held_to_the_same_bounds(self, step: Step) -> None:
        """As what an engine says: what comes from another machine goes into the same pools."""
        limits = {name: field.limit for name, field in step._plan.carry.items() if field.given}
        assert limits == {"sampling_seed": str(SEEDS), "sampling_temperature": str(HOTTEST)}
        carry = step.read_carry([1])
        for name, wrong in (("sampling_seed", -1), ("sampling_temperature", math.nan), ("sampling_temperature", 2**21)):
            damaged = {field: values.clone() for field, values in carry.fields.items()}
            damaged[name][0] = wrong
            with pytest.raises(FieldError, match=name):
                step.write_carry([1], Carry(damaged))

    def test_who_has_no_seed_gets_one(self, step: Step) -> None:
        step.set_sampling([1, 2, 3], [Sampling(1.0)] * 3)
        seeds = step.pools["sampling_seed"][1:4].tolist()
        assert len({*seeds}) == 3
        assert min(seeds) >= 0

    def test_nothing_is_written_of_what_is_refused(self, step: Step) -> None:
        before = {name: pool.clone() for name, pool in step.pools.items()}
        wrong: list[tuple[Any, Any, type[Exception]]] = [
            ([0], [Sampling(1.0, 1)], BatchError),
            ([1, 1], [Sampling(1.0, 1)] * 2, BatchError),
            ([99], [Sampling(1.0, 1)], BatchError),
            ([1, 2], [Sampling(1.0, 1)], SamplingError),
            ([1], [0.7], SamplingError),
        ]
        for rows, params, error in wrong:
            with pytest.raises(error):
                step.set_sampling(rows, params)
        assert all(torch.equal(pool, before[name]) for name, pool in step.pools.items())

    def test_a_prefill_wants_them_said(self, step: Step) -> None:
        """For every request anew: those of the one before in its row are not its own."""
        with pytest.raises(SamplingError, match="nobody said how pool row 3 is sampled: call set_sampling before"):
            step.prefill(Batch([3], [2]))

    def test_they_are_carried(self, step: Step) -> None:
        step.set_sampling([3], [Sampling(0.25, 99)])
        carry = step.unpack(step.pack([3]))
        step.write_carry([1], carry)
        assert step.pools["sampling_seed"][1] == 99
        assert step.pools["sampling_temperature"][1] == 0.25


def test_a_greedy_program_takes_greedy_requests() -> None:
    """And names what it was built without."""
    (built,) = build_program(load("STANDALONE")).shapes
    step = machine_of(built.plan).step
    step.set_sampling([1], [Sampling(0.0)])
    with pytest.raises(SamplingError, match="was built without temperature"):
        step.set_sampling([1], [Sampling(0.5)])


def test_a_text_has_one_grammar() -> None:
    """As text, of one kind; what it says only the engine knows."""
    assert Sampling().grammar == {}
    assert Sampling(regex="(").grammar == {"regex": "("}
    assert Sampling(0.0, json_schema="").grammar == {"json_schema": ""}
    wrong: list[dict[str, Any]] = [{"regex": 5}, {"json_schema": {"type": "object"}}, {"regex": b"a"}]
    for given in wrong:
        with pytest.raises(SamplingError, match=f"{next(iter(given))} is text"):
            Sampling(**given)
    with pytest.raises(SamplingError, match="one grammar, not json_schema and regex"):
        Sampling(json_schema="{}", regex="a")


@pytest.mark.parametrize("sampling", [[], ["grammar"], ["top_k"]])
def test_a_grammar_is_for_programs_that_restrict(sampling: list[str]) -> None:
    """Of others it is refused by name, of a greedy request too; they take the same request without it."""
    step = machine_of(planned("EAGLE", verify="target_only", sampling=sampling)[0]).step
    for temperature in (0.0, 0.7):
        step.set_sampling([1], [Sampling(temperature)])
        if "grammar" in sampling:
            step.set_sampling([1], [Sampling(temperature, regex="a")])
            continue
        with pytest.raises(SamplingError, match="was built without regex, see 'sampling' in its configuration"):
            step.set_sampling([1], [Sampling(temperature, regex="a")])

"""Drafts that were drawn: masses of rows, weights of nodes, what is left of p after one, and the tokens that follow."""

import math

import pytest
import torch
from cluster_cases import FLOATS, MAX_B, POOL, Scan, TypedBuilder, carry, check_module, choice, integer, small_module
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import generator, quick, random_rows
from kernel_launcher import Launcher
from sampling_oracle import WORD, f32, philox2x32
from topk_cases import hostile_batch, hostile_logits
from torch import Tensor

from specc.compiler.ir.core import Module, Value
from specc.compiler.ir.types import TensorType
from specc.runtime.plan.draft_head import TOKEN_ENTRIES
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.semantics.reference import OPS

SCALES = torch.tensor([0.0, 0.5, 1.0, 3.0, 1e6])
INF = math.inf


def keys_of(source: torch.Generator, *shape: int) -> Tensor:
    """Keys of any bits."""
    return torch.randint(-(2**63), 2**63 - 1, shape, generator=source)


def entries_of(source: torch.Generator, vocab: int, *shape: int) -> Tensor:
    """Tokens, a few of which are none."""
    return torch.randint(-2, vocab + 2, shape, generator=source)


def logits_given(b: TypedBuilder, dtype: str, *axes: str, each: int) -> Value:
    """Logits T[B, *axes, V]; if there are ``each`` rows of a request on average, packed ones."""
    if not each:
        return b.given("logits", dtype, *axes, "V")
    share = b.given("lens", "i32"), b.given("starts", "i32")
    with b.phase("verify"):
        return b("budget.logits", b.given("logits", dtype, "G", "V"), *share, names=("mine",))


# --- masses -----------------------------------------------------------------------------------------------------------


def massive(
    dtype: str, rows: int, vocab: int, *, cut: bool, ahead: int | None, each: int = 0, unscaled: bool = False
) -> Module:
    """A module that draws and says what it drew from: with the probability of what it drew, or of given entries.

    Rows are packed if there are ``each`` of a request on average.
    """
    axes = ("A" if each else "N",) if rows else ()
    module = small_module(N=max(rows, 1), A=max(rows, 1), G=max(each, 1), V=vocab)
    b = TypedBuilder(module)
    logits = logits_given(b, dtype, *axes, each=each)
    keys, scales = b.given("keys", "i64", *axes), b.given("scales", "f32", *axes)
    cuts = (b.given("cuts", "f32", *axes),) if cut else ()
    pool = module.inputs["req_pool_indices"]
    with b.phase("verify"):
        index, bad = b.many("sample.draw", logits, pool, keys, scales, *cuts, dtype="i64", keep="")
        entries = index if ahead is None else b.given("entries", "i64", *axes)
        mass = b(
            "sample.mass", logits, pool, scales, entries, *cuts, ahead=ahead or 0, keep="", unscaled=int(unscaled)
        )  # fmt: skip
        b.hand_out(index, bad, mass)
    return module


@pytest.mark.parametrize("dtype", FLOATS)
@settings(quick, max_examples=10)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(0, 4),
    vocab=st.integers(1, 300) | st.integers(301, 1500),
    cut=st.booleans(),
    ahead=st.sampled_from([None, 0, 1]),
    unscaled=st.booleans(),
)
def test_masses(
    launcher: Launcher, dtype: str, seed: int, rows: int, vocab: int, cut: bool, ahead: int | None, unscaled: bool
) -> None:
    """Of rows of every kind: the draw is what it is without them."""
    source = generator(seed)
    batch, logits = hostile_batch(source, dtype, rows, vocab)
    shape = logits.shape[:-1]
    scan = Scan(integer(source, 1, 8), int(choice(source, ("64", "512")))).affordable(vocab)
    values = {"req_pool_indices": batch, "logits": logits, "keys": keys_of(source, *shape)}
    values["scales"] = SCALES[torch.randint(len(SCALES), shape, generator=source)]
    values["entries"] = entries_of(source, vocab, *shape)
    if cut:  # of the row's own values, and none
        values["cuts"] = logits.float()[..., integer(source, 0, vocab - 1)].nan_to_num(nan=-math.inf)
    if rows == 0 and ahead:
        ahead = 0
    module = massive(dtype, rows, vocab, cut=cut, ahead=ahead, unscaled=unscaled)
    check_module(launcher, module, source, values, scan)


@pytest.mark.parametrize("unscaled", [False, True])
def test_how_sure_a_greedy_draft_is(launcher: Launcher, unscaled: bool) -> None:
    """As the softmax of its logits says, where that is asked for; its own probability is 1."""
    source, vocab = generator(13), 90
    logits = 3 * torch.randn(5, vocab, generator=source)
    values = {"req_pool_indices": torch.arange(1, 6), "logits": logits, "keys": keys_of(source, 5)}
    values["scales"] = torch.tensor([0.0, 0.5, 0.0, 1.0, 0.0])
    module = massive("f32", 0, vocab, cut=False, ahead=None, unscaled=unscaled)
    mass = check_module(launcher, module, source, values)["mass"]
    greedy = values["scales"] == 0
    steep = torch.where(greedy, 1.0, values["scales"])
    shares = (steep[:, None] * logits).softmax(-1).amax(-1)
    torch.testing.assert_close(1 / mass[:, 1], shares if unscaled else torch.where(greedy, 1.0, shares))
    assert (mass[greedy, 2] == 1).all()


def test_masses_are_a_softmax_s(launcher: Launcher) -> None:
    """That of torch, of every entry."""
    source, vocab = generator(3), 200
    logits = 3 * torch.randn(6, 4, vocab, generator=source)
    tokens = torch.randint(0, vocab, (6, 4), generator=source)
    values = {"req_pool_indices": torch.arange(1, 7), "logits": logits, "keys": keys_of(source, 6, 4)}
    values |= {"scales": torch.full((6, 4), 0.7), "entries": tokens}
    mass = check_module(launcher, massive("f32", 4, vocab, cut=False, ahead=1), source, values, Scan(3, 64))["mass"]
    shares = (0.7 * logits).softmax(-1)
    torch.testing.assert_close(mass[:, :-1, 2], shares[:, :-1].gather(2, tokens[:, 1:, None])[..., 0])
    torch.testing.assert_close(1 / mass[..., 1], shares.amax(-1))
    assert not mass[:, -1, 2].any()


BEYOND = [
    [0.0, 3e38, INF, 3e38],
    [0.0, 3e38, -3e38, 3e38],
    [-3e38, -2e38, -INF, -2e38],
    [1.0, INF, -3e38, INF],
    [0.0, 3e30, 2e30, -3e38],
]
"""Logits that are no f32, or just are, times a scale of 1e6."""


@pytest.mark.parametrize("ahead", [None, 1])
def test_what_is_no_f32_times_the_scale_is_infinite(launcher: Launcher, ahead: int | None) -> None:
    """In what a row's probabilities are made of, as in the draw: what is drawn has all, or nothing has any."""
    source, count = generator(11), len(BEYOND)
    logits = torch.tensor(BEYOND)[:, None].expand(count, 2, -1).contiguous()
    values = {"req_pool_indices": torch.arange(1, 1 + count), "logits": logits, "keys": keys_of(source, count, 2)}
    values |= {"scales": torch.full((count, 2), 1e6), "entries": torch.tensor([[0, 1]]).expand(count, 2).clone()}
    results = check_module(launcher, massive("f32", 2, 4, cut=False, ahead=ahead), source, values)
    index, mass = results["index"][:, 0].tolist(), results["mass"][:, 0]
    assert index[:2] + index[3:] == [1, 1, 1, 1]
    assert mass[:, 0].tolist() == pytest.approx([INF, INF, -INF, INF, 3e30])
    assert mass[:, 1].tolist() == [1.0] * count
    assert mass[:, 2].tolist() == [1.0, 1.0, 0.0, 1.0, 1.0]


# --- what is left -----------------------------------------------------------------------------------------------------

PARTS = {"one": (3,), "each": (0, 0, 1), "two": (2, 1), "carried": (0, 0, 0)}
"""Rows of every operand that drafts were drawn from, 0 of one without that axis; S in all."""


def leaving(dtype: str, vocab: int, form: str, *, most: int, cut: bool, part: int = 0, each: int = 0) -> Module:
    """A module that draws what is left after the nodes of a chain of three drafts, of ``part`` tokens or of all.

    Rows of the target are packed if there are ``each`` of a request on average.
    """
    axis = "A" if each else "N"
    module = small_module(N=4, A=4, G=max(each, 1), V=vocab, Vd=part or vocab)
    b = TypedBuilder(module)
    tokens, logits = b.given("tokens", "i64", axis), logits_given(b, dtype, axis, each=each)
    keys = b.given("keys", "i64", axis)
    scales, drawn, mass = b.given("scales", "f32", axis), b.given("drawn", "i32", axis), b.given("mass", "f32", axis, 3)
    weights, cuts = b.given("weights", "f32", axis), (b.given("cuts", "f32", axis),) if cut else ()
    masses, q = [], []
    pool = module.inputs["req_pool_indices"]
    for i, count in enumerate(PARTS[form]):
        axes = (count,) if count else ()
        masses.append(b.given(f"masses{i}", "f32", *axes, 3))
        if form == "carried":
            carry(module, f"field{i}", dtype, "Vd")
            with b.phase("prepare"):
                q.append(b("carry.load", pool, field=f"field{i}"))
        else:
            q.append(b.given(f"q{i}", dtype, *axes, "Vd"))
    with b.phase("verify"):
        entries = [module.add_input(TOKEN_ENTRIES, TensorType("i32", ("V",), "Vd"))] if part else []
        given_ = tokens, logits, pool, keys, scales, drawn, mass, weights, *cuts, *entries, *masses, *q
        attrs = {"parts": len(q), "cut": len(cuts), "most": most, "mapped": len(entries)}
        b.hand_out(*b.many("sample.residual", *given_, **attrs))
    return module


def chains(
    source: torch.Generator, batch: Tensor, logits: Tensor, q: Tensor, form: str, weights: Tensor, cuts: Tensor | None
) -> dict[str, Tensor]:
    """Everything that `leaving` is given, masses as the op says: logits [B, 4, V], q [B, 3, Vd]."""
    (count, _, vocab), of_draft = logits.shape, q.shape[-1]
    tokens, keys = entries_of(source, vocab, count, 4), keys_of(source, count, 4)
    scales = SCALES[1:][torch.randint(len(SCALES) - 1, (count, 1), generator=source)].expand(count, 4).clone()
    given_, ones = [] if cuts is None else [cuts], torch.ones_like(batch)
    drawn, _ = OPS["sample.draw"]((logits, ones, keys, scales, *given_), {"dtype": "i32", "keep": ""}, {})
    (mass,) = OPS["sample.mass"]((logits, ones, scales, tokens, *given_), {"ahead": 1, "keep": ""}, {})
    (draft_mass,) = OPS["sample.mass"]((q, ones, scales[:, 1:], tokens[:, 1:]), {"ahead": 0, "keep": ""}, {})
    values = {"req_pool_indices": batch, "tokens": tokens, "logits": logits, "keys": keys, "scales": scales}
    values |= {"drawn": drawn, "mass": mass, "weights": weights} | ({} if cuts is None else {"cuts": cuts})
    first = 0
    for i, rows in enumerate(PARTS[form]):
        part = slice(first, first + rows) if rows else first
        values[f"masses{i}"] = draft_mass[:, part].contiguous()
        if form == "carried":
            pool = torch.full((POOL, of_draft), math.nan, dtype=q.dtype)
            pool[batch] = q[:, part]
            values[f"relay.field{i}"] = pool
        else:
            values[f"q{i}"] = q[:, part].contiguous()
        first += max(rows, 1)
    return values


def weights_of(source: torch.Generator, count: int) -> Tensor:
    """Of the nodes of chains: none, one, or several."""
    weights = torch.rand(count, 4, generator=source)
    return torch.where(torch.rand(count, 4, generator=source) < 0.4, 0.0, weights)


@pytest.mark.parametrize("dtype", FLOATS)
@settings(quick, max_examples=8)
@given(
    seed=st.integers(0, 2**32),
    form=st.sampled_from(list(PARTS)),
    vocab=st.integers(2, 300) | st.integers(301, 1000),
    most=st.integers(1, 3),
    cut=st.booleans(),
)
def test_what_is_left(launcher: Launcher, dtype: str, seed: int, form: str, vocab: int, most: int, cut: bool) -> None:
    """As the reference draws, of rows of q wherever they are; nothing is read of nodes without a weight."""
    source = generator(seed)
    batch = random_rows(source, integer(source, 1, MAX_B // 2), POOL)
    batch[batch.cumsum(0) == 0] = 0
    count = len(batch)
    logits = torch.randn(count, 4, vocab, generator=source).to(DTYPES[dtype])
    q = (torch.randn(count, 3, vocab, generator=source) + 0.5 * logits[:, :3].float()).to(DTYPES[dtype])
    cuts = logits.float()[..., integer(source, 0, vocab - 1)].clone() if cut else None
    values = chains(source, batch, logits, q, form, weights_of(source, count), cuts)
    scan = Scan(integer(source, 1, 4), int(choice(source, ("64", "512")))).affordable(vocab)
    check_module(launcher, leaving(dtype, vocab, form, most=most, cut=cut), source, values, scan)


@pytest.mark.parametrize("vocab", [4, 100])
def test_extreme_rows(launcher: Launcher, vocab: int) -> None:
    """Of p, of q, and of both: a token that p allows if any is left, otherwise the one drawn, and never the draft."""
    source, count = generator(vocab), MAX_B
    for seed in range(6):
        logits, q = (hostile_logits(source, count * n, vocab, vocab, torch.float32).view(count, n, -1) for n in (4, 3))
        if seed % 3 == 0:
            q = logits[:, :3].clone()  # nothing is left but what rounding leaves, and that is nothing here
        weights = weights_of(source, count)
        values = chains(source, torch.arange(1, 1 + count), logits, q, "one", weights.round(), None)
        results = check_module(launcher, leaving("f32", vocab, "one", most=3, cut=False), source, values, Scan(2, 64))
        looked = weights.round()[:, :3] > 0
        index, drawn = results["index"][:, :3].long(), values["drawn"][:, :3].long()
        allowed = logits[:, :3].gather(2, index[..., None])[..., 0] > -INF
        assert (allowed | (index == drawn) | ~looked).all()
        assert ((index != values["tokens"][:, 1:]) | (index == drawn) | ~looked).all()
        assert not results["index"][:, 3].any()


@settings(quick, max_examples=20)
@given(
    seed=st.integers(0, 2**32),
    form=st.sampled_from(list(PARTS)),
    vocab=st.integers(2, 300) | st.integers(301, 1000),
    dtype=st.sampled_from(["f32", "f16"]),
    cut=st.booleans(),
)
def test_drafts_of_a_part_of_the_tokens(
    launcher: Launcher, seed: int, form: str, vocab: int, dtype: str, cut: bool
) -> None:
    """What is left is that of a draft of all tokens, which never says the others."""
    source = generator(seed)
    count, part = MAX_B // 2, integer(source, 1, vocab)
    batch = torch.randperm(POOL - 1, generator=source)[:count] + 1
    order = torch.randperm(vocab, generator=source)[:part].sort().values
    entries = torch.full((vocab,), -1, dtype=torch.int32).scatter(0, order, torch.arange(part, dtype=torch.int32))
    logits = (2 * torch.randn(count, 4, vocab, generator=source)).to(DTYPES[dtype])
    q = (torch.randn(count, 3, part, generator=source) + 0.5 * logits[:, :3, order].float()).to(DTYPES[dtype])
    whole = torch.full((count, 3, vocab), -INF, dtype=q.dtype).index_copy(2, order, q)
    cuts = logits.float()[..., integer(source, 0, vocab - 1)].clone() if cut else None
    weights = weights_of(source, count)
    scan = Scan(integer(source, 1, 4), int(choice(source, ("64", "512")))).affordable(vocab)
    # Noise is drawn of the generator in the same order, and q is all that differs.
    seeds = integer(source, 0, 1 << 30)
    given_ = chains(generator(seeds), batch, logits, q, form, weights, cuts) | {TOKEN_ENTRIES: entries}
    like = chains(generator(seeds), batch, logits, whole, form, weights, cuts)
    partly = check_module(launcher, leaving(dtype, vocab, form, most=3, cut=cut, part=part), source, given_, scan)
    wholly = check_module(launcher, leaving(dtype, vocab, form, most=3, cut=cut), source, like, scan)
    assert torch.equal(partly["index"], wholly["index"])
    torch.testing.assert_close(partly["sums"], wholly["sums"])


def test_a_rejected_draft_is_not_drawn(launcher: Launcher) -> None:
    """Though as much of it is left as of the only other token that p allows."""
    source = generator(2)
    logits, q = (torch.full((MAX_B, n, 4), -INF) for n in (4, 3))
    logits[..., :2], q[..., 2] = 0.0, 0.0
    values = chains(source, torch.arange(1, 1 + MAX_B), logits, q, "one", torch.ones(MAX_B, 4), None)
    values["tokens"] = torch.zeros_like(values["tokens"])
    results = check_module(launcher, leaving("f32", 4, "one", most=3, cut=False), source, values)
    assert (results["index"][:, :3] == 1).all()


@pytest.mark.parametrize("beyond", [1 << 32, -(1 << 32), -(1 << 62), 1 << 40])
def test_a_draft_that_is_no_token_takes_nothing_away(launcher: Launcher, beyond: int) -> None:
    """Nor the token that has its lower bits: that alone is left of p here."""
    source = generator(3)
    logits, q = (torch.full((MAX_B, n, 4), -INF) for n in (4, 3))
    logits[..., :2], q[..., 0] = 0.0, 0.0
    values = chains(source, torch.arange(1, 1 + MAX_B), logits, q, "one", torch.ones(MAX_B, 4), None)
    values["tokens"] = torch.full_like(values["tokens"], 1 + beyond)
    results = check_module(launcher, leaving("f32", 4, "one", most=3, cut=False), source, values)
    assert (results["index"][:, :3] == 1).all()


def test_what_is_left_however_rows_are_cut(launcher: Launcher) -> None:
    """The same tokens bit by bit, and nothing but what p has more of than q."""
    source, vocab = generator(8), 400
    logits, q = (torch.randn(3, n, vocab, generator=source) for n in (4, 3))
    values = chains(source, torch.tensor([3, 1, 7]), logits, q, "each", torch.ones(3, 4), None)
    values |= {"scales": torch.ones(3, 4)}
    indices = [
        check_module(launcher, leaving("f32", vocab, "each", most=3, cut=False), source, values, Scan(*scan))["index"]
        for scan in ((1, 512), (3, 64), (2, 128))
    ]
    assert torch.equal(indices[0], indices[1])
    assert torch.equal(indices[0], indices[2])


# --- weights, and tokens ----------------------------------------------------------------------------------------------


def weighing(mode: str, form: str, nodes: int) -> Module:
    """A module that weighs the nodes of a chain, and one that puts its tokens together."""
    module = small_module(N=nodes)
    b = TypedBuilder(module)
    pool, coins = module.inputs["req_pool_indices"], b.given("coins", "i64")
    scales, mass = b.given("scales", "f32", "N"), b.given("mass", "f32", "N", 3)
    axes = [(nodes - 1,)] if form == "one" else [()] * (nodes - 1)
    masses = [b.given(f"masses{i}", "f32", *axis, 3) for i, axis in enumerate(axes)]
    tokens, drawn, left = b.given("tokens", "i64", "N"), b.given("drawn", "i32", "N"), b.given("left", "i32", "N")
    sums = b.given("sums", "f32", "N")
    with b.phase("verify"):
        weights = b("sample.weigh", pool, coins, scales, mass, *masses, mode=mode, parts=len(masses))
        b.hand_out(weights, b("sample.accept", tokens, pool, coins, drawn, weights, left, sums))
    return module


@pytest.mark.parametrize("mode", ["rejection", "block"])
@settings(quick, max_examples=25)
@given(seed=st.integers(0, 2**32), nodes=st.integers(2, 9), form=st.sampled_from(["one", "each"]))
def test_where_drafts_end(launcher: Launcher, mode: str, seed: int, nodes: int, form: str) -> None:
    """Bit by bit, of likely and unlikely drafts, and of numbers that are no probabilities."""
    source = generator(seed)
    batch = random_rows(source, integer(source, 1, MAX_B), POOL)
    count = len(batch)
    likely = torch.tensor([0.0, 1e-38, 0.1, 0.5, 0.9, 1.0, math.nan, INF])
    p, q = (likely[torch.randint(len(likely), (count, n, 3), generator=source)] for n in (nodes, nodes - 1))
    p = torch.where(torch.rand(p.shape, generator=source) < 0.5, torch.rand(p.shape, generator=source), p).nan_to_num(0)
    q = torch.where(torch.rand(q.shape, generator=source) < 0.7, p[:, :-1] * (1 + torch.rand(q.shape)), q)
    values = {"req_pool_indices": batch, "coins": keys_of(source, count), "mass": p.clamp(max=1.0)}
    values["scales"] = SCALES[torch.randint(len(SCALES), (count, 1), generator=source)].expand(count, nodes).clone()
    values |= {"masses0": q} if form == "one" else {f"masses{i}": q[:, i].contiguous() for i in range(nodes - 1)}
    values["sums"] = torch.rand(count, nodes, generator=source) * (torch.rand(count, nodes, generator=source) < 0.7)
    check_module(launcher, weighing(mode, form, nodes), source, values | drafts_of_rows(source, count, nodes))


def drafts_of_rows(source: torch.Generator, count: int, nodes: int) -> dict[str, Tensor]:
    """Tokens of every kind that `weighing` is given."""
    kinds = {"tokens": torch.int64, "drawn": torch.int32, "left": torch.int32}
    return {name: torch.randint(0, 90, (count, nodes), generator=source).to(dtype) for name, dtype in kinds.items()}


def weighed(launcher: Launcher, mode: str, coins: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """The weights f32[B, n] of chains with probabilities p f32[B, n - 1] of the target and q of the drafts."""
    count, nodes, source = len(p), p.shape[1] + 1, generator(0)
    mass, masses = torch.ones(count, nodes, 3), torch.ones(count, nodes - 1, 3)
    mass[:, :-1, 2], masses[..., 2] = p, q
    values = {"req_pool_indices": torch.arange(1, 1 + count), "coins": coins, "mass": mass, "masses0": masses}
    values |= {"scales": torch.ones(count, nodes), "sums": torch.zeros(count, nodes)} | drafts_of_rows(
        source, count, nodes
    )
    return check_module(launcher, weighing(mode, "one", nodes), source, values)["weights"]


@pytest.mark.parametrize("mode", ["rejection", "block"])
@pytest.mark.parametrize("q", [1e-45, 1e-38, 0.5, 1.0])
def test_a_draft_that_the_target_never_takes_is_rejected(launcher: Launcher, mode: str, q: float) -> None:
    """Whatever the coin, though its product with q may be no number that is larger than 0."""
    coins, nodes = keys_of(generator(4), MAX_B), 4
    weights = weighed(launcher, mode, coins, torch.zeros(MAX_B, nodes), torch.full((MAX_B, nodes), q))
    assert weights.tolist() == [[1.0, 0.0, 0.0, 0.0, 0.0]] * MAX_B


@pytest.mark.parametrize("mode", ["rejection", "block"])
@pytest.mark.parametrize("last", [False, True], ids=["the coin", "the next number"])
def test_a_draft_is_accepted_by_a_coin_below_its_share(launcher: Launcher, mode: str, last: bool) -> None:
    """Below, not as large: u is p of all numbers that it may be, so that it is below with the probability p."""
    coins = keys_of(generator(5), MAX_B)
    u = torch.tensor(
        [[f32(f32(f32(philox2x32((0, key >> 32), key & WORD)[0]) + 0.5) * 2.0**-32)] for key in keys(coins)]
    )
    p = u.nextafter(torch.ones_like(u)) if last else u
    weights = weighed(launcher, mode, coins, p, torch.ones_like(p))
    assert (weights[:, 1] > 0).tolist() == [last] * MAX_B


def keys(coins: Tensor) -> list[int]:
    """Keys as words of 64 bits."""
    return [key & ((1 << 64) - 1) for key in coins.tolist()]

"""Drafts that were drawn and for which the target may have no row: how sure a draft was, what is left, packed rows."""

from __future__ import annotations

import math

import pytest
import torch
from cluster_cases import FLOATS, Scan, TypedBuilder, check_cluster, check_module, choice, form, random_batch
from cluster_cases import small_module as small
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import generator, integer, quicker
from kernel_launcher import Launcher
from test_budget import SEEDS, random_share
from test_reject import PARTS, chains, keys_of, leaving, massive, weights_of
from torch import Tensor

from specc.runtime.semantics.convention import DTYPES

NOTHING = [-math.inf, 1.0, 0.0]
"""The mass of a row without any probability."""


def random_masses(source: torch.Generator, *shape: int) -> Tensor:
    """Masses f32[*shape, 3] of rows of every kind: infinite ones, and those without any probability."""
    top = torch.tensor([0.0, -3.5, math.inf, -math.inf])[torch.randint(4, shape, generator=source)]
    total = torch.where(top.isinf(), 1.0, 1.0 + 50 * torch.rand(shape, generator=source))
    return torch.stack([top, total, torch.rand(shape, generator=source) / total], dim=-1)


@pytest.mark.parametrize("axes", [(), ("K",), ("S",)], ids=str)
@quicker
@given(seed=SEEDS, steps=st.integers(1, 9), keep=st.sampled_from(["", "K"]))
def test_how_sure_a_draft_was(launcher: Launcher, axes: tuple[str, ...], seed: int, steps: int, keep: str) -> None:
    """The largest probability of a row, and not that of what was drawn."""
    source = generator(seed)
    rows, module = random_batch(source), small(S=steps, K=1)
    b = TypedBuilder(module)
    with b.phase("draft"):
        b.hand_out(b("budget.largest", b.given("mass", "f32", *axes, 3), names=("p",), keep=keep))
    mass = random_masses(source, len(rows), *({"K": 1, "S": steps}[axis] for axis in axes))
    ((stem, cluster),) = form(module)
    given_ = {"req_pool_indices": rows, "mass": mass}
    p = check_cluster(launcher, module, stem, cluster, source, given_)["p"]
    want = [0.0 if top == -math.inf else 1 / total for top, total, _ in mass.view(-1, 3).tolist()]
    assert p.shape == (*mass.shape[:-1], *[1] * bool(keep))
    torch.testing.assert_close(p.flatten(), torch.tensor(want), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("block", [False, True])
@quicker
@given(seed=SEEDS, steps=st.integers(1, 9))
def test_a_draft_without_a_row_leaves_everything(launcher: Launcher, block: bool, seed: int, steps: int) -> None:
    """Of drafts one by one and of those of a block; a draft that is a token has the mass that it had."""
    source = generator(seed)
    rows, module = random_batch(source), small(S=steps, A=steps + 1, K=1)
    b = TypedBuilder(module)
    tokens = b.given("tokens", "i64", "A")
    with b.phase("verify"):
        if block:
            b.hand_out(b("budget.judged", b.given("mass0", "f32", "S", 3), tokens, names=("judged0",), column=0))
        else:
            for place in range(steps):
                mass = b.given(f"mass{place}", "f32", *["K"] * (place > 0), 3)
                b.hand_out(b("budget.judged", mass, tokens, names=(f"judged{place}",), column=place))
    mass = random_masses(source, len(rows), steps)
    lens = torch.randint(0, steps + 2, (len(rows),), generator=source)
    there = torch.arange(1, steps + 1) < lens[:, None]
    drafts = torch.where(there, torch.randint(0, 99, (len(rows), steps), generator=source), -1)
    given_ = {"req_pool_indices": rows, "tokens": torch.cat([torch.zeros_like(drafts[:, :1]), drafts], 1)}
    if block:
        given_["mass0"] = mass
    else:
        given_ |= {f"mass{place}": mass[:, place].view(-1, *[1] * (place > 0), 3) for place in range(steps)}
    made = check_module(launcher, module, source, given_)
    names = ["judged0"] if block else [f"judged{place}" for place in range(steps)]
    judged = torch.cat([made[name].reshape(len(rows), -1, 3) for name in names], dim=1)
    assert torch.equal(judged, torch.where(there[..., None], mass, torch.tensor(NOTHING)))


def packed_of(source: torch.Generator, logits: Tensor, rows: Tensor, each: int) -> dict[str, Tensor]:
    """Rows T[B, A, V] as the target hands them over, T[B, each, V]; what nobody has is infinite."""
    lens, starts = random_share(source, rows, logits.shape[1] - 1, each)
    flat = torch.full((len(rows) * each, logits.shape[2]), math.inf, dtype=logits.dtype)
    for own, length, start in zip(logits, lens.tolist(), starts.tolist(), strict=True):
        flat[start : start + length] = own[:length]
    return {"logits": flat.view(len(rows), each, -1), "lens": lens, "starts": starts}


def as_read(logits: Tensor, lens: Tensor) -> Tensor:
    """Rows T[B, A, V] as they are read: from ``lens`` on the last row of a request again."""
    column = torch.minimum(torch.arange(logits.shape[1]), lens[:, None] - 1).clamp(min=0)
    return logits.gather(1, column[..., None].expand_as(logits).long())


@pytest.mark.parametrize("dtype", FLOATS)
@quicker
@given(seed=SEEDS, nodes=st.integers(2, 5), vocab=st.integers(2, 600), cut=st.booleans())
def test_masses_of_packed_rows(launcher: Launcher, dtype: str, seed: int, nodes: int, vocab: int, cut: bool) -> None:
    """As of the same rows by request, draws and probabilities of the drafts after them."""
    source = generator(seed)
    rows, each = random_batch(source), integer(source, 1, nodes)
    shape = len(rows), nodes
    logits = torch.randn(*shape, vocab, generator=source).to(DTYPES[dtype])
    values = {"req_pool_indices": rows, "keys": keys_of(source, *shape)}
    values["scales"] = torch.randint(0, 3, (len(rows), 1), generator=source).float().expand(shape).clone()
    values["entries"] = torch.randint(-1, vocab, shape, generator=source)
    packed = packed_of(source, logits, rows, each)
    logits = as_read(logits, packed["lens"])
    if cut:
        values["cuts"] = logits.float().median(-1).values
    scan = Scan(integer(source, 1, 8), int(choice(source, ("64", "512")))).affordable(vocab)
    made = [
        check_module(launcher, massive(dtype, nodes, vocab, cut=cut, ahead=1, each=n), source, values | given_, scan)
        for n, given_ in ((each, packed), (0, {"logits": logits}))
    ]
    assert [stem for stem, _ in form(massive(dtype, nodes, vocab, cut=cut, ahead=1, each=each))] == ["draw"]
    live = rows != 0
    for name in ("index", "mass"):
        assert torch.equal(made[0][name][live], made[1][name][live]), name


@pytest.mark.parametrize("dtype", FLOATS)
@quicker
@given(
    seed=SEEDS,
    parts=st.sampled_from(list(PARTS)),
    vocab=st.integers(2, 600),
    most=st.integers(1, 3),
    cut=st.booleans(),
)
def test_what_is_left_of_packed_rows(
    launcher: Launcher, dtype: str, seed: int, parts: str, vocab: int, most: int, cut: bool
) -> None:
    """As of the same rows by request, after nodes that have one."""
    source = generator(seed)
    rows, each = random_batch(source), integer(source, 1, 4)
    rows[rows.cumsum(0) == 0] = 0
    logits = torch.randn(len(rows), 4, vocab, generator=source).to(DTYPES[dtype])
    q = (torch.randn(len(rows), 3, vocab, generator=source) + 0.5 * logits[:, :3].float()).to(DTYPES[dtype])
    packed = packed_of(source, logits, rows, each)
    logits = as_read(logits, packed["lens"])
    cuts = logits.float().median(-1).values if cut else None
    weights = weights_of(source, len(rows)) * (torch.arange(4) < packed["lens"][:, None])
    values = chains(source, rows, logits, q, parts, weights, cuts)
    scan = Scan(integer(source, 1, 4), int(choice(source, ("64", "512")))).affordable(vocab)
    made = [
        check_module(launcher, leaving(dtype, vocab, parts, most=most, cut=cut, each=n), source, values | given_, scan)
        for n, given_ in ((each, packed), (0, {}))
    ]
    assert [stem for stem, _ in form(leaving(dtype, vocab, parts, most=most, cut=cut, each=each))] == ["residual"]
    live = rows != 0
    for name in ("index", "sums"):
        assert torch.equal(made[0][name][live], made[1][name][live]), name

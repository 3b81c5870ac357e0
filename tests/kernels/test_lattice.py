"""A walk over the candidates of a block's places: against plain Python, and in one launch with their ranking."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from cluster_cases import FLOATS, Drawn, Scan, TypedBuilder, check_module, form, small_module
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import DTYPES as KERNEL_DTYPES
from kernel_cases import POOL, generator, quicker, random_logits, random_rows
from kernel_launcher import Launcher

from specc.compiler.ir.core import Module
from specc.compiler.ir.types import Dim, TensorType
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.semantics.reference import OPS

TOKENS = 40
SHARES = torch.tensor([1.0, 0.5, 0.25, 0.125, 2.0**-130, 0.0, -1.0, math.nan, math.inf])
"""Shares of a candidate; the logarithms of usual ones lie far from whole numbers apart."""

lattices = st.fixed_dictionaries({
    "seed": st.integers(0, 2**32), "batch": st.integers(1, 5), "steps": st.integers(1, 6), "k": st.integers(1, 9),
    "rank": st.sampled_from([1, 3, 24, 128, 200]),
})  # fmt: skip


def lattice(shape: dict[str, int], kind: str, table: str, logits: tuple[str, int] | None = None) -> Module:
    """A walk; over candidates that are given, or those of logits of a dtype and a vocabulary."""
    module = small_module(K=1, S=shape["steps"], A=shape["steps"] + 1, V=TOKENS, Vd=logits[1] if logits else TOKENS)
    module.dims["L"] = Dim("L", "candidate", shape["k"])
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    with b.phase("draft"):
        if logits is None:
            p, index = b.given("p", "f32", "S", "L"), b.given("index", "i64", "S", "L")
        else:
            p, index, bad = b.many("vocab.topk", b.given("logits", logits[0], "S", "Vd"), rows, axis="L")
            b.hand_out(b("health.raise", b.given("earlier", "i32"), bad, names=("health",), bit=0))
        operands = [rows, b.given("bonus", "i32"), p, index, b.given("states", kind, "S", shape["rank"])]
        operands += [module.add_input(name, TensorType(table, ("V", shape["rank"]))) for name in ("before", "after")]
        b.hand_out(*b.many("lattice.walk", *operands, names=("tokens", "confidence"), confidence="f32"))
    return module


def drawn_lattice(shape: dict[str, int], kind: str, table: str) -> tuple[torch.Generator, Drawn]:
    """(randomness, inputs): small whole numbers, whose sums are exact and often tie; some are NaN or infinite."""
    source, batch, rank = generator(shape["seed"]), shape["batch"], shape["rank"]
    count = batch, shape["steps"], shape["k"]

    def whole(*size: int) -> torch.Tensor:
        numbers = torch.randint(-2, 3, size, generator=source).float()
        numbers.view(-1, rank)[torch.rand(numbers.numel() // rank, generator=source) < 0.1, 0] = math.nan
        numbers.view(-1, rank)[torch.rand(numbers.numel() // rank, generator=source) < 0.1, -1] = math.inf
        numbers.view(-1, rank)[torch.rand(numbers.numel() // rank, generator=source) < 0.1] = 0.0
        return numbers

    drawn = {
        "req_pool_indices": random_rows(source, batch, POOL),
        "bonus": torch.randint(0, TOKENS, (batch,), generator=source, dtype=torch.int32),
        "p": SHARES[torch.randint(0, 1 + len(SHARES) * shape["seed"] % len(SHARES), count, generator=source)],
        "index": torch.randint(0, TOKENS, count, generator=source),
        "states": whole(*count[:2], rank).to(DTYPES[kind]),
        **{name: whole(TOKENS, rank).to(DTYPES[table]) for name in ("before", "after")},
    }
    return source, drawn


def walked(drawn: Drawn) -> list[list[int]]:
    """The tokens of all requests, one place after the other."""
    return [
        path_of(int(bonus), [drawn[name][b].tolist() for name in ("p", "index", "states")], drawn)
        if row else [0] * drawn["p"].shape[1]
        for b, (row, bonus) in enumerate(zip(drawn["req_pool_indices"].tolist(), drawn["bonus"], strict=True))
    ]  # fmt: skip


def scored(bonus: int, of_place: Sequence[Any], drawn: Drawn) -> list[float]:
    """The scores of a place's candidates behind a token, NaN where they are."""
    before, after = (drawn[name].float().tolist() for name in ("before", "after"))
    shares, tokens, state = of_place
    return [
        math.log(min(share, 1.0) if share >= 2.0**-126 else 2.0**-126)
        + sum(a * h * c for a, h, c in zip(before[bonus], state, after[token], strict=True))
        for share, token in zip(shares, tokens, strict=True)
    ]


def path_of(bonus: int, of_request: Sequence[Any], drawn: Drawn) -> list[int]:
    """The path of a request: at each place the candidate of the largest score, the first of equal ones."""
    path = [bonus]
    for of_place in zip(*of_request, strict=True):
        best, largest = 0, -math.inf
        for number, score in enumerate(scored(path[-1], of_place, drawn)):
            if score > largest:  # false for NaN and ties
                best, largest = number, score
        path.append(of_place[1][best])
    return path[1:]


def confidences(drawn: Drawn, paths: list[list[int]]) -> list[list[float]]:
    """How probable each token of paths is by the softmax of its place's scores."""
    found = list[list[float]]()
    for b, path in enumerate(paths):
        of_request = [drawn[name][b].tolist() for name in ("p", "index", "states")]
        row = list[float]()
        for before, of_place in zip([int(drawn["bonus"][b]), *path], zip(*of_request, strict=True), strict=False):
            scores = [-math.inf if math.isnan(score) else score for score in scored(before, of_place, drawn)]
            top = max(scores)
            total = sum(1.0 if score == top else math.exp(score - top) for score in scores)
            row.append(0.0 if top == -math.inf or not drawn["req_pool_indices"][b] else 1 / total)
        found.append(row)
    return found


@pytest.mark.parametrize(("kind", "table"), [*itertools.product(("f32", "bf16"), ("f32", "bf16")), ("f16", "f16")])
@settings(quicker, max_examples=6)
@given(shape=lattices)
def test_walk(launcher: Launcher, kind: str, table: str, shape: dict[str, int]) -> None:
    """Whatever the shares and rows are: equal, NaN, infinite, without any; the reference says the same."""
    source, drawn = drawn_lattice(shape, kind, table)
    results = check_module(launcher, lattice(shape, kind, table), source, drawn, Scan(programs=1))
    assert results["tokens"].tolist() == walked(drawn)
    found = results["confidence"].tolist()
    assert found == [pytest.approx(expected, rel=1e-5) for expected in confidences(drawn, results["tokens"].tolist())]


@settings(quicker, max_examples=6)
@given(shape=lattices, dtype=st.sampled_from(FLOATS), vocab=st.integers(10, TOKENS))
def test_walk_with_the_top_k(launcher: Launcher, shape: dict[str, int], dtype: str, vocab: int) -> None:
    """Ranking the candidates of all places and walking over them are one launch."""
    shape = shape | {"batch": min(2, shape["batch"]), "steps": min(4, shape["steps"])}
    source, drawn = drawn_lattice(shape, "f32", "f32")
    del drawn["p"], drawn["index"]
    size = shape["batch"], shape["steps"], vocab
    kind = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}[dtype]
    drawn["logits"] = random_logits(source, size[0] * size[1], vocab, vocab, KERNEL_DTYPES[kind]).view(size)
    drawn["earlier"] = torch.randint(0, 16, size[:1], generator=source, dtype=torch.int32)
    module = lattice(shape, "f32", "f32", (dtype, vocab))
    check_module(launcher, module, source, drawn, Scan())
    assert len({op.attrs["kernel"] for op in module.ops()}) == 1


@pytest.mark.parametrize("vocab", [40, 5000])
@settings(quicker, max_examples=5)
@given(shape=lattices, scalar=st.booleans())
def test_rows_of_logits(launcher: Launcher, vocab: int, shape: dict[str, int], scalar: bool) -> None:
    """Candidates have their scores, NaN as -inf; no other entry has any."""
    source, drawn = drawn_lattice(shape, "f32", "f32")
    module = small_module(K=1, S=shape["steps"], A=shape["steps"] + 1, V=TOKENS, Vd=vocab)
    module.dims["L"] = Dim("L", "candidate", shape["k"])
    count, place = (shape["batch"], shape["steps"], shape["k"]), shape["seed"] % shape["steps"]
    drawn["token"] = drawn.pop("bonus").long() if scalar else drawn.pop("bonus").long()[:, None]
    drawn["tokens"] = drawn["index"]
    drawn["index"] = torch.rand(*count[:2], vocab, generator=source).argsort(dim=2)[..., : count[2]].contiguous()
    b = TypedBuilder(module)
    with b.phase("draft"):
        operands = [b.given("p", "f32", "S", "L"), *(b.given(name, "i64", "S", "L") for name in ("index", "tokens"))]
        operands += [b.given("token", "i64", *(() if scalar else ("K",))), b.given("states", "f32", "S", shape["rank"])]
        operands += [module.add_input(name, TensorType("f32", ("V", shape["rank"]))) for name in ("before", "after")]
        rows = module.inputs["req_pool_indices"]
        b.hand_out(b("lattice.row", rows, *operands, names=("logits",), entries="Vd", place=place))
    assert [stem for stem, _ in form(module)] == ["rows"]
    results = check_module(launcher, module, source, drawn, Scan(programs=1))
    for b_, row in enumerate(drawn["req_pool_indices"].tolist()):
        wanted = [-math.inf if row else 0.0] * vocab
        names = ("p", "tokens", "states")
        scores = scored(int(drawn["token"][b_].view(-1)[0]), [drawn[n][b_, place].tolist() for n in names], drawn)
        for entry, score in zip(drawn["index"][b_, place].tolist(), scores if row else (), strict=bool(row)):
            wanted[entry] = -math.inf if math.isnan(score) else score
        torch.testing.assert_close(results["logits"][b_], torch.tensor(wanted))


def test_tokens_of_no_row_read_the_nearest(launcher: Launcher) -> None:
    """Whatever stands there, no other memory is read; the reference says the same."""
    shape = {"seed": 4, "batch": 2, "steps": 2, "k": 4, "rank": 8}
    source, drawn = drawn_lattice(shape, "f32", "f32")
    drawn["req_pool_indices"] = torch.tensor([3, 4])
    drawn["bonus"] = torch.tensor([-7, TOKENS], dtype=torch.int32)
    drawn["index"] = torch.tensor([-1, TOKENS, -(2**40), 2**40]).expand(2, 2, 4).contiguous()
    results = check_module(launcher, lattice(shape, "f32", "f32"), source, drawn, Scan(programs=1))
    nearest = drawn | {name: drawn[name].clamp(0, TOKENS - 1) for name in ("bonus", "index")}
    assert results["tokens"].clamp(0, TOKENS - 1).tolist() == walked(nearest)


def test_what_rounding_leaves(launcher: Launcher) -> None:
    """Of numbers whose sums are rounded, as published drafts have them, the path is the best but for that."""
    shape = {"seed": 5, "batch": 4, "steps": 7, "k": 16, "rank": 256}
    source, drawn = drawn_lattice(shape, "bf16", "bf16")
    count = shape["batch"], shape["steps"], shape["k"]
    drawn["req_pool_indices"] = torch.arange(1, 5)
    drawn["p"] = torch.softmax(torch.randn(count, generator=source), 2).sort(dim=2, descending=True).values
    for name in ("states", "before", "after"):
        drawn[name] = torch.randn(drawn[name].shape, generator=source).bfloat16() / 2
    names = ("req_pool_indices", "bonus", "p", "index", "states", "before", "after")
    (wanted,) = OPS["lattice.walk"](tuple(drawn[name] for name in names), {}, {})
    results = check_module(launcher, lattice(shape, "bf16", "bf16"), source, drawn, Scan(programs=1))
    assert torch.equal(results["tokens"], wanted)
    greedy = drawn["index"][:, :, 0]
    assert (results["tokens"] != greedy).float().mean() > 0.3  # the selector decides something


def test_one_launch_without_a_ranking() -> None:
    shape = {"steps": 3, "k": 4, "rank": 8}
    assert [stem for stem, _ in form(lattice(shape, "f32", "f32"))] == ["rows"]

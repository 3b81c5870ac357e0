"""Logits with penalties and biases in front of an argmax, by what a text and a path to a node have; and its counts."""

from __future__ import annotations

import importlib

import pytest
import torch
import triton
import triton.language as tl
from cluster_cases import FLOATS, POOL, Scan, TypedBuilder, carry, check_module, choice, integer, small_module
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import generator, quick, random_rows
from kernel_launcher import PACKAGE, Launcher
from topk_cases import hostile_batch
from torch import Tensor

from specc.compiler.ir.core import Module
from specc.runtime.semantics.reference import OPS

PENALTIES = ("repetition", "frequency", "presence")


def changed(dtype: str, rows: int, vocab: int, *, form: str, carried: bool) -> Module:
    """A module with the largest of changed logits: of one row, or of the nodes of a chain or a tree."""
    module = small_module(N=max(rows, 1), A=max(rows, 1), V=vocab)
    b, axes = TypedBuilder(module), ("N",) if rows else ()
    pool_rows, logits = module.inputs["req_pool_indices"], b.given("logits", dtype, *axes, "V")
    penalties = [b.given(name, "f32") for name in PENALTIES]
    nodes = [b.given(name, "i64", "N") for name in ("tokens", "parent")[: {"tree": 2, "chain": 1}.get(form, 0)]]
    carry(module, "counts", "i32", "V")
    carry(module, "bias", "f32", "V")
    with b.phase("verify"):
        tables = {"counts": "i32", "bias": "f32"}
        if carried:
            counts, bias = (b("carry.load", pool_rows, field=name) for name in tables)
        else:
            counts, bias = (b.given(name, dtype, "V") for name, dtype in tables.items())
        opcode = "sample.penalize_nodes" if nodes else "sample.penalize"
        penalized = b(opcode, logits, counts, *penalties, *nodes)
        biased = b("sample.bias", penalized, bias)
        b.hand_out(*b.many("vocab.argmax", biased, pool_rows, dtype="i32", keep=""))
    return module


def penalties_of(source: torch.Generator, count: int) -> dict[str, Tensor]:
    """Penalties f32[count], some requests without."""
    on = torch.rand(count, generator=source) < 0.7
    values = {name: 3 * torch.rand(count, generator=source) - 1 for name in PENALTIES}
    values["repetition"] = torch.where(on, values["repetition"].exp2(), 1.0)
    return values | {name: torch.where(on, values[name], 0.0) for name in PENALTIES[1:]}


def words_of(source: torch.Generator, *shape: int) -> Tensor:
    """Counts as they are carried, mostly of tokens that the text has not."""
    words = torch.randint(0, 9, shape, generator=source, dtype=torch.int32)
    return torch.where(torch.rand(shape, generator=source) < 0.4, words, 0)


def parents_of(source: torch.Generator, count: int, nodes: int) -> Tensor:
    """Parents i64[count, nodes] of trees, with orphans and what no tree has."""
    parent = (torch.rand(count, nodes, generator=source) * torch.arange(nodes)).to(torch.int64)
    odd = torch.tensor([-1, nodes, 1 << 40, -(1 << 40)])[torch.randint(4, parent.shape, generator=source)]
    return torch.where(torch.rand(parent.shape, generator=source) < 0.1, odd, parent)


@pytest.mark.parametrize("form", ["row", "chain", "tree"])
@settings(quick, max_examples=20)
@given(
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from(FLOATS),
    rows=st.integers(1, 5),
    vocab=st.integers(1, 40) | st.integers(41, 1500),
    carried=st.booleans(),
)
def test_changed_logits(
    launcher: Launcher, form: str, seed: int, dtype: str, rows: int, vocab: int, carried: bool
) -> None:
    """The largest one is the reference's, from rows of every kind; what is carried is read in its pool row."""
    source = generator(seed)
    rows = 0 if form == "row" else rows
    batch, logits = hostile_batch(source, dtype, rows, vocab)
    count, shape = len(batch), logits.shape[:-1]
    module = changed(dtype, rows, vocab, form=form, carried=carried)
    prefix, size = ("relay.", POOL) if carried else ("", count)
    values = {"req_pool_indices": batch, "logits": logits, **penalties_of(source, count)}
    values |= {f"{prefix}counts": words_of(source, size, vocab)}
    values |= {f"{prefix}bias": torch.randn(size, vocab, generator=source)}
    if rows:
        tokens = torch.randint(0, vocab, shape, generator=source)
        odd = torch.tensor([-1, vocab, 1 << 32, (1 << 32) + vocab // 2])[torch.randint(4, shape, generator=source)]
        values["tokens"] = torch.where(torch.rand(shape, generator=source) < 0.1, odd, tokens)
        values["parent"] = parents_of(source, count, rows)
    scan = Scan(integer(source, 1, 4), int(choice(source, ("64", "512"))))
    check_module(launcher, module, source, values, scan)
    loads = module.find("carry.load")
    assert {op.attrs["kernel"] for op in loads} <= {"verify_argmax"}


@triton.jit
def write_changed(
    logits_ptr, counts_ptr, repetition_ptr, frequency_ptr, presence_ptr, tokens_ptr, parent_ptr, out_ptr,
    PENALIZE: tl.constexpr, ROWS: tl.constexpr, A: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All logits of a row after a node."""
    row = tl.program_id(0)
    column = tl.minimum(tl.arange(0, BLOCK), V - 1)
    logits = tl.load(logits_ptr + row * V + column)
    penalized = PENALIZE(
        logits, column, row, counts_ptr, None, repetition_ptr, frequency_ptr, presence_ptr, tokens_ptr, parent_ptr,
        ROWS=ROWS, A=A, SIZE_COUNTS=V,
    )  # fmt: skip
    tl.store(out_ptr + row * V + column, penalized)


@pytest.mark.parametrize("tree", [False, True])
def test_every_logit(launcher: Launcher, tree: bool) -> None:
    """Bit by bit what the reference gives, not only the largest."""
    count, nodes, path, vocab = 6, 7, 4, 23
    source = generator(3)
    logits = torch.randn(count, nodes, vocab, generator=source)
    penalties = penalties_of(source, count)
    penalties["repetition"][:2] = torch.tensor([0.0, 1e-5])
    tokens = torch.randint(0, vocab, (count, nodes), generator=source)
    tokens[:, 3:5] += 1 << 32
    values = [words_of(source, count, vocab), *penalties.values(), tokens]
    values += [parents_of(source, count, nodes)] * tree
    (wanted,) = OPS["sample.penalize_nodes"]((logits, *values), {}, {"A": path})
    library = importlib.import_module(f"{PACKAGE}.lib.sample")
    out = torch.empty_like(logits).to(launcher.device)
    given_ = [tensor.to(launcher.device) for tensor in (logits, *values)] + [None] * (not tree)
    write_changed[(count * nodes,)](*given_, out, library.sample_penalize_nodes, nodes, path, vocab, 32)
    assert torch.equal(out.cpu(), wanted)
    assert (wanted != logits).float().mean() > 0.2


@pytest.mark.parametrize("name", PENALTIES)
def test_one_penalty_alone(launcher: Launcher, name: str) -> None:
    """Each is enough for what was counted to be read."""
    vocab, source = 40, generator(9)
    values = {"req_pool_indices": torch.tensor([2, 1]), "logits": torch.randn(2, vocab, generator=source)}
    values |= {penalty: torch.full((2,), float(penalty == "repetition")) for penalty in PENALTIES}
    values[name] = torch.full((2,), 2.0)
    best = values["logits"].argmax(dim=1)
    counts = torch.zeros(POOL, vocab, dtype=torch.int32)
    counts[[2, 1], best] = 3
    values |= {"relay.counts": counts, "relay.bias": torch.zeros(POOL, vocab)}
    results = check_module(launcher, changed("f32", 0, vocab, form="row", carried=True), source, values)
    assert (results["index"] != best).all()


def counting(width: int, *, some: bool) -> Module:
    """A module that counts one token of a request or several, all of them or the first."""
    module = small_module(A=max(width, 1), V=50)
    b = TypedBuilder(module)
    carry(module, "counts", "i32", "V")
    tokens = b.given("tokens", "i32", *(("A",) if width else ()))
    counted = (b.given("count", "i32"),) if some else ()
    with b.phase("commit"):
        b.hand_out(b("health.clear", module.inputs["req_pool_indices"]))
        b.many(
            "carry.count", module.inputs["req_pool_indices"], tokens, *counted, field="counts", axis="A" * bool(width)
        )
    return module


@settings(quick, max_examples=20)
@given(seed=st.integers(0, 2**32), width=st.integers(0, 6), some=st.booleans())
def test_counts(launcher: Launcher, seed: int, width: int, some: bool) -> None:
    """Every one of equal tokens, none past the count, none of padding."""
    source = generator(seed)
    batch = random_rows(source, integer(source, 1, 6), POOL)
    shape = (len(batch), width) if width else (len(batch),)
    values = {
        "req_pool_indices": batch,
        "tokens": torch.randint(40, 43, shape, generator=source, dtype=torch.int32),
        "relay.counts": words_of(source, POOL, 50),
    }
    if some:
        values["count"] = torch.randint(0, width + 2, (len(batch),), generator=source, dtype=torch.int32)
    check_module(launcher, counting(width, some=some), source, values)

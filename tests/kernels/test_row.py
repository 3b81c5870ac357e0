"""One row of a request's logits, chosen by a number: read where it is, changed before it is chosen or after."""

from __future__ import annotations

import math

import pytest
import torch
from cluster_cases import FLOATS, POOL, Scan, TypedBuilder, carry, check_module, choice, form, integer, small_module
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import generator, quick, random_rows
from kernel_launcher import Launcher
from test_cut import parameters_of
from test_penalize import PENALTIES, parents_of, penalties_of, words_of
from test_sample import bitmasks, noise_of
from topk_cases import hostile_logits
from torch import Tensor

from specc.compiler.ir.core import Module, Value
from specc.compiler.passes.form_kernels import TORCH
from specc.runtime.semantics.convention import DTYPES

READERS = ("vocab.argmax", "vocab.topk", "sample.draw", "logprob", "cuts", "cuts and draw", "handed out")
CHANGES = ("none", "allow", "path", "all")


def changed(b: TypedBuilder, logits: Value, changes: str, nodes: bool) -> Value:
    """Logits after what changes them, of all nodes, or of one row."""
    axes, stem = (("N",), "") if nodes else ((), "row_")
    if changes in ("path", "all"):
        penalties = [b.given(stem + name, "f32") for name in PENALTIES]
        tree = [b.given(stem + name, "i64", "N") for name in ("tokens", "parent")] if nodes else []
        counts = b("carry.load", b.module.inputs["req_pool_indices"], field="counts", names=(f"{stem}counts",))
        opcode = "sample.penalize_nodes" if nodes else "sample.penalize"
        logits = b(opcode, logits, counts, *penalties, *tree)
    if changes in ("allow", "all"):
        logits = b("sample.allow", logits, b.given(f"{stem}bitmask", "i32", *axes, b.module.size("V") // 32 + 1))
    return logits


def reading(dtype: str, rows: int, vocab: int, reader: str, before: str, after: str) -> Module:
    """A module that reduces, or cuts, or hands out one of a request's rows."""
    module = small_module(N=rows, A=rows, K=3, V=vocab)
    b, batch = TypedBuilder(module), module.inputs["req_pool_indices"]
    carry(module, "counts", "i32", "V")
    logits, at, scales = b.given("logits", dtype, "N", "V"), b.given("at", "i64"), b.given("scales", "f32")
    noise, attrs, cuts = (b.given("keys", "i64"), scales), {"dtype": "i32", "keep": ""}, ()
    with b.phase("verify"):
        row = changed(b, b("vocab.row", changed(b, logits, before, nodes=True), at), after, nodes=False)
        if reader.startswith("cuts"):
            cuts = (b("sample.top_k", row, scales, b.given("top_k", "i32")),)
            cuts = (b("sample.top_p", row, scales, b.given("top_p", "f32"), *cuts),)
            b.hand_out(*cuts)
        if reader.endswith("draw"):
            b.hand_out(*b.many("sample.draw", row, batch, *noise, *cuts, **attrs))
        elif reader == "vocab.topk":
            b.hand_out(*b.many(reader, row, batch))
        elif reader in ("vocab.argmax", "logprob"):
            index, bad = b.many("vocab.argmax", row, batch, **attrs)
            b.hand_out(index, bad, *((b("vocab.logprob", row, batch, index),) if reader == "logprob" else ()))
        elif not cuts:
            b.hand_out(row)
    return module


def given_for(source: torch.Generator, dtype: str, rows: int, vocab: int) -> dict[str, Tensor]:
    """Inputs of `reading`: rows of every kind, of which all numbers may be chosen, and such as no request has."""
    batch = random_rows(source, integer(source, 1, 3), POOL)
    count = len(batch)
    odd = torch.tensor([-1, rows, 1 << 40, -(1 << 40)])[torch.randint(4, (count,), generator=source)]
    at = torch.randint(0, rows, (count,), generator=source)
    logits = hostile_logits(source, count * rows, vocab, vocab, DTYPES[dtype]).view(count, rows, vocab)
    values = {"req_pool_indices": batch, "logits": logits, **noise_of(source, count)}
    values["at"] = torch.where(torch.rand(count, generator=source) < 0.2, odd, at)
    values |= parameters_of(source, count, vocab) | penalties_of(source, count)
    values |= {f"row_{name}": value for name, value in penalties_of(source, count).items()}
    values |= {"tokens": torch.randint(0, vocab, (count, rows), generator=source)}
    values |= {"parent": parents_of(source, count, rows), "relay.counts": words_of(source, POOL, vocab)}
    values["relay.counts"][0] = 0  # what is carried of padding, which cuts do not ask for
    words = vocab // 32 + 1
    return values | {"bitmask": bitmasks(source, count, rows, words), "row_bitmask": bitmasks(source, count, words)}


@pytest.mark.parametrize("reader", READERS)
@settings(quick, max_examples=20)
@given(
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from(FLOATS),
    rows=st.integers(1, 5),
    vocab=st.integers(4, 300) | st.integers(301, 1500),
    before=st.sampled_from(CHANGES),
    after=st.sampled_from(CHANGES),
)
def test_the_chosen_row(
    launcher: Launcher, reader: str, seed: int, dtype: str, rows: int, vocab: int, before: str, after: str
) -> None:
    """As if it had been copied, in one launch with what changes it; other rows hold anything."""
    source = generator(seed)
    module = reading(dtype, rows, vocab, reader, before, after)
    values = given_for(source, dtype, rows, vocab)
    slack = 0 if reader.startswith("cuts") else integer(source, 0, 8)
    scan = Scan(integer(source, 1, 4), int(choice(source, ("64", "512"))), slack)
    check_module(launcher, module, source, values, scan)


@pytest.mark.parametrize("reader", READERS)
def test_nothing_is_launched_for_it(reader: str) -> None:
    """A reduction and a cut have it in their launch; torch copies it where it is handed out."""
    module = reading("bf16", 4, 96, reader, "all", "allow")
    wanted = {"logprob": ["argmax"], "cuts": ["cut"], "cuts and draw": ["cut", "draw"], "handed out": []}
    assert [stem for stem, _ in form(module) if stem != "rows"] == wanted.get(reader, [reader.split(".")[-1]])
    rows = [op for op in module.find("vocab.row") if op.attrs["kernel"].startswith(TORCH)]
    assert len(rows) == (reader == "handed out")


def test_other_rows_are_not_read(launcher: Launcher) -> None:
    """NaN in one of them would be a bad row."""
    source = generator(3)
    logits = torch.full((4, 5, 200), math.nan)
    at = torch.tensor([4, 0, 2, 3])
    logits[torch.arange(4), at] = torch.randn(4, 200, generator=source)
    values = {"req_pool_indices": torch.tensor([1, 2, 0, 3]), "logits": logits, "at": at, **noise_of(source, 4)}
    results = check_module(launcher, reading("f32", 5, 200, "sample.draw", "none", "none"), source, values, Scan(3, 64))
    assert not results["bad"].any()

"""Heads that ranks share out: every rank's kernels, by the bits of one rank's, and by a scan of logits in Python."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cluster_cases import TypedBuilder, form, launched, small_module
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import POISON, argmax, assert_same, generator, quicker, random_rows
from kernel_launcher import Launcher
from test_head import KINDS, NAMES, POOL, Head, random_head, require_product
from topk_cases import assert_probabilities
from torch import Tensor

from specc.compiler.ir.core import Module
from specc.compiler.ir.types import Dim
from specc.compiler.pass_manager.pass_base import Context
from specc.compiler.passes.gather_logits import GatherLogits
from specc.runtime.plan.draft_head import PART_AXIS
from specc.runtime.semantics.reference import OPS

RANKS = (1, 4)
SIZES = [(90, 24, 96), (40, 72, 64), (1000, 16, 1024)]
"""Entries, weights of each, columns: of 40 on 64 the last rank has none, 1000 are more than one tile on each."""


def module_of(opcode: str, head: Head, columns: int, ranks: int, branches: int) -> Module:
    """A module that computes a rank's logits and reduces them, and hands out what all ranks make of it."""
    module = small_module(K=branches, Vd=len(head.weight))
    shard = Dim("Vds", "vocab_shard", columns // ranks)
    module.dims |= {"Vds": shard, "R": Dim("R", "rank", ranks), PART_AXIS: Dim(PART_AXIS, "part", 2)}
    b, rows, dtype = TypedBuilder(module), module.inputs["req_pool_indices"], NAMES[head.weight.dtype]
    operands = head.operands(b, "Vds")
    with b.phase("draft"):
        logits = b("head.logits", *operands, dtype=dtype, names=("logits",))
        attrs: dict[str, Any] = {} if opcode == "vocab.topk" else {"dtype": "i64", "keep": ""}
        b.hand_out(*b.many(opcode, logits, rows, **attrs))
    GatherLogits().run(module, Context())
    return module


def of_rank(head: Head, columns: int, ranks: int, rank: int) -> dict[str, Tensor]:
    """A rank's tables, with NaN in entries that there are not."""
    width, tables = columns // ranks, {}
    for name, table in head.tables.items():
        whole = torch.full((columns, *table.shape[1:]), torch.nan).to(table.dtype)
        whole[: len(table)] = table
        tables[name] = whole[rank * width : (rank + 1) * width].contiguous()
    return tables


def run(launcher: Launcher, module: Module, head: Head, columns: int, rows: Tensor) -> dict[str, Tensor]:
    """What all ranks hand out."""
    ranks, count = module.size("R"), len(rows)
    (head_stem, product), (stem, part), (merge_stem, merge) = form(module)
    assert (head_stem, merge_stem) == ("head", "rows")
    (logits,), (record,) = product[-1].results, part[-1].results
    (records,) = {op["records"] for op in merge if "records" in op.named}
    made: list[Tensor] = []
    for rank in range(ranks):
        given = {"req_pool_indices": rows, **head.rows, "rank": torch.tensor([rank])}
        given |= of_rank(head, columns, ranks, rank)
        stored = launched(launcher, module, head_stem, product, given)[logits.name]
        assert (stored[count:] == POISON).all()
        memory = launched(launcher, module, stem, part, given, {logits.name: stored})[record.name]
        assert (memory[:, count:] == POISON).all()
        made.append(memory[:, :count])
    dense = torch.cat(made)
    held = torch.full((ranks, *memory.shape[1:]), POISON, dtype=torch.int64)
    held.view(-1)[: dense.numel()] = dense.reshape(-1)
    after = launched(launcher, module, merge_stem, merge, {"req_pool_indices": rows}, {records.name: held})
    return {name: after[value.name][:count] for name, value in module.outputs.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES, ids=str)
@settings(quicker, max_examples=1)
@given(seed=st.integers(0, 2**32), batch=st.integers(1, 3), branches=st.integers(1, 4), each=st.booleans())
def test_every_rank_has_the_bits_of_one(
    launcher: Launcher, kind: str, size: tuple[int, int, int], seed: int, batch: int, branches: int, each: bool
) -> None:
    require_product(launcher, kind)
    source, (entries, width, columns) = generator(seed), size
    shape = (batch, branches) if each else (batch,)
    head, rows = random_head(source, shape, entries, width, kind), random_rows(source, batch, POOL)
    best = [argmax(logits) for logits in head.logits.view(-1, entries)]
    padding = (rows == 0).repeat_interleave(len(best) // batch).tolist()
    wanted = [(0, False) if none else winner for none, winner in zip(padding, best, strict=True)]
    p, index, bad = OPS["vocab.topk"]((head.logits, rows), {"axis": "K"}, {"K": branches})
    ranked: Tensor | None = None
    for ranks in RANKS:
        largest = run(launcher, module_of("vocab.argmax", head, columns, ranks, branches), head, columns, rows)
        found = zip(largest["index"].view(-1).tolist(), largest["bad"].view(-1).tolist(), strict=True)
        assert [(winner, bool(odd)) for winner, odd in found] == wanted
        top = run(launcher, module_of("vocab.topk", head, columns, ranks, branches), head, columns, rows)
        assert_same(top["index"], index, "index")
        assert_same(top["bad"], bad, "bad")
        assert_probabilities(top["p"], p)
        ranked = top["p"] if ranked is None else ranked
        assert_same(top["p"], ranked, f"p of {ranks} ranks")

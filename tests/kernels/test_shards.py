"""Reductions of logits that are sharded: every rank's kernels, by the bits of one rank's, and by the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cluster_cases import FLOATS, TypedBuilder, form, launched, small_module
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import POISON, assert_same, generator, quicker, random_rows
from kernel_launcher import Launcher
from topk_cases import assert_logs, assert_probabilities, hostile_logits
from torch import Tensor

from specc.compiler.ir.core import Module
from specc.compiler.ir.types import REDUCED, Dim, TensorType
from specc.compiler.kernels import COMPOSED
from specc.compiler.kernels.writing import sharding as parts
from specc.compiler.kernels.writing import vocabulary
from specc.compiler.pass_manager.pass_base import Context
from specc.compiler.passes.gather_logits import GatherLogits
from specc.runtime.plan.plan import TOKEN_MAP
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.semantics.reference import OPS

POOL = 12
RANKS = (1, 2, 8)
SIZES = [(90, 96), (40, 64), (24, 24), (2999, 3072)]
"""Tokens and columns: of 40 on 64 the last ranks have none, of 24 every chunk has few, 3072 have chunks of 48."""
FAMILIES = {"vocab.argmax": "argmax_part", "vocab.topk": "topk_part"}


def sharded(opcode: str, dtype: str, axis: tuple[str, ...], ranks: int, size: tuple[int, int], **sizes: int) -> Module:
    """A module with a reduction, of an argmax with its log-probability, whose results are handed out."""
    module = small_module(**{"K": 1, "N": 3} | sizes, V=size[0])
    module.dims |= {"Vs": Dim("Vs", "vocab_shard", size[1] // ranks), "R": Dim("R", "rank", ranks)}
    b, rows = TypedBuilder(module), module.inputs["req_pool_indices"]
    logits = b.given("logits", dtype, *axis, "Vs")
    with b.phase("verify"):
        attrs: dict[str, Any] = {} if opcode == "vocab.topk" else {"dtype": "i32", "keep": ""}
        b.hand_out(*(results := b.many(opcode, logits, rows, **attrs)))
        if opcode == "vocab.argmax":
            b.hand_out(b("vocab.logprob", logits, rows, results[0]))
    GatherLogits().run(module, Context())
    return module


def numbered(opcode: str, axis: tuple[str, ...], ranks: int, size: tuple[int, int], **sizes: int) -> Module:
    """A module with a reduction over a part of the tokens, which are handed out."""
    module = small_module(**{"K": 1, "N": 3} | sizes, V=3 * size[0])
    shard = Dim("Vds", "vocab_shard", size[1] // ranks)
    module.dims |= {"Vd": Dim("Vd", REDUCED, size[0]), "Vds": shard, "R": Dim("R", "rank", ranks)}
    table = module.add_input(TOKEN_MAP, TensorType("i64", ("Vd",)))
    b, rows = TypedBuilder(module), module.inputs["req_pool_indices"]
    logits = b.given("logits", "bf16", *axis, "Vds")
    with b.phase("draft"):
        attrs: dict[str, Any] = {} if opcode == "vocab.topk" else {"dtype": "i64", "keep": ""}
        *_, index, bad = b.many(opcode, logits, rows, **attrs)
        b.hand_out(b("vocab.translate", index, table, rows, names=("token",)), bad)
    GatherLogits().run(module, Context())
    return module


def run_ranks(
    launcher: Launcher, module: Module, logits: Tensor, rows: Tensor, **tables: Tensor
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """What a rank hands out, and the record of each, of logits T[b, ..., V] of all columns; merges read the tables."""
    ranks, count = module.size("R"), len(rows)
    width = logits.shape[-1] // ranks
    (stem, part), (merge_stem, merge) = form(module)
    assert merge_stem == "rows"
    (record,) = part[-1].results
    (records,) = {op["records"] for op in merge if "records" in op.named}
    made: list[Tensor] = []
    for rank in range(ranks):
        shard = logits[..., rank * width : (rank + 1) * width].contiguous()
        given = {"req_pool_indices": rows, "logits": shard, "rank": torch.tensor([rank])}
        memory = launched(launcher, module, stem, part, given)[record.name]
        assert (memory[:, count:] == POISON).all()
        made.append(memory[:, :count])
    dense = torch.cat(made)
    held = torch.full((ranks, *memory.shape[1:]), POISON, dtype=torch.int64)
    held.view(-1)[: dense.numel()] = dense.reshape(-1)
    memory = launched(launcher, module, merge_stem, merge, {"req_pool_indices": rows} | tables, {records.name: held})
    return {name: memory[value.name][:count] for name, value in module.outputs.items()}, made


@pytest.mark.parametrize("opcode", FAMILIES)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}of{size[1]}")
@settings(quicker, max_examples=2)
@given(seed=st.integers(0, 2**32), dtype=st.sampled_from(FLOATS), each=st.booleans(), branches=st.integers(1, 5))
def test_every_rank_has_the_bits_of_one(
    launcher: Launcher, opcode: str, size: tuple[int, int], seed: int, dtype: str, each: bool, branches: int
) -> None:
    source, (tokens, columns) = generator(seed), size
    axis = (("K",) if opcode == "vocab.topk" else ("N",)) if each else ()
    sizes = {"K": branches, "N": branches + 1}
    batch = random_rows(source, 3, POOL)
    shape = [3, *(sizes[name] for name in axis)]
    logits = torch.full((*shape, columns), torch.nan, dtype=DTYPES[dtype])
    whole = hostile_logits(source, logits[..., 0].numel(), tokens, tokens, DTYPES[dtype]).view(*shape, tokens)
    logits[..., :tokens] = whole
    want: dict[str, Tensor] | None = None
    for ranks in RANKS:
        module = sharded(opcode, dtype, axis, ranks, size, **sizes)
        results, records = run_ranks(launcher, module, logits, batch)
        check_records(opcode, module, logits, batch, records)
        want = want or results
        for name, value in results.items():
            assert_same(value, want[name], f"{name} of {ranks} ranks")
    assert want is not None
    check_results(opcode, whole, batch, want, branches)


@pytest.mark.parametrize("opcode", FAMILIES)
@pytest.mark.parametrize("each", [False, True])
def test_numbers_of_a_reduced_vocabulary_become_tokens_behind_the_merge(
    launcher: Launcher, opcode: str, each: bool
) -> None:
    """In its launch, on any number of ranks those of whole rows."""
    source, (scored, columns) = generator(int(each)), (40, 64)
    axis, sizes = (("K",) if opcode == "vocab.topk" else ("N",)) if each else (), {"K": 3, "N": 2}
    logits = torch.full((3, *(sizes[name] for name in axis), columns), torch.nan, dtype=torch.bfloat16)
    whole = hostile_logits(source, logits[..., 0].numel(), scored, scored, torch.bfloat16)
    logits[..., :scored] = whole.view(*logits.shape[:-1], scored)
    tokens, rows = torch.randperm(3 * scored, generator=source)[:scored].sort().values, random_rows(source, 3, POOL)
    attrs = {} if opcode == "vocab.topk" else {"dtype": "i64", "keep": ""}
    *_, index, bad = OPS[opcode]((logits[..., :scored], rows), attrs, {"K": 3})
    (wanted,) = OPS["vocab.translate"]((index, tokens, rows), {}, {})
    for ranks in RANKS:
        module = numbered(opcode, axis, ranks, (scored, columns), **sizes)
        results, _ = run_ranks(launcher, module, logits, rows, d2t=tokens)
        assert_same(results.pop("token"), wanted, "token")
        assert_same(*results.values(), bad, "bad")


def check_records(opcode: str, module: Module, logits: Tensor, rows: Tensor, records: list[Tensor]) -> None:
    """Records are those that the reference gives, but for the rounding of a sum."""
    (part,) = module.find(f"{opcode}_part")
    width, dims = module.size("Vs"), {"K": module.size("K")}
    exact = slice(0, 1) if opcode == "vocab.argmax" else slice(0, -1)
    for rank, record in enumerate(records):
        shard, number = logits[..., rank * width : (rank + 1) * width], torch.tensor([rank])
        own = OPS["comm.pad"]((shard, number), {"vocab": module.size("V")}, dims)[0]
        (wanted,) = OPS[part.opcode]((own, rows, number), part.attrs, dims)
        assert torch.equal(record[..., exact], wanted[..., exact])


def check_results(opcode: str, logits: Tensor, rows: Tensor, results: dict[str, Tensor], branches: int) -> None:
    """What comes of the records is what the reduction of whole rows gives."""
    if opcode == "vocab.topk":
        p, index, bad = OPS[opcode]((logits, rows), {}, {"K": branches})
        assert_probabilities(results["p"], p)
    else:
        index, bad = OPS[opcode]((logits, rows), {"dtype": "i32", "keep": ""}, {})
        (logprob,) = OPS["vocab.logprob"]((logits, rows, index), {}, {})
        assert_logs(results["logprob"], logprob)
    assert_same(results["index"], index, "index")
    assert_same(results["bad"], bad, "bad")


@pytest.mark.parametrize("opcode", FAMILIES)
@pytest.mark.parametrize("programs", [1, 4])
def test_programs_of_a_row_change_no_bit(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, opcode: str, programs: int
) -> None:
    """Chunks that one program scans are added as those of several programs are: 32 of 3 columns, NaN in one."""
    source, axis = generator(programs), ("K",) if opcode == "vocab.topk" else ("N",)
    logits = hostile_logits(source, 6, 190, 192, torch.float32).view(2, 3, 192)
    logits[0, 0] = torch.randn(192, generator=source)
    logits[0, 1, 100], logits[0, 2] = torch.nan, logits[0, 0].roll(1)
    rows = torch.tensor([3, 7])
    of_cuts: list[dict[str, Tensor]] = []
    for most in (None, programs):
        if most is not None:
            monkeypatch.setattr(parts, "_PARTIALS", 4 * most)
            monkeypatch.setattr(vocabulary, "_PARTIAL_KEYS", 4 * most)
        module = sharded(opcode, "f32", axis, 2, (190, 192), K=3, N=3)
        results, records = run_ranks(launcher, module, logits, rows)
        check_records(opcode, module, logits, rows, records)
        (part,) = module.find(f"{opcode}_part")
        family = COMPOSED[part.opcode.removeprefix("vocab.")]
        assert isinstance(family, parts.Part)
        assert family.programs(module, part) == (most or 32)
        of_cuts.append(results)
    for name, value in of_cuts[0].items():
        assert_same(value, of_cuts[1][name], name)

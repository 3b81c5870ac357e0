"""Logits of a block with the bias of the token before: records of parts, merged, and logits that are stored."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from cluster_cases import TypedBuilder, form, launched, small_module
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import POISON, argmax, assert_same, generator, quicker, random_rows
from kernel_launcher import Launcher
from test_head import NAMES, POOL, require_product
from torch import Tensor

from specc.compiler.ir.core import Module
from specc.compiler.ir.types import Dim, TensorType
from specc.runtime.plan.draft_head import PART_AXIS
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.semantics.reference import OPS

TOKENS = 50
"""Tokens of the target are more than the draft scores, or fewer."""
SIZES = [(300, 24, 2), (1000, 200, 64), (64, 64, 4), (130, 72, 8)]
"""Entries, rank, parts: of two tiles, weights of several loads, whole ones, parts of few."""


class Biased(NamedTuple):
    """Logits of a block, the tokens before one of its rows, both tables, and what one of the second is worth."""

    block: Tensor
    token: Tensor
    first: Tensor
    second: Tensor
    scale: Tensor | None = None

    @property
    def operands(self) -> dict[str, Tensor]:
        """Those that are there."""
        return {name: tensor for name, tensor in self._asdict().items() if tensor is not None}

    def logits(self, row: int) -> list[list[float]]:
        """Add the bias to one row of the block, entry by entry."""
        worths = [1.0] * len(self.second) if self.scale is None else self.scale.tolist()
        return [
            [
                float(at) + worth * sum(a * b for a, b in zip(self.first[token].tolist(), weights, strict=True))
                for at, weights, worth in zip(block[row].tolist(), self.second.float().tolist(), worths, strict=True)
            ]
            for block, token in zip(self.block, self.token.view(len(self.token)).tolist(), strict=True)
        ]


def random_biased(
    source: torch.Generator, batch: int, steps: int, entries: int, rank: int, kind: str, kept: str = ""
) -> Biased:
    """Small whole numbers, whose sums are exact in any order and often tie; some rows are NaN or infinite.

    `kept`: the dtype of 8 bits that the second table has, if it has one.
    """
    block = torch.randint(-3, 4, (batch, steps, entries), generator=source).float()
    first = torch.randint(-3, 4, (TOKENS, rank), generator=source).float()
    second = torch.randint(-2, 3, (entries, rank), generator=source).float()
    for rows, place in ((block.view(-1, entries), 5), (first, 3)):
        for row in range(len(rows)):
            match int(torch.randint(0, 12, (), generator=source)):
                case 0:
                    rows[row] = 0.0
                case 1:
                    rows[row, place] = math.nan
                case 2:
                    rows[row, place] = -math.inf
                case _:
                    pass
    token = torch.randint(0, TOKENS, (batch, 1), generator=source)
    scale = 2.0 ** torch.randint(-2, 3, (entries,), generator=source) if kept else None
    return Biased(block.to(DTYPES[kind]), token, first.to(DTYPES[kind]), second.to(DTYPES[kept or kind]), scale)


def module_of(opcode: str, case: Biased, row: int, parts: int) -> Module:
    """A module that computes one row of a block with its bias, or the argmax of it, and hands that out."""
    entries, rank = case.second.shape
    module = small_module(K=1, S=case.block.shape[1], V=TOKENS, Vd=entries)
    module.dims[PART_AXIS] = Dim(PART_AXIS, "part", parts)
    b, rows = TypedBuilder(module), module.inputs["req_pool_indices"]
    row_dtype, dtype = NAMES[case.first.dtype], NAMES[case.second.dtype]
    operands = [b.given("block", row_dtype, "S", "Vd"), b.given("token", "i64", "K")]
    types = {"first": TensorType(row_dtype, ("V", rank)), "second": TensorType(dtype, ("Vd", rank))}
    types |= {} if case.scale is None else {"scale": TensorType("f32", ("Vd",))}
    operands += [module.add_input(name, type_) for name, type_ in types.items()]
    with b.phase("draft"):
        if opcode == "head.biased":
            b.hand_out(b(opcode, *operands, dtype=dtype, row=row))
        else:
            records = b(opcode, *operands, dtype=dtype, row=row, words=1)
            b.hand_out(*b.many("vocab.argmax_merge", records, rows, of="", dtype="i64", keep="K"))
    return module


def run(launcher: Launcher, module: Module, case: Biased, rows: Tensor) -> dict[str, Tensor]:
    """What a module hands out, whose first launch writes what the batch has alone."""
    count, (stem, cluster), *merge = len(rows), *form(module)
    assert stem == "head"
    given = {"req_pool_indices": rows, **case.operands}
    made = launched(launcher, module, stem, cluster, given)[cluster[0].result.name]
    whole = count * module.size(PART_AXIS) if merge else made[:count].numel()
    assert (made.reshape(-1)[whole:] == POISON).all()
    if not merge:
        return {"biased": made[:count]}
    ((stem, cluster),) = merge
    held = {cluster[0]["records"].name: made}
    after = launched(launcher, module, stem, cluster, {"req_pool_indices": rows}, held)
    records = made.reshape(-1)[:whole].view(module.size(PART_AXIS), count, 1)
    handed = {name: after[value.name][:count] for name, value in module.outputs.items()}
    return {**handed, "records": records}


@pytest.mark.parametrize(
    ("kind", "kept"),
    [*[(kind, "") for kind in ("f32", "f16", "bf16")], *[("bf16", "i8"), ("bf16", "f8"), ("f16", "i8"), ("f32", "f8")]],
)
@pytest.mark.parametrize("size", SIZES, ids=str)
@settings(quicker, max_examples=2)
@given(seed=st.integers(0, 2**32), batch=st.integers(1, 5), steps=st.integers(1, 4))
def test_one_row_of_a_block_and_its_bias(
    launcher: Launcher, kind: str, kept: str, size: tuple[int, int, int], seed: int, batch: int, steps: int
) -> None:
    require_product(launcher, kind)
    source, (entries, rank, parts) = generator(seed), size
    case, rows = random_biased(source, batch, steps, entries, rank, kind, kept), random_rows(source, batch, POOL)
    row = int(torch.randint(0, steps, (), generator=source))
    wanted = case.logits(row)

    stored = run(launcher, module_of("head.biased", case, row, parts), case, rows)["biased"]
    assert_same(stored, torch.tensor(wanted), "logits")

    results = run(launcher, module_of("head.biased_part", case, row, parts), case, rows)
    for each, of in enumerate(wanted):
        found = int(results["index"][each]), bool(results["bad"][each])
        assert found == ((0, False) if rows[each] == 0 else argmax(torch.tensor(of)))
    records = OPS["head.biased_part"](tuple(case.operands.values()), {"row": row, "words": 1}, {PART_AXIS: parts})
    assert_same(results["records"], records[0], "records")


def test_tokens_of_no_row_read_the_nearest(launcher: Launcher) -> None:
    """Whatever stands there, no other memory is read; the reference says the same."""
    case = random_biased(generator(3), 4, 2, 64, 16, "f32")
    token = torch.tensor([[-1], [TOKENS], [-(2**40)], [2**40]])
    stored = run(launcher, module_of("head.biased", case, 1, 2), case._replace(token=token), torch.arange(1, 5))
    nearest = case._replace(token=torch.tensor([0, TOKENS - 1, 0, TOKENS - 1]))
    assert_same(stored["biased"], torch.tensor(nearest.logits(1)), "logits")
    (same,) = OPS["head.biased"](tuple(case._replace(token=token).operands.values()), {"row": 1}, {})
    assert_same(same, stored["biased"], "reference")


@pytest.mark.parametrize("batch", [1, 2, 6])
def test_rows_do_not_depend_on_others(launcher: Launcher, batch: int) -> None:
    """To the last bit, on numbers whose sums are rounded."""
    source = generator(5)
    block, first, second = (
        torch.randn(shape, generator=source).half() for shape in ((6, 2, 260), (TOKENS, 100), (260, 100))
    )
    case = Biased(block, torch.randint(0, TOKENS, (6, 1), generator=source), first, second)
    rows = torch.arange(1, 7)
    of_all = run(launcher, module_of("head.biased", case, 1, 4), case, rows)["biased"]
    few = case._replace(block=block[:batch], token=case.token[:batch])
    of_few = run(launcher, module_of("head.biased", few, 1, 4), few, rows[:batch])["biased"]
    assert_same(of_few, of_all[:batch], "logits")
    bias = first[case.token.view(-1)].double() @ second.double().T
    bound = 2.0**-23 * 102 * (first[case.token.view(-1)].double().abs() @ second.double().abs().T + block[:, 1].abs())
    assert ((of_all - (block[:, 1].double() + bias)).abs() <= bound).all()

"""Logits of a block with the bias of the token before: records of parts, merged, and logits that are stored."""

from __future__ import annotations

import math
from dataclasses import replace
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
from specc.compiler.ir.types import REDUCED, Dim, TensorType
from specc.runtime.plan.draft_head import PART_AXIS
from specc.runtime.plan.plan import TOKEN_MAP
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


def module_of(opcode: str, case: Biased, row: int, parts: int, reader: str = "merge") -> Module:
    """A module that computes one row of a block with its bias, or the argmax of it, and hands that out.

    `reader` of the records: "merge" in the same launch, "translate" with tokens that a map has, or "engine" besides.
    """
    entries, rank = case.second.shape
    module = small_module(K=1, S=case.block.shape[1], V=TOKENS, Vd=entries)
    module.dims |= {"Vd": Dim("Vd", REDUCED, entries), PART_AXIS: Dim(PART_AXIS, "part", parts)}
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
            index, bad = b.many("vocab.argmax_merge", records, rows, of="Vd", dtype="i64", keep="K")
            b.hand_out(bad, *[records] * (reader == "engine"))
            if reader == "translate":
                table = module.add_input(TOKEN_MAP, TensorType("i64", ("Vd",)))
                index = b("vocab.translate", index, table, rows)
            b.hand_out(index)
    return module


def run(launcher: Launcher, module: Module, case: Biased, rows: Tensor, table: Tensor | None = None) -> list[Tensor]:
    """What a module hands out, flat, whose launches write what the batch has alone."""
    given = {"req_pool_indices": rows, **case.operands, **({} if table is None else {TOKEN_MAP: table})}
    held = dict[str, Tensor]()
    for stem, cluster in form(module):
        held |= launched(launcher, module, stem, cluster, given, held)
    handed = [held[name].flatten() for name in module.outputs]
    wholes = [len(made) // module.size("B") * len(rows) for made in handed]
    for made, whole in zip(handed, wholes, strict=True):
        assert made.dtype == torch.bool or (made[whole:] == POISON).all()
    return [made[:whole] for made, whole in zip(handed, wholes, strict=True)]


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

    (stored,) = run(launcher, module_of("head.biased", case, row, parts), case, rows)
    assert_same(stored.view(batch, entries), torch.tensor(wanted), "logits")

    table = torch.randperm(2 * entries, generator=source)[:entries].sort().values
    best = [
        (0, False) if pool_row == 0 else argmax(torch.tensor(of)) for pool_row, of in zip(rows, wanted, strict=True)
    ]
    records = OPS["head.biased_part"](tuple(case.operands.values()), {"row": row, "words": 1}, {PART_AXIS: parts})
    for reader in ("merge", "translate", "engine"):
        module = module_of("head.biased_part", case, row, parts, reader)
        bad, *left, index = run(launcher, module, case, rows, table if reader == "translate" else None)
        assert len(form(module_of("head.biased_part", case, row, parts, reader))) == 1 + (reader == "engine")
        assert bad.tolist() == [is_bad for _, is_bad in best]
        tokens = [int(table[entry]) * bool(pool_row) for (entry, _), pool_row in zip(best, rows, strict=True)]
        assert index.tolist() == (tokens if reader == "translate" else [entry for entry, _ in best])
        for made in left:
            assert_same(made, records[0].flatten(), "records")


def test_many_rows_are_merged_by_a_launch_of_their_own() -> None:
    """One program would read the records of all of them."""
    case = random_biased(generator(3), 4, 2, 64, 16, "f32")
    for most, launches in ((128, ["head"]), (129, ["head", "rows"])):
        module = module_of("head.biased_part", case, 0, 2)
        module.dims["B"] = replace(module.dims["B"], size=most)
        assert [stem for stem, _ in form(module)] == launches


def test_tokens_of_no_row_read_the_nearest(launcher: Launcher) -> None:
    """Whatever stands there, no other memory is read; the reference says the same."""
    case = random_biased(generator(3), 4, 2, 64, 16, "f32")
    token = torch.tensor([[-1], [TOKENS], [-(2**40)], [2**40]])
    (stored,) = run(launcher, module_of("head.biased", case, 1, 2), case._replace(token=token), torch.arange(1, 5))
    nearest = case._replace(token=torch.tensor([0, TOKENS - 1, 0, TOKENS - 1]))
    assert_same(stored.view(4, 64), torch.tensor(nearest.logits(1)), "logits")
    (same,) = OPS["head.biased"](tuple(case._replace(token=token).operands.values()), {"row": 1}, {})
    assert_same(same, stored.view(4, 64), "reference")


@pytest.mark.parametrize("batch", [1, 2, 6])
def test_rows_do_not_depend_on_others(launcher: Launcher, batch: int) -> None:
    """To the last bit, on numbers whose sums are rounded."""
    source = generator(5)
    block, first, second = (
        torch.randn(shape, generator=source).half() for shape in ((6, 2, 260), (TOKENS, 100), (260, 100))
    )
    case = Biased(block, torch.randint(0, TOKENS, (6, 1), generator=source), first, second)
    rows = torch.arange(1, 7)
    of_all = run(launcher, module_of("head.biased", case, 1, 4), case, rows)[0].view(6, 260)
    few = case._replace(block=block[:batch], token=case.token[:batch])
    of_few = run(launcher, module_of("head.biased", few, 1, 4), few, rows[:batch])[0]
    assert_same(of_few.view(batch, 260), of_all[:batch], "logits")
    bias = first[case.token.view(-1)].double() @ second.double().T
    bound = 2.0**-23 * 102 * (first[case.token.view(-1)].double().abs() @ second.double().abs().T + block[:, 1].abs())
    assert ((of_all - (block[:, 1].double() + bias)).abs() <= bound).all()

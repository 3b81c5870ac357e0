"""Heads of the vocabulary: records of parts, merged, against a product in f32 and a scan of its logits in Python."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from cluster_cases import TypedBuilder, form, launched, small_module
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import POISON, argmax, assert_same, generator, quicker, random_rows
from kernel_launcher import Launcher
from topk_cases import assert_probabilities
from torch import Tensor

from specc.compiler.ir.core import Module, Op, Value
from specc.compiler.ir.declarations import Options, Tuned
from specc.compiler.ir.types import Dim, TensorType
from specc.compiler.kernels import FAMILIES
from specc.runtime.plan.draft_head import PART_AXIS, SCALE, WEIGHT
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.semantics.reference import OPS

POOL = 12
NAMES = {dtype: name for name, dtype in DTYPES.items()}
KINDS = ("f32", "f16", "bf16", "i8", "f8")
"""Dtypes of weights; rows have the same, and 32 bits where weights have 8, of which halves are made."""
SIZES = [(300, 24, 2), (800, 16, 2), (1000, 200, 64), (64, 64, 4), (130, 72, 8)]
"""Entries, weights of each, parts: of two tiles, of four, weights of several loads, whole ones, parts of few."""


def require_product(launcher: Launcher, kind: str) -> None:
    """Skip what cannot be multiplied here: the interpreter multiplies numbers of bf16 by their bits."""
    if kind == "bf16" and launcher.device == "cpu":
        pytest.skip("the interpreter multiplies numbers of bf16 by their bits")


class Head(NamedTuple):
    """Hidden rows, a head, and the logits that they give in f32."""

    hidden: Tensor
    weight: Tensor
    scale: Tensor | None
    logits: Tensor

    @property
    def tables(self) -> dict[str, Tensor]:
        """The head by the names of its tables."""
        return {WEIGHT: self.weight} | ({} if self.scale is None else {SCALE: self.scale})

    @property
    def rows(self) -> dict[str, Tensor]:
        """Hidden rows by the names of an op's operands: their halves where weights have 8 bits."""
        if self.scale is None:
            return {"states": self.hidden}
        halves = OPS["head.halves"]((self.hidden,), {"dtype": NAMES[self.weight.dtype]}, {})
        return dict(zip(("states", "low", "worth"), halves, strict=True))

    def operands(self, b: TypedBuilder, axis: str) -> list[Value]:
        """What an op multiplies, of which weights are along an axis."""
        states, *halves = (
            b.given(name, NAMES[rows.dtype], *("K",) * (self.hidden.dim() - 2), *rows.shape[self.hidden.dim() - 1 :])
            for name, rows in self.rows.items()
        )
        weight, *scale = (
            b.module.add_input(name, TensorType(NAMES[table.dtype], (axis, *table.shape[1:])))
            for name, table in self.tables.items()
        )
        return [states, weight, *halves, *scale]


def random_head(source: torch.Generator, shape: tuple[int, ...], entries: int, width: int, kind: str) -> Head:
    """Small whole numbers, whose sums are exact in any order and often tie; some rows are NaN, infinite or huge."""
    eight = kind in ("i8", "f8")
    hidden = torch.randint(-3, 4, (*shape, width), generator=source).float()
    weight = torch.randint(-2, 3, (entries, width), generator=source).float()
    rows = hidden.view(-1, width)
    for row in range(len(rows)):
        match int(torch.randint(0, 8, (), generator=source)):
            case 0:
                rows[row] = 0.0  # all entries tie
            case 1:
                rows[row, 3] = math.nan
            case 2:
                rows[row, 5] = math.inf  # NaN where a weight is 0, and both infinities
            case 3:
                rows[row] *= 2.0**12
            case _:
                pass
    if torch.rand((), generator=source) < 0.2 and not eight:
        weight[int(torch.randint(0, entries, (), generator=source)), 1] = math.nan
    scale = 2.0 ** torch.randint(-4, 3, (entries,), generator=source).float() if eight else None
    logits = hidden @ weight.T
    if eight:
        logits[~hidden.isfinite().all(dim=-1)] = math.nan
    hidden = hidden.to(DTYPES["f32" if eight else kind])
    return Head(hidden, weight.to(DTYPES[kind]), scale, logits if scale is None else logits * scale)


def module_of(opcode: str, head: Head, parts: int, branches: int) -> Module:
    """A module that computes logits, or what a reduction of them gives, and hands it out."""
    module = small_module(K=branches, Vd=len(head.weight))
    module.dims[PART_AXIS] = Dim(PART_AXIS, "part", parts)
    b, rows, dtype = TypedBuilder(module), module.inputs["req_pool_indices"], NAMES[head.weight.dtype]
    operands = head.operands(b, "Vd")
    with b.phase("draft"):
        if opcode == "head.logits":
            b.hand_out(b(opcode, *operands, dtype=dtype))
            return module
        words = 1 if opcode == "head.argmax_part" else branches + 1
        records = b(opcode, *operands, dtype=dtype, words=words)
        attrs: dict[str, Any] = {"of": ""} if words > 1 else {"of": "", "dtype": "i64", "keep": ""}
        b.hand_out(*b.many(opcode.replace("head", "vocab").replace("part", "merge"), records, rows, **attrs))
    return module


def run(launcher: Launcher, module: Module, head: Head, rows: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """What a module hands out, and what its head leaves in memory, of which it writes what the batch has alone."""
    count, (stem, cluster), *merge = len(rows), *form(module)
    assert stem == "head"
    given = {"req_pool_indices": rows, **head.rows, **head.tables}
    made = launched(launcher, module, stem, cluster, given)[cluster[0].result.name]
    whole = count * math.prod(made.shape[2:]) * module.size(PART_AXIS) if merge else made[:count].numel()
    assert (made.reshape(-1)[whole:] == POISON).all()
    if not merge:
        return {"logits": made[:count]}, made
    ((stem, cluster),) = merge
    assert stem == "rows"
    held = {cluster[0]["records"].name: made}
    after = launched(launcher, module, stem, cluster, {"req_pool_indices": rows}, held)
    records = made.reshape(-1)[:whole].view(module.size(PART_AXIS), count, *made.shape[2:])
    return {name: after[value.name][:count] for name, value in module.outputs.items()}, records


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES, ids=str)
@settings(quicker, max_examples=2)
@given(seed=st.integers(0, 2**32), batch=st.integers(1, 5), branches=st.integers(1, 5), each=st.booleans())
def test_argmax_and_topk_of_a_product(
    launcher: Launcher, kind: str, size: tuple[int, int, int], seed: int, batch: int, branches: int, each: bool
) -> None:
    require_product(launcher, kind)
    source, (entries, width, parts) = generator(seed), size
    shape = (batch, branches) if each else (batch,)
    head, rows = random_head(source, shape, entries, width, kind), random_rows(source, batch, POOL)
    padding = rows == 0

    results, records = run(launcher, module_of("head.argmax_part", head, parts, branches), head, rows)
    for row, logits in enumerate(head.logits):
        for index, bad, of in zip(
            results["index"][row].view(-1), results["bad"][row].view(-1), logits.view(-1, entries), strict=True
        ):
            assert (int(index), bool(bad)) == ((0, False) if padding[row] else argmax(of))
    states, *halves = head.rows.values()
    weight, *scale = head.tables.values()
    given = states, weight, *halves, *scale
    dims = {PART_AXIS: parts, "K": branches}
    assert_same(records, OPS["head.argmax_part"](given, {"words": 1}, dims)[0], "records")

    results, _ = run(launcher, module_of("head.topk_part", head, parts, branches), head, rows)
    p, index, bad = OPS["vocab.topk"]((head.logits, rows), {"axis": "K"}, {"K": branches})
    assert_same(results["index"], index, "index")
    assert_same(results["bad"], bad, "bad")
    assert_probabilities(results["p"], p)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_that_are_stored(launcher: Launcher, kind: str) -> None:
    require_product(launcher, kind)
    source = generator(7)
    head, rows = random_head(source, (3, 2), 130, 72, kind), random_rows(source, 3, POOL)
    results, _ = run(launcher, module_of("head.logits", head, 8, 2), head, rows)
    assert_same(results["logits"], head.logits, "logits")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("batch", "each"), [(1, 9), (2, 16), (3, 16), (6, 16)], ids=str)
def test_tiles_of_many_rows(launcher: Launcher, kind: str, batch: int, each: int) -> None:
    """A launch of a kernel for 16 times the most requests has tiles of 16 rows, 32, 64 or 128."""
    require_product(launcher, kind)
    source = generator(batch * each)
    head, rows = random_head(source, (batch, each), 530, 72, kind), random_rows(source, batch, POOL)
    results, _ = run(launcher, module_of("head.argmax_part", head, 4, each), head, rows)
    best = [argmax(logits) for logits in head.logits.view(-1, 530)]
    padding = (rows == 0).repeat_interleave(each).tolist()
    wanted = [(0, False) if none else winner for none, winner in zip(padding, best, strict=True)]
    found = zip(results["index"].view(-1).tolist(), results["bad"].view(-1).tolist(), strict=True)
    assert [(index, bool(bad)) for index, bad in found] == wanted


@pytest.mark.parametrize(("kind", "largest"), [("i8", 16000), ("f8", 255)])
def test_rows_of_all_their_bits(launcher: Launcher, kind: str, largest: int) -> None:
    """Low halves count, and what a row is worth does, also in the second tile of rows that a top-k has."""
    source, rows = generator(13), torch.arange(1, 7)
    numbers = torch.randint(-largest, largest + 1, (6, 16, 72), generator=source).float()
    worth = 2.0 ** (torch.randint(-3, 3, (6, 16, 1), generator=source) - largest.bit_length())
    weight = torch.randint(-2, 3, (130, 72), generator=source).float()
    scale = 2.0 ** torch.randint(-4, 3, (130,), generator=source).float()
    logits = ((numbers.double() @ weight.double().T) * worth * scale).float()
    head = Head(numbers * worth, weight.to(DTYPES[kind]), scale, logits)
    results, _ = run(launcher, module_of("head.logits", head, 8, 16), head, rows)
    assert_same(results["logits"], logits, "logits")
    results, _ = run(launcher, module_of("head.topk_part", head, 8, 16), head, rows)
    p, index, _ = OPS["vocab.topk"]((logits, rows), {"axis": "K"}, {"K": 16})
    assert_same(results["index"], index, "index")
    assert_probabilities(results["p"], p)


@pytest.mark.parametrize("batch", [1, 2, 6])
def test_rows_do_not_depend_on_others(launcher: Launcher, batch: int) -> None:
    """To the last bit, on numbers whose sums are rounded."""
    source = generator(5)
    hidden, weight = torch.randn(6, 100, generator=source).half(), torch.randn(260, 100, generator=source).half()
    rows = torch.arange(1, 7)
    whole = Head(hidden, weight, None, torch.empty(0))
    part = whole._replace(hidden=hidden[:batch])
    of_all, _ = run(launcher, module_of("head.logits", whole, 4, 1), whole, rows)
    of_few, _ = run(launcher, module_of("head.logits", part, 4, 1), part, rows[:batch])
    assert_same(of_few["logits"], of_all["logits"][:batch], "logits")
    exact = hidden.double() @ weight.double().T
    bound = 2.0**-23 * 100 * (hidden.double().abs() @ weight.double().abs().T)  # 100 sums in f32
    assert ((of_all["logits"] - exact).abs() <= bound).all()


@pytest.mark.parametrize("opcode", ["head.argmax_part", "head.topk_part", "head.logits"])
def test_what_may_be_chosen_changes_no_bit(launcher: Launcher, opcode: str) -> None:
    """Another tile, and other numbers of programs, more than there are parts.

    On a GPU sums are rounded. Interpreted, they are exact: a CPU's product adds in an order that tiles decide.
    """
    source = generator(11)
    hidden, weight = torch.randn(5, 3, 72, generator=source).half(), torch.randn(530, 72, generator=source).half()
    if launcher.device == "cpu":
        hidden, weight = (4 * hidden).round(), (4 * weight).round()
    head, rows = Head(hidden, weight, None, torch.empty(0)), torch.arange(1, 6)
    given = {"req_pool_indices": rows, **head.rows, **head.tables}
    made: list[Tensor] = []
    for choice in (None, {"tile": 128}, {"splits": (1, 9)}, {"splits": (2, 1), "stages": 5}):
        module = module_of(opcode, head, 8, 3)
        (stem, cluster), *_ = form(module)
        knobs = FAMILIES[stem].knobs(module, cluster)
        assert (knobs.tiles, knobs.warps) == (((), ()) if opcode == "head.topk_part" else ((64, 128), (4, 8)))
        if choice is not None and (knobs.tiles or "tile" not in choice):
            options = Options("options", (2, 5), 1, -1)
            module.decls += [options, tuned_as(cluster[0], **choice)]
        made.append(launched(launcher, module, stem, cluster, given)[cluster[0].result.name])
    for memory in made[1:]:
        assert torch.equal(memory, made[0])


def tuned_as(op: Op, tile: int = 0, stages: int = 0, splits: tuple[int, ...] = ()) -> Tuned:
    """The choice for the launch of an op."""
    return Tuned(str(op.attrs["kernel"]), tile, 0, stages, splits)

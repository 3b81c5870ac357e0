"""Slots in blocks: room ends with a request's blocks, and what is stale behind them is never read."""

import pytest
import torch
from cluster_cases import POOL, TypedBuilder, check_module, small_module
from kernel_cases import POISON
from kernel_launcher import Launcher

from specc.compiler.ir.core import Module
from specc.compiler.ir.types import TensorType

STEPS = 3
ROOM_BIT = 5


def begin(page: int, window: int, padding: int) -> Module:
    """A step that asks for room in blocks, and looks up a window and the slots of forwards."""
    module = small_module(K=1, S=STEPS, D=STEPS - 1, A=STEPS + 1)
    rows, lens = (module.inputs[name] for name in ("req_pool_indices", "seq_lens"))
    table = module.add_input("block_table", TensorType("i32", ("P", "C")))
    blocks = module.add_input("num_blocks", TensorType("i32", ("P",)))
    b = TypedBuilder(module)
    with b.phase("prepare"):
        health = b("health.clear", rows)
        names = "rows", "lens", "full"
        at = b.many("kv.admit_blocks", table, blocks, rows, lens, names=names, window=window, page=page)
        health = b("health.raise", health, at[2], names=("told",), bit=ROOM_BIT)
        blocks_of = {"page": page, "padding": padding}
        path = b("kv.block_slots", table, *at[:2], names=("path",), axis="A", offset=1, **blocks_of)
        forwards = b("kv.block_slots", table, *at[:2], names=("forwards",), axis="D", offset=2, **blocks_of)
    module.outputs |= {value.name: value for value in (health, *at[:2], path, forwards)}
    return module


@pytest.mark.parametrize("page", [1, 4, 16, 48, 528])
@pytest.mark.parametrize("past", [-1, 0, 1])
def test_room_ends_with_the_blocks(launcher: Launcher, page: int, past: int) -> None:
    """A length at, one below and one beyond what the blocks hold, in a table amid poison; in plain loops."""
    window, columns, held = STEPS + 2, 9 if page > 1 else 40, {1: 3, 3: 5, 5: 9, 2: 100}
    held = {row: count * (8 if page == 1 else 1) for row, count in held.items()}
    whole = torch.full((POOL, columns + 64), POISON, dtype=torch.int32)
    table = whole[:, 32 : 32 + columns]
    counts = torch.full((POOL,), POISON, dtype=torch.int32)
    for row, count in held.items():
        counts[row] = count
        table[row, : min(count, columns)] = torch.randperm(1000, generator=torch.Generator().manual_seed(row))[
            : min(count, columns)
        ].int()
    last = {row: min(count, columns) * page - window for row, count in held.items()}
    rows = [3, 0, 5, 2, 1]
    lengths = [last.get(row, 50) + past for row in rows]
    padding = min(past, 0)
    module = begin(page, window, padding)
    drawn = {"req_pool_indices": torch.tensor(rows), "seq_lens": torch.tensor(lengths)}
    values = check_module(launcher, module, torch.Generator(), {**drawn, "block_table": table, "num_blocks": counts})
    blocks = table.tolist()
    for i, (row, size) in enumerate(zip(rows, lengths, strict=True)):
        has_room = row != 0 and 0 <= size <= last[row]
        assert values["told"][i] == (1 << ROOM_BIT if row and not has_room else 0)
        assert values["rows"][i] == (row if has_room else 0)
        assert values["lens"][i] == (size if has_room else 0)

        def slots(first: int, count: int, row: int = row, size: int = size, live: bool = has_room) -> list[int]:
            places = range(size + first, size + first + count)
            return [blocks[row][place // page] * page + place % page if live else padding for place in places]

        assert values["path"][i].tolist() == slots(1, STEPS + 1)
        assert values["forwards"][:, i, 0].tolist() == slots(2, STEPS - 1)

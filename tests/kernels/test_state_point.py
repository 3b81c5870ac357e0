"""The number of the snapshot that is a request's state: against plain Python, and as snapshots that are really kept."""

from __future__ import annotations

import pytest
import torch
from cluster_cases import Scan, TypedBuilder, carry, check_module, small_module
from kernel_cases import POOL, generator, integer
from kernel_launcher import Launcher
from torch import Tensor

from specc.compiler.ir.core import Module
from specc.compiler.ir.types import StateType
from specc.runtime.plan.fields import STATE_POINT
from specc.runtime.semantics.reference import evaluate
from specc.runtime.semantics.state_forms import snapshots

CASES = 40


def step(nodes: int, width: int) -> Module:
    """What a step does besides forwards: it loads the number, and stores the next one."""
    module = small_module(N=nodes, A=width)
    carry(module, STATE_POINT, "i32")
    b = TypedBuilder(module)
    index, lens = b.given("index", "i32", "A"), b.given("lens", "i32")
    rows, state = module.inputs["req_pool_indices"], module.add_input("state", StateType("target", "state", "N"))
    with b.phase("commit"):
        before = b("carry.load", rows, names=("before",), field=STATE_POINT)
        after, _ = b.many("state.point", before, index, lens, state, layers=1, nodes=nodes, names=("after", "settled"))
        b.many("carry.store", rows, after, field=STATE_POINT)
    b.hand_out(before, after)
    return module


def paths(source: torch.Generator, batch: int, nodes: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pool rows, some of them padding, that accept any nodes i32[B, A], or none; slots behind them point nowhere."""
    rows = torch.randperm(POOL - 1, generator=source)[:batch] + 1
    lens = torch.randint(0, width + 1, (batch,), generator=source, dtype=torch.int32)
    rows[torch.rand(batch, generator=source) < 0.2] = 0
    lens[rows == 0] = 0
    index = torch.randint(0, nodes, (batch, width), generator=source, dtype=torch.int32)
    index += torch.arange(batch, dtype=torch.int32)[:, None] * nodes
    past = torch.arange(width) >= lens[:, None]
    index[past] = torch.where(torch.rand(index.shape, generator=source) < 0.5, 2**31 - 1, -1).int()[past]
    return rows, index, lens


@pytest.mark.parametrize("seed", range(CASES))
def test_the_number_is_that_of_the_last_accepted_node(launcher: Launcher, seed: int) -> None:
    source = generator(seed)
    batch, nodes = integer(source, 1, 4), integer(source, 1, 9)
    width = integer(source, 1, nodes)
    rows, index, lens = paths(source, batch, nodes, width)
    pool = torch.randint(0, nodes + 1, (POOL,), generator=source, dtype=torch.int32)
    drawn = {"req_pool_indices": rows, "index": index, "lens": lens, f"relay.{STATE_POINT}": pool}
    values = check_module(launcher, step(nodes, width), source, drawn, Scan(1, 16, 0))
    for request, (before, after) in enumerate(zip(values["before"].tolist(), values["after"].tolist(), strict=True)):
        length = int(lens[request])
        if length == 0:
            assert after == before
        else:
            column = int(index[request, length - 1]) - request * nodes
            assert after == (0 if column + 1 == before else column + 1)


@pytest.mark.parametrize("seed", range(CASES))
def test_what_a_request_goes_on_from_is_never_written(seed: int) -> None:
    """Over steps of any number of nodes: the snapshot that is named has the state of the node that was accepted."""
    source = generator(seed)
    most = integer(source, 1, 7)
    kept, point, wanted, states = torch.zeros(most + 1), torch.zeros(1, dtype=torch.int32), 0.0, 0.0
    for _ in range(12):
        nodes = integer(source, 1, most)
        places = snapshots(point, torch.arange(nodes)[None])[0]
        assert len({*places.tolist(), int(point)}) == nodes + 1
        assert int(places.min()) >= 0 and int(places.max()) <= nodes
        assert kept[point] == wanted
        kept[places] = made = states + 1 + torch.arange(nodes)
        states += nodes
        column, length = integer(source, 0, nodes - 1), integer(source, 0, 1)
        operands = point, torch.tensor([[column]], dtype=torch.int32), torch.tensor([length], dtype=torch.int32)
        (point,) = evaluate("state.point", operands, {"nodes": nodes}, {"B": 1}, {}, None)
        wanted = float(made[column]) if length else wanted
    assert kept[point] == wanted

"""state_select against plain copying and its reference, bit for bit, with all of the memory compared."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from cluster_cases import with_constants
from kernel_cases import generator, integer
from kernel_launcher import Launcher
from state_cases import MORE, ROWS, Case, Part, copied, launch, memory, operands, same, spec_of
from torch import Tensor

from specc.runtime.capabilities.states.select import SelectedStates
from specc.runtime.plan.recurrent.state_tables import SELECT, TABLE_SIZES, CommittedStates
from specc.runtime.semantics.reference import evaluate

STATE_PARTS = TABLE_SIZES[SELECT][0]
SHAPES = ((torch.float32, (2, 4, 8)), (torch.float32, (1, 3)), (torch.bfloat16, (5,)), (torch.float16, (3, 8)))
"""Matrices whose bytes 16 divides and that it does not."""
WINDOW = 3
CASES = 30


def random_pair(source: torch.Generator, batch: int, nodes: int) -> tuple[Tensor, Tensor]:
    """A matrix whose rows may be apart, or windows: of each node for itself, or one behind the other as SGLang's."""

    def bits(dtype: torch.dtype, count: int) -> Tensor:
        return torch.randint(0, 256, (count * dtype.itemsize,), generator=source, dtype=torch.uint8).view(dtype)

    requests, room = batch + integer(source, 0, MORE), nodes + integer(source, 0, MORE)
    dtype, shape = SHAPES[integer(source, 0, len(SHAPES) - 1)]
    windows = integer(source, 0, 1)
    if windows:
        dtype, shape = torch.bfloat16, (integer(source, 1, 9), WINDOW)
    size, gap = math.prod(shape), 8 * integer(source, 0, 2)
    kept = bits(dtype, ROWS * (size + gap) + 8)[8:].as_strided((ROWS, *shape), (size + gap, *_row_major(shape)), 8)
    if windows and integer(source, 0, 1):
        length = room - 1 + WINDOW
        memory = bits(dtype, requests * shape[0] * length)
        steps = (shape[0] * length, 1, length, 1)
        return kept, memory.as_strided((requests, room, *shape), steps)
    return kept, bits(dtype, requests * room * size).view(requests, room, *shape)


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def random_case(seed: int) -> Case:
    """Any lengths and nodes; rows of padding; requests whose state goes nowhere."""
    source = generator(seed)
    batch, nodes, layers, parts = (integer(source, 1, most) for most in (4, 5, 3, STATE_PARTS))
    width = integer(source, 1, nodes)
    lens = torch.randint(0, width + 1, (batch,), generator=source, dtype=torch.int32)
    columns = torch.randint(0, nodes, (batch, width), generator=source, dtype=torch.int32)
    index = columns + torch.arange(batch, dtype=torch.int32)[:, None] * nodes
    # Layers are alike: their parts have the same shapes and strides, and other numbers.
    first = [random_pair(source, batch, nodes) for _ in range(parts)]
    pairs: list[Part] = [
        (_scrambled(kept, source), _scrambled(left, source)) for _ in range(layers) for kept, left in first
    ]
    return Case(nodes, {"layers": layers, "bytes": 0}, operands(source, index, lens), pairs)


def _scrambled(tensor: Tensor, source: torch.Generator) -> Tensor:
    other = copied(tensor, "cpu")
    whole = memory(other)
    whole.copy_(torch.randint(0, 256, whole.shape, generator=source, dtype=torch.uint8))
    return other


def launched(launcher: Launcher, case: Case, programs: int) -> list[Part]:
    """The pairs after one launch of the kernel as its family writes it, but for its tile."""
    spec = with_constants(spec_of(SELECT, case.nodes, case.width, case.attrs), {"BLOCK": 16})
    return launch(
        launcher, case, spec, SelectedStates, CommittedStates(SELECT, case.attrs["layers"], case.nodes), programs
    )


def brute(case: Case) -> list[Part]:
    """The pairs after copying one state after the other."""
    pairs, of = case.copied("cpu"), case.operands
    interval = int(of["kept_interval"])
    for b, (row, length) in enumerate(zip(of["rows"].tolist(), of["accept_lens"].tolist(), strict=True)):
        begin = int(of["seq_lens"][b])
        targets = [(length - 1, int(of["state_rows"][row]))] if length else []
        for place in range(length) if interval else ():
            if (begin + place + 1) % interval == 0:  # the last one stays
                targets = [*targets[:1], (place, int(of["kept_rows"][row]))]
        for place, target in targets:
            node = int(of["accept_index"][b, place]) - b * case.nodes
            for kept, pending in pairs if target >= 0 else ():
                kept[target] = pending[b, node]
    return pairs


@pytest.mark.parametrize("seed", range(CASES))
def test_states_go_to_their_rows(launcher: Launcher, seed: int) -> None:
    case = random_case(seed)
    wanted, reference = brute(case), case.copied("cpu")
    dims = {"N": case.nodes, "A": case.width}
    pools = {"target.state": [tensor for part in reference for tensor in part]}
    evaluate(SELECT, tuple(case.operands.values()), case.attrs, dims, {}, pools)
    assert same(reference, wanted)
    assert same(launched(launcher, case, 1 + seed % 3), wanted)


def test_cases_differ() -> None:
    """Some keep a state at an interval, some requests accept nothing, some states go nowhere, and windows overlap."""
    cases = [random_case(seed) for seed in range(CASES)]
    assert any(not same(brute(case), brute(without_interval(case))) for case in cases)
    assert any((case.operands["accept_lens"] == 0).any() for case in cases)
    rows = [(case.operands["rows"], case.operands["state_rows"]) for case in cases]
    assert any((homes[rows[rows > 0]] < 0).any() for rows, homes in rows)
    assert {len(case.parts) // case.attrs["layers"] for case in cases} == set(range(1, STATE_PARTS + 1))
    moved = [part[1] for case in cases if not same(brute(case), case.copied("cpu")) for part in case.parts]
    assert sum(not pending[0, 0].is_contiguous() for pending in moved) > CASES // 2


def without_interval(case: Case) -> Case:
    """The case at no interval of which a state is kept."""
    return replace(case, operands=case.operands | {"kept_interval": torch.tensor([0])})

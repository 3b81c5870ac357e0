"""state_select against plain copying and its reference, bit for bit, with all of the memory compared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cluster_cases import TypedBuilder, form, small_module, with_constants
from kernel_cases import POOL, generator, integer
from kernel_launcher import Launcher
from torch import Tensor

from specc.compiler.ir.types import StateType, TensorType
from specc.compiler.kernels import FAMILIES
from specc.compiler.kernels.writing.family import Spec
from specc.runtime.capabilities.states.select import SelectedStates
from specc.runtime.memory.kv_rows import KvRows
from specc.runtime.plan.recurrent.state_tables import SELECT, STATE_POINTERS, TABLE_SIZES, CommittedStates
from specc.runtime.semantics.reference import evaluate

STATE_PARTS, PART_WORDS = TABLE_SIZES[SELECT]
ROWS, MORE = 7, 2  # state rows; requests and nodes that there is room for beyond the batch's
SHAPES = ((torch.float32, (2, 4, 8)), (torch.float32, (1, 3)), (torch.bfloat16, (5,)), (torch.float16, (3, 8)))
"""Matrices whose bytes 16 divides and that it does not."""
WINDOW = 3
CASES = 30


@dataclass
class Case:
    """What is accepted of so many nodes, where states go, and the pairs of the layers."""

    nodes: int
    layers: int
    interval: int
    accept_index: Tensor
    accept_lens: Tensor
    rows: Tensor
    seq_lens: Tensor
    state_rows: Tensor
    kept_rows: Tensor
    pairs: list[tuple[Tensor, Tensor]]

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """Those of the op."""
        given = (self.accept_index, self.accept_lens, self.rows, self.seq_lens, self.state_rows, self.kept_rows)
        return *given, torch.tensor([self.interval])

    def copied(self, device: str) -> list[tuple[Tensor, Tensor]]:
        """The pairs in memory of their own, with the same strides."""
        return [(_copied(kept, device), _copied(pending, device)) for kept, pending in self.pairs]


def _copied(tensor: Tensor, device: str) -> Tensor:
    memory = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return memory.clone().to(device).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


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
    width, interval = integer(source, 1, nodes), integer(source, 0, 1) * integer(source, 1, 6)
    lens = torch.randint(0, width + 1, (batch,), generator=source, dtype=torch.int32)
    columns = torch.randint(0, nodes, (batch, width), generator=source, dtype=torch.int32)
    index = columns + torch.arange(batch, dtype=torch.int32)[:, None] * nodes
    past = torch.arange(width) >= lens[:, None]
    index[past] = torch.where(torch.rand(batch, width, generator=source) < 0.5, 2**31 - 1, -1).int()[past]
    rows = torch.randperm(POOL - 1, generator=source)[:batch] + 1
    rows[lens == 0] = 0
    homes = torch.randperm(ROWS, generator=source)
    state_rows = torch.full((POOL,), -1, dtype=torch.int32)
    kept_rows = state_rows.clone()
    for number, row in enumerate(rows.tolist()):
        if row and integer(source, 0, 4):
            state_rows[row] = homes[number]
    free = [row for row in range(ROWS) if row not in state_rows.tolist()]
    for row in rows.tolist():
        if row and free and integer(source, 0, 2):
            kept_rows[row] = free.pop()
    lengths = torch.where(rows > 0, torch.randint(1, 40, (batch,), generator=source), 0)
    # Layers are alike: their parts have the same shapes and strides, and other numbers.
    first = [random_pair(source, batch, nodes) for _ in range(parts)]
    pairs = [(_scrambled(kept, source), _scrambled(left, source)) for _ in range(layers) for kept, left in first]
    return Case(nodes, layers, interval, index, lens, rows, lengths, state_rows, kept_rows, pairs)


def _scrambled(tensor: Tensor, source: torch.Generator) -> Tensor:
    other = _copied(tensor, "cpu")
    memory = _memory(other)
    memory.copy_(torch.randint(0, 256, memory.shape, generator=source, dtype=torch.uint8))
    return other


def spec_of(case: Case) -> Spec:
    """The kernel as its family writes it, but for its tile."""
    module = small_module(N=case.nodes, A=case.accept_index.shape[1])
    b = TypedBuilder(module)
    index, lens = b.given("index", "i32", "A"), b.given("lens", "i32")
    state = module.add_input("state_target", StateType("target", "state", "N"))
    tables = [module.add_input(name, TensorType("i32", ("P",))) for name in ("state_rows", "kept_rows")]
    tables.append(module.add_input("kept_interval", TensorType("i64", (1,))))
    rows, seq_lens = module.inputs["req_pool_indices"], module.inputs["seq_lens"]
    with b.phase("commit"):
        attrs = {"layers": case.layers, "bytes": 0}
        b.many("state.select", state, index, lens, rows, seq_lens, *tables, **attrs)
    ((stem, cluster),) = form(module)
    return with_constants(FAMILIES[stem].spec(module, stem, cluster), {"BLOCK": 16})


def places(case: Case, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The table that the runtime makes of where they are."""
    table = torch.full((case.layers * STATE_PARTS, PART_WORDS), -1, dtype=torch.int64, device=pairs[0][0].device)
    plan: Any = SimpleNamespace(buffers={STATE_POINTERS: table}, buckets=(len(case.rows),))
    pool = CommittedStates(SELECT, case.layers, case.nodes)
    bound = SelectedStates(plan, pool, table.device, {"target": pairs}, KvRows())
    bound.write_pointers(SimpleNamespace(buffer=lambda _: table))  # pyright: ignore[reportArgumentType]
    return table


def launch(launcher: Launcher, case: Case, programs: int) -> list[tuple[Tensor, Tensor]]:
    """The pairs after one launch, which changes nothing else."""
    device, spec, pairs = launcher.device, spec_of(case), case.copied(launcher.device)
    names = ("accept_index", "accept_lens", "rows", "seq_lens", "state_rows", "kept_rows", "kept_interval")
    given = zip(names, case.operands, strict=True)
    arguments = {f"{name}_ptr": tensor.to(device) for name, tensor in given}
    arguments["places_ptr"] = places(case, pairs)
    before = {name: tensor.clone() for name, tensor in arguments.items()}
    launcher.launch(spec, (len(case.rows), case.layers * programs), arguments)
    assert all(torch.equal(arguments[name], tensor) for name, tensor in before.items())
    return pairs


def brute(case: Case) -> list[tuple[Tensor, Tensor]]:
    """The pairs after copying one state after the other."""
    pairs = case.copied("cpu")
    for b, (row, length) in enumerate(zip(case.rows.tolist(), case.accept_lens.tolist(), strict=True)):
        begin = int(case.seq_lens[b])
        targets = [(length - 1, int(case.state_rows[row]))] if length else []
        for place in range(length) if case.interval else ():
            if (begin + place + 1) % case.interval == 0:  # the last one stays
                targets = [*targets[:1], (place, int(case.kept_rows[row]))]
        for place, target in targets:
            node = int(case.accept_index[b, place]) - b * case.nodes
            for kept, pending in pairs if target >= 0 else ():
                kept[target] = pending[b, node]
    return pairs


def _memory(tensor: Tensor) -> Tensor:
    """All bytes of the memory that a tensor is in, on the host."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).cpu()


def same(first: list[tuple[Tensor, Tensor]], second: list[tuple[Tensor, Tensor]]) -> bool:
    """Whether all bytes are equal, of what lies between states as well."""
    whole = [[_memory(tensor) for pair in pairs for tensor in pair] for pairs in (first, second)]
    return all(map(torch.equal, *whole))


@pytest.mark.parametrize("seed", range(CASES))
def test_states_go_to_their_rows(launcher: Launcher, seed: int) -> None:
    case = random_case(seed)
    wanted, reference = brute(case), case.copied("cpu")
    attrs = {"layers": case.layers, "bytes": 0}
    dims = {"N": case.nodes, "A": case.accept_index.shape[1]}
    evaluate("state.select", case.operands, attrs, dims, {}, {"target.state": [t for p in reference for t in p]})
    assert same(reference, wanted)
    assert same(launch(launcher, case, 1 + seed % 3), wanted)


def test_cases_differ() -> None:
    """Some keep a state at an interval, some requests accept nothing, some states go nowhere, and windows overlap."""
    cases = [random_case(seed) for seed in range(CASES)]
    assert any(case.interval and not same(brute(case), brute(replaced(case))) for case in cases)
    assert any((case.accept_lens == 0).any() for case in cases)
    assert any((case.state_rows[case.rows[case.rows > 0]] < 0).any() for case in cases)
    assert {len(case.pairs) // case.layers for case in cases} == set(range(1, STATE_PARTS + 1))
    moved = [pair[1] for case in cases if not same(brute(case), case.copied("cpu")) for pair in case.pairs]
    assert sum(not pending[0, 0].is_contiguous() for pending in moved) > CASES // 2


def replaced(case: Case) -> Case:
    """The case without an interval."""
    return Case(**{**vars(case), "interval": 0})

"""state_fold against plain Python of one request after the other, bit for bit, with all of the memory compared."""

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

from specc.compiler.ir.types import DTYPES, StateType, TensorType
from specc.compiler.kernels import FAMILIES
from specc.compiler.kernels.writing.family import Spec
from specc.runtime.capabilities.states.fold import FoldedStates
from specc.runtime.memory.kv_rows import KvRows
from specc.runtime.plan.nodes import OpCall
from specc.runtime.plan.recurrent.state_tables import FOLD, STATE_POINTERS, TABLE_SIZES, CommittedStates, folded_parts
from specc.runtime.semantics.reference import evaluate

ROWS, MORE = 7, 2  # state rows; requests and nodes that there is room for beyond the batch's
CASES = 36
NAMES = ("accept_index", "accept_lens", "rows", "seq_lens", "state_rows", "kept_rows", "kept_interval")
Part = tuple[Tensor, ...]


@dataclass
class Case:
    """Attributes of the op and its operands by name, and the parts of all layers: what is kept, what nodes add."""

    nodes: int
    attrs: dict[str, Any]
    operands: dict[str, Tensor]
    parts: list[Part]

    @property
    def width(self) -> int:
        """Slots of a path."""
        return self.operands["accept_index"].shape[1]

    @property
    def pool(self) -> CommittedStates:
        """What a plan says of the states."""
        call = OpCall(FOLD, (), (), self.attrs)
        return CommittedStates(FOLD, self.attrs["layers"], self.nodes, folded_parts(call))

    def copied(self, device: str) -> list[Part]:
        """The parts in memory of their own, with the same strides."""
        return [tuple(_copied(tensor, device) for tensor in part) for part in self.parts]


def _copied(tensor: Tensor, device: str) -> Tensor:
    memory = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return memory.clone().to(device).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def random_case(seed: int) -> Case:
    """A chain's path, or a tree's: any ascending nodes. Rows of padding, and requests whose state goes nowhere."""
    source = generator(seed)
    batch, nodes, layers = integer(source, 1, 4), integer(source, 2, 8), integer(source, 1, 3)
    groups = integer(source, 1, 2)
    attrs: dict[str, Any] = {
        "layers": layers, "bytes": 0, "record": 0, "groups": groups, "heads": groups * integer(source, 1, 3),
        "values": integer(source, 1, 9), "keys": (4, 8, 5, 1)[integer(source, 0, 3)],
        "decay": ("head", "channel")[integer(source, 0, 1)], "matrix": ("f32", "f32", "bf16", "f16")[seed % 4],
        "channels": integer(source, 1, 20), "window": integer(source, 1, 4), "input": ("f32", "bf16", "f16")[seed % 3],
        "key": ("f32", "bf16", "f16")[seed // 3 % 3],
    }  # fmt: skip
    width = integer(source, 2, nodes)
    lens = torch.randint(0, width + 1, (batch,), generator=source, dtype=torch.int32)
    # A tree numbers parents before children, and so does a chain; all paths begin at the root.
    chain = integer(source, 0, 1)
    index = torch.full((batch, width), -1, dtype=torch.int32)
    for b, length in enumerate(lens.tolist()):
        further = torch.arange(1, nodes) if chain else torch.randperm(nodes - 1, generator=source).add(1)
        path = [0, *sorted(further[: length - 1].tolist())][:length]
        index[b, :length] = torch.tensor(path, dtype=torch.int32) + b * nodes
    past = torch.arange(width) >= lens[:, None]
    index[past] = torch.where(torch.rand(batch, width, generator=source) < 0.5, 2**31 - 1, -1).int()[past]
    rows = torch.randperm(POOL - 1, generator=source)[:batch] + 1
    rows[lens == 0] = 0
    lengths = torch.where(rows > 0, torch.randint(1, 40, (batch,), generator=source), 0)
    interval = torch.tensor([integer(source, 0, 1) * integer(source, 1, 6)])
    given = index, lens, rows, lengths, *_homes(source, rows), interval
    operands: dict[str, Tensor] = dict(zip(NAMES, given, strict=True))
    case = Case(nodes, attrs, operands, [])
    case.parts = [_part(source, case, known) for _ in range(layers) for known in case.pool.parts]
    _poison(case)
    return case


def _homes(source: torch.Generator, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Where states are and where copies go, by pool row, all different; -1 of some."""
    homes = torch.randperm(ROWS, generator=source)
    state_rows = torch.full((POOL,), -1, dtype=torch.int32)
    kept_rows = state_rows.clone()
    for number, row in enumerate(rows.tolist()):
        if row and integer(source, 0, 2):
            state_rows[row] = homes[number]
    free = [row for row in range(ROWS) if row not in state_rows.tolist()]
    for row in rows.tolist():
        if row and free and integer(source, 0, 2):
            kept_rows[row] = free.pop()
    return state_rows, kept_rows


def _part(source: torch.Generator, case: Case, known: Any) -> Part:
    """Random numbers, with rows that may be apart; a window may be longer than it has to be."""
    batch = len(case.operands["rows"])
    longer = integer(source, 0, 1) if known.name == "window" else 0
    shape = (*known.shape[:-1], known.shape[-1] + longer)
    gap = integer(source, 0, 1) * 16
    size = math.prod(shape)
    dtype = getattr(torch, DTYPES[known.dtype].torch)
    numbers = torch.randn(ROWS * (size + gap) + 16, generator=source).to(dtype)
    whole = numbers[16:].as_strided((ROWS, *shape), (size + gap, *torch.empty(shape).stride()), 16)
    records = [whole]
    for record in known.records:
        room = (batch + integer(source, 0, MORE), case.nodes + integer(source, 0, MORE), *record.shape)
        random = torch.randn(*room, generator=source)
        random = random.sigmoid() if record.name == "decay" else random
        records.append(random.to(getattr(torch, DTYPES[record.dtype].torch)))
    return tuple(records)


def _poison(case: Case) -> None:
    """Nothing that is no number may come into a state: records of nodes that were not accepted, and other rows."""
    index, lens = case.operands["accept_index"], case.operands["accept_lens"]
    used = {(b, int(index[b, i]) - b * case.nodes) for b, length in enumerate(lens.tolist()) for i in range(length)}
    live = {int(case.operands["state_rows"][row]) for row in case.operands["rows"].tolist()}
    for kept, *records in case.parts:
        for row in set(range(ROWS)) - live:
            kept[row] = torch.nan
        for record in records:
            for b in range(record.shape[0]):
                for node in range(record.shape[1]):
                    if (b, node) not in used:
                        record[b, node] = torch.nan


def spec_of(case: Case) -> Spec:
    """The kernel as its family writes it, but for its tiles."""
    module = small_module(N=case.nodes, A=case.width)
    b = TypedBuilder(module)
    index, lens = b.given("index", "i32", "A"), b.given("lens", "i32")
    state = module.add_input("state_target", StateType("target", "state", "N"))
    tables = [module.add_input(name, TensorType("i32", ("P",))) for name in ("state_rows", "kept_rows")]
    tables.append(module.add_input("kept_interval", TensorType("i64", (1,))))
    rows, seq_lens = module.inputs["req_pool_indices"], module.inputs["seq_lens"]
    with b.phase("commit"):
        b.many(FOLD, state, index, lens, rows, seq_lens, *tables, **case.attrs)
    ((stem, cluster),) = form(module)
    spec = FAMILIES[stem].spec(module, stem, cluster)
    tiles = {"ROWS": 4, "BLOCK": 4, "INPUTS": 8}
    matrices = case.attrs["heads"] * -(-case.attrs["values"] // 4) * -(-case.attrs["keys"] // 4)
    return with_constants(spec, {**tiles, "MATRICES": matrices, "WINDOWS": -(-case.attrs["channels"] // 8)})


def places(case: Case, parts: list[Part]) -> Tensor:
    """The table that the runtime makes of where they are."""
    most, words = TABLE_SIZES[FOLD]
    device = parts[0][0].device
    table = torch.full((case.attrs["layers"] * most, words), -1, dtype=torch.int64, device=device)
    plan: Any = SimpleNamespace(buffers={STATE_POINTERS: table}, buckets=(len(case.operands["rows"]),))
    bound = FoldedStates(plan, case.pool, table.device, {"target": parts}, KvRows())
    bound.write_pointers(SimpleNamespace(buffer=lambda _: table))  # pyright: ignore[reportArgumentType]
    return table


def launch(launcher: Launcher, case: Case, programs: int) -> list[Part]:
    """The parts after one launch, which changes nothing else."""
    device, spec, parts = launcher.device, spec_of(case), case.copied(launcher.device)
    arguments = {f"{name}_ptr": tensor.to(device) for name, tensor in case.operands.items()}
    arguments["places_ptr"] = places(case, parts)
    before = {name: tensor.clone() for name, tensor in arguments.items()}
    launcher.launch(spec, (len(case.operands["rows"]), case.attrs["layers"] * programs), arguments)
    assert all(torch.equal(arguments[name], tensor) for name, tensor in before.items())
    return parts


def brute(case: Case, dtype: torch.dtype = torch.float32) -> list[Part]:
    """The parts after advancing one state after the other, number by number, in a dtype."""
    parts, of = case.copied("cpu"), case.operands
    for b, (row, length) in enumerate(zip(of["rows"].tolist(), of["accept_lens"].tolist(), strict=True)):
        home, copy, interval = int(of["state_rows"][row]), int(of["kept_rows"][row]), int(of["kept_interval"])
        if not length or home < 0:
            continue
        path = [int(node) - b * case.nodes for node in of["accept_index"][b, :length]]
        crossed = [i for i in range(length) if interval and (int(of["seq_lens"][b]) + i + 1) % interval == 0]
        for number, (kept, *records) in enumerate(parts):
            state = kept[home].to(dtype)
            for i, node in enumerate(path):
                added = [record[b, node].to(dtype) for record in records]
                state = window(state, *added) if number % 2 else matrix(case, state, *added)
                if copy >= 0 and crossed[-1:] == [i]:
                    kept[copy] = state.to(kept.dtype)
            kept[home] = state.to(kept.dtype)
    return parts


def matrix(case: Case, state: Tensor, decay: Tensor, key: Tensor, update: Tensor) -> Tensor:
    """Each number of each head's matrix: decayed, and more."""
    new, sharing = state.clone(), case.attrs["heads"] // case.attrs["groups"]
    for h, row, column in torch.cartesian_prod(*map(torch.arange, state.shape)).tolist():
        over = decay[h, column] if decay.dim() == 2 else decay[h]
        new[h, row, column] = state[h, row, column] * over + update[h, row] * key[h // sharing, column]
    return new


def window(state: Tensor, inputs: Tensor) -> Tensor:
    """The last inputs, of which the first is gone."""
    return torch.cat((state[:, 1:], inputs[:, None]), 1)


def _memory(tensor: Tensor) -> Tensor:
    """All bytes of the memory that a tensor is in, on the host."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).cpu()


def same(first: list[Part], second: list[Part]) -> bool:
    """Whether all bytes are equal, of what lies between states as well."""
    whole = [[_memory(tensor) for part in parts for tensor in part] for parts in (first, second)]
    return all(map(torch.equal, *whole))


@pytest.mark.parametrize("seed", range(CASES))
def test_states_advance_by_accepted_nodes(launcher: Launcher, seed: int) -> None:
    case = random_case(seed)
    wanted, reference = brute(case), case.copied("cpu")
    dims, tensors = {"N": case.nodes, "A": case.width}, [tensor for part in reference for tensor in part]
    evaluate(FOLD, tuple(case.operands.values()), case.attrs, dims, {}, {"target.state": tensors})
    assert same(reference, wanted)
    assert same(launch(launcher, case, 1 + seed % 3), wanted)


@pytest.mark.parametrize("seed", range(0, CASES, 2))
def test_states_are_near_those_of_doubles(seed: int) -> None:
    """What is added up in f32, node by node, stays near what it is in f64; nothing poisoned is in it."""
    case = random_case(seed)
    case.attrs["matrix"] = "f32"
    case.parts = [(kept.float(), *records) for kept, *records in case.parts]
    for (kept, *_), (exact, *_) in zip(brute(case), brute(case, torch.float64), strict=True):
        torch.testing.assert_close(kept, exact, rtol=1e-5, atol=1e-5, equal_nan=True)
        live = {int(case.operands["state_rows"][row]) for row in case.operands["rows"].tolist() if row}
        assert not kept[sorted(live - {-1})].isnan().any()


def crosses_without_a_state(case: Case) -> bool:
    """Whether the text of a request crosses an interval, whose state could be kept, and there is none."""
    of, interval = case.operands, int(case.operands["kept_interval"])
    for row, begin, length in zip(*(of[name].tolist() for name in ("rows", "seq_lens", "accept_lens")), strict=True):
        crosses = interval and (begin + length) // interval > begin // interval
        if crosses and of["state_rows"][row] < 0 <= of["kept_rows"][row]:
            return True
    return False


def test_cases_differ() -> None:
    """Some keep a state at an interval, some requests accept nothing, some have no state, and some paths are trees'."""
    cases = [random_case(seed) for seed in range(CASES)]
    none = [Case(c.nodes, c.attrs, c.operands | {"kept_interval": torch.tensor([0])}, c.parts) for c in cases]
    assert any(not same(brute(case), brute(other)) for case, other in zip(cases, none, strict=True))
    assert any((case.operands["accept_lens"] == 0).any() for case in cases)
    rows = [(case.operands["rows"], case.operands["state_rows"]) for case in cases]
    assert any((homes[rows[rows > 0]] < 0).any() for rows, homes in rows)
    assert any(crosses_without_a_state(case) for case in cases)
    assert {case.attrs["decay"] for case in cases} == {"head", "channel"}
    assert any(case.attrs["groups"] < case.attrs["heads"] for case in cases)
    paths = [case.operands["accept_index"][0, : int(case.operands["accept_lens"][0])].tolist() for case in cases]
    assert any(path != [*range(len(path))] for path in paths)
    assert sum(len(path) > 2 for path in paths) > 5

"""state_fold against plain Python of one request after the other, bit for bit, with all of the memory compared."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from cluster_cases import with_constants
from kernel_cases import generator, integer
from kernel_launcher import Launcher
from state_cases import MORE, ROWS, Case, Part, launch, operands, same, spec_of
from torch import Tensor

from specc.compiler.ir.types import DTYPES
from specc.runtime.capabilities.states.fold import FoldedStates
from specc.runtime.plan.nodes import OpCall
from specc.runtime.plan.recurrent.state_tables import FOLD, CommittedStates, folded_parts
from specc.runtime.semantics.reference import evaluate

CASES = 36


def pool_of(case: Case) -> CommittedStates:
    """What a plan says of the states."""
    call = OpCall(FOLD, (), (), case.attrs)
    return CommittedStates(FOLD, case.attrs["layers"], case.nodes, folded_parts(call))


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
    case = Case(nodes, attrs, operands(source, index, lens), [])
    case.parts = [_part(source, case, known) for _ in range(layers) for known in pool_of(case).parts]
    _poison(case)
    return case


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


def launched(launcher: Launcher, case: Case, programs: int) -> list[Part]:
    """The parts after one launch of the kernel as its family writes it, but for its tiles."""
    tiles = {"ROWS": 4, "BLOCK": 4, "INPUTS": 8}
    matrices = case.attrs["heads"] * -(-case.attrs["values"] // 4) * -(-case.attrs["keys"] // 4)
    tiles |= {"MATRICES": matrices, "WINDOWS": -(-case.attrs["channels"] // 8)}
    spec = with_constants(spec_of(FOLD, case.nodes, case.width, case.attrs), tiles)
    return launch(launcher, case, spec, FoldedStates, pool_of(case), programs)


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


@pytest.mark.parametrize("seed", range(CASES))
def test_states_advance_by_accepted_nodes(launcher: Launcher, seed: int) -> None:
    case = random_case(seed)
    wanted, reference = brute(case), case.copied("cpu")
    dims, tensors = {"N": case.nodes, "A": case.width}, [tensor for part in reference for tensor in part]
    evaluate(FOLD, tuple(case.operands.values()), case.attrs, dims, {}, {"target.state": tensors})
    assert same(reference, wanted)
    assert same(launched(launcher, case, 1 + seed % 3), wanted)


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

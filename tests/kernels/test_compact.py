"""compact against plain copying and the reference ops, bit for bit, with all of the memory compared."""

import math
from dataclasses import dataclass

import pytest
import torch
from cluster_cases import TypedBuilder, form, small_module, with_constants
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import generator, quick, quicker
from kernel_launcher import Launcher
from kv_cases import ROWS, Pool, kv_state, random_pool, units

from specc.compiler.kernels import FAMILIES
from specc.compiler.kernels.writing.family import Spec
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.semantics.reference import OPS, evaluate

MORE = 2  # rows of buffers beyond the batch
TYPES = ("bf16", "i32", "i1", "i64")
shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "batch": st.integers(1, 4),
        "nodes": st.integers(2, 9),
        "steps": st.integers(1, 8),
        "layers": st.integers(1, 3),
        "per_layer": st.sampled_from([1, 2]),
        "row": st.integers(0, len(ROWS) - 1),
        "gap": st.sampled_from([0, 1, 3]),
        "block": st.sampled_from([1, 2, 8, 32]),
        "programs": st.integers(1, 7),
    }
)


@dataclass(frozen=True)
class Flags:
    """What one launch copies: KV rows, and so many values."""

    move: bool
    values: int


@dataclass
class Case:
    """One launch: what is accepted, the values with their targets, and the pool."""

    accept_index: torch.Tensor
    accept_lens: torch.Tensor
    slots: torch.Tensor
    values: list[torch.Tensor]
    paths: list[torch.Tensor]
    pool: Pool

    @property
    def batch(self) -> int:
        """Requests of the launch."""
        return len(self.accept_lens)


def random_case(flags: Flags, shape: dict[str, int]) -> Case:
    """Paths in any order, with nodes twice; what is past a path's end must not be followed."""
    source = generator(shape["seed"])
    batch, nodes, width = shape["batch"], shape["nodes"], shape["steps"] + 1
    lens = torch.randint(0, width + 1, (batch,), generator=source, dtype=torch.int32)
    columns = torch.randint(0, nodes, (batch, width), generator=source, dtype=torch.int32)
    kind = torch.randint(0, 4, (batch,), generator=source)
    columns[kind == 0] = torch.arange(width, dtype=torch.int32) % nodes  # nothing to move, if the window is as wide
    columns[kind == 1] = columns[kind == 1].sort().values
    lens = torch.minimum(lens, torch.tensor(nodes, dtype=torch.int32))
    index = columns + torch.arange(batch, dtype=torch.int32)[:, None] * nodes
    past = torch.arange(width) >= lens[:, None]
    index[past] = torch.where(torch.rand(batch, width, generator=source) < 0.5, 2**31 - 1, -1).int()[past]
    if not flags.move:  # then the index alone says where a path ends
        index[past] = -1
    slots = torch.randperm(batch * nodes + 5, generator=source)[: batch * nodes].view(batch, nodes)
    dtype, row = ROWS[shape["row"]]
    pool = random_pool(source, shape["layers"] * shape["per_layer"], batch * nodes + 5, dtype, row, shape["gap"])
    values, paths = [], []
    for number in range(flags.values):
        kind = DTYPES[TYPES[(number + shape["seed"]) % len(TYPES)]]
        rest = tuple(torch.randint(1, 5, (int(torch.randint(0, 3, (), generator=source)),), generator=source).tolist())
        values.append(random_bits(source, kind, batch, nodes, *rest))
        paths.append(random_bits(source, kind, batch + MORE, width, *rest))
    return Case(index, lens, slots, values, paths, pool)


def random_bits(source: torch.Generator, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Any bits, NaN among them; of bool only 0 and 1 are values."""
    size = (*shape[:-1], shape[-1] * dtype.itemsize)
    return torch.randint(0, 2 if dtype == torch.bool else 256, size, generator=source, dtype=torch.uint8).view(dtype)


def constants(flags: Flags, shape: dict[str, int], case: Case) -> dict[str, int]:
    """The constexprs; units as wide as rows allow, or narrower."""
    source = generator(shape["seed"] + 1)

    def unit(size: int) -> int:
        allowed = units(size)
        return allowed[int(torch.randint(0, len(allowed), (), generator=source))]

    values = {"BLOCK": shape["block"]} | ({"KV_UNIT": unit(case.pool.row_bytes)} if flags.move else {})
    for number, value in enumerate(case.values):
        size = math.prod(value.shape[2:]) * value.element_size()
        values[f"UNIT{number}"] = unit(size)
    return values


def spec_of(flags: Flags, shape: dict[str, int], case: Case) -> Spec:
    """The kernel of the ops of a case, as its family writes it but for tiles and units."""
    module = small_module(N=shape["nodes"], A=shape["steps"] + 1)
    b = TypedBuilder(module)
    index, lens, slots = b.given("index", "i32", "A"), b.given("lens", "i32"), b.given("slots", "i64", "N")
    with b.phase("commit"):
        for number, value in enumerate(case.values):
            dtype = TYPES[(number + shape["seed"]) % len(TYPES)]
            b.hand_out(b("commit.compact", b.given(f"x{number}", dtype, "N", *value.shape[2:]), index))
        if flags.move:
            kv = kv_state(module, "target", case.pool, shape["layers"])
            b.many("kv.move", slots, index, lens, kv)
    ((stem, cluster),) = form(module)
    return with_constants(FAMILIES[stem].spec(module, stem, cluster), constants(flags, shape, case))


def launch(launcher: Launcher, flags: Flags, shape: dict[str, int], case: Case) -> tuple[list, Pool]:
    """The targets of the values, and the pool, after one launch."""
    device, spec = launcher.device, spec_of(flags, shape, case)
    known = dict(spec.constants)
    paths, pool = [path.clone().to(device) for path in case.paths], case.pool.copy(device)
    chunks = [-(-known[f"ROW{i}"] // (known[f"UNIT{i}"] * shape["block"])) for i in range(len(paths))]
    arguments = {"accept_index_ptr": case.accept_index.to(device)}
    if flags.move:
        arguments |= {"accept_lens_ptr": case.accept_lens.to(device), "slots_ptr": case.slots.to(device)}
        arguments |= {"kv_pointers_ptr": pool.pointers(), "kv_stride": pool.stride}
    for number, (value, path) in enumerate(zip(case.values, paths, strict=True)):
        arguments |= {f"value{number}_ptr": value.to(device), f"path{number}_ptr": path}
    programs = sum(chunks) + (shape["programs"] if flags.move else 0)
    kept = {name: given.clone() for name, given in arguments.items() if isinstance(given, torch.Tensor)}
    launcher.launch(spec, (case.batch, max(programs, 1)), arguments)
    for name, before in kept.items():
        assert name.startswith("path") or same_bits(arguments[name], before), name
    return [path.cpu() for path in paths], pool.copy("cpu")


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Equal, NaN or not."""
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))


def check(launcher: Launcher, flags: Flags, shape: dict[str, int], case: Case) -> None:
    """The kernel, plain copying and the reference ops agree; all else is as it was."""
    paths, pool = launch(launcher, flags, shape, case)
    ends = case.accept_lens.tolist()
    nodes = case.slots.shape[1]
    for path, value, before in zip(paths, case.values, case.paths, strict=True):
        want, flat = before.clone(), value.reshape(case.batch * nodes, *value.shape[2:])
        want[: case.batch] = 0  # past a path's end, too
        for b, end in enumerate(ends):
            for i in range(end):
                want[b, i] = flat[case.accept_index[b, i]]
        assert same_bits(path, want)
        index = case.accept_index.masked_fill(torch.arange(case.accept_index.shape[1]) >= case.accept_lens[:, None], -1)
        (reference,) = OPS["commit.compact"]((value, index), {}, {})
        assert same_bits(path[: case.batch].contiguous(), reference)
    brute, reference = case.pool.copy(), case.pool.copy()
    if flags.move:
        flat = case.slots.reshape(-1)
        pairs = [(b, i) for b, end in enumerate(ends) for i in range(end)]
        brute.copy_rows([(int(flat[case.accept_index[b, i]]), int(case.slots[b, i])) for b, i in pairs])
        index = torch.where(torch.arange(case.accept_index.shape[1]) < case.accept_lens[:, None], case.accept_index, -1)
        operands = (case.slots, index, case.accept_lens)
        evaluate("kv.move", operands, {}, {}, {}, {"target": reference.tensors()})
    assert torch.equal(pool.memory, brute.memory)
    assert torch.equal(pool.memory, reference.memory)


COMPACT = [Flags(move, values) for move in (False, True) for values in range(5) if move or values]


@pytest.mark.parametrize("flags", COMPACT, ids=str)
@quicker
@given(shape=shapes)
def test_compact(launcher: Launcher, flags: Flags, shape: dict[str, int]) -> None:
    check(launcher, flags, shape, random_case(flags, shape))


MOVE = Flags(move=True, values=0)


@pytest.mark.parametrize("row", range(len(ROWS)), ids=[f"{dtype}{row}".removeprefix("torch.") for dtype, row in ROWS])
@quick
@given(shape=shapes)
def test_move_of_every_row(launcher: Launcher, row: int, shape: dict[str, int]) -> None:
    shape = {**shape, "row": row}
    check(launcher, MOVE, shape, random_case(MOVE, shape))


@pytest.mark.parametrize("path", [[3, 2, 1, 0], [1, 2, 3, 4], [0, 1, 2, 3], [4, 0, 0, 1], [0, 3, 2, 1], [1, 1, 1, 1]])
@pytest.mark.parametrize("length", range(5))
def test_overlapping_windows(launcher: Launcher, path: list[int], length: int) -> None:
    """Reversed, shifted, in place, with sources that are targets: as if all were read first."""
    shape = {
        "seed": length,
        "batch": 1,
        "nodes": 5,
        "steps": 3,
        "layers": 2,
        "per_layer": 2,
        "row": 6,
        "gap": 1,
        "block": 8,
        "programs": 3,
    }
    case = random_case(MOVE, shape)
    case.accept_index[:] = torch.tensor(path)
    case.accept_lens[:] = length
    check(launcher, MOVE, shape, case)

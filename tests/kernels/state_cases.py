"""What tests of the commits of recurrent states share: requests, where their states go, the op, and its launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from cluster_cases import TypedBuilder, form, small_module
from kernel_cases import POOL, integer
from kernel_launcher import Launcher
from torch import Tensor

from specc.compiler.ir.types import StateType, TensorType
from specc.compiler.kernels import FAMILIES
from specc.compiler.kernels.writing.family import Spec
from specc.runtime.memory.kv_rows import KvRows
from specc.runtime.memory.state_pools import StatePools
from specc.runtime.plan.recurrent.state_tables import STATE_POINTERS, TABLE_SIZES, CommittedStates

ROWS, MORE = 7, 2
"""State rows; and requests and nodes that there is room for beyond the batch's."""
NAMES = ("accept_index", "accept_lens", "rows", "seq_lens", "state_rows", "kept_rows", "kept_interval")
"""Operands behind the state."""


Part = tuple[Tensor, ...]
"""What is kept, [rows, ...], and beside it what a verification leaves, [requests, N, ...] each."""


@dataclass
class Case:
    """Attributes of the op and its operands by name, and the parts of all layers."""

    nodes: int
    attrs: dict[str, Any]
    operands: dict[str, Tensor]
    parts: list[Part]

    @property
    def width(self) -> int:
        """Slots of a path."""
        return self.operands["accept_index"].shape[1]

    def copied(self, device: str) -> list[Part]:
        """The parts in memory of their own, with the same strides."""
        return [tuple(copied(tensor, device) for tensor in part) for part in self.parts]


def copied(tensor: Tensor, device: str) -> Tensor:
    """A tensor in memory of its own, with the same strides."""
    memory = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return memory.clone().to(device).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def operands(source: torch.Generator, index: Tensor, lens: Tensor) -> dict[str, Tensor]:
    """All operands of paths i32[B, A] with so many nodes i32[B]; slots beyond these point nowhere.

    Requests that accept nothing are padding. States are at rows that are all different, and go nowhere for some.
    """
    past = torch.arange(index.shape[1]) >= lens[:, None]
    index[past] = torch.where(torch.rand(index.shape, generator=source) < 0.5, 2**31 - 1, -1).int()[past]
    rows = torch.randperm(POOL - 1, generator=source)[: len(lens)] + 1
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
    lengths = torch.where(rows > 0, torch.randint(1, 40, (len(lens),), generator=source), 0)
    interval = torch.tensor([integer(source, 0, 1) * integer(source, 1, 6)])
    return dict(zip(NAMES, (index, lens, rows, lengths, state_rows, kept_rows, interval), strict=True))


def spec_of(opcode: str, nodes: int, width: int, attrs: Mapping[str, Any]) -> Spec:
    """The kernel of such a commit, as its family writes it."""
    module = small_module(N=nodes, A=width)
    b = TypedBuilder(module)
    index, lens = b.given("index", "i32", "A"), b.given("lens", "i32")
    state = module.add_input("state_target", StateType("target", "state", "N"))
    tables = [module.add_input(name, TensorType("i32", ("P",))) for name in ("state_rows", "kept_rows")]
    tables.append(module.add_input("kept_interval", TensorType("i64", (1,))))
    rows, seq_lens = module.inputs["req_pool_indices"], module.inputs["seq_lens"]
    with b.phase("commit"):
        b.many(opcode, state, index, lens, rows, seq_lens, *tables, **attrs)
    ((stem, cluster),) = form(module)
    return FAMILIES[stem].spec(module, stem, cluster)


def launch(
    launcher: Launcher, case: Case, spec: Spec, bound: type[StatePools], pool: CommittedStates, programs: int
) -> list[Part]:
    """The parts after one launch, which changes nothing else; the runtime says where they are."""
    device, parts = launcher.device, case.copied(launcher.device)
    arguments = {f"{name}_ptr": tensor.to(device) for name, tensor in case.operands.items()}
    most, words = TABLE_SIZES[pool.op]
    table = torch.full((pool.layers * most, words), -1, dtype=torch.int64, device=parts[0][0].device)
    batch = len(case.operands["rows"])
    plan: Any = SimpleNamespace(buffers={STATE_POINTERS: table}, buckets=(batch,))
    pools = bound(plan, pool, table.device, {"target": parts}, KvRows())
    pools.write_pointers(SimpleNamespace(buffer=lambda _: table))  # pyright: ignore[reportArgumentType]
    arguments["places_ptr"] = table
    before = {name: tensor.clone() for name, tensor in arguments.items()}
    launcher.launch(spec, (batch, pool.layers * programs), arguments)
    assert all(torch.equal(arguments[name], tensor) for name, tensor in before.items())
    return parts


def memory(tensor: Tensor) -> Tensor:
    """All bytes of the memory that a tensor is in, on its device."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def same(first: Sequence[Part], second: Sequence[Part]) -> bool:
    """Whether all bytes are equal, of what lies between states as well."""
    whole = [[memory(tensor).cpu() for part in parts for tensor in part] for parts in (first, second)]
    return all(map(torch.equal, *whole))

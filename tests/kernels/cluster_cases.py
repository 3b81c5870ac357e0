"""A cluster of a module: its kernel against the reference ops of the cluster, on the same random memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from kernel_cases import POISON, assert_same
from kernel_launcher import Launcher
from topk_cases import assert_probabilities
from torch import Tensor

from specc.ir.builder import Builder
from specc.ir.core import Attr, Carry, Module, Op, Value, tensor_type
from specc.ir.infer import assign_types
from specc.ir.ops import OPS
from specc.ir.types import Dim, TensorType
from specc.kernels import FAMILIES
from specc.kernels.shared.base import Argument, Cluster, Spec
from specc.runtime.reference import evaluate
from specc.runtime.semantics import DTYPES

MAX_B, POOL = 6, 12
FLOATS = ("f32", "f16", "bf16")
ANY = (*FLOATS, "i32", "i64")
SET_COLUMNS = {"chain.start": 2, "chain.first": 1}
"""How many columns of its result an op sets, of those that set only the first."""
Drawn = dict[str, Tensor]
"""Content of values and pools (``relay.<field>``) by name."""


def small_module(**sizes: int) -> Module:
    """A module with the inputs of a step and with dimensions, those of `sizes` and the largest batch."""
    module = Module("small")
    axes = {"B": "request", "K": "branch", "S": "step", "D": "forward", "N": "node", "A": "path", "V": "vocab"}
    for name, size in {"B": MAX_B, **sizes}.items():
        module.dims[name] = Dim(name, axes[name], size, dynamic=name == "B")
    module.dims |= {"P": Dim("P", "pool", POOL), "C": Dim("C", "context", None)}
    module.add_input("req_pool_indices", TensorType("i64", ("B",)))
    module.add_input("seq_lens", TensorType("i64", ("B",)))
    module.add_input("req_to_token", TensorType("i32", ("P", "C")))
    return module


def carry(module: Module, name: str, dtype: str, *shape: str | int) -> None:
    """Declare a carried field T[B, *shape]."""
    module.carries[name] = Carry(name, TensorType(dtype, ("B", *shape)))


class TypedBuilder(Builder):
    """A builder whose results have their types at once."""

    def many(self, opcode: str, *operands: Value, names: tuple[str, ...] = (), **attrs: Attr) -> tuple[Value, ...]:
        """Build an op and infer its types; return all its results."""
        results = super().many(opcode, *operands, names=names, **attrs)
        assign_types(self.module, self.module.phases[self._phase][-1])
        return results


def integer(source: torch.Generator, low: int, high: int) -> int:
    """Low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=source))


def choice(source: torch.Generator, options: Sequence[str]) -> str:
    """One of several."""
    return options[integer(source, 0, len(options) - 1)]


def random_shape(source: torch.Generator) -> tuple[int, ...]:
    """Of what a request has of a value: a scalar, a short or long row, or rows of rows; often odd."""
    width = math.ceil(2 ** (12 * torch.rand((), generator=source).item()))
    return ((), (width,), (integer(source, 1, 3), integer(source, 1, 9)))[integer(source, 0, 2)]


def random_tensor(source: torch.Generator, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Any content that a dtype may have."""
    if dtype.is_floating_point:
        return torch.randn(*shape, generator=source).to(dtype)
    if dtype == torch.bool:
        return torch.rand(*shape, generator=source) < 0.5
    return torch.randint(0, min(torch.iinfo(dtype).max, 2**40), tuple(shape), generator=source).to(dtype)


def random_batch(source: torch.Generator) -> Tensor:
    """Request pool rows of one batch, which may be smaller than the bucket; some are padding."""
    rows = torch.randperm(POOL - 1, generator=source)[: integer(source, 1, MAX_B)] + 1
    rows[torch.rand(len(rows), generator=source) < 0.3] = 0
    return rows


@dataclass
class Memory:
    """Memory of a cluster's arguments at the largest batch. ``given`` has what is not random: values by name."""

    module: Module
    cluster: Cluster
    rows: Tensor
    source: torch.Generator
    given: Mapping[str, Tensor]
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def prefix(self, value: Value, tensor: Tensor) -> Tensor:
        """The part that belongs to this batch."""
        shape = tensor_type(value).shape
        return tensor.narrow(shape.index("B"), 0, len(self.rows)) if "B" in shape else tensor

    def value(self, value: Value) -> Tensor:
        """The memory of a value: poison of what the cluster makes, unless it replaces what was there."""
        value = self.root(value)
        if value.name not in self.tensors:
            type_ = tensor_type(value)
            sizes, dtype = type_.sizes(self.module.dims, unbounded=0), DTYPES[type_.dtype]
            if value.source in self.cluster:
                tensor = torch.full(sizes, POISON, dtype=dtype)
            elif value.name in self.given:
                tensor = self.given[value.name]
                if "B" in type_.shape:
                    full = torch.full(sizes, POISON, dtype=dtype)
                    self.prefix(value, full).copy_(tensor)
                    tensor = full
            else:
                tensor = random_tensor(self.source, sizes, dtype)
            self.tensors[value.name] = tensor
        return self.tensors[value.name]

    def root(self, value: Value) -> Value:
        """What an in-place op of the cluster replaces."""
        source = value.source
        while source in self.cluster and OPS[source.opcode].inplace and value is source.results[0]:
            value = source.operands[0]
            source = value.source
        return value

    def pool(self, name: str) -> Tensor:
        """The pool rows of a carried field."""
        type_ = self.module.carries[name].type
        if f"relay.{name}" not in self.tensors:
            shape = (POOL, *type_.sizes(self.module.dims)[1:])
            given = self.given.get(f"relay.{name}")
            self.tensors[f"relay.{name}"] = (
                random_tensor(self.source, shape, DTYPES[type_.dtype]) if given is None else given
            )
        return self.tensors[f"relay.{name}"]

    def argument(self, argument: Argument, spec: Spec) -> Tensor | int:
        """What is passed for an argument."""
        if argument.value is not None:
            return self.value(argument.value)
        if argument.buffer.startswith("relay."):
            return self.pool(argument.buffer.removeprefix("relay."))
        if argument.buffer:
            (scratch,) = [scratch for scratch in spec.scratch if scratch.name == argument.buffer]
            content = 0 if scratch.zero else POISON
            return self.tensors.setdefault(
                scratch.name, torch.full(scratch.shape, content, dtype=DTYPES[scratch.dtype])
            )
        if argument.input:
            return self.value(self.module.inputs[argument.input])
        if argument.literal is not None:
            return argument.literal
        if argument.size:
            return self.value(self.module.inputs[argument.size]).shape[argument.axis]
        assert argument.stride
        return self.value(self.module.inputs[argument.stride]).stride(argument.axis)


def expect(memory: Memory) -> dict[str, Tensor]:
    """Memory after the cluster, by the reference ops; chains leave columns to others that the reference sets to 0."""
    want = {name: tensor.clone() for name, tensor in memory.tensors.items()}
    dims = {dim.name: dim.size for dim in memory.module.dims.values() if dim.size is not None}
    dims["B"] = len(memory.rows)
    pools = {name: want[f"relay.{name}"] for name in memory.module.carries if f"relay.{name}" in want}
    values: dict[Value, Tensor] = {}

    def read(value: Value) -> Tensor:
        return values[value] if value in values else memory.prefix(value, memory.value(value)).clone()

    for op in memory.cluster:
        operands = tuple(read(value) for value in op.operands)
        results = evaluate(op.opcode, operands, op.attrs, dims, pools)
        values |= dict(zip(op.results, results, strict=True))
        for value, result in zip(op.results, results, strict=True):
            name = memory.root(value).name
            if name in want:
                target = memory.prefix(value, want[name])
                columns = slice(SET_COLUMNS.get(op.opcode))
                target[..., columns] = result[..., columns]
    return want | {f"relay.{name}": pool for name, pool in pools.items()}


def check_cluster(
    launcher: Launcher,
    module: Module,
    stem: str,
    cluster: Cluster,
    source: torch.Generator,
    given: Mapping[str, Tensor],
    inexact: Collection[str] = (),
) -> Spec:
    """Launch the kernel of a cluster twice; all memory it is given must be as the reference ops leave it.

    Args:
        launcher: where to launch.
        module: a typed module.
        stem: family of the cluster.
        cluster: ops that the family offers.
        source: randomness for what is not given.
        given: values and pools (``relay.<field>``) by name; ``req_pool_indices`` is one of them.
        inexact: names of what comes from sums over a vocabulary and is compared up to rounding.
    """
    family, rows = FAMILIES[stem], given["req_pool_indices"]
    spec = family.spec(module, stem, cluster)
    before = Memory(module, cluster, rows, source, given)
    for argument in spec.arguments:
        before.argument(argument, spec)
    want = expect(before)
    scratch = {scratch.name for scratch in spec.scratch}
    kept = {name: before.tensors[name].clone().to(launcher.device) for name in scratch}
    for attempt in ("first launch", "second launch"):
        moved = {name: tensor.clone().to(launcher.device) for name, tensor in before.tensors.items()} | kept
        after = Memory(module, cluster, rows, source, given, moved)
        arguments = {argument.name: after.argument(argument, spec) for argument in spec.arguments}
        launcher.launch(stem, spec.flags, family.grid(module, cluster, len(rows))[:2], arguments, dict(spec.constants))
        for name in moved.keys() - scratch:
            if name in inexact:
                assert_probabilities(moved[name].cpu(), want[name])
            else:
                assert_same(moved[name].cpu(), want[name], f"{name} of {stem}, {attempt}")
    return spec


def only_cluster(module: Module, stem: str, ops: Collection[Op]) -> Cluster:
    """The cluster of exactly these ops that a family offers."""
    (found,) = [cluster for cluster in FAMILIES[stem].candidates(module) if set(cluster) == set(ops)]
    return found

"""The memory of a cluster's arguments, and what it is after the reference ops have run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from kernel_cases import POISON, POOL
from programs import brought
from topk_cases import assert_logs, assert_probabilities
from torch import Tensor

from specc.compiler.ir.core import Module, Op, Value, is_state, tensor_type
from specc.compiler.kernels.writing import vocabulary
from specc.compiler.kernels.writing.family import Cluster, Parameter, Spec
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.semantics.reference import OPS, evaluate

SUMS = {
    "vocab.topk": "p",
    "vocab.logprob": "logprob",
    "vocab.logprob_path": "logprob",
    "vocab.best": "logprobs",
    "vocab.best_path": "logprobs",
    "sample.mass": "mass",
    "sample.residual": "sums",
}
"""Results, by opcode, that are sums over a vocabulary and known up to rounding."""
ROUNDED = {"sample.mass": 3e-5, "sample.residual": 3e-5}
"""By how much: exponentials of numbers up to a hundred, each rounded."""


def random_tensor(source: torch.Generator, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Any content that a dtype may have."""
    if dtype.is_floating_point:
        return torch.randn(*shape, generator=source).to(dtype)
    if dtype == torch.bool:
        return torch.rand(*shape, generator=source) < 0.5
    return torch.randint(0, min(torch.iinfo(dtype).max, 2**40), tuple(shape), generator=source).to(dtype)


def whole(tensor: Tensor) -> Tensor:
    """All of the memory that a tensor is a part of."""
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)


def copied(tensor: Tensor, device: str = "cpu") -> Tensor:
    """The same tensor in the same place of other memory."""
    copy = whole(tensor).clone().to(device)
    return copy.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


@dataclass
class Memory:
    """Memory of a cluster's arguments at the largest batch. ``given`` has what is not random: values by name."""

    module: Module
    cluster: Cluster
    rows: Tensor
    source: torch.Generator
    given: Mapping[str, Tensor]
    slack: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

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
            if value.source in self.cluster and dtype not in (torch.bool, torch.uint8):
                tensor = torch.full(sizes, POISON, dtype=dtype)
            elif value.source in self.cluster:
                tensor = random_tensor(self.source, sizes, dtype)
            elif value.name in self.given and "B" in type_.shape:
                tensor = self.apart(value, sizes, dtype)
                self.prefix(value, tensor).copy_(self.given[value.name])
            elif value.name in self.given:
                tensor = self.given[value.name]
            else:
                tensor = random_tensor(self.source, sizes, dtype)
            self.tensors[value.name] = tensor
        return self.tensors[value.name]

    def apart(self, value: Value, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Poison; of logits that are reduced +inf, with rows further apart than they are long."""
        if any(op.get("logits") is value for op in self.cluster):
            return torch.full((*sizes[:-1], sizes[-1] + self.slack), math.inf, dtype=dtype)[..., : sizes[-1]]
        return torch.full(sizes, POISON, dtype=dtype)

    def root(self, value: Value) -> Value:
        """What the cluster replaces in memory by a value; what is handed out stays."""
        while value.source in self.cluster:
            victim = value.source.overwritten
            if victim is None or victim in self.module.outputs.values():
                break
            value = victim
        return value

    def pool(self, name: str) -> Tensor:
        """The pool rows of a carried field; those in a table of the engine's are a part of longer ones."""
        type_ = self.module.carries[name].type
        if f"relay.{name}" not in self.tensors:
            shape = (POOL, *type_.sizes(self.module.dims)[1:])
            given = self.given.get(f"relay.{name}")
            if given is None:
                more = 5 if self.module.carries[name].table and len(shape) == 2 else 0
                wide = random_tensor(self.source, (*shape[:-1], shape[-1] + more), DTYPES[type_.dtype])
                given = wide[..., : shape[-1]]
            else:
                given = given.clone()
            self.tensors[f"relay.{name}"] = given
        return self.tensors[f"relay.{name}"]

    def argument(self, parameter: Parameter, spec: Spec) -> Tensor | int:
        """What is passed for an argument."""
        kind, target = parameter.passed.kind, parameter.passed.target
        if kind == "value":
            (value,) = [value for value in self.module.values() if value.name == target]
            return self.value(value)
        if kind == "row_stride":
            return self.pool(target.removeprefix("relay.")).stride(0)
        if kind == "buffer" and target.startswith("relay."):
            return self.pool(target.removeprefix("relay."))
        if kind == "buffer":
            (scratch,) = [scratch for scratch in spec.scratch if scratch.name == target]
            content = 0 if scratch.zero else POISON
            return self.tensors.setdefault(
                scratch.name, torch.full(scratch.shape, content, dtype=DTYPES[scratch.dtype])
            )
        if parameter.passed.literal is not None:
            return parameter.passed.literal
        tensor = self.value(self.module.inputs[target])
        if kind == "size":
            return tensor.shape[parameter.passed.axis]
        assert kind in ("input", "stride")
        return tensor if kind == "input" else tensor.stride(0)

    def moved(self, device: str, kept: Mapping[str, Tensor]) -> Memory:
        """The same memory in another place, but for what is kept from launch to launch."""
        tensors = {name: copied(tensor, device) for name, tensor in self.tensors.items()} | kept
        return replace(self, tensors=tensors)


def expect(memory: Memory, sums: Mapping[Value, Tensor]) -> tuple[Memory, dict[str, Tensor]]:
    """Memory after the cluster, and its values by name, by the reference ops.

    ``sums`` are the kernel's own sums over a vocabulary, from which the rest follows bit by bit.
    """
    want = memory.moved("cpu", {})
    dims = {dim.name: dim.size for dim in memory.module.dims.values() if dim.size is not None}
    dims["B"] = len(memory.rows)
    pools = {name: want.tensors[f"relay.{name}"] for name in memory.module.carries if f"relay.{name}" in want.tensors}
    values: dict[Value, Tensor] = {}

    def read(value: Value) -> Tensor:
        return values[value] if value in values else memory.prefix(value, memory.value(value)).clone()

    for op in memory.cluster:
        operands = tuple(read(value) for value in op.operands if not is_state(value))
        made = [value for value in op.results if not is_state(value)]
        results = evaluate(op.opcode, operands, op.attrs, dims, pools, semantics=OPS | brought())
        values |= dict(zip(made, results, strict=True))
        if op.opcode in SUMS:
            total = op.out(SUMS[op.opcode])
            meant = specified(op, operands)
            computed, wanted = sums[total][meant], values[total][meant]
            if op.opcode in ("vocab.topk", *ROUNDED) or vocabulary.of_argmax(op):
                least = 2.0**-23 if op.opcode == "sample.residual" else 2e-38  # what two probabilities differ by
                assert_probabilities(computed, wanted, ROUNDED.get(op.opcode, 4e-6), least)
            else:
                assert_logs(computed, wanted)
            values[total] = sums[total]
        for value in made:
            if (name := memory.root(value).name) in want.tensors:
                put(memory, op, operands, value, want.tensors[name], values[value])
    want.tensors |= {f"relay.{name}": pool for name, pool in pools.items()}
    return want, {value.name: tensor for value, tensor in values.items()}


def specified(op: Op, operands: Sequence[Tensor]) -> Tensor:
    """Which sums mean anything: of log-probabilities that an argmax gives those of largest logits, and all others."""
    if not vocabulary.of_argmax(op):
        return torch.tensor(True)
    logits, rows, index = operands
    argmax, _ = evaluate("vocab.argmax", (logits, rows), {"dtype": "i32", "keep": ""}, {}, {})
    return index == argmax


def put(memory: Memory, op: Op, operands: Sequence[Tensor], value: Value, target: Tensor, result: Tensor) -> None:
    """Write a result where it is in memory: a full mask is flat, and ends with the texts of the batch."""
    if op.attrs.get("mode") == "full":
        lens, parent = operands
        nodes = parent.shape[1]
        size = int((lens + nodes).sum()) * nodes
        target.view(-1)[:size] = result.reshape(-1)[:size]
    else:
        memory.prefix(value, target).copy_(result)

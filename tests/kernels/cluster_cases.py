"""Modules of a few ops: every kernel that they become, against the reference ops, on the same random memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from cluster_memory import SUMS, Memory, expect, whole
from kernel_cases import POISON, POOL, assert_same, generator, integer
from kernel_launcher import Launcher
from torch import Tensor

from specc.compiler.ir.builder import Builder
from specc.compiler.ir.core import Attr, CarriedValue, Module, Value, tensor_type
from specc.compiler.ir.declarations import Kernel
from specc.compiler.ir.infer import assign_types
from specc.compiler.ir.types import Dim, TensorType
from specc.compiler.kernels import FAMILIES
from specc.compiler.kernels.writing import vocabulary
from specc.compiler.kernels.writing.family import Cluster, Spec, cluster_of, leaves
from specc.compiler.pass_manager.pass_base import Context
from specc.compiler.passes.form_kernels import FormKernels

MAX_B = 6
FLOATS = ("f32", "f16", "bf16")
ANY = (*FLOATS, "i32", "i64")
LOGITS = ("vocab.argmax", "vocab.topk")
SCANNED = (*LOGITS, "sample.draw", "sample.residual")
"""The ops that a launch scans logits for."""
Drawn = dict[str, Tensor]
"""Content of values and pools (``relay.<field>``) by name."""


# --- modules ------------------------------------------------------------------------------------------------------


def small_module(**sizes: int) -> Module:
    """A module with the inputs of a step and with dimensions, those of `sizes` and the largest batch."""
    module = Module("small")
    axes = {"B": "request", "K": "branch", "S": "step", "D": "forward", "N": "node", "A": "path", "G": "budget"}
    axes |= {"V": "vocab", "Vd": "draft_vocab", "E": "draft"}
    for name, size in {"B": MAX_B, **sizes}.items():
        module.dims[name] = Dim(name, axes[name], size, dynamic=name == "B")
    module.dims |= {"P": Dim("P", "pool", POOL), "C": Dim("C", "context", None)}
    module.add_input("req_pool_indices", TensorType("i64", ("B",)))
    module.add_input("seq_lens", TensorType("i64", ("B",)))
    module.add_input("req_to_token", TensorType("i32", ("P", "C")))
    return module


def carry(module: Module, name: str, dtype: str, *shape: str | int) -> None:
    """Declare a carried field T[B, *shape]."""
    module.carries[name] = CarriedValue(name, TensorType(dtype, ("B", *shape)))


class TypedBuilder(Builder):
    """A builder whose results have their types at once."""

    def many(self, opcode: str, *operands: Value, names: tuple[str, ...] = (), **attrs: Attr) -> tuple[Value, ...]:
        """Build an op and infer its types; return all its results."""
        results = super().many(opcode, *operands, names=names, **attrs)
        assign_types(self.module, self.module.phases[self._phase][-1])
        return results

    def given(self, name: str, dtype: str, *shape: str | int) -> Value:
        """An input T[B, *shape]."""
        return self.module.add_input(name, TensorType(dtype, ("B", *shape)))

    def hand_out(self, *values: Value) -> None:
        """Let values be outputs of their names."""
        self.module.outputs |= {value.name: value for value in values}


def form(module: Module) -> list[tuple[str, Cluster]]:
    """Form the kernels of a module; the family and the ops of each, in the order in which they are launched."""
    FormKernels().run(module, Context())
    return [(kernel.family, cluster_of(module, kernel.name)) for kernel in module.decls_of(Kernel)]


# --- randomness ---------------------------------------------------------------------------------------------------


def choice(source: torch.Generator, options: Sequence[str]) -> str:
    """One of several."""
    return options[integer(source, 0, len(options) - 1)]


def random_shape(source: torch.Generator) -> tuple[int, ...]:
    """Of what a request has of a value: a scalar, a short or long row, or rows of rows; often odd."""
    width = math.ceil(2 ** (12 * torch.rand((), generator=source).item()))
    return ((), (width,), (integer(source, 1, 3), integer(source, 1, 9)))[integer(source, 0, 2)]


def random_value(b: TypedBuilder, source: torch.Generator, name: str) -> Value:
    """An input of any type that may be carried."""
    return b.given(name, choice(source, ANY), *random_shape(source))


def random_batch(source: torch.Generator) -> Tensor:
    """Request pool rows of one batch, which may be smaller than the bucket; some are padding."""
    rows = torch.randperm(POOL - 1, generator=source)[: integer(source, 1, MAX_B)] + 1
    rows[torch.rand(len(rows), generator=source) < 0.3] = 0
    return rows


@dataclass(frozen=True)
class Scan:
    """How a reduction is cut where a family would not; 0 leaves it to the family.

    Attributes:
        splits: programs per row of logits.
        block: logits of a tile.
        slack: elements between the rows of logits, +inf, so that reading past a row is seen.
        programs: programs of a request where nothing is reduced.

    """

    splits: int = 0
    block: int = 0
    slack: int = 0
    programs: int = 0

    def affordable(self, vocab: int) -> Scan:
        """Return larger tiles, unless the family chooses them, where the interpreter would loop for seconds."""
        return self if vocab <= 512 or not self.block else replace(self, block=max(self.block, 256))


PLAIN = Scan()


# --- launches -----------------------------------------------------------------------------------------------------


@contextmanager
def handed_out(module: Module, values: Sequence[Value]) -> Iterator[None]:
    """Let values be outputs, so that kernels store them."""
    before = dict(module.outputs)
    module.outputs |= {f"out.{value.name}": value for value in values}
    yield
    module.outputs = before


@dataclass
class Launch:
    """One kernel and the grid that a batch gives it."""

    spec: Spec
    grid: tuple[int, int]

    def run(self, launcher: Launcher, memory: Memory) -> None:
        """Launch it once, in place."""
        arguments = {argument.name: memory.argument(argument, self.spec) for argument in self.spec.arguments}
        launcher.launch(self.spec, self.grid, arguments)


def launch_of(module: Module, stem: str, cluster: Cluster, batch: int, scan: Scan) -> Launch:
    """The kernel of a cluster, cut as ``scan`` says."""
    spec = FAMILIES[stem].spec(module, stem, cluster)
    rows, programs, _ = FAMILIES[stem].grid(module, cluster, batch)
    reduction = next((op for op in cluster if op.opcode in SCANNED), None)
    changed: dict[str, int] = {}
    if reduction is not None:
        sizes = tensor_type(reduction["logits"]).sizes(module.dims)
        programs = vocabulary.scanned_rows(module, reduction) * scan.splits if scan.splits else programs
        changed = {"STRIDE": sizes[-1] + scan.slack} | ({"BLOCK": scan.block} if scan.block else {})
        if scan.block and reduction.opcode == "vocab.topk":
            changed["GROUP"] = vocabulary.widest_group(sizes[-1], scan.block, module.size("K"), 8)
    elif stem == "score":
        constants = dict(spec.constants)
        programs = constants["PLACES"] * min(scan.splits, constants["SPLITS"]) if scan.splits else programs
        changed = {"BLOCK": scan.block} if scan.block else {}
        if scan.block and constants["COUNT"]:
            changed["GROUP"] = vocabulary.widest_group(constants["V"], scan.block, constants["COUNT"], 8)
    elif scan.programs:
        programs = scan.programs
    return Launch(with_constants(spec, changed), (rows, programs))


def with_constants(spec: Spec, changed: Mapping[str, int]) -> Spec:
    """A kernel with other values of some of its constants."""
    assert changed.keys() <= dict(spec.constants).keys()
    return replace(spec, constants=tuple((name, changed.get(name, value)) for name, value in spec.constants))


def check_cluster(
    launcher: Launcher,
    module: Module,
    stem: str,
    cluster: Cluster,
    source: torch.Generator,
    given: Mapping[str, Tensor],
    scan: Scan = PLAIN,
) -> dict[str, Tensor]:
    """Launch the kernel of a cluster twice; all memory it is given must be as the reference ops leave it.

    Args:
        launcher: where to launch.
        module: a typed module.
        stem: family of the cluster.
        cluster: ops that the family composes.
        source: randomness for what is not given.
        given: values and pools (``relay.<field>``) by name; ``req_pool_indices`` is one of them.
        scan: how reductions are cut.

    Returns:
        what the cluster computes, by value.

    """
    rows = given["req_pool_indices"]
    memory = Memory(module, cluster, rows, source, given, scan.slack)
    launch = launch_of(module, stem, cluster, len(rows), scan)
    for argument in launch.spec.arguments:
        memory.argument(argument, launch.spec)
    sums = sums_of(launcher, memory, stem, scan)
    want, values = expect(memory, sums)
    scratch = {scratch.name: scratch for scratch in launch.spec.scratch}
    kept = {name: memory.tensors[name].clone().to(launcher.device) for name in scratch}
    rounded = launcher.device == "cuda" and any(op.opcode == "sample.min_p" for op in cluster)  # it takes a logarithm
    exponentials = {value.name for op in cluster if op.opcode == "lattice.walk" for value in op.results[1:]}
    for attempt in ("first launch", "second launch"):
        after = memory.moved(launcher.device, kept)
        launch.run(launcher, after)
        for name in (after.tensors.keys() & want.tensors.keys()) - scratch.keys() - unread(memory):
            what, rounds = f"{name} of {stem}, {attempt}", rounded or name in exponentials
            assert_same(whole(after.tensors[name]).cpu(), whole(want.tensors[name]), what, rounded=rounds)
        for name, tensor in kept.items():
            assert not scratch[name].zero or not tensor.any(), f"{name}, {attempt}"
    reads = [given[op["rows"].name] for op in cluster if op.opcode in SCANNED]
    check_partials(cluster, launch, reads[0] if reads else rows, kept)
    return values


def launched(
    launcher: Launcher,
    module: Module,
    stem: str,
    cluster: Cluster,
    given: Mapping[str, Tensor],
    held: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """All memory of a kernel after it has run, on the first rank twice; ``given`` by value, ``held`` as it lies."""
    rows = given["req_pool_indices"]
    memory = Memory(module, cluster, rows, generator(1), given, tensors=dict(held or {}))
    launch = launch_of(module, stem, cluster, len(rows), PLAIN)
    for argument in launch.spec.arguments:
        memory.argument(argument, launch.spec)
    memory = memory.moved(launcher.device, {})
    for _ in range(1 + (given.get("rank") is not None and not given["rank"].any())):
        launch.run(launcher, memory)
    assert not any(memory.tensors[scratch.name].any() for scratch in launch.spec.scratch if scratch.zero)
    return {name: tensor.cpu() for name, tensor in memory.tensors.items()}


def unread(memory: Memory) -> set[str]:
    """Memory that values replace of which nothing outside of the cluster reads the last: it may hold any of them."""
    last = {memory.root(value).name: value for op in memory.cluster for value in op.results}
    return {name for name, value in last.items() if not leaves(memory.module, value, memory.cluster)}


def sums_of(launcher: Launcher, memory: Memory, stem: str, scan: Scan) -> dict[Value, Tensor]:
    """The kernel's own sums over a vocabulary: those of the same kernel, which hands them out."""
    sums = [op.out(SUMS[op.opcode]) for op in memory.cluster if op.opcode in SUMS]
    if not sums:
        return {}
    before = dict(memory.tensors)
    with handed_out(memory.module, sums):
        launch = launch_of(memory.module, stem, memory.cluster, len(memory.rows), scan)
        for argument in launch.spec.arguments:
            memory.argument(argument, launch.spec)
        after = memory.moved(launcher.device, {})
        launch.run(launcher, after)
    computed = {value: memory.prefix(value, after.tensors[value.name]).cpu() for value in sums}
    memory.tensors = before
    return computed


def check_partials(cluster: Cluster, launch: Launch, rows: Tensor, scratch: Mapping[str, Tensor]) -> None:
    """Partials of padding, of rows beyond the batch and of splits beyond the grid's stay poisoned; no others do."""
    if not any(op.opcode in SCANNED for op in cluster):
        return
    for name, tensor in scratch.items():
        if ".partial_" not in name:
            continue
        partial = tensor.cpu()
        live = torch.zeros(len(partial), dtype=torch.bool)
        live[: len(rows)] = rows != 0
        axis = -2 if name.endswith("_key") else -1
        splits = launch.grid[1] // math.prod(partial.shape[1:axis])
        assert (partial[~live] == POISON).all(), name
        assert (partial.narrow(axis, splits, partial.shape[axis] - splits) == POISON).all(), name
        # An index is any number where it is a complement, the mark of NaN; of nodes without a weight nothing is stored.
        if not name.endswith("_index") and not any(op.opcode == "sample.residual" for op in cluster):
            assert not (partial[live].narrow(axis, 0, splits) == POISON).any(), name


def check_module(
    launcher: Launcher,
    module: Module,
    source: torch.Generator,
    given: Mapping[str, Tensor],
    scan: Scan = PLAIN,
) -> dict[str, Tensor]:
    """Form the kernels of a module and check each on what those before it leave; all that they compute, by value."""
    known = dict(given)
    for stem, cluster in form(module):
        known |= check_cluster(launcher, module, stem, cluster, source, known, scan)
    return known


def prepared(
    module: Module, given: Mapping[str, Tensor], source: torch.Generator, scan: Scan = PLAIN
) -> tuple[Memory, Launch]:
    """The only kernel of a module with the memory of its arguments, for those who look at more than results."""
    ((stem, cluster),) = form(module)
    rows = given["req_pool_indices"]
    memory, launch = Memory(module, cluster, rows, source, given), launch_of(module, stem, cluster, len(rows), scan)
    for argument in launch.spec.arguments:
        memory.argument(argument, launch.spec)
    return memory, launch

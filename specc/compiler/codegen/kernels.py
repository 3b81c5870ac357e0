"""From clusters to kernel sources: rendering, naming, and sharing of kernels that come out the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from specc.compiler.codegen.aot import KernelSource
from specc.compiler.codegen.render import render_kernel, template_digest
from specc.compiler.ir.core import Module, tensor_type
from specc.compiler.ir.declarations import Kernel, Layout
from specc.compiler.ir.text.printer import print_op
from specc.compiler.ir.types import FLOATS, per_request
from specc.compiler.kernels.formed import specs
from specc.compiler.kernels.writing.family import Cluster, Spec, cluster_of
from specc.compiler.kernels.writing.knobs import tuned
from specc.runtime.plan import nodes
from specc.runtime.plan.draft_head import MADE
from specc.runtime.plan.shape import Shape
from specc.version import __version__


@dataclass(frozen=True)
class Generated:
    """All kernels of one shape of a program.

    Attributes:
        sources: one per distinct kernel.
        kernels: what the plan has of them, by name.
        specs: the spec of every launch, by node name.
        kernel_of: kernel name of every launch, by node name.

    """

    sources: tuple[KernelSource, ...]
    kernels: Mapping[str, nodes.Kernel]
    specs: Mapping[str, Spec]
    kernel_of: Mapping[str, str]

    def source(self, name: str) -> KernelSource:
        """The kernel of this name."""
        return next(source for source in self.sources if source.name == name)


def generate_kernels(modules: Mapping[Shape, Module], config_file: str) -> list[Generated]:
    """Render every kernel of planned modules; launches that need the same code share it, at whatever shape they are.

    Args:
        modules: the program of every shape, with ``Kernel`` and ``Layout`` declarations.
        config_file: file name of the configuration, for the headers.

    """
    distinct: dict[tuple[object, ...], KernelSource] = {}
    return [_generate(module, shape, config_file, distinct) for shape, module in modules.items()]


def _generate(
    module: Module, shape: Shape, config_file: str, distinct: dict[tuple[object, ...], KernelSource]
) -> Generated:
    """The kernels of one shape; those that are in no other yet are added to ``distinct``."""
    launches = dict(specs(module))
    kernel_of: dict[str, str] = {}
    used: dict[str, KernelSource] = {}
    kernels: dict[str, nodes.Kernel] = {}
    for kernel in module.decls_of(Kernel):
        cluster, spec = cluster_of(module, kernel.name), launches[kernel.name]
        if (chosen := tuned(module, cluster[0])) is not None:
            stages = chosen.stages or spec.num_stages
            spec = replace(spec, num_warps=chosen.warps or spec.num_warps, num_stages=stages)
            launches[kernel.name] = spec
        key = _key(module, spec)
        if key not in distinct:
            taken = any(source.name == kernel.name for source in distinct.values())
            name = f"{kernel.name}_of_{shape}" if taken else kernel.name
            distinct[key] = _source(module, name, kernel, cluster, spec, config_file)
        source = distinct[key]
        kernel_of[kernel.name] = source.name
        used[source.name], kernels[source.name] = source, _planned(source, spec)
    return Generated(tuple(used.values()), kernels, launches, kernel_of)


def _aligned_arguments(module: Module, spec: Spec) -> frozenset[str]:
    """Pointers that are multiples of 16 bytes: the arena, forwards' results whose rows are, heads and other weights.

    A model's weights are allocations of their own, or whole rows of one. A launch with others is refused. Loads of
    weights that may lie anywhere would be 2 bytes wide, and no asynchronous copies.
    """
    layouts = {layout.name: layout for layout in module.decls_of(Layout)}
    return frozenset(arg.name for arg in spec.arguments if _aligned(module, arg.passed, layouts))


def _aligned(module: Module, arg: nodes.Argument, layouts: dict[str, Layout]) -> bool:
    if arg.kind == "input":
        return arg.target in MADE or _is_weight(module, arg.target)
    if arg.kind != "value":
        return arg.kind == "buffer"
    layout = layouts[arg.target]
    return layout.owner == "arena" or layout.alignment >= 16


def _is_weight(module: Module, name: str) -> bool:
    """Whether an input is a table of floating-point numbers that the engine keeps, of a size that is known."""
    type_ = tensor_type(module.inputs[name])
    return type_.dtype in FLOATS and not per_request(type_) and all(type_.sizes(module.dims, unbounded=0))


def _planned(source: KernelSource, spec: Spec) -> nodes.Kernel:
    """Return what the plan has of a kernel, by the spec of any launch of it."""
    return nodes.Kernel(
        family=spec.family,
        function=source.function,
        source=f"kernels/{source.name}.py",
        flags={name: list(flag) if isinstance(flag, tuple) else flag for name, flag in spec.flags.items()},
        constants=dict(source.constants),
        arguments=source.arguments,
        aligned=tuple(sorted(source.aligned)),
        num_warps=source.num_warps,
        num_stages=source.num_stages,
    )


def _key(module: Module, spec: Spec) -> tuple[object, ...]:
    types = tuple((arg.name, arg.type) for arg in spec.arguments)
    flags = tuple(sorted(spec.flags.items()))
    aligned = tuple(sorted(_aligned_arguments(module, spec)))
    launched = spec.num_warps, spec.num_stages, spec.registers
    return spec.family, flags, spec.prologue, spec.body, spec.constants, types, aligned, *launched


def _source(module: Module, name: str, kernel: Kernel, cluster: Cluster, spec: Spec, config_file: str) -> KernelSource:
    header = _header(module, name, kernel, cluster, spec, config_file)
    return KernelSource(
        name=name,
        function=spec.family,
        text=render_kernel(spec, header),
        arguments=tuple((arg.name, arg.type) for arg in spec.arguments),
        constants=spec.constants,
        aligned=_aligned_arguments(module, spec),
        num_warps=spec.num_warps,
        num_stages=spec.num_stages,
        registers=spec.registers,
    )


def _header(module: Module, name: str, kernel: Kernel, cluster: Cluster, spec: Spec, config_file: str) -> list[str]:
    lines = sorted({op.location.line for op in cluster if op.location is not None})
    vocab = dict(spec.constants).get("V", 0)
    softmax = any(op.opcode in ("vocab.topk", "vocab.logprob") for op in cluster)
    work = "one comparison and one exponential" if softmax else "one comparison"
    return [
        f"{name}: generated by specc {__version__} for @{module.name}; do not edit.",
        f"from {config_file}, lines {', '.join(str(line) for line in lines)}",
        *([] if spec.body else [f"template {spec.family}.py.jinja sha256 {template_digest(spec.family)[:16]}"]),
        f"constants {', '.join(f'{name}={value}' for name, value in spec.constants)}",
        f"tiles: {spec.tiles}; {spec.num_warps} warps, {spec.num_stages} stages",
        f"at the largest bucket {kernel.bytes} bytes" + (f", {work} per logit, {vocab} a row" if vocab else ""),
        "ops:",
        *[f"  {print_op(op, locations=False)}" for op in cluster],
    ]

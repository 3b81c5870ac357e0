"""Programs that are compiled for a benchmark, and their kernels through Triton itself."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from specc.algorithms import names, needs
from specc.config import load_text
from specc.driver.build import Build, build_program
from specc.emit.files import kernel_files
from specc.measure.against.work import Shape
from specc.runtime.frame import Frame
from specc.runtime.plan.nodes import Launch

CONFIG = """\
name: bench_{kind}
algorithm: EAGLE
topk: {topk}
num_steps: {steps}
num_draft_tokens: {nodes}
page_size: {page}
buckets: {buckets}
max_requests: {requests}
overlap: true
archs: [{archs}]
target: {{{sizes}, num_layers: {layers}}}
draft: {{{sizes}, num_layers: 1}}
"""
SIZES = "hidden_size: {width}, num_kv_heads: {heads}, head_dim: {head_dim}, vocab_size: {vocab}, dtype: bfloat16"


def compile_shape(shape: Shape, buckets: Sequence[int], archs: Sequence[str] = ("sm_90",), keys: str = "") -> Build:
    """Passes, kernels and plan of an EAGLE chain or tree that holds the shape; no machine code. `keys`: more YAML."""
    kind, sizes = "tree" if shape.topk > 1 else "chain", asdict(shape)
    sizes |= {"buckets": list(buckets), "requests": shape.pool - 1, "archs": ", ".join(archs)}
    text = CONFIG.format(kind=kind, sizes=SIZES.format(**sizes), **sizes) + keys
    return build_program(load_text(text, Path(f"bench_{kind}.yaml"), names(), needs))


class TritonBackend:
    """The rendered kernels through Triton itself: its interpreter on the CPU, its just-in-time compiler on a GPU.

    Triton decides which when it is first imported: set TRITON_INTERPRET=1 before that on a machine without a GPU.
    """

    def __init__(self, build: Build, folder: Path) -> None:
        package = f"bench_kernels_{len(sys.path)}"
        for name, text in kernel_files(build).items():
            path = folder / package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        self._interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        self._kernels = {
            source.name: getattr(importlib.import_module(f"{package}.kernels.{source.name}"), source.function)
            for source in build.generated.sources
        }

    def launch(self, node: Launch, frame: Frame) -> None:
        """Launch one node with the plan's arguments, grid and constants."""
        plan = frame.plan.kernels[node.kernel]
        _, y, z = node.grid[frame.plan.bucket(frame.rows)]
        options = {} if self._interpreted else {"num_warps": plan.num_warps, "num_stages": plan.num_stages}
        values = [argument_value(argument, frame) for argument in node.args]
        self._kernels[node.kernel][frame.rows, y, z](*values, **plan.constants, **options)


def argument_value(argument: Any, frame: Frame) -> Tensor | int:
    """A tensor for a pointer, a number for anything else."""
    if argument.literal is not None:
        return argument.literal
    if argument.kind == "buffer":
        return frame.buffer(argument.target)
    if argument.kind == "row_stride":
        return frame.buffer(argument.target).stride(0)
    if argument.kind == "slot_stride":
        buffer = frame.kv[argument.target][0]
        return buffer.stride(0) * buffer.element_size()
    tensor = frame.read(argument.target)
    if argument.kind == "size":
        return tensor.shape[argument.axis]
    return tensor.stride(argument.axis) if argument.kind == "stride" else tensor

"""specc's side: a program compiled for the benchmark, its launches, and the memory they run on."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor
from work import Shape, Work

from specc.algorithms import names
from specc.build import Build, build_program, compile_machine_code
from specc.codegen.cache import Cache
from specc.config import load_text
from specc.emit.files import kernel_files
from specc.emit.program import emit_wheel
from specc.emit.wheel import plan_text, wheel_names
from specc.runtime.arena import Arena
from specc.runtime.backends import Backend
from specc.runtime.backends.cuda import CudaBackend, device_arch
from specc.runtime.frame import Frame
from specc.runtime.manifest import Manifest
from specc.runtime.plan import External, Launch, Plan
from specc.runtime.plan_json import read_plan
from specc.runtime.relay import RelayPools
from specc.version import __version__

LAYERS = (
    "{hidden_size: %(width)d, num_layers: 1, num_kv_heads: 8, head_dim: 128, vocab_size: %(vocab)d, dtype: bfloat16}"
)
CONFIG = """\
name: bench_chain
algorithm: EAGLE
topk: 1
num_steps: %(steps)d
buckets: %(buckets)s
max_requests: %(requests)d
overlap: true
archs: %(archs)s
target: {layers}
draft: {layers}
""".replace("{layers}", LAYERS)


def compile_chain(shape: Shape, buckets: Sequence[int], archs: Sequence[str] = ("sm_90",)) -> Build:
    """Passes, kernels and plan of an EAGLE chain that holds the shape; no machine code."""
    sizes = {"steps": shape.steps, "width": shape.width, "vocab": shape.vocab, "requests": shape.pool - 1}
    text = CONFIG % {**sizes, "buckets": list(buckets), "archs": f"[{', '.join(archs)}]"}
    return build_program(load_text(text, Path("bench_chain.yaml"), names()))


def plan_of(build: Build) -> Plan:
    """The plan as the runtime reads it."""
    return read_plan(json.loads(plan_text(build.plan)))


def cuda_backend(build: Build, folder: Path, device: torch.device) -> Backend:
    """Machine code through the runtime's own CUDA backend: compile, write the wheel, unpack, load."""
    compile_machine_code(build, [device_arch(device)], cache=Cache.default())
    (wheel,) = emit_wheel(build, folder)
    with ZipFile(wheel) as archive:
        archive.extractall(folder)
    package = folder / wheel_names(build.loaded.config.name, __version__).package
    return CudaBackend(plan_of(build), Manifest.read(package), package, device)


OBSERVED = {
    "prepare": ("draft_slots", "verify_positions", "verify_slots"),
    "verify_commit": ("tokens", "predict", "accept_lens", "new_seq_lens", "bonus", "extend_ids", "select"),
}
"""Values that are compared, by the kernel family that completes them."""


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
    if argument.kind == "literal":
        return int(argument.target)
    if argument.kind == "buffer":
        return frame.buffer(argument.target)
    tensor = frame.read(argument.target)
    return tensor.stride(argument.axis) if argument.kind == "stride" else tensor


class Ours:
    """The launches of one plan on the tensors of one work."""

    def __init__(self, work: Work, plan: Plan, backend: Backend) -> None:
        self.work, self.plan, self.backend = work, plan, backend
        self.arena = Arena(plan, work.device)
        pools = RelayPools(plan, self.arena)
        self.frame = Frame(plan, self.arena, pools, work.table, work.shape.batch)
        self.arena.view("req_pool_indices", work.shape.batch).copy_(work.rows)
        self.launches = [node for node in plan.nodes("step") if isinstance(node, Launch)]
        self._adopt()
        self.reset()

    def _adopt(self) -> None:
        """Let the work's tensors stand for what the forwards return."""
        work = self.work
        for node in self.plan.nodes("step"):
            if not isinstance(node, External):
                continue
            found = {
                "draft": lambda step: (work.draft_logits[step], work.draft_hidden[step]),
                "target": lambda _: (work.target_logits, work.target_hidden),
                "extend": lambda _: (work.extend_logits, work.extend_hidden),
            }[node.callback](node.step)
            for name, tensor in zip(("logits", "hidden"), found, strict=True):
                if name in node.results:
                    self.frame.adopt(node.results[name], tensor)

    def reset(self) -> None:
        """Back to the state that the work starts from."""
        for name, pool in self.work.pools.items():
            self.arena.buffer(f"relay.{name}").copy_(pool)

    def launch(self, family: str) -> None:
        """The first launch of a kernel family."""
        self.backend.launch(self.node(family), self.frame)

    def node(self, family: str) -> Launch:
        """The first launch node of a kernel family in a step."""
        return next(node for node in self.launches if self.plan.kernels[node.kernel].family == family)

    def step(self) -> None:
        """All launches of a step, in order, without the forwards."""
        for node in self.launches:
            self.backend.launch(node, self.frame)

    def value(self, family: str, argument: str) -> Tensor:
        """The tensor that a launch gets for a pointer."""
        found = next(arg for arg in self.node(family).args if arg.name == argument)
        return self.frame.read(found.target)

    def observed_step(self) -> dict[str, Tensor]:
        """Run a step; what it decided, by the names that both sides use.

        Every value is copied as soon as it is complete: the plan lets later ones have its memory.
        """
        seen: dict[str, Tensor] = {}
        for node in self.launches:
            self.backend.launch(node, self.frame)
            family = self.plan.kernels[node.kernel].family
            seen |= {name: self.value(family, f"{name}_ptr").clone() for name in OBSERVED.get(family, ())}
        seen["draft_slots"] = seen["draft_slots"][:, :, 0]
        pools = {f"relay.{name}": self.arena.buffer(f"relay.{name}")[self.work.rows] for name in self.work.pools}
        return seen | pools

"""specc's side: a program compiled for the benchmark, its launches, and the memory they run on."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor
from work import Shape, Work, observed

from specc.algorithms import names, needs
from specc.config import load_text
from specc.driver.build import Build, build_program
from specc.emit.files import kernel_files
from specc.runtime.backends import Backend
from specc.runtime.frame import Frame
from specc.runtime.memory.arena import Arena
from specc.runtime.memory.kv_pools import KvPools
from specc.runtime.plan.nodes import External, Launch
from specc.runtime.plan.plan import Plan
from specc.runtime.state.relay import RelayPools

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


READ = ("tokens", "positions", "slots", "mask", "select", "hidden")
"""What forwards read, of all that is compared; the rest is which requests they are for."""


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
    if argument.kind == "slot_stride":
        buffer = frame.kv[argument.target][0]
        return buffer.stride(0) * buffer.element_size()
    tensor = frame.read(argument.target)
    if argument.kind == "size":
        return tensor.shape[argument.axis]
    return tensor.stride(argument.axis) if argument.kind == "stride" else tensor


class Ours:
    """The launches of one plan on the tensors of one work."""

    def __init__(self, work: Work, plan: Plan, backend: Backend) -> None:
        self.work, self.plan, self.backend = work, plan, backend
        self.arena = Arena(plan, work.device)
        bound = [owner for owner, pool in plan.kv_pools.items() if pool.bound]
        self.kv = KvPools(plan, work.device, {owner: [kept.clone() for kept in work.kv[owner]] for owner in bound})
        self.kv.write_pointers(self.arena)
        pools = RelayPools(plan, self.arena)
        self.frame = Frame(plan, self.arena, pools, work.table, work.shape.batch, kv=self.kv.buffers)
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
            self.pool(name).copy_(pool)

    def launch(self, *names: str) -> None:
        """The launch of each name; without its number, the first."""
        for name in names:
            self.backend.launch(self.node(name), self.frame)

    def queueing(self, nodes: Sequence[Launch]) -> Callable[[], None]:
        """What queues these launches of a step."""

        def run() -> None:
            for node in nodes:
                self.backend.launch(node, self.frame)

        return run

    def node(self, name: str) -> Launch:
        """The launch node of a name in a step; without its number, the first."""
        return next(node for node in self.launches if name in (node.name, node.name.rstrip("0123456789").rstrip("_")))

    def step(self) -> None:
        """All launches of a step, in order, without the forwards."""
        for node in self.launches:
            self.backend.launch(node, self.frame)

    def pool(self, name: str) -> Tensor:
        """The P pool rows of a carried value."""
        return self.arena.buffer(f"relay.{name}")

    def observed_step(self) -> dict[str, Tensor]:
        """Run a step; what it decided, by the names that both sides use."""
        return observed(self._watched())

    def _watched(self) -> Iterator[tuple[str, Tensor]]:
        """What each forward would read when its turn comes, the results, and what is carried on."""
        for node in self.plan.nodes("step"):
            if isinstance(node, Launch):
                self.backend.launch(node, self.frame)
            else:
                operands = [(name, value) for name, value in node.operands.items() if name in READ]
                yield from ((f"{node.name}.{name}", self.frame.read(value)) for name, value in operands)
        results = [output for output in self.plan.outputs if output.entry == "step" and output.name != "health"]
        yield from ((output.name, self.frame.read(output.value)) for output in results)
        yield from ((f"relay.{name}", self.pool(name)[self.work.rows]) for name in self.work.pools)

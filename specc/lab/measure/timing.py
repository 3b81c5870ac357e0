"""Times on a GPU, only ever of two things side by side; nothing here is used without CUDA."""

from __future__ import annotations

import functools
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specc.compiler.codegen.aot import KernelSource, compile_kernels
from specc.compiler.codegen.cache import Cache
from specc.runtime.backends.cuda import LEGACY_STREAM, adopt_stream, device_arch, import_cuda_core

Run = Callable[[], None]
WARM_UPS = 3
"""Untimed runs before."""

EMPTY = """\
import triton


@triton.jit
def empty(x_ptr):
    pass
"""


@dataclass(frozen=True)
class Effort:
    """Repetitions of the work in one captured graph, and pairs of samples."""

    copies: int
    samples: int


def capture(run: Run, copies: int, warm_ups: int = WARM_UPS) -> torch.cuda.CUDAGraph:
    """A graph of `copies` repetitions of the work, which is run `warm_ups` times before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm_ups):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(copies):
            run()
    return graph


def elapsed(run: Run, before: Run) -> float:
    """Milliseconds of device time from before the first to after the last launch of `run`; `before` is not in it."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before()
    torch.cuda.synchronize()
    start.record()
    run()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def nothing() -> None:
    """No preparation."""


def pairs(
    first: Run, second: Run, samples: int, before: tuple[Run, Run] = (nothing, nothing)
) -> tuple[list[float], list[float]]:
    """Times of both, taken in turn, so that a slow moment of the machine meets both."""
    for _ in range(WARM_UPS):
        elapsed(first, before[0])
        elapsed(second, before[1])
    taken = [(elapsed(first, before[0]), elapsed(second, before[1])) for _ in range(samples)]
    return [former for former, _ in taken], [latter for _, latter in taken]


class Floors:
    """What a launch is held against: one that does nothing, or a copy that moves as many bytes."""

    def __init__(self, device: torch.device, effort: Effort) -> None:
        self._launch = empty_kernel(device)
        self._device, self._effort = device, effort

    def run(self, byte_counts: Sequence[int]) -> Run:
        """One launch or one copy for each count of bytes, whichever takes longer."""
        slower = {count: self._slower(count) for count in set(byte_counts)}

        def run() -> None:
            for count in byte_counts:
                slower[count]()

        return run

    def _slower(self, count: int) -> Run:
        source = torch.zeros(max(count // 2, 1), dtype=torch.uint8, device=self._device)
        target = torch.empty_like(source)

        def copy() -> None:
            target.copy_(source)

        launch, copied = (capture(part, self._effort.copies) for part in (self._launch, copy))
        launches, copies = pairs(launch.replay, copied.replay, self._effort.samples)
        return self._launch if statistics.median(launches) > statistics.median(copies) else copy


@functools.cache
def empty_kernel(device: torch.device) -> Run:
    """A launch of a kernel that does nothing, by the same path as specc's own."""
    arch = device_arch(device)
    source = KernelSource("empty_kernel", "empty", EMPTY, (("x_ptr", "*i32"),), (), frozenset(), 1, 1)
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder))
        compiled = compile_kernels([source], [arch], lib={}, cache=cache, workers=1, on_done=None)
    core, artifact = import_cuda_core(), compiled["empty_kernel", arch]
    core.Device(device.index).set_current()
    kernel = core.ObjectCode.from_cubin(artifact.binary).get_kernel(artifact.entry)
    config = core.LaunchConfig(grid=(1, 1, 1), block=(32, 1, 1), shmem_size=0)
    nulls = [0] * len(artifact.parameters)
    streams: dict[int, Any] = {}

    def launch() -> None:
        handle = int(torch.cuda.current_stream(device).cuda_stream) or LEGACY_STREAM
        if handle not in streams:
            streams[handle] = adopt_stream(core, device.index, handle)
        core.launch(streams[handle], config, kernel, *nulls)

    return launch

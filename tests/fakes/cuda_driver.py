"""A CUDA driver that only writes down what it is told, and invented machine code for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from specc.runtime.plan.files.manifest import Artifact, Assembler, Manifest
from specc.runtime.plan.plan import Plan

DEVICE = torch.device("cuda", 1)


ASSEMBLER = Assembler("13.4.59", 13000)


@dataclass
class FakeKernel:
    code: bytes
    entry: str
    handle: str = "handle"


@dataclass
class Driver:
    """Records launches and attributes."""

    launches: list[tuple[Any, Any, FakeKernel, tuple[Any, ...]]] = field(default_factory=list)
    shared: list[tuple[Any, ...]] = field(default_factory=list)
    configs: int = 0
    version: tuple[int, int] = (0, 13000)
    """What `cuDriverGetVersion` returns: an error and the version."""
    streams: list[int] = field(default_factory=list)

    def launch(self, stream: Any, config: Any, kernel: FakeKernel, *arguments: Any) -> None:
        self.launches.append((stream, config, kernel, arguments))

    def config(self, **fields: Any) -> SimpleNamespace:
        self.configs += 1
        return SimpleNamespace(**fields)

    def adopt(self, handle: int) -> str:
        """A stream object for a foreign handle."""
        self.streams.append(handle)
        return f"stream {handle}"

    def module(self, name: str) -> ModuleType:
        module = ModuleType(name)
        code = SimpleNamespace(
            from_cubin=lambda code: SimpleNamespace(get_kernel=lambda entry: FakeKernel(code, entry))
        )
        module.__dict__.update(ObjectCode=code, LaunchConfig=self.config, launch=self.launch)
        module.__dict__["Device"] = lambda index: SimpleNamespace(set_current=lambda: None)
        module.__dict__["Stream"] = SimpleNamespace(from_handle=self.adopt)
        return module

    def bindings(self) -> ModuleType:
        driver = SimpleNamespace(
            CUfunction_attribute=SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="max"),
            CUresult=SimpleNamespace(CUDA_SUCCESS=0),
            CUdevice=lambda index: ("device", index),
            cuDriverGetVersion=lambda: self.version,
            cuKernelSetAttribute=lambda *arguments: (self.shared.append(arguments), (0,))[1],
        )
        module = ModuleType("cuda.bindings.driver")
        module.__dict__.update(vars(driver))
        return module


def artifacts(plan: Plan, root: Path, arch: str = "sm_90", shared: int = 0, hidden: int = 2) -> Manifest:
    """Files of invented machine code, and the manifest that lists them."""
    listed = []
    for name, kernel in plan.kernels.items():
        (root / f"{name}.cubin").write_bytes(name.encode())
        types = (*(kind for _, kind in kernel.arguments), *(["*i8"] * hidden))
        listed.append(Artifact(name, arch, "cubin", f"{name}.cubin", f"entry_{name}", 8, shared, types))
    return Manifest("toy", "0", "0", "0", "3.9.0", 1, "2.11", (arch,), {}, tuple(listed), {}, {arch: ASSEMBLER})

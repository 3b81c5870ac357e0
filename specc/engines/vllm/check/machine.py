"""The machine that vLLM finds when this is imported before it: one with GPUs of which nothing is run.

So that its arguments and configuration become what they are there, on any machine. Libraries for GPUs that cannot be
loaded here say yes to every question. Classes of models are looked at in this process: vLLM starts another one for
each, which finds no such GPU, and keeps what that has found for all releases in one place.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from types import ModuleType
from typing import Any, ClassVar

kept = tempfile.TemporaryDirectory()
"""What vLLM keeps of classes of models, and of everything else."""
os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_CACHE_ROOT": kept.name, "VLLM_NO_USAGE_STATS": "1"}
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
NAMES = {"sm_80": "NVIDIA A100-SXM4-80GB", "sm_90": "NVIDIA H100 80GB HBM3"}
"""What CUDA calls the usual GPU of an architecture, where vLLM asks for it."""
LIBRARIES = ("_C_stable_libtorch", "_moe_C_stable_libtorch", "vllm_flash_attn", "vllm_flash_attn.flash_attn_interface")


class Library(ModuleType):
    """A library of vLLM's for GPUs: it has everything."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        """Return something that says yes."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: True


def _are_missing() -> bool:
    """Whether vLLM's libraries for GPUs cannot be loaded on this machine."""
    try:
        importlib.import_module(f"vllm.{LIBRARIES[0]}")
    except (ImportError, OSError):
        return True
    return False


missing = _are_missing()
for library in LIBRARIES if missing else ():
    sys.modules[f"vllm.{library}"] = Library(f"vllm.{library}")
cuda: Any = importlib.import_module("vllm.platforms.cuda")


class GpuMachine(cuda.CudaPlatformBase):
    """Eight GPUs of an architecture."""

    arch: ClassVar[str] = "sm_90"
    memory: ClassVar[int] = 80
    """In GiB."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> Any:
        """Return that in the name of the architecture."""
        return cuda.DeviceCapability(*divmod(int(cls.arch.removeprefix("sm_")), 10))

    @classmethod
    def has_device_capability(cls, capability: Any, device_id: int = 0) -> bool:
        """Return whether the architecture is as new."""
        wanted = capability if isinstance(capability, int) else 10 * capability[0] + capability[1]
        return int(cls.arch.removeprefix("sm_")) >= wanted

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """Return what CUDA calls it."""
        return NAMES.get(cls.arch, cls.arch)

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Return its bytes."""
        return cls.memory << 30

    @classmethod
    def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
        """Return that they are."""
        return True

    @classmethod
    def device_count(cls) -> int:
        """Return how many a usual host has."""
        return 8


platforms: Any = importlib.import_module("vllm.platforms")
platforms._current_platform = GpuMachine()
custom: Any = importlib.import_module("vllm._custom_ops")
for kernel in [name for name in dir(custom) if "_supports_" in name] if missing else ():
    setattr(custom, kernel, lambda *_: True)
registry: Any = importlib.import_module("vllm.model_executor.models.registry")
registry._run_in_subprocess = lambda look: look()

"""A driver that is there."""

from __future__ import annotations

from triton.backends.driver import DriverBase


class CpuDriver(DriverBase):
    """The driver of the machine's own processor; says what tensors live on and nothing else."""

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_active_torch_device(self):
        import torch

        return torch.device("cpu")

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError

    def get_current_target(self):
        raise NotImplementedError

    def get_benchmarker(self):
        raise NotImplementedError

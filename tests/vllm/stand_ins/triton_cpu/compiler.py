"""A compiler that compiles for nothing."""

from __future__ import annotations

from triton.backends.compiler import BaseBackend, GPUTarget


class CpuBackend(BaseBackend):
    """Every method is one that Triton asks for when it compiles."""

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return False

    def hash(self) -> str:
        raise NotImplementedError

    parse_options = add_stages = load_dialects = get_module_map = hash

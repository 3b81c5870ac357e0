"""check-resources: registers, shared memory and spills of the machine code, within what the target allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from specc.compiler.config.archs import SHARED_BYTES
from specc.compiler.ir.core import Module
from specc.compiler.ir.declarations import Kernel
from specc.compiler.kernels import FAMILIES
from specc.compiler.pass_manager.options import SIZE
from specc.compiler.pass_manager.pass_base import Context, Pass
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError


@dataclass(frozen=True)
class CheckResources(Pass):
    """Refuse kernels that spill or ask for more shared memory than a block can get.

    Attributes:
        max_spills: bytes of spills per thread that are accepted besides those of a kernel's family.
        max_shared: bytes of shared memory per block that are accepted; 0: as many as the architecture has.

    """

    max_spills: Annotated[int, SIZE] = 0
    max_shared: Annotated[int, SIZE] = 0

    name = "check-resources"
    requires = frozenset({"clustered"})
    establishes = frozenset({"resources-checked"})
    until = "resources-checked"

    def run(self, module: Module, ctx: Context) -> None:
        """Hold what the compiled kernels take against the limits."""
        findings: list[Diagnostic] = []
        if not ctx.resources:
            self.remark(ctx, "no machine code: nothing to check")
        accepted = {kernel.name: FAMILIES[kernel.family].spills for kernel in module.decls_of(Kernel)}
        for (kernel, arch), used in sorted(ctx.resources.items()):
            launch = kernel if kernel in accepted else kernel.rpartition("_of_")[0]  # of one of several shapes
            if used.spills > self.max_spills + accepted.get(launch, 0):
                findings.append(
                    Diagnostic("kernel/resources", f"{kernel} on {arch} spills {used.spills} bytes per thread")
                )
            if used.shared > (self.max_shared or SHARED_BYTES[arch]):
                findings.append(
                    Diagnostic("kernel/resources", f"{kernel} on {arch} needs {used.shared} bytes of shared memory")
                )
            self.remark(
                ctx, f"{kernel} on {arch}: {used.registers} registers, {used.spills} B spilled, {used.shared} B shared"
            )
        if findings:
            raise DiagnosticError(findings)
        module.decls += [ctx.resources[key] for key in sorted(ctx.resources)]

"""`specc bench`: one shape of a program on the GPU at hand, or what is known of it without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from specc.compiler.driver.build import Build
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.lab.measure.backends import cuda_backend
from specc.lab.measure.host import launch_costs
from specc.lab.measure.results.records import Measurement
from specc.lab.measure.session import on
from specc.lab.measure.steps import OnDone, known, measured
from specc.runtime.backends import Backend
from specc.runtime.backends.cuda import CudaBackend, device_arch
from specc.runtime.capabilities.brought import load_ops
from specc.runtime.errors import SpeccError
from specc.runtime.plan.files.manifest import Manifest
from specc.runtime.plan.files.plan_json import load_plans
from specc.runtime.plan.plan import Plan
from specc.version import __version__


def here() -> torch.device | None:
    """The CUDA GPU that is measured; None without one."""
    if torch.version.hip or not torch.cuda.is_available():
        return None
    return torch.device("cuda", torch.cuda.current_device())


def backend_of(build: Build | Path, folder: Path, device: torch.device) -> Backend:
    """The machine code of a build for the device, compiled by way of a folder, or of a program's package, loaded.

    Raises:
        DiagnosticError: a kernel does not compile, or ``run/wheel-unusable``: the package has no code for the device.

    """
    if isinstance(build, Build):
        return cuda_backend(build, folder, device)
    try:
        manifest = Manifest.read(build)
        manifest.check_torch(torch.__version__)
        plans = [*load_plans(build, manifest).values()]
        return CudaBackend(plans, manifest, build, device, load_ops(plans, manifest, build))
    except SpeccError as error:
        raise DiagnosticError(Diagnostic("run/wheel-unusable", f"cannot load '{build.name}': {error}")) from error


def unmeasured(plan: Plan, buckets: Sequence[int], versions: Mapping[str, str]) -> Measurement:
    """What a plan says of its steps."""
    return Measurement(plan.name, plan.algorithm, str(plan.shape), None, None, versions, known(plan, buckets))


def measure(
    plan: Plan,
    backend: Backend,
    device: torch.device,
    buckets: Sequence[int],
    versions: Mapping[str, str],
    on_done: OnDone,
) -> Measurement:
    """Every launch of a step, and the step, in some buckets; and what launches of graphs cost the host."""
    figures = measured(plan, backend, device, buckets, on_done)
    with on(device):
        host = launch_costs(device)
    on_done("launches of graphs")
    gpu, arch = torch.cuda.get_device_name(device), device_arch(device)
    return Measurement(plan.name, plan.algorithm, str(plan.shape), gpu, arch, versions, figures, host)


def versions_of(triton: str | None) -> dict[str, str]:
    """What was measured with; ``triton`` compiled the kernels."""
    versions = {"specc": __version__, "torch": torch.__version__}
    return (
        versions | ({"triton": triton} if triton else {}) | ({"cuda": torch.version.cuda} if torch.version.cuda else {})
    )

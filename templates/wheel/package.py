"""A decode step of speculative decoding, compiled by specc: `load` it, `bind` an engine's forwards, `decode`.

The README of this distribution shows how. Importing the package is cheap: torch is imported by `load`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ._runtime import (
        AcceptanceDepth,
        Batch,
        BatchError,
        BindError,
        Carry,
        CarryError,
        CollectiveError,
        DamagedWheelError,
        DepthPolicy,
        FieldError,
        FixedDepth,
        Forward,
        ForwardContractError,
        GroupCollective,
        HostResult,
        Manifest,
        MissingFieldError,
        Plan,
        PlanError,
        Program,
        RecordError,
        RecordLayout,
        Sampling,
        SamplingError,
        SchemaMismatchError,
        SpeccError,
        Step,
        StepResult,
        TornError,
        UnsupportedDeviceError,
        UnsupportedTorchError,
        check_peer,
        faults,
        schema,
        schema_digest,
    )

    __version__: str
    plan: Plan
    manifest: Manifest

__all__ = [
    "AcceptanceDepth",
    "Batch",
    "BatchError",
    "BindError",
    "Carry",
    "CarryError",
    "CollectiveError",
    "DamagedWheelError",
    "DepthPolicy",
    "FieldError",
    "FixedDepth",
    "Forward",
    "ForwardContractError",
    "GroupCollective",
    "HostResult",
    "Manifest",
    "MissingFieldError",
    "Plan",
    "PlanError",
    "Program",
    "RecordError",
    "RecordLayout",
    "Sampling",
    "SamplingError",
    "SchemaMismatchError",
    "SpeccError",
    "Step",
    "StepResult",
    "TornError",
    "UnsupportedDeviceError",
    "UnsupportedTorchError",
    "__version__",
    "check_peer",
    "faults",
    "load",
    "manifest",
    "plan",
    "schema",
    "schema_digest",
]

_ROOT = Path(__file__).parent


def load(device: str | torch.device = "cuda", *, verify: bool = True) -> Program:
    """Load the program onto a device; compiles nothing.

    Args:
        device: `cuda`, `cuda:1`, ... or `cpu` for the torch reference backend.
        verify: compare every file with its digest first.

    Raises DamagedWheelError, UnsupportedTorchError or UnsupportedDeviceError.
    """
    from ._runtime.plan.manifest import Manifest

    if verify:  # before anything else is imported: a damaged runtime must not show as some other error
        Manifest.read(_ROOT).verify(_ROOT)
    from ._runtime.program import load as load_program

    return load_program(_ROOT, device, verify=False)


def __getattr__(name: str) -> Any:
    """Resolve the public names when they are first used: the plan, the manifest, and the runtime's classes."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "plan":
        from ._runtime.plan.plan_json import load_plan

        value: Any = load_plan(_ROOT)
    elif name in ("manifest", "__version__"):
        from ._runtime.plan.manifest import Manifest

        found = Manifest.read(_ROOT)
        value = found if name == "manifest" else found.version
    else:
        value = getattr(importlib.import_module("._runtime", __name__), name)
    globals()[name] = value
    return value

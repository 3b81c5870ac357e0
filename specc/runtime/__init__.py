"""The runtime of a generated program: load it, bind an engine's forwards to it, step.

This folder is copied as it is into every generated wheel. It imports the standard library, torch and, on CUDA,
`cuda.core`. Importing it alone imports none of them: names are resolved when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batch import Batch
    from .collective import Collective, GroupCollective
    from .depth import AcceptanceDepth, DepthPolicy, FixedDepth
    from .errors import (
        BatchError,
        BindError,
        CarryError,
        CollectiveError,
        DamagedWheelError,
        FieldError,
        ForwardContractError,
        MissingFieldError,
        PlanError,
        RecordError,
        SamplingError,
        SchemaMismatchError,
        SpeccError,
        TornError,
        UnsupportedDeviceError,
        UnsupportedDriverError,
        UnsupportedTorchError,
    )
    from .external import Forward
    from .graphs.capture import Replays
    from .health import faults
    from .memory.footprint import Memory
    from .plan.manifest import Manifest
    from .plan.plan import Plan
    from .program import Program, load
    from .result import HostCopy, HostPrefill, HostProposal, HostResult, PrefillResult, ProposeResult, Score, StepResult
    from .rotated import RotatedStep
    from .sampling import Sampling
    from .state.carry import Carry
    from .state.peer import check_peer, schema, schema_digest
    from .state.transfer import RecordField, RecordLayout
    from .step import Step

_HOMES = {
    "batch": ("Batch",),
    "graphs.capture": ("Replays",),
    "state.carry": ("Carry",),
    "collective": ("Collective", "GroupCollective"),
    "depth": ("AcceptanceDepth", "DepthPolicy", "FixedDepth"),
    "errors": (
        "BatchError",
        "BindError",
        "CarryError",
        "CollectiveError",
        "DamagedWheelError",
        "FieldError",
        "ForwardContractError",
        "MissingFieldError",
        "PlanError",
        "RecordError",
        "SamplingError",
        "SchemaMismatchError",
        "SpeccError",
        "TornError",
        "UnsupportedDeviceError",
        "UnsupportedDriverError",
        "UnsupportedTorchError",
    ),
    "external": ("Forward",),
    "health": ("faults",),
    "plan.manifest": ("Manifest",),
    "memory.footprint": ("Memory",),
    "state.peer": ("check_peer", "schema", "schema_digest"),
    "plan.plan": ("Plan",),
    "program": ("Program", "load"),
    "result": (
        "HostCopy",
        "HostPrefill",
        "HostProposal",
        "HostResult",
        "PrefillResult",
        "ProposeResult",
        "Score",
        "StepResult",
    ),
    "rotated": ("RotatedStep",),
    "sampling": ("Sampling",),
    "step": ("Step",),
    "state.transfer": ("RecordField", "RecordLayout"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AcceptanceDepth",
    "Batch",
    "BatchError",
    "BindError",
    "Carry",
    "CarryError",
    "Collective",
    "CollectiveError",
    "DamagedWheelError",
    "DepthPolicy",
    "FieldError",
    "FixedDepth",
    "Forward",
    "ForwardContractError",
    "GroupCollective",
    "HostCopy",
    "HostPrefill",
    "HostProposal",
    "HostResult",
    "Manifest",
    "Memory",
    "MissingFieldError",
    "Plan",
    "PlanError",
    "PrefillResult",
    "Program",
    "ProposeResult",
    "RecordError",
    "RecordField",
    "RecordLayout",
    "Replays",
    "RotatedStep",
    "Sampling",
    "SamplingError",
    "SchemaMismatchError",
    "Score",
    "SpeccError",
    "Step",
    "StepResult",
    "TornError",
    "UnsupportedDeviceError",
    "UnsupportedDriverError",
    "UnsupportedTorchError",
    "check_peer",
    "faults",
    "load",
    "schema",
    "schema_digest",
]


def __getattr__(name: str) -> Any:
    """Import the module that defines `name`."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    """The public names, whether they have been imported yet or not."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})

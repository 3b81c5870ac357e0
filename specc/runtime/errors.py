"""Errors that a generated program raises. All derive from `SpeccError`."""

from __future__ import annotations


class SpeccError(Exception):
    """Base of every error raised by a generated program."""


class PlanError(SpeccError):
    """The plan contradicts itself or this runtime: a fault of the compiler, not of the caller."""


class DamagedWheelError(SpeccError):
    """A file of the wheel is missing or its digest differs from the manifest's."""


class UnsupportedDeviceError(SpeccError):
    """The wheel holds no machine code for this device, or the device cannot be driven."""


class UnsupportedTorchError(SpeccError):
    """The installed torch is older than the program needs."""


class BindError(SpeccError):
    """The callbacks, `req_to_token` or the KV buffers do not fit the plan."""


class BatchError(SpeccError):
    """A batch the program cannot run: rows or lengths out of range, or too many requests."""


class ForwardContractError(SpeccError):
    """A callback returned something other than what the plan says it returns."""


class CarryError(SpeccError):
    """Carries whose fields, widths, dtypes or row counts do not fit together."""

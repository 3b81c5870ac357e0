"""Errors that a generated program raises. All derive from `SpeccError`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


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


class UnsupportedDriverError(SpeccError):
    """The GPU's driver is older than the machine code for it needs."""


class LackingError(SpeccError, AttributeError):
    """Something that only some programs have, and this one was built without; the message says what asks for it."""


class BindError(SpeccError):
    """The callbacks, `req_to_token` or the KV buffers do not fit the plan."""


class BatchError(SpeccError):
    """A batch the program cannot run: rows or lengths out of range, or too many requests."""


class SamplingError(SpeccError):
    """How a request is sampled is out of range, or nothing that the program was built with, or was not said."""


class TornError(BatchError):
    """Pool rows that a call which raised has left halfway: prefill them again, or write their carry.

    Attributes:
        rows: which they are, ascending.

    """

    def __init__(self, rows: Sequence[int]) -> None:
        """Of `rows`."""
        super().__init__(tuple(rows))
        self.rows = tuple(rows)

    def __str__(self) -> str:
        """The sentence."""
        named = f"row {self.rows[0]} is" if len(self.rows) == 1 else f"rows {', '.join(map(str, self.rows))} are"
        return f"pool {named} torn: a call that failed wrote part of the state; prefill again, or write the carry"


class ForwardContractError(SpeccError):
    """A callback returned something other than what the plan says it returns."""


class CollectiveError(SpeccError):
    """The ranks of a program with sharded logits could not gather their records: one is gone, or did not come."""


class StepTimesError(SpeccError):
    """A file of step times that cannot be read, or is of another program."""


class CarryError(SpeccError):
    """Carries whose fields, widths, dtypes or row counts do not fit together."""


class FieldError(CarryError):
    """A carried field of one request that the program does not know, of another dtype or shape, or with wrong values.

    Attributes:
        request: its id, or the pool row that it was to be written to.
        field: name of the field.
        problem: what is wrong with it.

    """

    def __init__(self, request: Hashable, field: str, problem: str) -> None:
        """`problem` continues a sentence that the field starts."""
        super().__init__(request, field, problem)
        self.request = request
        self.field = field
        self.problem = problem

    def __str__(self) -> str:
        """The sentence."""
        return f"request {self.request!r}: field {self.field!r} {self.problem}"


class MissingFieldError(FieldError):
    """A request without one of the fields that the program carries."""


class RecordError(SpeccError):
    """Bytes that are not a record of the program, or a damaged one.

    Attributes:
        request: id of the request, or number of the record; None when it is about all of them.

    """

    def __init__(self, message: str, request: Hashable = None) -> None:
        """Say `message`."""
        super().__init__(message, request)
        self.request = request

    def __str__(self) -> str:
        """The message alone."""
        return str(self.args[0])


class SchemaMismatchError(SpeccError):
    """The programs of two machines do not agree on what moves from one to the other."""

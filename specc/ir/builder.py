"""Building ops one line at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from specc.ir.core import Attr, Module, Value
from specc.ir.ops import OPS
from specc.support.location import Location


class Builder:
    """Appends ops to a phase of a module; types are left to ``infer-types``.

    ``b("vocab.argmax", logits, rows, dtype="i64", names=("token", "bad"))`` returns the result, or a tuple when the op
    has several. Results are named after the op's result slots unless ``names`` says otherwise.
    """

    def __init__(self, module: Module, location: Location | None = None) -> None:
        self.module = module
        self.location = location
        self._phase = "prepare"

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Ops built inside go to this phase."""
        before, self._phase = self._phase, name
        yield
        self._phase = before

    @contextmanager
    def at(self, location: Location | None) -> Iterator[None]:
        """Ops built inside come from this place of the configuration."""
        before, self.location = self.location, location
        yield
        self.location = before

    def __call__(self, opcode: str, *operands: Value, names: tuple[str, ...] = (), **attrs: Attr) -> Value:
        """Build an op with exactly one result."""
        (value,) = self.many(opcode, *operands, names=names, **attrs)
        return value

    def many(self, opcode: str, *operands: Value, names: tuple[str, ...] = (), **attrs: Attr) -> tuple[Value, ...]:
        """Build an op; return all its results."""
        slots = OPS[opcode].results
        chosen = names or tuple(slot.name for slot in slots)
        op = self.module.add_op(self._phase, opcode, operands, [(name, None) for name in chosen], attrs, self.location)
        return op.results

"""Building ops one line at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from specc.compiler.ir.checker import check_form
from specc.compiler.ir.core import PHASES, Attr, Module, Value
from specc.compiler.ir.ops import OPS
from specc.compiler.support.location import Location
from specc.compiler.support.suggest import did_you_mean


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
        """Ops built inside go to this phase; ValueError if there is none of that name."""
        if name not in PHASES:
            raise ValueError(f"there is no phase {name!r}: {did_you_mean(name, PHASES)}")
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
        """Build an op with exactly one result; raises as `many`, and ValueError for an op with more or none."""
        results = self.many(opcode, *operands, names=names, **attrs)
        if len(results) != 1:
            raise ValueError(f"{opcode} has {len(results)} results: build it by many()")
        return results[0]

    def many(self, opcode: str, *operands: Value, names: tuple[str, ...] = (), **attrs: Attr) -> tuple[Value, ...]:
        """Build an op; return all its results.

        Raises:
            TypeError: an operand is no value.
            ValueError: there is no such op, it has other attributes or results, or its field is not carried.

        """
        if opcode not in OPS:
            raise ValueError(f"there is no op {opcode!r}: {did_you_mean(opcode, OPS)}")
        for index, value in enumerate(operands):
            if not isinstance(value, Value):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"operand {index} of {opcode} is of type {type(value).__name__}, not a value")
        if "field" in (OPS[opcode].attrs or {}) and attrs.get("field") not in self.module.carries:
            raise ValueError(f"{opcode}: nothing named {attrs.get('field')!r} is carried, see Scope.carry")
        slots = OPS[opcode].results
        chosen = names or tuple(slot.name for slot in slots)
        op = self.module.add_op(self._phase, opcode, operands, [(name, None) for name in chosen], attrs, self.location)
        if problems := check_form(op):
            raise ValueError("; ".join(problems))
        return op.results

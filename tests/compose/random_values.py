"""The values of a random module: what is known of them, which of them fit an op, and forwards that give any."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple

from specc.compiler.ir.builder import Builder
from specc.compiler.ir.core import NODE, Attr, CarriedValue, Module, Value, is_state, on_nodes, tensor_type
from specc.compiler.ir.infer import assign_types
from specc.compiler.ir.opdef import OpDef
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.types import TensorType

SOURCE = OpDef(
    "model.source",
    "rows: i64[B], reads*: ? -> gives*: ?",
    "A forward of a test: anything is read, anything is given.",
    {"gives": str, "capture": str, "step": int},
    effect="external",
)
LONGEST, COLUMNS = 40, 128
"""Committed lengths are below the first; rows of the request table have as many columns as the second."""
FLOATS = ("f32", "f16", "bf16")


class Fact(NamedTuple):
    """What is known of a value besides its type.

    kind: ``rows``, ``lens``, ``path`` and ``count`` (accepted nodes, how many), ``parent``, ``kept``, ``slots``,
    ``token`` (below every vocabulary), ``scale`` (finite, not below 0), or nothing.
    axis: of a path and a parent, the axis that its numbers count along.
    most: of lengths, the largest.
    pair: of a count, the path that is as long.
    rough: it comes from a sum whose order is free, or from a logarithm.
    """

    kind: str = ""
    axis: str = ""
    most: int = 0
    pair: Value | None = None
    rough: bool = False


class Unfit(Exception):
    """The values that there are do not fit an op."""


class Values(Builder):
    """Builds ops on values that there are. Methods raise `Unfit` where none fits."""

    def __init__(self, rng: random.Random, module: Module) -> None:
        super().__init__(module)
        self.rng, self.chain = rng, module.size("K") == 1
        self.facts: dict[Value, Fact] = {}
        self.fields: dict[str, Fact] = {}
        self.here: list[Value] = []
        self.nodes = "A" if self.chain else NODE
        self.sources = 0
        self.blocks = "block_table" in module.inputs
        self.table = module.inputs["block_table" if self.blocks else "req_to_token"]
        self.stored, self.loaded, self.again = set[str](), set[str](), dict[str, Fact]()
        self.states: dict[str, Value | None] = {}

    @property
    def _late(self) -> bool:
        """Whether ops may read rows of the path only."""
        return self._phase in ("commit", "extend")

    def _only(self, *, chain: bool) -> None:
        if self.chain != chain:
            raise Unfit

    # --- picking ---------------------------------------------------------------------------------------------

    def fact(self, value: Value) -> Fact:
        """What is known of a value."""
        return self.facts.get(value, Fact())

    def pick(self, fits: Callable[[TensorType, Fact], bool]) -> Value:
        """A value that fits, rather a late one."""
        fitting = [
            value for value in self.here if not tensor_type(value).of and fits(tensor_type(value), self.fact(value))
        ]
        if not fitting:
            raise Unfit
        return fitting[max(self.rng.randrange(len(fitting)), self.rng.randrange(len(fitting)))]

    def of(self, dtype: str, *shape: str | int) -> Value:
        """A value of a type, perhaps one that a forward gives for it."""
        type_ = TensorType(dtype, shape)
        try:
            return self.pick(lambda candidate, _: candidate == type_)
        except Unfit:
            return self._asked("asked", type_, Fact())

    def kind(self, kind: str, axis: str = "") -> Value:
        """A value of a kind, perhaps one that a forward gives for it."""
        try:
            return self.pick(lambda _, fact: (fact.kind, fact.axis) == (kind, axis))
        except Unfit:
            if kind != "kept":
                raise
            return self._asked(kind, TensorType("i64", ("B", "K")), Fact(kind))

    def _asked(self, name: str, type_: TensorType, fact: Fact) -> Value:
        if self._late or self.rng.random() < 0.5:
            raise Unfit
        self._forward([], [(name, type_, fact)])
        return self.here[-1]

    def rows(self) -> Value:
        """Pool rows."""
        return self.kind("rows")

    def lens(self, most: int = 1 << 30) -> Value:
        """Lengths up to a largest."""
        return self.pick(lambda _, fact: fact.kind == "lens" and fact.most <= most)

    def make(self, opcode: str, *operands: Value, facts: Iterable[Fact] = (), **attrs: Attr) -> tuple[Value, ...]:
        """Build an op; its tensors are there from now on, and what it replaces is not."""
        results = self.many(opcode, *operands, **attrs)
        self._typed(results, facts)
        if OPS[opcode].inplace:
            self.here.remove(operands[0])
        return results

    def _typed(self, results: tuple[Value, ...], facts: Iterable[Fact]) -> None:
        assign_types(self.module, self.module.phases[self._phase][-1])
        self.here += [value for value in results if not is_state(value)]
        self.facts |= dict(zip(results, facts, strict=False))

    def replaced(self, fits: Callable[[TensorType, Fact], bool]) -> Value:
        """A value that an op in place may replace: one in memory of the program's own."""

        def own(value: Value) -> bool:
            return value.source is not None and value.source.opcode != SOURCE.name

        replaceable = [value for value in self.here if own(value) and fits(tensor_type(value), self.fact(value))]
        if not replaceable:
            raise Unfit
        return self.rng.choice(replaceable)

    def _unfit(self) -> Value:
        raise Unfit

    # --- sources ---------------------------------------------------------------------------------------------

    def source(self) -> None:
        """A forward that reads some values, and gives logits, hidden rows or numbers of any kind."""
        there = [value for value in self.here if not (self._late and on_nodes(value))]
        reads = self.rng.sample(there, min(len(there), self.rng.randint(0, 3)))
        self._forward(reads, [self._given() for _ in range(self.rng.randint(1, 3))])

    def _forward(self, reads: list[Value], gives: list[tuple[str, TensorType, Fact]]) -> None:
        gives = [pair for given in gives for pair in self._with_count(*given)]
        text = ", ".join(f"{name}{i}: {type_}" for i, (name, type_, _) in enumerate(gives))
        names = tuple(f"{name}{i}_{self.sources}" for i, (name, _, _) in enumerate(gives))
        rows = self.module.inputs["req_pool_indices"]
        results = self.many(
            SOURCE.name,
            rows,
            *reads,
            names=names,
            gives=text,
            capture="null",
            step=self.sources,
        )
        self.sources += 1
        self._typed(results, [fact for _, _, fact in gives])
        for path, count in pairwise(results):
            if self.fact(count).kind == "count":
                self.facts[count] = Fact("count", pair=path)

    def _with_count(self, name: str, type_: TensorType, fact: Fact) -> list[tuple[str, TensorType, Fact]]:
        given = [(name, type_, fact)]
        return [*given, ("count", TensorType("i32", ("B",)), Fact("count"))] if fact.kind == "path" else given

    def _given(self) -> tuple[str, TensorType, Fact]:
        """A name, a type and a kind."""
        rng, nodes = self.rng, "A" if self._late else self.nodes
        path, axes = rng.choice(["A", self.nodes]), rng.choice([(), ("K",), (nodes,), ("A",), ("S",)])
        floats = rng.choice(FLOATS)
        choices: list[tuple[str, TensorType, Fact]] = [
            ("logits", TensorType(floats, ("B", *axes, rng.choice(["V", "Vd"]))), Fact()),
            ("logits", TensorType(floats, ("B", *axes, rng.choice(["V", "Vd"]))), Fact()),
            ("hidden", TensorType(floats, ("B", *axes, rng.randint(1, 40))), Fact()),
            ("extra", TensorType(rng.choice(["i32", "i64", "u8"]), ("B", *axes, rng.randint(1, 3))), Fact()),
            ("tokens", TensorType("i64", ("B", *(axes or ("K",)))), Fact("token")),
            ("ids", TensorType("i32", ("B", *axes)), Fact("token")),
            ("path", TensorType("i32", ("B", "A")), Fact("path", path)),
            ("parent", TensorType("i64", ("B", nodes)), Fact("parent", nodes)),
            ("text", TensorType("i32", ("B", rng.randint(3, 60))), Fact("token")),
            ("flag", TensorType("i1", ("B", *axes)), Fact()),
            ("heat", TensorType("f32", ("B", *axes)), Fact()),
            ("mass", TensorType("f32", ("B", *axes, 3)), Fact()),
        ]
        if not self.chain:
            choices += [
                ("kept", TensorType("i64", ("B", "K")), Fact("kept")),
                ("scores", TensorType("f32", ("B", "K")), Fact()),
                ("scores", TensorType("f32", ("B", "K", "K")), Fact()),
                ("numbers", TensorType("i64", ("B", "K", "K")), Fact("token")),
            ]
        return rng.choice(choices)

    def load(self) -> None:
        """A carried field, of any type that a forward could give; lengths as well."""
        name, type_, fact = self._given()
        if fact.kind == "path" or on_nodes(Value("", type_)):
            raise Unfit
        if self.rng.random() < 0.2:
            name, type_, fact = "lens", TensorType("i64", ("B",)), Fact("lens", most=LONGEST)
        known = [name for name in self.fields if name not in self.loaded]
        chosen = self.rng.choice(known) if known and self.rng.random() < 0.5 else self.field(name, type_, fact)
        self.loaded.add(chosen)
        self.make("carry.load", self.rows(), field=chosen, facts=[self.fields[chosen]])

    def field(self, name: str, type_: TensorType, fact: Fact) -> str:
        """A new carried field, perhaps one in a table of the engine's, whose rows may be apart."""
        name, table = f"{name}_{len(self.fields)}", self.rng.choice(["", "program"])
        self.module.carries[name], self.fields[name] = CarriedValue(name, type_, kept=True, table=table), fact
        return name

    def _table(self, dtype: str, vocab: str | int) -> str:
        """A new field with a number of every token."""
        return self.field("table", TensorType(dtype, ("B", vocab)), Fact())
